"""How much memory the job may still take: of the machine, and of each control group that limits it.

The kernel's own estimate counts for the machine (psutil's `available`). In a control group the file caches count as free, because the
kernel gives them up before it kills. Files of the kernel's own are read: they do not hang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from health.probes.host import cgroup
from supervisor.core.units import bytes_text
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

MACHINE: Final = "the machine"
#: This part of the memory stays free, whatever the setting is.
KEEP_FREE_PART: Final = 0.1


class MemoryRoom(Struct, frozen=True):
    """The rest of one amount of memory, in bytes. whose: "the machine", or the path of a control group."""

    free: int
    total: int
    whose: str


def rooms(root: str = "/") -> tuple[MemoryRoom, ...]:
    """Read the machine's memory and each limit of our control group and those above it. root: of the control groups."""
    limits = cgroup.memory_limits(root)
    return (*_of_machine(), *(MemoryRoom(max(0, limit.limit - limit.used), limit.limit, limit.path) for limit in limits))


def _of_machine() -> list[MemoryRoom]:
    import psutil  # noqa: PLC0415  25 ms that a start does not need

    try:
        memory = psutil.virtual_memory()
    except (OSError, KeyError):  # the kernel does not show it here
        return []
    return [MemoryRoom(memory.available, memory.total, MACHINE)]


def shortage(rooms_left: Iterable[MemoryRoom], needed: int, keep_free: int, *, share: float = 1.0) -> str:
    """Return why `needed` bytes more are too many, "" where everywhere `keep_free` and a tenth of the memory stay free after them.

    share: of the reserve that must be free. A process that was started with room is given up only when less than half of that is left.
    """
    for room in rooms_left:
        kept = int(share * max(keep_free, KEEP_FREE_PART * room.total))
        if room.free - needed < kept:
            more = f" and {bytes_text(needed)} more are needed" if needed else ""
            return f"{room.whose} has {bytes_text(room.free)} of {bytes_text(room.total)} free{more}; {bytes_text(kept)} are to stay free"
    return ""
