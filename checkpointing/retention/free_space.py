"""Forecasts whether the next saves fit on the disk, before one of them fails half-way.

It reads the free space and the inodes of the file system, and the limit on the size of a file. It writes and allocates nothing: even for
a moment, that space would be missing for a save. It cannot see quotas, or what other programs will write.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SAVES_AHEAD: Final = 2


class Room(StrEnum):
    """The result of a forecast."""

    ENOUGH = "enough"
    SHORT = "short"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Forecast:
    """The room for the next SAVES_AHEAD saves of `save_bytes`: `n_saves` of them fit.

    `reason`: what else than space is short, or why the room is unknown.
    """

    directory: str
    room: Room
    save_bytes: int
    n_saves: int
    free_bytes: int
    reason: str = ""


def forecast(directory: str, save_bytes: int) -> Forecast:
    """Return whether the next saves of `save_bytes` each fit into `directory`, as far as that can be read. Changes nothing."""
    try:
        disk = os.statvfs(directory)
    except OSError as error:
        return Forecast(directory, Room.UNKNOWN, save_bytes, 0, 0, f"it could not be read: {error.strerror}")
    free_bytes = disk.f_bavail * disk.f_frsize
    if disk.f_files and not disk.f_favail:
        return Forecast(directory, Room.SHORT, save_bytes, 0, free_bytes, "no more files fit: the disk has no inodes left")
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if largest != resource.RLIM_INFINITY and largest < save_bytes:
        reason = "the limit on the size of a file (ulimit -f) is less than one save"
        return Forecast(directory, Room.SHORT, save_bytes, 0, free_bytes, reason)
    if free_bytes < SAVES_AHEAD * save_bytes:
        return Forecast(directory, Room.SHORT, save_bytes, free_bytes // save_bytes, free_bytes)
    return Forecast(directory, Room.ENOUGH, save_bytes, SAVES_AHEAD, free_bytes)
