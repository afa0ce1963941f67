"""Reading, keeping and restoring checkpoints: see the table of this package."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from checkpointing.catalogue import Catalogue
from checkpointing.mirror import restore, restore_target
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.restore import NoSpace
from checkpointing.mirror.stall import RestoreProgress, Stalled, StallTimeout
from checkpointing.retention.ownership import not_written
from checkpointing.verification import identity_of
from supervisor.checkpoints.discovery.from_logs import Discovery
from supervisor.checkpoints.origin.provenance import Provenance
from tests.checkpointing.mirror.process import save
from tests.checkpointing.mirror.test_restore import bring
from tests.checkpoints.discovery.test_from_logs import Rank
from tests.known_defects import ONE_PASS, later, prepared

if TYPE_CHECKING:
    from checkpointing.mirror.backends import Backend

MIB = 1 << 20
#: How long a thread has for what it should do at once; it is spent where the defect is.
MOMENT_S = 2.0


@pytest.fixture
def backend(tmp_path: Path) -> Backend:
    (tmp_path / "mirror").mkdir()
    return open_backend(str(tmp_path / "mirror"))


@pytest.fixture
def mirrored(tmp_path: Path, backend: Backend) -> Path:
    """Return the path of a checkpoint that is in the mirror alone."""
    path = tmp_path / "ckpt" / "step_1.pt"
    bring(tmp_path, backend, path, save(path, 16 * MIB, 1), 1)
    path.unlink()
    return path


def bytes_read() -> int:
    """Return how many bytes this process has read by now."""
    return int(Path("/proc/self/io").read_text().split()[1])


@later(ONE_PASS)
def test_a_node_takes_what_another_has_just_restored_without_reading_it_again(backend: Backend, mirrored: Path) -> None:
    """Of a hundred nodes on one disk the last would begin after a hundred readings, one after the other."""
    restore.newest([backend], "job")
    prepared(mirrored.exists(), "it was not restored")
    before = bytes_read()
    restore.newest([backend], "job")
    assert bytes_read() - before < 8 * MIB


@pytest.mark.slow
@later(ONE_PASS)
def test_a_node_that_waits_for_another_one_s_restore_says_so(backend: Backend, mirrored: Path) -> None:
    (kept,), _ = restore.available([backend], "job")
    mirrored.parent.mkdir(exist_ok=True)
    lines, said = list[str](), threading.Event()

    def report(text: str) -> None:
        lines.append(text)
        said.set()

    progress = RestoreProgress(report=report)
    with restore_target.download_lock(restore_target.partial_path(str(mirrored), kept.manifest)):
        thread = threading.Thread(target=lambda: restore.newest([backend], "job", progress=progress), daemon=True)
        thread.start()
        said.wait(12)
    thread.join(60)
    prepared(mirrored.exists(), "it was not restored when the other one was done")
    assert lines


@later(ONE_PASS)
def test_a_restore_whose_disk_hangs_is_given_up() -> None:
    ends, outcome = threading.Event(), list[BaseException]()
    timeout = StallTimeout("the restore", 0.1, lambda _text: None)

    def write_to_a_dead_disk() -> None:
        with timeout.writing():
            ends.wait()

    def wait_for_it() -> None:
        try:
            timeout.run(write_to_a_dead_disk)
        except Stalled as error:
            outcome.append(error)

    thread = threading.Thread(target=wait_for_it, daemon=True)
    thread.start()
    thread.join(MOMENT_S)
    has_ended = not thread.is_alive()
    ends.set()
    thread.join(20)
    assert has_ended
    assert len(outcome) == 1


@later(ONE_PASS)
def test_parts_of_a_restore_are_written_at_once() -> None:
    timeout, together = StallTimeout("the restore", 60.0, lambda _text: None), threading.Barrier(2)
    met: list[bool] = []

    def write_a_part() -> None:
        with timeout.writing():
            try:
                together.wait(MOMENT_S)
            except threading.BrokenBarrierError:
                met.append(False)
            else:
                met.append(True)

    threads = [threading.Thread(target=write_a_part) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert met == [True, True]


@later(ONE_PASS)
def test_a_download_that_was_cut_at_its_start_has_no_room_yet(backend: Backend, mirrored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its full length and hardly a block, so the restore would meet the full disk in its middle."""
    (kept,), _ = restore.available([backend], "job")
    mirrored.parent.mkdir(exist_ok=True)
    beside = Path(restore_target.partial_path(str(mirrored), kept.manifest))
    with beside.open("wb") as file:
        file.truncate(kept.manifest.n_bytes)
    prepared(beside.stat().st_blocks == 0, "this file system knows no holes")
    real = os.statvfs(mirrored.parent)
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result((*real[:3], 0, 0, *real[5:10])))
    try:
        restore.newest([backend], "job")
    except NoSpace:
        return
    raise AssertionError("a restore began on a disk without room")


@later(ONE_PASS)
def test_what_another_put_in_the_place_of_a_checkpoint_is_not_trusted(tmp_path: Path) -> None:
    """A download, or another user of a shared directory, may put a file with a call there."""
    path, rank = tmp_path / "step-40.pt", Rank(tmp_path / "attempt-0001")
    path.write_bytes(b"what the job saved")
    st = path.stat()
    rank.saves(str(path), now=[st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns])
    known = Discovery(Catalogue(tmp_path / "checkpoints", is_writer=True), "r1")
    known.absorb(rank.directory, 1)
    job: Any = SimpleNamespace(settings=SimpleNamespace(checkpoints=SimpleNamespace(trusted=False)))
    none: Any = SimpleNamespace(is_declared=lambda _: False, has=lambda *_: True, get=lambda _: None, has_saved=lambda *_: False)
    origin = Provenance(job, none, known, none, manifests=none, baseline=none, several_nodes=False)
    prepared(origin.trusts(str(path)), "the job's own is not trusted")
    other = tmp_path / "download"
    other.write_bytes(b"what somebody else wrote")
    other.replace(path)
    assert not origin.trusts(str(path))


def test_the_lines_of_a_rank_are_those_that_the_log_reader_takes(tmp_path: Path) -> None:
    """So the tests above fail for their own reason: a checkpoint of few files is found to be this job's."""
    rank = Rank(tmp_path / "attempt-0001")
    directory = tmp_path / "checkpoint-10"
    directory.mkdir()
    path = directory / "rng_state_0.pth"
    path.write_text(json.dumps("state"))
    st = path.stat()
    rank.saves(str(path), now=[st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns])
    known = Discovery(Catalogue(tmp_path / "checkpoints", is_writer=True), "r1")
    known.absorb(rank.directory, 1)
    identity = identity_of(str(directory))
    assert identity is not None
    assert not_written(str(directory), identity, known.written_files(str(directory), 0)) == ""
