"""The processes of the job that KILL did not end: the next attempt waits for them, so that no second copy runs on their GPU or file.

KILL ends a process once it is back from the kernel. In uninterruptible sleep (state D) it comes back when the disk, the network file system
or the driver answers, which may be never. Until then it keeps its GPU, its open files and its memory.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import TYPE_CHECKING

from supervisor.guardian import process_tree

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.launch.orphans import LeftProcess

#: How long an attempt waits for their end before it is refused. Much memory takes seconds to be freed.
UNKILLED_S = 20.0
#: A pidfd reports an end at once; where none can be had, the end is seen after so long.
_LOOK_S = 1.0


class UnkilledProcesses:
    """Those of one run that are not known to be gone. `add` is called on the loop's thread, `await_end` in a worker thread."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], LeftProcess] = {}

    def add(self, left: Iterable[LeftProcess]) -> tuple[LeftProcess, ...]:
        """Take those of `left` that KILL did not end; return the ones that are new here."""
        new = {(one.pid, one.start_ticks): one for one in left if one.unkilled}
        new = {key: one for key, one in new.items() if key not in self._known}
        self._known.update(new)
        return tuple(new.values())

    def known(self) -> tuple[LeftProcess, ...]:
        """Return those that were not seen to end."""
        return tuple(self._known.values())

    def await_end(self, deadline_s: float) -> tuple[LeftProcess, ...]:
        """Wait until all have ended, at most `deadline_s`; return those that are left."""
        until = time.monotonic() + deadline_s
        while (left := self._left()) and (now := time.monotonic()) < until:
            _await_any_end(left, min(until - now, _LOOK_S))
        return left

    def _left(self) -> tuple[LeftProcess, ...]:
        for key, one in tuple(self._known.items()):
            if not _is_there(one):
                self._known.pop(key, None)
        return self.known()


def _is_there(one: LeftProcess) -> bool:
    process = process_tree.read(one.pid)
    return process is not None and process.start_ticks == one.start_ticks and process.alive


def _await_any_end(left: Iterable[LeftProcess], deadline_s: float) -> None:
    poller = select.poll()
    with contextlib.ExitStack() as stack:
        for one in left:
            with contextlib.suppress(OSError):  # gone, or an old sandbox: the time alone has to do
                pidfd = os.pidfd_open(one.pid)
                stack.callback(os.close, pidfd)
                poller.register(pidfd, select.POLLIN)
        poller.poll(deadline_s * 1000)
