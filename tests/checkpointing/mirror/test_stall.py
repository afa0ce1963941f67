"""A mirror that stalls while it is asked: it is reported, given up in time, and the next source is taken."""

from __future__ import annotations

import contextlib
import os
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpointing.io.reader import Interrupted
from checkpointing.mirror import restore
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.spool import Spool
from checkpointing.mirror.stall import RestoreProgress, Stalled, StallTimeout
from checkpointing.mirror.upload import TransferControl, upload
from tests.checkpointing.mirror.faults import STALL, Fault
from tests.checkpointing.mirror.process import Place, save

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpointing.mirror.backends import Backend

pytestmark = pytest.mark.process


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
        with closing(Spool(str(tmp_path / "spool"))) as spool:
            entry = spool.add(str(path), step, described.read_bytes())
            for backend in backends:
                upload(backend, entry, spool.log(entry, backend.url), TransferControl())
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


def test_what_stalls_is_reported_and_given_up_for_the_next_mirror_and_then_for_an_older_one(mirrors: list[Backend]) -> None:
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
            assert wakes.wait(20)
            with stall_timeout.writing():
                wrote.append(1)
        except Interrupted:
            over.set()
            raise

    with pytest.raises(Stalled):
        stall_timeout.run(call)
    wakes.set()
    assert over.wait(20)
    assert wrote == []


def test_what_moves_slowly_is_not_given_up() -> None:
    stall_timeout = StallTimeout("a slow mirror", 1.0, lambda _line: None)

    def call() -> int:
        for _ in range(12):
            stall_timeout.progressed()
            threading.Event().wait(0.1)
        return 7

    assert stall_timeout.run(call) == 7
