"""How much a directory in memory can still take: the least of what its file system, the machine and our cgroups leave."""

from __future__ import annotations

import contextlib
import os


def room_bytes(directory: str) -> tuple[int, str]:
    """Return how much may be put into a directory in memory, and what limits it: the file system, the machine's memory, or our cgroup's."""
    try:
        st = os.statvfs(directory)
    except FileNotFoundError:
        return 0, directory
    rows = [(st.f_bavail * st.f_frsize, directory), (_available(), "the machine's memory"), *_cgroup_rows()]
    return min(rows)


def _available() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 -- strings throughout the package
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def _cgroup_rows() -> list[tuple[int, str]]:
    """Return what each cgroup above us (version 2) leaves: beyond it the kernel would not refuse but kill."""
    rows = []
    with contextlib.suppress(OSError, StopIteration, ValueError):
        with open("/proc/self/cgroup", encoding="utf-8") as file:  # noqa: PTH123 -- strings throughout the package
            group = next(line[3:].strip() for line in file if line.startswith("0::"))
        parts = [part for part in group.split("/") if part]
        for depth in range(len(parts) + 1):
            path = "/".join(["/sys/fs/cgroup", *parts[:depth]])
            with contextlib.suppress(OSError, ValueError):
                limit, used = (_number(f"{path}/memory.{what}") for what in ("max", "current"))
                with open(f"{path}/memory.stat", encoding="ascii") as file:  # noqa: PTH123 -- strings throughout the package
                    cached = sum(int(line.split()[1]) for line in file if line.startswith("inactive_file "))
                rows.append((max(0, limit - used + cached), f"the memory limit of cgroup {path}"))
    return rows


def _number(path: str) -> int:
    with open(path, encoding="ascii") as file:  # noqa: PTH123 -- strings throughout the package
        return int(file.read())  # "max" is no number: no limit
