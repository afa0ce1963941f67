"""The machine's memory, shared memory and disks at the moment of a failure.

These facts accompany others and make nothing a cause, with one exception: a rank that died of SIGBUS while /dev/shm was full. The death
itself frees shared memory, so the least that was free lately is remembered from reads during the attempt, one system call each. A disk
may hang this: call it under a deadline.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from supervisor.core.model import Evidence
from supervisor.core.units import bytes_text
from supervisor.observe.host import memory_room

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.core.model import RankExit

SHM = "/dev/shm"  # noqa: S108 (measured, not written to)
#: Less than this is nothing: the smallest segment that NCCL or a loader asks for is larger.
FULL_BYTES = 1 << 20
WINDOW_S = 10.0


class SharedMemory:
    """The least that was free in /dev/shm lately (WINDOW_S, at most twice that). The loop measures it: it is memory, and does not hang."""

    def __init__(self) -> None:
        self._began = 0.0
        self._before: int | None = None
        self._now: int | None = None

    @property
    def least(self) -> int | None:
        """Bytes; None where it was never seen."""
        return min((free for free in (self._before, self._now) if free is not None), default=None)

    def measure(self, t: float) -> None:
        """Record how much is free at `t`."""
        try:
            free = _free(SHM)
        except OSError:
            return
        if t - self._began > WINDOW_S:
            self._began, self._before, self._now = t, self._now, free
        else:
            self._now = free if self._now is None else min(free, self._now)


def evidence(places: Iterable[tuple[str, str]], least_shm: int | None, deaths: Sequence[RankExit]) -> tuple[Evidence, ...]:
    """Return the machine's state now; `places` are (purpose, path)."""
    facts = [_memory(), *_disks(places)]
    if least_shm is not None:
        fields = (("least", str(least_shm)),)
        facts.append(Evidence("host", "shm_free", f"{SHM} had {bytes_text(least_shm)} free at its fullest", fields=fields))
        bus = next((death for death in deaths if death.signal == signal.SIGBUS), None)
        if bus is not None and least_shm < FULL_BYTES:
            facts.append(Evidence("host", "shm_full", f"{SHM} was full when it died of SIGBUS", rank=bus.rank, fields=fields))
    return tuple(facts)


def shared_memory_used() -> int | None:
    """Return the bytes that /dev/shm holds, of all programs; None where it cannot be read."""
    try:
        info = os.statvfs(SHM)
    except OSError:
        return None
    return (info.f_blocks - info.f_bfree) * info.f_frsize


def _memory() -> Evidence:
    """Return what memory is available: the machine's, or less where the limit of a control group leaves less."""
    rooms = memory_room.rooms()
    if not rooms or rooms[0].whose != memory_room.MACHINE:
        return Evidence("host", "not_observed", "the machine's memory: the kernel does not show it")
    room = min(rooms, key=lambda room: room.free)
    whose = "" if room is rooms[0] else f", by the limit of {room.whose}"
    fields = (("available", str(room.free)), ("total", str(room.total)))
    return Evidence(
        "host", "memory_available", f"{bytes_text(room.free)} of {bytes_text(room.total)} memory available{whose}", fields=fields
    )


def _disks(places: Iterable[tuple[str, str]]) -> list[Evidence]:
    """One fact for each file system among the places."""
    facts: list[Evidence] = []
    seen: set[int] = set()
    for name, place in places:
        path = place
        while not os.path.isdir(path) and os.path.dirname(path) != path:  # noqa: PTH112, PTH120 (a path that is not there yet will be in one that is)
            path = os.path.dirname(path)  # noqa: PTH120 (as above)
        try:
            device = os.stat(path).st_dev  # noqa: PTH116 (a name)
            free = _free(path)
        except OSError as error:
            facts.append(Evidence("host", "not_observed", f"the disk of the {name}: {error.strerror}"))
            continue
        if device not in seen:
            seen.add(device)
            text = f"the disk of the {name} has {bytes_text(free)} free"
            facts.append(Evidence("host", "disk_free", text, fields=(("free", str(free)), ("path", path))))
    return facts


def _free(path: str) -> int:
    info = os.statvfs(path)
    return info.f_bavail * info.f_frsize
