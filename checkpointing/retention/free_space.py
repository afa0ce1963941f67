"""Forecasts whether the next saves fit on the disk, before one of them fails half-way.

It writes and allocates nothing: even for a moment, that space would be missing for a save, and on tmpfs it would be the job's own memory.
It reads:

* the free space and the inodes of the file system (statvfs), which on ext4 and XFS includes a project's quota;
* the quota of the user and of the group (quotactl_fd, Linux 5.14), where the file system keeps them;
* on tmpfs what the machine's memory and the limits of our cgroups leave;
* the limit on the size of a file.

It cannot see the quotas of Btrfs, of Lustre and of an NFS or object server, or what other programs will write.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from checkpointing.io import memory_room

SAVES_AHEAD: Final = 2
_IN_MEMORY: Final = ("tmpfs", "ramfs")
_QUOTACTL_FD: Final = 443  # the same number on every architecture that torch is built for
_GET_QUOTA: Final = 0x800007
_DQBLK: Final = struct.Struct("=8QI4x")  # struct if_dqblk: hard and soft limit in KiB, bytes in use, ..., valid
_KIB: Final = 1024


class Room(StrEnum):
    """The result of a forecast."""

    ENOUGH = "enough"
    SHORT = "short"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Forecast:
    """`fit`: how many saves of `save_bytes` fit, at most the number asked for; None if unknown.

    `free_bytes` is the space that the tightest limit leaves. `reason`: what is short, or the error.
    """

    directory: str
    room: Room
    save_bytes: int
    fit: int | None
    free_bytes: int
    reason: str = ""


def forecast(directory: str, save_bytes: int, saves: int = SAVES_AHEAD) -> Forecast:
    """Return whether `saves` more of `save_bytes` each fit into `directory`, as far as that can be read. Changes nothing."""
    try:
        disk, device = os.statvfs(directory), os.stat(directory).st_dev  # noqa: PTH116 -- strings throughout the package
    except OSError as error:
        return Forecast(directory, Room.UNKNOWN, save_bytes, None, 0, f"it could not be read: {error.strerror}")
    rows = [(disk.f_bavail * disk.f_frsize, "{free} are free")]
    if _file_system(device) in _IN_MEMORY:
        free, what = memory_room.room_bytes(directory)
        rows.append((free, f"it is in memory, and {what} leaves {{free}}"))
    rows += [(left, f"the quota of the {whose} leaves {{free}}") for left, whose in _quotas(directory)]
    free, reason = min(rows)
    if disk.f_files and not disk.f_favail:
        return Forecast(directory, Room.SHORT, save_bytes, 0, free, "no more files fit: the disk has no inodes left")
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if largest != resource.RLIM_INFINITY and largest < save_bytes:
        return Forecast(directory, Room.SHORT, save_bytes, 0, free, "the limit on the size of a file (ulimit -f) is less than one save")
    if free < saves * save_bytes:
        return Forecast(directory, Room.SHORT, save_bytes, free // save_bytes, free, reason.format(free=f"{free / 1e9:.3g} GB"))
    return Forecast(directory, Room.ENOUGH, save_bytes, saves, free)


def _file_system(device: int) -> str:
    """Return the kind of file system that a device number belongs to, "" if unknown."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError, ValueError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 -- as above
        for line in file:
            before, _, after = line.partition(" - ")
            if before.split()[2] == wanted:
                return after.split()[0]
    return ""


def _quotas(directory: str) -> list[tuple[int, str]]:
    """Return the bytes that the quotas of this user and group leave; none without quotas, or on an older kernel."""
    found = []
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        for kind, who, whose in ((0, os.geteuid(), "user"), (1, os.getegid(), "group")):
            buffer = ctypes.create_string_buffer(_DQBLK.size)
            if platform.system() == "Linux" and libc.syscall(_QUOTACTL_FD, fd, _GET_QUOTA << 8 | kind, who, buffer) == 0:
                hard, soft, used, *_ = _DQBLK.unpack(buffer.raw)
                limit = min((one for one in (hard, soft) if one), default=0) * _KIB
                if limit:
                    found.append((max(0, limit - used), whose))
    finally:
        os.close(fd)
    return found
