"""How much memory a process holds, read from outside of it.

/proc/PID/statm are counters: reading them takes no lock of the process. /proc/PID/smaps_rollup, which alone tells how much of its pages a
process shares with others (PSS), walks all of them under the lock that the process itself needs for each mmap and munmap. Measured on
Linux 6.18 with 100 GB mapped: one read takes 5 s, page faults continue, an mmap waits 0.4 s on average and 0.8 s at most (else 0.2 ms). So
PSS is read of loader workers only, of none that holds more than MOST_BYTES, once a minute each, and for BUDGET_S at each sample.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
MOST_BYTES: Final = 2 << 30
EVERY_S: Final = 60.0
BUDGET_S: Final = 0.05


def resident(pid: int) -> tuple[int, int] | None:
    """Return a process's resident bytes, and those of them that are no file's and no shared memory's; None if it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123  no object per rank
            words = file.read().split()
        return int(words[1]) * _PAGE, max(0, int(words[1]) - int(words[2])) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def proportional(pid: int) -> int | None:
    """Return a process's PSS in bytes: of each page that several processes have its part. None where the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:  # noqa: PTH123  as above
            line = next(line for line in file if line.startswith(b"Pss:"))
        return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError, StopIteration):
        return None


class LoaderMemory:
    """The memory of loader workers: their PSS where it may be read, else the most of their resident memory that is theirs alone."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, int | None]] = {}  # the time of the read of a process's PSS, and the value

    def read(self, pids: Iterable[int], t: float) -> dict[int, int]:
        """Return the bytes of each process that lives. t: seconds of any clock."""
        sizes = {pid: size for pid in pids if (size := resident(pid)) is not None}
        self._known = {pid: known for pid, known in self._known.items() if pid in sizes}
        until = time.monotonic() + BUDGET_S
        for pid in sorted(sizes, key=lambda pid: self._known.get(pid, (0.0, None))[0]):
            is_due = pid not in self._known or t - self._known[pid][0] >= EVERY_S
            if is_due and sizes[pid][0] <= MOST_BYTES and time.monotonic() < until:
                self._known[pid] = t, proportional(pid)
        return {pid: own if (pss := self._known.get(pid, (0.0, None))[1]) is None else pss for pid, (_, own) in sizes.items()}
