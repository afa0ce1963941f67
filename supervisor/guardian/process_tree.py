"""Reads processes from /proc: their identity, their parents, who descends from whom. ownership.py has the rules of what may be killed.

All of `supervisor` reads a process's stat and environment here, and not with psutil: the guardian has no third-party package, and raw start
ticks prove a process's identity.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection


class ProcessStat:
    """One line of /proc/PID/stat. With the pid, `start_ticks` (field 22) names a process for one boot.

    exit_status: of a zombie that we may trace, as waitpid returns it; None where a sandbox's line ends before it.
    """

    __slots__ = ("exit_status", "pid", "ppid", "start_ticks", "state", "threads")

    def __init__(  # noqa: PLR0913, PLR0917 - the fields of a line
        self, pid: int, ppid: int, start_ticks: int, state: str, threads: int, exit_status: int | None = None
    ) -> None:
        self.pid = pid
        self.ppid = ppid
        self.start_ticks = start_ticks
        self.state = state
        self.threads = threads
        self.exit_status = exit_status

    @property
    def key(self) -> tuple[int, int]:
        """Its identity."""
        return self.pid, self.start_ticks

    @property
    def alive(self) -> bool:
        """False for a zombie, unless only its first thread has ended."""
        return self.state not in "ZX" or self.threads > 1

    @property
    def stopped(self) -> bool:
        """Stopped by a signal or a tracer: it would never see a TERM."""
        return self.state in "Tt"


def read(pid: int) -> ProcessStat | None:
    """Read one process, or None if there is none."""
    text = _read_proc(pid, "stat", whole=False)
    if not text:
        return None
    # the name in parentheses may hold anything, blanks and parentheses included: count from the last one
    field = text[text.rindex(b")") + 2 :].split()
    status = int(field[49]) if len(field) > 49 else None  # noqa: PLR2004 - a sandbox may write fewer
    return ProcessStat(pid, int(field[1]), int(field[19]), field[0].decode(), int(field[17]), status)


def snapshot() -> dict[int, ProcessStat]:
    """Read every process of this pid namespace."""
    processes = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - pathlib is too big for the guardian
    return {process.pid: process for process in processes if process is not None}


def below(root: int, processes: dict[int, ProcessStat], spare: Collection[int] = ()) -> list[ProcessStat]:
    """Select the living descendants of `root`, without the pids in `spare` and what descends from those."""
    children: dict[int, list[ProcessStat]] = {}
    for process in processes.values():
        children.setdefault(process.ppid, []).append(process)
    descendants = []
    frontier = [root]
    while frontier:
        for child in children.get(frontier.pop(), ()):
            if child.pid in spare:
                continue
            frontier.append(child.pid)
            if child.alive:
                descendants.append(child)
    return descendants


def has_only(pids: Collection[int]) -> bool:
    """Whether every child of this process is among these: the kernel lists them; False where the kernel keeps none.

    A child stays in that list until it is reaped. So if the caller alone reaps, nothing is missed.
    """
    me = f"/proc/{os.getpid()}/task"
    children: set[int] = set()
    try:
        for thread in os.listdir(me):  # noqa: PTH208 - pathlib is too big for the guardian
            with open(f"{me}/{thread}/children", "rb") as file:  # noqa: PTH123
                children.update(map(int, file.read().split()))
    except OSError:  # a thread that has just ended too: the caller looks another way
        return False
    return children.issubset(pids)


def environment(pid: int) -> list[bytes]:
    """Return the NAME=value pairs with which a process was started, none where they may not be read. May block: see ownership.py."""
    return _read_proc(pid, "environ").split(b"\0")


def command_line(pid: int) -> str:
    """The command line for a person to read, at most 200 characters."""
    text = _read_proc(pid, "cmdline").replace(b"\0", b" ").strip() or b"[" + _read_proc(pid, "comm").strip() + b"]"
    return text[:200].decode("utf-8", "replace")


def _read_proc(pid: int, name: str, *, whole: bool = True) -> bytes:
    """Read a file of a process; not `whole`: what the kernel gives at once, which is all of a `stat`."""
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        if not whole:
            return os.read(fd, 4096)
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(fd)
