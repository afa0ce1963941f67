"""A file in memory that shows whether a job's deciding loop is alive, for `supervise status --probe`.

The loop itself writes it, about once a second: who it is, until when it is believed to be alive, and whether its ranks train. So a probe
needs no journal, no lock and no disk: a hung state directory is not a reason to end a job. The times are those of CLOCK_MONOTONIC, which
all processes of a machine share, so that no clock that is set makes a job look dead.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Final

from supervisor.core.values import Struct
from supervisor.job.identity import SHM, start_ticks, this_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

FILE_NAME: Final = "alive"
#: A loop that does not turn for this long is dead; it turns five times a second.
BELIEVED_S: Final = 30.0
#: Before the loop turns, a start may wait for imports and for the state directory.
START_S: Final = 600.0
#: So that one line replaces the other as a whole.
_WIDTH: Final = 1024
_LONGEST_ROOT: Final = 400


class SeenLoop(Struct, frozen=True):
    """The content of a loop's file. until_s: monotonic seconds. ready: its ranks train, or run and cannot be seen to.

    root: the state directory of the job, "": not known.
    """

    job: str
    pid: int
    start_ticks: int
    pid_namespace: int
    until_s: float
    ready: bool
    root: str = ""

    def fault(self, now_s: float) -> str:
        """Return why it is not alive, "" if it is. now_s: monotonic seconds."""
        if self.pid_namespace == this_process().pid_namespace and start_ticks(self.pid) != self.start_ticks:
            return f"process {self.pid} of supervise is gone"
        if now_s > self.until_s:
            return f"the loop of process {self.pid} has not turned for {now_s - self.until_s + BELIEVED_S:.0f} s"
        return ""


class LoopBeat:
    """Writes the file of one run's loop. A failed write is left out: the job continues."""

    def __init__(self, scratch: Path, job: str, root: str = "") -> None:
        me = this_process()
        self.is_in_memory = scratch.is_relative_to(SHM)
        self._row = {
            "job": job,
            "root": root[:_LONGEST_ROOT],
            "pid": me.pid,
            "start_ticks": me.start_ticks,
            "pid_namespace": me.pid_namespace,
        }
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.open(scratch / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def beat(self, believed_s: float = BELIEVED_S, *, ready: bool = False) -> None:
        """Be believed to be alive for so many seconds from now."""
        if self._fd is None:
            return
        line = json.dumps({**self._row, "until_s": round(time.monotonic() + believed_s, 3), "ready": ready}).ljust(_WIDTH) + "\n"
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, line.encode(), 0)


def newest(job: str | None, directories: Iterable[Path], now_s: float, root: str = "") -> SeenLoop | None:
    """Return the loop of `job` (None: of any) that is alive and believed longest; None where these directories have none.

    root: a state directory. Two jobs may have one name: that of this directory is meant, if there is one.
    One that is gone, or was in another container of this pod, may be believed longer than the one that took its place. now_s: monotonic.
    """
    here = this_process().pid_namespace
    beats = [seen for seen in _read(directories) if job is None or seen.job == job]
    own = [seen for seen in beats if root and seen.root == root[:_LONGEST_ROOT]]
    beats = own or beats
    return max(beats, key=lambda seen: (not seen.fault(now_s), seen.pid_namespace == here, seen.until_s), default=None)


def in_memory(shm: Path = SHM) -> Iterator[Path]:
    """Yield the directories in memory of this user's runs."""
    yield from shm.glob(f"supervise-{os.geteuid()}-*")


def _read(directories: Iterable[Path]) -> Iterator[SeenLoop]:
    for directory in directories:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            row = json.loads((directory / FILE_NAME).read_bytes())
            yield SeenLoop(
                str(row["job"]),
                int(row["pid"]),
                int(row["start_ticks"]),
                int(row["pid_namespace"]),
                float(row["until_s"]),
                bool(row["ready"]),
                str(row.get("root", "")),
            )
