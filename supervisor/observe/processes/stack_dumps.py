"""Requests the stacks of a living process by a signal, and reads them from the file that the process keeps open.

An uncaught signal would kill. So it is sent only to the very process that was meant (start time checked behind a pidfd), only if its SigCgt
shows a handler, and only if it has a stacks file: then the handler is the shim's. The handler is faulthandler's: it runs at once, in C,
also in a rank that is stuck in a collective, and does not touch the training. A stopped process is left alone.

A process that a rank forked (a DataLoader's worker) keeps the handler and writes to the rank's file: it is asked only while it holds that
file open. A lock on the file keeps two dumps apart, also of two askers.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.instrument._supervise_shim.layout import STACKS_SIGNAL, VALUES_SIGNAL, start_ticks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POLL_S = 0.02
#: The handler writes a line at a time: the dump is whole when the handler has ended and the file stood still so long. The time alone does
#: not show it: on a busy machine a process is put aside in the middle of its handler.
QUIET_POLLS = 3
MOST_BYTES = 1024 * 1024


class _NoStacks(Exception):  # noqa: N818 - an answer, not an error
    """Why a process is not asked for its stacks."""


def request(pid: int, start_ticks: int, directory: Path, *, deadline_s: float = 2.0, forked_by: int = 0) -> str:
    """Return the stacks of all threads of a process, as faulthandler writes them, or one line "no stacks: ..." with the reason.

    forked_by: the pid of the rank above a process that is not a rank.
    """
    return _answer(STACKS_SIGNAL, pid, start_ticks, directory, forked_by, deadline_s)


def request_values(pid: int, start_ticks: int, directory: Path, *, deadline_s: float) -> str:
    """Return the line in which a rank tells what its main thread's functions hold (`_supervise_shim/values.py`); "" without an answer."""
    text = _answer(VALUES_SIGNAL, pid, start_ticks, directory, 0, deadline_s)
    return next((line.removeprefix("values ") for line in reversed(text.splitlines()) if line.startswith("values ")), "")


def _answer(signum: int, pid: int, start_ticks: int, directory: Path, forked_by: int, deadline_s: float) -> str:  # noqa: PLR0913, PLR0917
    """Send a signal, and return what the process wrote into its file for it."""
    until = time.monotonic() + deadline_s
    try:
        path = _stacks_file(directory, pid, forked_by)
        with _alone(path, until):
            begin = _size(path)
            shows_end = _ask(pid, start_ticks, signum)
            _wait_written(path, begin, until, lambda: shows_end and _is_handled(pid, signum))
            with path.open("rb") as file:
                file.seek(begin)
                text = file.read(MOST_BYTES).decode(errors="replace")
    except (_NoStacks, OSError) as error:
        return f"no stacks: process {pid}: {error.strerror if isinstance(error, OSError) else error}"
    return text or f"no stacks: process {pid}: did not answer within {deadline_s:g} s"


def _stacks_file(directory: Path, pid: int, forked_by: int) -> Path:
    path = next(iter(sorted(directory.glob(f"stacks-*-{pid}.txt"))), None)
    if path is None and forked_by:
        path = next(iter(sorted(directory.glob(f"stacks-*-{forked_by}.txt"))), None)
        if path is not None and str(path) not in _open_files(pid):
            path = None  # it closed the inherited file: the number may be another file's by now
    if path is None:
        reason = "it is not instrumented"
        raise _NoStacks(reason)
    return path


def _open_files(pid: int) -> set[str]:
    """Return what the descriptors of a process are links to; asks no file system."""
    return {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}  # noqa: PTH115 - names that may be no paths


@contextmanager
def _alone(path: Path, until: float) -> Iterator[None]:
    """Hold the lock of a stacks file. The processes that write to it do not take it."""
    with path.open("rb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    reason = "its stacks are being written for someone else"
                    raise _NoStacks(reason) from error
            except OSError:  # a file system without locks
                break
            time.sleep(POLL_S)
        yield


def _ask(pid: int, start_ticks: int, signum: int) -> bool:
    """Send the signal, if it is sure to be caught by the process that is meant.

    Return whether the main thread will take it: one that blocks it leaves it to another thread, whose handler nobody sees end.
    """
    pidfd = os.pidfd_open(pid)
    try:
        if start_ticks_of(pid) != start_ticks:  # behind the pidfd: from here on the pid cannot become another's
            reason = "it is gone"
            raise _NoStacks(reason)
        fields = _status(pid)
        if fields["State"][0] in "tT":
            reason = "it is stopped"
            raise _NoStacks(reason)
        if not _holds(fields["SigCgt"], signum):
            reason = "it does not catch the signal"
            raise _NoStacks(reason)
        signal.pidfd_send_signal(pidfd, signum)
        return not _holds(fields["SigBlk"], signum)
    finally:
        os.close(pidfd)


def _status(pid: int) -> dict[str, str]:
    """Return the fields of a process's main thread (proc_pid_status(5)); psutil knows no signal masks."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    return dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)


def _holds(mask: str, signum: int) -> bool:
    return bool(int(mask, 16) >> (signum - 1) & 1)


def _is_handled(pid: int, signum: int) -> bool:
    """Return whether the main thread has still to come to its handler, or is in it: meanwhile the kernel blocks the signal."""
    try:
        fields = _status(pid)
    except OSError:
        return False
    return any(_holds(fields[name], signum) for name in ("SigPnd", "ShdPnd", "SigBlk") if name in fields)


def _wait_written(path: Path, begin: int, until: float, is_handled: Callable[[], bool]) -> None:
    """Wait until the file has grown beyond `begin` and grows no more, or until `until` on the monotonic clock.

    is_handled: whether who writes has not ended yet.
    """
    end, quiet = begin, 0
    while quiet < QUIET_POLLS and time.monotonic() < until:
        time.sleep(POLL_S)
        size = _size(path)
        quiet = quiet + 1 if size == end and size > begin and not is_handled() else 0
        end = size


def _size(path: Path) -> int:
    return path.stat().st_size
