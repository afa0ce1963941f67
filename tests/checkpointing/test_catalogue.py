"""The one file of what is known of a job's checkpoints: read by all, written by one, whole after every kill."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpointing import catalogue as catalogue_module
from checkpointing.catalogue import FILE_NAME, Catalogue, Table
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


SEEN = Table("seen", Seen, lambda row: row.path)
OTHER = Table("other", Seen, lambda row: row.path)


def row(path: str, step: int = 0) -> Seen:
    return Seen(path, Identity(1, 2, 3, 2**63 - 1), "why", step)


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Catalogue]:
    return lambda *, is_writer=False: Catalogue(tmp_path, is_writer=is_writer)


def test_the_newest_row_of_a_key_counts_for_every_reader_and_after_a_restart(opened: Callable[..., Catalogue]) -> None:
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


def test_a_path_that_is_no_utf_8_is_a_key_as_any_other(opened: Callable[..., Catalogue]) -> None:
    path = os.fsdecode(b"/ckpt/\xff\xfe step.pt")
    opened(is_writer=True).put(SEEN, row(path))
    assert opened().get(SEEN, path) == row(path)


def test_a_file_that_was_compacted_is_read_anew_and_stays_small(opened: Callable[..., Catalogue], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "_SLACK_BYTES", 4096)
    writer, reader = opened(is_writer=True), opened()
    for step in range(500):
        writer.put(SEEN, row(f"/{step % 7}", step))
        assert reader.get(SEEN, f"/{step % 7}") == row(f"/{step % 7}", step)
    assert len(reader.all(SEEN)) == 7
    assert writer.file.stat().st_size < 4096 + 2 * 7 * 200 + 200


def test_what_a_kill_cut_off_is_lost_alone(opened: Callable[..., Catalogue]) -> None:
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


def test_a_line_that_is_damaged_is_named_and_costs_its_row(opened: Callable[..., Catalogue]) -> None:
    opened(is_writer=True).put(SEEN, row("/a"), row("/b"), row("/c"))
    file = opened().file
    lines = file.read_bytes().splitlines(keepends=True)
    lines[2] = b"\0" * (len(lines[2]) - 1) + b"\n"
    file.write_bytes(b"".join(lines))
    catalogue = opened()
    assert catalogue.all(SEEN) == (row("/a"), row("/c"))
    assert catalogue.problem is not None
    assert str(file) in catalogue.problem


def test_a_file_of_a_newer_version_is_not_changed(opened: Callable[..., Catalogue]) -> None:
    opened(is_writer=True).put(SEEN, row("/a"))
    file = opened().file
    file.write_bytes(file.read_bytes().replace(b'"is":1}', b'"is":2}', 1))
    before = file.read_bytes()
    writer = opened(is_writer=True)
    assert not writer.put(SEEN, row("/b"))
    assert "newer" in str(writer.problem)
    assert file.read_bytes() == before


def test_what_cannot_be_written_is_known_until_it_can(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    directory.write_text("a file is in the way")
    writer = Catalogue(directory, is_writer=True)
    assert not writer.put(SEEN, row("/a"))
    assert writer.get(SEEN, "/a") == row("/a")
    assert str(directory) in str(writer.problem)
    directory.unlink()
    assert writer.put(SEEN, row("/b"))
    assert Catalogue(directory).all(SEEN) == (row("/a"), row("/b"))


def test_readers_see_whole_rows_while_the_writer_compacts(opened: Callable[..., Catalogue], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "_SLACK_BYTES", 2048)
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


def test_only_where_rows_stand_is_in_memory(opened: Callable[..., Catalogue]) -> None:
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


KILLED = """
import sys, pathlib
sys.path.insert(0, sys.argv[2])
from checkpointing import catalogue
from tests.checkpointing.test_catalogue import SEEN, row
catalogue._SLACK_BYTES = 4096
writer = catalogue.Catalogue(pathlib.Path(sys.argv[1]), is_writer=True)
step = max((known.step for known in writer.all(SEEN)), default=0)
while True:
    step += 1
    writer.put(SEEN, row(f"/{step % 5}", step))
    print(step, flush=True)
"""


@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_a_writer_that_is_killed_at_any_moment_loses_nothing_that_it_had_written(tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)  # noqa: S311  moments, no secrets
    reported = 0
    for _ in range(kills):
        root = Path(catalogue_module.__file__).parents[1]
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(root)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603  our own program
        assert writer.stdout is not None
        for _line in range(chance.randint(1, 40)):
            reported = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        reported = max([reported, *(int(line) for line in writer.communicate()[0].split())])
        reader = Catalogue(tmp_path)
        steps = [known.step for known in reader.all(SEEN)]
        assert max(step for step in steps if step is not None) in {reported, reported + 1}
        assert reader.problem is None
        lines = (tmp_path / FILE_NAME).read_bytes().splitlines()
        assert all(json.loads(line) for line in lines[:-1])
