"""Reads how a rank's training thread spends its time: with the kernel's own counters, two or three small files for each rank.

Waiting in a collective of gloo, in a queue of loader workers or for a GPU that wakes the thread is treated as waiting. A thread that spins
while it waits (CUDA's default) is busy to the kernel, as busy as all others: then no rank differs.
"""

from __future__ import annotations

from supervisor.core.values import Struct


class ThreadUsage(Struct, frozen=True):
    """Nanoseconds that a thread ran, and that it waited for a processor. is_blocked: it waits for a disk now; is_asleep: for a time."""

    run_ns: int
    wait_ns: int
    is_blocked: bool
    is_asleep: bool = False


def thread_usage(pid: int) -> ThreadUsage | None:
    """Return the usage of a process's main thread; None if it is gone, or the kernel does not count (CONFIG_SCHED_INFO)."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:  # noqa: PTH123  no object per rank and second
            run_ns, wait_ns = map(int, file.read().split()[:2])
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            state = file.read().rpartition(b")")[2].split()[0]
        is_asleep = state == b"S" and _sleeps(pid)
    except (OSError, ValueError, IndexError):
        return None
    return ThreadUsage(run_ns, wait_ns, state == b"D", is_asleep) if run_ns else None


def _sleeps(pid: int) -> bool:
    """Return whether a thread is in time.sleep (proc(5): the function of the kernel that it waits in). Raises OSError where it is gone."""
    with open(f"/proc/{pid}/wchan", "rb") as file:  # noqa: PTH123
        return b"nanosleep" in file.read()


def stolen_ticks() -> tuple[int, int] | None:
    """Return the ticks that the hypervisor kept the processors of this machine from it, and all ticks; None where that is not counted."""
    try:
        with open("/proc/stat", "rb") as file:  # noqa: PTH123
            ticks = list(map(int, file.readline().split()[1:9]))
    except (OSError, ValueError):
        return None
    return (ticks[7], sum(ticks)) if len(ticks) == 8 else None  # noqa: PLR2004 (user to steal)
