"""A mirror that stalls while it is asked: it is reported, given up in time, and the next source is taken."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpointing.io.reader import Interrupted
from checkpointing.mirror import restore
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.source import TransferControl
from checkpointing.mirror.stall import DiskStalled, RestoreProgress, Stalled, StallTimeout
from tests.checkpointing.mirror.faults import STALL, Fault
from tests.checkpointing.mirror.process import Place, save, upload, waiting
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpointing.mirror.backends import Backend

pytestmark = pytest.mark.process
#: How long a thread has for what it should do at once.
MOMENT_S = 2.0


@pytest.fixture
def mirrors(tmp_path: Path) -> Iterator[list[Backend]]:
    """Give two directories, each with checkpoints of the steps 1 to 4; who waits for one of their files is let go at the end."""
    backends = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        backends.append(open_backend(str(tmp_path / name)))
    for step in (1, 2, 3, 4):
        path = tmp_path / "ckpt" / f"step_{step}.pt"
        described = save(path, 1 << 20, step)
        entry = waiting(str(path), described.read_bytes())
        for backend in backends:
            upload(backend, entry, TransferControl())
        path.unlink()
    yield backends
    for path in tmp_path.rglob("data/*.pt"):
        if path.is_fifo():
            with contextlib.suppress(OSError):  # nobody waits
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


def stall(backend: Backend, pattern: str) -> None:
    """Have the opening of these files hang, as on a mount whose server is gone."""
    for path in Path(backend.url).rglob(f"data/{pattern}"):
        path.unlink()
        os.mkfifo(path)


def test_a_stalled_download_moves_to_the_next_mirror_then_to_an_older_step(mirrors: list[Backend]) -> None:
    stall(mirrors[0], "step_[34].pt")
    stall(mirrors[1], "step_4.pt")
    lines: list[str] = []
    # long enough for what does not stall, on a busy machine
    done = restore.newest(mirrors, "job", progress=RestoreProgress(lines.append, stall_s=1.0))
    assert done is not None
    assert (done.manifest.step, done.url) == (3, mirrors[1].url)
    assert ["no data for" in why for _, why in done.passed_over] == [True, True, True]
    assert [line.startswith("gave up: ") for line in lines] == [True, True, True]


def test_a_mirror_of_which_all_stalls_is_not_asked_for_each_checkpoint(mirrors: list[Backend]) -> None:
    stall(mirrors[0], "*.pt")
    lines: list[str] = []
    with pytest.raises(restore.Unreachable):
        restore.newest(mirrors[:1], "job", progress=RestoreProgress(lines.append, stall_s=0.5))
    assert len(lines) == 2


@pytest.mark.s3
def test_a_server_that_says_nothing_is_no_empty_mirror(place: Place) -> None:
    place.proxy.faults = [Fault(STALL, "^GET.*list-type", times=1000)]
    with pytest.raises(restore.Unreachable, match="no data for"):
        restore.newest([place.backend()], "job", progress=RestoreProgress(stall_s=0.5))


def test_a_thread_that_was_left_behind_writes_nothing_when_it_wakes() -> None:
    stall_timeout = StallTimeout("a dead mount", 0.2, lambda _line: None)
    wakes, over = threading.Event(), threading.Event()
    wrote: list[int] = []

    def call() -> None:
        try:
            assert wakes.wait(PATIENCE_S)
            with stall_timeout.on_disk():
                wrote.append(1)
        except Interrupted:
            over.set()
            raise

    with pytest.raises(Stalled):
        stall_timeout.run(call)
    wakes.set()
    assert over.wait(PATIENCE_S)
    assert wrote == []


def test_a_slow_download_is_not_given_up() -> None:
    stall_timeout = StallTimeout("a slow mirror", 1.0, lambda _line: None)

    def call() -> int:
        for _ in range(12):
            stall_timeout.progressed()
            threading.Event().wait(0.1)
        return 7

    assert stall_timeout.run(call) == 7


def test_a_restore_whose_disk_hangs_is_given_up() -> None:
    ends, outcome = threading.Event(), list[BaseException]()
    timeout = StallTimeout("the restore", 0.1, lambda _text: None)

    def write_to_a_dead_disk() -> None:
        with timeout.on_disk():
            ends.wait()

    def wait_for_it() -> None:
        try:
            timeout.run(write_to_a_dead_disk)
        except DiskStalled as error:
            outcome.append(error)

    thread = threading.Thread(target=wait_for_it, daemon=True)
    thread.start()
    thread.join(MOMENT_S)
    has_ended = not thread.is_alive()
    ends.set()
    thread.join(PATIENCE_S)
    assert has_ended
    assert len(outcome) == 1


def test_parts_of_a_restore_are_written_at_once() -> None:
    timeout, together = StallTimeout("the restore", 60.0, lambda _text: None), threading.Barrier(2)
    met: list[bool] = []

    def write_a_part() -> None:
        with timeout.on_disk():
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
        thread.join(PATIENCE_S)
    assert met == [True, True]


@pytest.mark.parametrize("call", ["ftruncate", "pwrite", "fdatasync", "utime", "fsync"])
def test_a_disk_that_hangs_is_named_and_no_other_mirror_is_asked(
    mirrors: list[Backend], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    ends, lines, writes = threading.Event(), list[str](), list[object]()
    real = getattr(os, call)

    def hangs(*given: object, **more: object) -> object:
        writes.append(given[0])
        ends.wait(20)
        return real(*given, **more)

    monkeypatch.setattr(os, call, hangs)
    with pytest.raises(DiskStalled, match="the disk answered nothing") as stalled:
        restore.newest(mirrors, "job", progress=RestoreProgress(lines.append, stall_s=0.5))
    assert "disk" in stalled.value.hint
    assert (len(lines), len(writes)) == (1, 1)
    ends.set()
