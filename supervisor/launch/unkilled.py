"""The processes of the job that KILL did not end: the next attempt waits for them, so that no second copy runs on their GPU or file.

KILL ends a process once it is back from the kernel. In uninterruptible sleep (state D) it comes back when the disk, the network file system
or the driver answers, which may be never. Until then it keeps its GPU, its open files and its memory.

All that is read here is answered without the process's own memory lock, which it may hold in that sleep: its name and not its command line.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.guardian import process_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.launch.orphans import LeftProcess

#: How long an attempt waits for their end before it is refused. Much memory takes seconds to be freed.
UNKILLED_S = 20.0
#: A pidfd reports an end at once; where none can be had, the end is seen after so long.
_LOOK_S = 1.0
#: The system calls whose first argument is a file's descriptor, by their numbers on x86_64 (/proc/PID/syscall has no names).
_OF_A_FILE = dict.fromkeys((0, 17, 19), "read") | dict.fromkeys((1, 18, 20), "write") | dict.fromkeys((74, 75), "fsync")


class UnkilledProcesses:
    """Those of one run that are not known to be gone. `add` and `seen` are called on the loop's thread, `await_end` in a worker thread."""

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


def refusal(left: Sequence[LeftProcess]) -> str:
    """Return why no attempt is started beside these, in the form of an exception: evidence for the signature io_error.unkilled."""
    more = f", and {len(left) - 1} more: pid {', '.join(str(one.pid) for one in left[1:])}" if len(left) > 1 else ""
    return f"UnkilledProcess: {description(left[0].pid)} survives KILL{more}; no attempt is started beside it"


def description(pid: int) -> str:
    """Name a process for a person: its pid, its name, and what it waits for.

    Example: "pid 4242 (python3, state D, in write of /mnt/ckpt/step-100.pt)".
    """
    process = process_tree.read(pid)
    state = process.state if process is not None else "?"
    name = _first_line(pid, "comm") or "?"
    file = _file_waited_for(pid)
    kernel = _first_line(pid, "wchan").strip("0")
    where = f", in {file}" if file else f", in {kernel}" if kernel else ""
    return f"pid {pid} ({name}, state {state}{where})"


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


def _file_waited_for(pid: int) -> str:
    """Return the call and the file that the process waits for, "" where it waits for something else or that may not be known."""
    number, _, arguments = _first_line(pid, "syscall").partition(" ")
    if os.uname().machine != "x86_64" or not number.isdigit() or int(number) not in _OF_A_FILE:
        return ""
    try:
        path = os.readlink(f"/proc/{pid}/fd/{int(arguments.split()[0], 16)}")  # noqa: PTH115 - a link of /proc
    except (OSError, ValueError, IndexError):
        return ""
    return f"{_OF_A_FILE[int(number)]} of {path}" if path.startswith("/") else ""


def _first_line(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    except OSError:
        return ""
