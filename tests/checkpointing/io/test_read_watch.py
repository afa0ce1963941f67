"""A long read is reported and never cut off; one from which no byte comes is left, and what follows is tried."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing.candidates import SelectionOptions, Spare
from checkpointing.discover import find
from checkpointing.io import read_watch, reader
from checkpointing.io.read_watch import DiskSilent, ReadWatch
from checkpointing.io.reader import Interrupted
from checkpointing.model import Verdict
from checkpointing.select import Selection, newest
from checkpointing.verification import Cache, verify
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from checkpointing.io.tree import ReadOptions


class VirtualTime:
    """A clock that continues by `look_s` with each look at a read that hangs: a busy machine is no slow disk."""

    def __init__(self, hangs: Callable[[], bool]) -> None:
        """Begin at zero."""
        self.now, self._hangs = 0.0, hangs

    def wait(self, done: threading.Event, look_s: float) -> bool:
        """Wait for the end of a read, or for it to hang."""
        if self._hangs():
            self.now += look_s
            return done.wait(0.0005)
        return done.wait(0.01)


class HungDisk:
    """Reads of these paths never return, as from a dead NFS server, until it answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Hang nothing yet."""
        self.paths: set[str] = set()
        self.asked: list[str] = []
        self.answers = threading.Event()
        real = os.preadv

        def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
            path = str(Path(f"/proc/self/fd/{fd}").readlink())
            if path in self.paths:
                self.asked.append(path)  # it counts from here on
                self.answers.wait()
            return real(fd, buffers, offset)

        monkeypatch.setattr(reader.os, "preadv", preadv)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HungDisk]:
    """A disk that can be made to hang."""
    hung = HungDisk(monkeypatch)
    yield hung
    hung.answers.set()


@pytest.fixture
def lines() -> list[tuple[str, str]]:
    """What people are shown."""
    return []


@pytest.fixture
def watch(disk: HungDisk, lines: list[tuple[str, str]]) -> ReadWatch:
    """A watch on a clock of its own."""
    time = VirtualTime(lambda: len(disk.asked) > len(read_watch._left))  # noqa: SLF001 -- those that were left hang still
    read_watch = ReadWatch(report=lambda level, text: lines.append((level, text)), clock=lambda: time.now, wait=time.wait)
    return read_watch


def save(directory: Path, step: int) -> Path:
    path = directory / f"step_{step}.pt"
    torch.save({"w": torch.ones(4), "step": step}, path)
    return path


def choose(directory: Path, watch: ReadWatch, cache: Cache | None = None, **more: object) -> Selection:
    return newest(find(["*.pt"], str(directory)), SelectionOptions(cache=cache or Cache(), watch=watch, **more))  # type: ignore[arg-type]


def test_a_long_read_shows_bytes_rate_and_the_time_that_is_left(lines: list[tuple[str, str]]) -> None:
    asked, time = threading.Semaphore(0), VirtualTime(lambda: True)

    def look(done: threading.Event, look_s: float) -> bool:
        asked.release()  # the disk gives a MiB with each look
        return time.wait(done, look_s)

    watch = ReadWatch(report=lambda level, text: lines.append((level, text)), clock=lambda: time.now, wait=look, stall_s=float("inf"))

    def reads(how: ReadOptions) -> str:
        assert how.throttle is not None
        for _ in range(400):
            asked.acquire()
            how.throttle.take(1 << 20)
        return "whole"

    assert watch.read("/ckpt/step_9.pt", reads, n_bytes=400 << 20, why="never verified") == "whole"
    assert 3 <= len(lines) <= 12  # at first each 10 s, then each minute
    level, first = lines[0]
    assert level == "info"
    assert re.fullmatch(r"reading /ckpt/step_9\.pt \(never verified\): \d+ MiB of 400 MiB, \S+ MiB/s, (\d+ min )?\d+ s left", first), first


def test_a_read_that_is_soon_over_shows_nothing(tmp_path: Path, watch: ReadWatch, lines: list[tuple[str, str]]) -> None:
    save(tmp_path, 1)
    assert choose(tmp_path, watch).chosen is not None
    assert lines == []


def test_a_disk_without_a_byte_gives_way_to_the_older_verified_one(
    tmp_path: Path, disk: HungDisk, watch: ReadWatch, lines: list[tuple[str, str]]
) -> None:
    cache = Cache()
    cache.put(verify(str(save(tmp_path, 1))))
    hung = save(tmp_path, 2)
    disk.paths.add(str(hung))
    selection = choose(tmp_path, watch, cache)
    assert selection.chosen is not None
    assert (selection.chosen.step, selection.chosen.level) == (1, "identity")
    assert selection.silent == ((str(hung), "no byte came for 120 s: its disk does not answer"),)
    assert selection.silent == selection.unknown
    assert lines[0] == ("warning", f"no byte for 30 s from {hung} (it is passed over after 120 s)")


def test_the_copy_on_another_disk_is_next(tmp_path: Path, disk: HungDisk, watch: ReadWatch) -> None:
    from checkpointing.manifest import check  # noqa: PLC0415 -- for this alone

    hung = save(tmp_path, 2)
    manifest = check.build(verify(str(hung)))
    copy = tmp_path / "kept"
    copy.write_bytes(hung.read_bytes())
    disk.paths.add(str(hung))
    selection = choose(tmp_path, watch, spares=[Spare(str(hung), manifest, str(copy), "copy")])
    assert selection.chosen is not None
    assert (selection.chosen.path, [path for path, _ in selection.silent]) == (str(copy), [str(hung)])


def test_a_selection_of_silent_files_differs_from_an_empty_one(tmp_path: Path, disk: HungDisk, watch: ReadWatch) -> None:
    disk.paths |= {str(save(tmp_path, step)) for step in range(1, 15)}
    selection = choose(tmp_path, watch)
    assert (selection.chosen, selection.n_found, len(selection.silent)) == (None, 14, 14)
    assert len(disk.asked) == read_watch.MOST_LEFT  # no thread is left for each of a thousand files


def test_a_hanging_file_is_not_read_again_before_it_answers(tmp_path: Path, disk: HungDisk, watch: ReadWatch) -> None:
    hung = save(tmp_path, 2)
    disk.paths.add(str(hung))
    assert choose(tmp_path, watch).chosen is None
    again = choose(tmp_path, watch)
    assert len(disk.asked) == 1
    assert re.fullmatch(r"no byte has come for \d+ s: its disk does not answer", again.silent[0][1])
    disk.paths.clear()
    disk.answers.set()
    (left,) = watch._left  # noqa: SLF001 -- its thread
    assert left.background.done.wait(PATIENCE_S)
    assert choose(tmp_path, watch).chosen is not None


def test_the_late_result_of_an_abandoned_read_counts_for_nothing(tmp_path: Path, disk: HungDisk, watch: ReadWatch) -> None:
    cache = Cache()
    disk.paths.add(str(save(tmp_path, 2)))
    selection = choose(tmp_path, watch, cache)
    disk.answers.set()
    (left,) = watch._left  # noqa: SLF001 -- its thread
    assert left.background.done.wait(PATIENCE_S)
    (candidate,) = find(["*.pt"], str(tmp_path)).candidates
    assert (selection.chosen, cache.get(candidate.path, candidate.identity)) == (None, None)
    assert left.background.result().verdict is Verdict.UNKNOWN


def test_a_read_that_nobody_waits_for_is_left_though_the_disk_hangs(tmp_path: Path, disk: HungDisk, watch: ReadWatch) -> None:
    hung = save(tmp_path, 2)
    disk.paths.add(str(hung))
    watch.is_wanted = lambda: not disk.asked
    with pytest.raises(Interrupted):
        watch.read(str(hung), lambda how: verify(str(hung), reading=how))


def test_a_read_that_nobody_waited_for_blames_no_disk_and_the_next_selection_reads_its_path(watch: ReadWatch) -> None:
    goes_on, reading = threading.Event(), threading.Event()

    def unpickles(_how: ReadOptions) -> str:  # for seconds, in which it does not look whether anybody waits
        reading.set()
        return "whole" if goes_on.wait(60) else "late"

    watch.is_wanted = lambda: not reading.is_set()
    with pytest.raises(Interrupted):
        watch.read("/ckpt/step_9.pt", unpickles)
    watch.is_wanted = lambda: True
    assert watch.read("/ckpt/step_9.pt", lambda _how: "whole") == "whole"
    goes_on.set()


def test_a_process_that_was_stopped_for_an_hour_blames_no_disk() -> None:
    time, looks, stopped_at = VirtualTime(lambda: True), 0, 20

    def wait(done: threading.Event, look_s: float) -> bool:
        nonlocal looks
        looks += 1
        if looks == stopped_at:
            time.now += 3600.0
        if looks == stopped_at + 5:
            answers.set()
        return time.wait(done, look_s)

    answers = threading.Event()
    watch = ReadWatch(clock=lambda: time.now, wait=wait)
    assert watch.read("/ckpt", lambda _how: answers.wait() and "whole") == "whole"


def test_a_slow_listing_continues_and_a_hanging_one_is_abandoned() -> None:
    hangs, time = threading.Event(), VirtualTime(lambda: True)
    watch = ReadWatch(clock=lambda: time.now, wait=time.wait)
    with pytest.raises(DiskSilent, match="no byte came for 120 s"):
        watch.call("/ckpt", hangs.wait)
    hangs.set()
    slow = ReadWatch(stall_s=1.0)
    pause = threading.Event()
    # real time: forty short waits, each much shorter than the stall and all together longer
    assert slow.call("/ckpt", lambda: [pause.wait(0.03) for _ in range(40)]) == [False] * 40
