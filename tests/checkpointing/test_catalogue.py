"""The one file of what is known of a job's checkpoints: read by all, written by one, whole after every kill."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpointing.catalogue import FILE_NAME, CheckpointCatalogue
from checkpointing.io import durable, row_file
from checkpointing.io.row_file import RowTable
from checkpointing.manifest import documents
from checkpointing.manifest.documents import MOST_DIGEST_BYTES, About, File, Manifest, Manifests
from checkpointing.model import Identity

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Seen:
    """A row as the records have them."""

    path: str
    identity: Identity
    reason: str = ""
    step: int | None = None


SEEN = RowTable("seen", Seen, lambda row: row.path)
OTHER = RowTable("other", Seen, lambda row: row.path)


def row(path: str, step: int = 0) -> Seen:
    return Seen(path, Identity(1, 2, 3, 2**63 - 1), "why", step)


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., CheckpointCatalogue]:
    return lambda *, is_writer=False: CheckpointCatalogue(tmp_path, is_writer=is_writer)


def test_the_newest_row_of_a_key_counts_for_every_reader_and_after_a_restart(opened: Callable[..., CheckpointCatalogue]) -> None:
    writer, reader = opened(is_writer=True), opened()
    assert (writer.all(SEEN), reader.get(SEEN, "/a")) == ((), None)
    assert writer.put(SEEN, row("/a", 1), row("/b", 2))
    assert reader.all(SEEN) == (row("/a", 1), row("/b", 2))
    writer.put(SEEN, row("/a", 3))
    writer.put(OTHER, row("/a", 4))
    assert writer.remove(SEEN, "/b", "/c")
    assert not writer.remove(SEEN, "/c")
    for catalogue in (writer, reader, opened(), opened(is_writer=True)):
        assert catalogue.all(SEEN) == (row("/a", 3),)
        assert (catalogue.get(OTHER, "/a"), catalogue.get(SEEN, "/b")) == (row("/a", 4), None)
        assert catalogue.problem is None


def test_a_path_that_is_no_utf_8_is_a_key_as_any_other(opened: Callable[..., CheckpointCatalogue]) -> None:
    path = os.fsdecode(b"/ckpt/\xff\xfe step.pt")
    opened(is_writer=True).put(SEEN, row(path))
    assert opened().get(SEEN, path) == row(path)


def test_a_file_that_was_compacted_is_read_anew_and_stays_small(
    opened: Callable[..., CheckpointCatalogue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_file, "_SLACK_BYTES", 4096)
    writer, reader = opened(is_writer=True), opened()
    for step in range(500):
        writer.put(SEEN, row(f"/{step % 7}", step))
        assert reader.get(SEEN, f"/{step % 7}") == row(f"/{step % 7}", step)
    assert len(reader.all(SEEN)) == 7
    assert writer.file.stat().st_size < 4096 + 2 * 7 * 200 + 200


def test_a_row_cut_off_by_a_kill_is_lost_alone(opened: Callable[..., CheckpointCatalogue]) -> None:
    opened(is_writer=True).put(SEEN, row("/a"), row("/b"))
    file = opened().file
    whole = file.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(last, len(whole)):
        file.write_bytes(whole[:cut])
        assert opened().all(SEEN) == (row("/a"),), cut
        writer = opened(is_writer=True)
        assert writer.put(SEEN, row("/c"))
        assert opened().all(SEEN) == (row("/a"), row("/c")), cut
        assert opened().problem is None


def test_a_line_that_is_damaged_is_named_and_costs_its_row(opened: Callable[..., CheckpointCatalogue]) -> None:
    opened(is_writer=True).put(SEEN, row("/a"), row("/b"), row("/c"))
    file = opened().file
    lines = file.read_bytes().splitlines(keepends=True)
    lines[2] = b"\0" * (len(lines[2]) - 1) + b"\n"
    file.write_bytes(b"".join(lines))
    catalogue = opened()
    assert catalogue.all(SEEN) == (row("/a"), row("/c"))
    assert catalogue.problem is not None
    assert str(file) in catalogue.problem
    assert "codec" not in catalogue.problem
    writer = opened(is_writer=True)
    assert writer.put(SEEN, row("/d"))
    assert (writer.not_written, writer.problem) == (None, catalogue.problem)


def test_a_line_that_reads_as_zeros_for_a_moment_is_read_again(opened: Callable[..., CheckpointCatalogue]) -> None:
    opened(is_writer=True).put(SEEN, row("/a"), row("/b"))
    whole = opened().file.read_bytes()
    lines = whole.splitlines(keepends=True)
    opened().file.write_bytes(b"".join(lines[:2]) + b"\0" * (len(lines[2]) - 1) + b"\n")
    reader = opened()
    assert reader.all(SEEN) == (row("/a"),)
    reader.file.write_bytes(whole)
    assert (reader.all(SEEN), reader.problem) == ((row("/a"), row("/b")), None)


def test_a_file_of_a_newer_version_is_not_changed(opened: Callable[..., CheckpointCatalogue]) -> None:
    opened(is_writer=True).put(SEEN, row("/a"))
    file = opened().file
    file.write_bytes(file.read_bytes().replace(b'"is":1}', b'"is":2}', 1))
    before = file.read_bytes()
    writer = opened(is_writer=True)
    assert not writer.put(SEEN, row("/b"))
    assert "newer" in str(writer.not_written)
    assert file.read_bytes() == before


def test_a_failed_write_is_a_problem_until_the_next_success(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    directory.write_text("a file is in the way")
    writer = CheckpointCatalogue(directory, is_writer=True)
    assert not writer.put(SEEN, row("/a"))
    assert writer.get(SEEN, "/a") == row("/a")
    assert str(directory) in str(writer.problem)
    directory.unlink()
    assert writer.put(SEEN, row("/b"))
    assert CheckpointCatalogue(directory).all(SEEN) == (row("/a"), row("/b"))


def test_another_file_with_the_inode_of_an_earlier_one_is_read_anew(opened: Callable[..., CheckpointCatalogue], tmp_path: Path) -> None:
    opened(is_writer=True).put(SEEN, row("/a/longer/name", 1))
    reader = opened()
    other = CheckpointCatalogue(tmp_path / "other", is_writer=True)
    other.put(SEEN, *(row(f"/{number}", number) for number in range(9)))
    with reader.file.open("r+b") as file:  # the inode stays, as if a file system had given it away again
        file.write(other.file.read_bytes())
    assert reader.all(SEEN) == other.all(SEEN)
    assert reader.problem is None


def test_a_file_that_was_removed_is_begun_anew(opened: Callable[..., CheckpointCatalogue]) -> None:
    writer, reader = opened(is_writer=True), opened()
    writer.put(SEEN, row("/a"))
    assert reader.get(SEEN, "/a") == row("/a")
    shutil.rmtree(writer.file.parent)
    assert reader.all(SEEN) == ()
    assert writer.put(SEEN, row("/b"))
    for catalogue in (writer, reader, opened()):
        assert (catalogue.all(SEEN), catalogue.problem) == ((row("/b"),), None)


def test_a_file_that_cannot_be_read_is_named_and_not_replaced(
    opened: Callable[..., CheckpointCatalogue], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(is_writer=True).put(SEEN, row("/a"))
    before = opened().file.read_bytes()
    with monkeypatch.context() as other_user:
        other_user.setattr(durable, "open_regular", refused)
        writer = opened(is_writer=True)
        assert "could not be read" in str(writer.problem)
        assert str(writer.file) in str(writer.problem)
        assert not writer.put(SEEN, row("/b"))
        assert writer.all(SEEN) == (row("/b"),)
        assert writer.file.read_bytes() == before
    assert writer.put(SEEN, row("/c"))
    assert (writer.all(SEEN), writer.problem) == ((row("/a"), row("/b"), row("/c")), None)


def refused(path: str) -> int:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def test_rows_of_a_command_stand_although_a_supervisor_began_meanwhile(opened: Callable[..., CheckpointCatalogue]) -> None:
    command, supervisor = opened(is_writer=True), opened(is_writer=True)
    assert command.put(SEEN, row("/quarantined"))
    assert supervisor.put(SEEN, row("/run"))
    assert command.put(SEEN, row("/quarantined", 2))
    assert supervisor.put(SEEN, row("/run", 2))
    for catalogue in (supervisor, opened()):
        assert (catalogue.all(SEEN), catalogue.problem) == ((row("/quarantined", 2), row("/run", 2)), None)


class FullDisk:
    """Lets so many calls that change the disk succeed, then none. A write is cut short before it fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls_left = 10**9
        self.has_failed = False
        for name in ("ftruncate", "fsync", "rename"):
            monkeypatch.setattr(os, name, self._failing(getattr(os, name)))
        pwrite, write = os.pwrite, os.write
        monkeypatch.setattr(os, "pwrite", lambda fd, content, at: self._cut(lambda part: pwrite(fd, part, at), content))
        monkeypatch.setattr(os, "write", lambda fd, content: self._cut(lambda part: write(fd, part), content))

    def _failing(self, call: Callable[..., None]) -> Callable[..., None]:
        def fails(*arguments: object) -> None:
            self._check()
            call(*arguments)

        return fails

    def _cut(self, write: Callable[[memoryview], int], content: memoryview) -> int:
        if self.calls_left == 1 and len(content) > 1:
            self.calls_left = 0
            return write(content[: len(content) * 2 // 3])
        self._check()
        return write(content)

    def _check(self) -> None:
        self.calls_left -= 1
        if self.calls_left < 0:
            self.has_failed = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_is_full_from_any_call_on_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_file, "_SLACK_BYTES", 700)
    disk = FullDisk(monkeypatch)
    for n_calls in range(200):
        disk.calls_left, disk.has_failed = 10**9, False
        writer, reader = (CheckpointCatalogue(tmp_path / str(n_calls), is_writer=is_writer) for is_writer in (True, False))
        written: dict[str, int] = {}
        disk.calls_left = n_calls
        for step in range(12):  # some of them compact
            rows = [row(f"/{step % 3}", step), row(f"/{step % 5}/b", step)]
            if writer.put(SEEN, *rows):
                written |= {known.path: step for known in rows}
            steps = steps_of(reader)
            assert all(steps[path] >= step for path, step in written.items()), n_calls
            assert all(writer.get(SEEN, known.path) == known for known in rows)
        has_failed = disk.has_failed
        assert (writer.problem is not None) == has_failed
        disk.calls_left = 10**9  # somebody made room
        assert writer.put(SEEN, row("/last", 99))
        last = {"/0": 9, "/1": 10, "/2": 11, "/0/b": 10, "/1/b": 11, "/2/b": 7, "/3/b": 8, "/4/b": 9, "/last": 99}
        for catalogue in (writer, reader, CheckpointCatalogue(tmp_path / str(n_calls))):
            assert (steps_of(catalogue), catalogue.problem) == (last, None), n_calls
        if not has_failed:
            return
    pytest.fail("the disk was never large enough")


def steps_of(catalogue: CheckpointCatalogue) -> dict[str, int]:
    return {known.path: known.step for known in catalogue.all(SEEN) if known.step is not None}


def test_readers_see_whole_rows_while_the_writer_compacts(
    opened: Callable[..., CheckpointCatalogue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_file, "_SLACK_BYTES", 2048)
    writer, reader, is_over, wrong = opened(is_writer=True), opened(), threading.Event(), list[object]()
    writer.put(SEEN, row("/0", 0))

    def read() -> None:
        newest = 0
        while not is_over.is_set():
            known = reader.get(SEEN, "/0")
            if known is None or known.step is None or known.step < newest or reader.problem:
                wrong.append((known, newest, reader.problem))
                return
            newest = known.step

    thread = threading.Thread(target=read)
    thread.start()
    for step in range(1, 400):
        writer.put(SEEN, row("/0", step))
    is_over.set()
    thread.join()
    assert wrong == []


def test_only_where_rows_stand_is_in_memory(opened: Callable[..., CheckpointCatalogue]) -> None:
    writer = opened(is_writer=True)
    for number in range(20):
        writer.put(SEEN, Seen(f"/{number}", Identity(1, 2, 3, 4), "x" * (1 << 20)))
    status = Path("/proc/self/status").read_text
    before = int(status().split("VmRSS:")[1].split()[0])
    reader = opened()
    n_rows = sum(1 for _ in reader.each(SEEN))
    grown_kib = int(status().split("VmRSS:")[1].split()[0]) - before
    assert n_rows == 20
    assert grown_kib < 10 << 10


def write_until_killed(directory: Path, reports: int) -> None:
    """Write one row after the other, and report each once it is durable."""
    writer = CheckpointCatalogue(directory, is_writer=True)
    step = max(steps_of(writer).values(), default=0)
    while True:
        step += 1
        assert writer.put(SEEN, row(f"/{step % 5}", step))
        os.write(reports, step.to_bytes(8, "big"))


@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_a_writer_that_is_killed_at_any_moment_loses_nothing_that_it_had_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    monkeypatch.setattr(row_file, "_SLACK_BYTES", 1024)  # each tenth row compacts
    chance, heads = random.Random(kills), set[bytes]()  # noqa: S311  moments, no secrets
    for _ in range(kills):
        reports, reports_in = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                write_until_killed(tmp_path, reports_in)
            finally:
                os._exit(1)
        os.close(reports_in)
        with os.fdopen(reports, "rb") as file:
            steps = file.read(8 * chance.randint(1, 15))
            time.sleep(chance.uniform(0, 0.005))  # the moment
            os.kill(pid, signal.SIGKILL)
            steps += file.read()
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        reported = int.from_bytes(steps[-8:], "big")
        reader = CheckpointCatalogue(tmp_path)
        known = steps_of(reader)
        assert max(known.values()) in {reported, reported + 1}
        assert set(known.values()) >= set(range(max(1, reported - 3), reported + 1)), "the last row of each path"
        assert reader.problem is None
        lines = (tmp_path / FILE_NAME).read_bytes().splitlines()
        heads.add(lines[0])
        assert all(json.loads(line) for line in lines[:-1])
    assert len(heads) > kills // 10, "it was compacted between the kills"


def sharded(step: int, n_shards: int) -> Manifest:
    """Return the manifest of a save in which each of so many ranks wrote a file."""
    files = tuple(File(f"__{rank}_0.distcp", 5 << 20, 2**64 - 1 - rank, (2**64 - 1 - rank,)) for rank in range(n_shards))
    t = 1_700_000_000 + 3600 * step
    about = About("job", "run-1", n_shards, began=1, attempt=1)
    identity = Identity(1, step, n_shards * (5 << 20), step)
    return Manifest(
        name=f"step_{step}",
        is_tree=True,
        layout="dcp",
        files=files,
        path=f"/ckpt/step_{step}",
        identity=identity,
        step=step,
        about=about,
        made_unix_s=t,
        saved_unix_ns=t * 10**9,
    )


@pytest.mark.parametrize(
    ("hours", "n_shards", "most_bytes"),
    [(60, 100, 256 << 10), pytest.param(90 * 24, 1000, MOST_DIGEST_BYTES, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])],
)
def test_the_catalogue_stays_small_and_fast_after_90_days_of_hourly_saves(
    opened: Callable[..., CheckpointCatalogue], monkeypatch: pytest.MonkeyPatch, hours: int, n_shards: int, most_bytes: int
) -> None:
    monkeypatch.setattr(documents, "MOST_DIGEST_BYTES", most_bytes)
    monkeypatch.setattr(row_file, "_SLACK_BYTES", most_bytes // 8)
    manifests, saved = Manifests(opened(is_writer=True)), sharded(0, n_shards)
    for step in range(hours):
        of_step = replace(saved, name=f"step_{step}", path=f"/ckpt/step_{step}", step=step, identity=replace(saved.identity, ino=step))
        assert manifests.put(of_step)
    began = time.process_time()
    reader = opened()
    took_s = time.process_time() - began
    n_bytes = reader.file.stat().st_size
    print(f"{hours} saves of {n_shards} shards: {n_bytes / 2**20:.1f} MiB, read in {took_s:.2f} s")  # noqa: T201  the measure
    assert n_bytes < 2.2 * (most_bytes + hours * 1000)
    assert took_s < 2.0
    known = Manifests(reader)
    assert sum(1 for _ in known.all()) == hours, "each is known"
    first, last = known.facts("/ckpt/step_0"), known.get(f"/ckpt/step_{hours - 1}")
    assert last is not None
    assert len(last.files) == n_shards
    assert first is not None
    assert (known.get("/ckpt/step_0"), first.n_bytes, first.about) == (None, saved.n_bytes, saved.about), "but its digests"


def test_the_digests_of_the_last_checkpoints_stay_however_large(
    opened: Callable[..., CheckpointCatalogue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MOST_DIGEST_BYTES", 1)
    manifests = Manifests(opened(is_writer=True))
    for step in range(10):
        manifests.put(sharded(step, 100))
    assert [step for step in range(10) if manifests.get(f"/ckpt/step_{step}") is not None] == list(range(2, 10))
