"""Reads how a rank's training thread spends its time: with the kernel's own counters, two small files for each rank.

Waiting in a collective of gloo, in a queue of loader workers or for a GPU that wakes the thread is sleep, and counts as waiting. A thread
that spins while it waits (CUDA's default) is busy to the kernel, as busy as all others: then no rank stands out.
"""

from __future__ import annotations

from supervisor.core.values import Struct


class ThreadUsage(Struct, frozen=True):
    """Nanoseconds that a thread ran, and that it waited for a processor; is_blocked: it waits for a disk now."""

    run_ns: int
    wait_ns: int
    is_blocked: bool


def thread_usage(pid: int) -> ThreadUsage | None:
    """Return the usage of a process's main thread; None if it is gone, or the kernel does not count (CONFIG_SCHED_INFO)."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:  # noqa: PTH123  no object per rank and second
            run_ns, wait_ns = map(int, file.read().split()[:2])
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            state = file.read().rpartition(b")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return None
    return ThreadUsage(run_ns, wait_ns, state == b"D") if run_ns else None
