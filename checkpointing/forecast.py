"""Whether the next saves will fit where the job saves, before one of them fails half-way.

In: a directory, the size of a save, how many are to fit. Out: a `Forecast`, always; what could not be learned is its state UNKNOWN. Free
space as statvfs tells it is the file system's, not the user's: quotas (of a user, a project, an NFS server) and the limit on the size of
a file show only when something is written. So the space is really asked for: hidden files of that size are allocated and given back at
once, which is a matter of metadata on ext4, XFS, Btrfs and tmpfs. Where allocating is unknown (NFS before 4.2), a few MiB are written
instead, which shows a quota that is used up, and nothing more.

While it lasts, the space is taken from a save that happens to run, so ask where none does: before an attempt, or right after a save was
seen to end. Where statvfs already says that it will not fit, nothing is asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SAVES_AHEAD: Final = 2
_PREFIX: Final = ".supervise-room-"
_WRITTEN_BYTES: Final = 4 << 20
_FULL: Final = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up", errno.EFBIG: "files may not be that large"}
_UNKNOWN_HERE: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Room(StrEnum):
    """What a forecast says."""

    ENOUGH = "enough"
    SHORT = "short"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Forecast:
    """`fit`: how many saves of `save_bytes` fit, at most as many as were asked for; None where nobody knows. `proven`: it was tried.

    `free_bytes` is what statvfs says to a user without privileges. `reason` says what is short, or what kept us from looking.
    """

    directory: str
    room: Room
    save_bytes: int
    fit: int | None
    free_bytes: int
    proven: bool
    reason: str = ""


def forecast(directory: str, save_bytes: int, saves: int = SAVES_AHEAD) -> Forecast:
    """Say whether `saves` more of `save_bytes` each fit into `directory`."""
    try:
        told = os.statvfs(directory)
    except OSError as error:
        return Forecast(directory, Room.UNKNOWN, save_bytes, None, 0, proven=False, reason=f"it could not be looked at: {error.strerror}")
    free = told.f_bavail * told.f_frsize
    if told.f_files and not told.f_favail:
        return Forecast(directory, Room.SHORT, save_bytes, 0, free, proven=False, reason="no more files fit: the disk has no inodes left")
    if free < saves * save_bytes:
        fit = free // save_bytes
        return Forecast(directory, Room.SHORT, save_bytes, fit, free, proven=False, reason=f"{free / 1e9:.3g} GB are free")
    return _tried(directory, save_bytes, saves, free)


def _tried(directory: str, save_bytes: int, saves: int, free: int) -> Forecast:
    with contextlib.ExitStack() as held:
        for number in range(saves):
            try:
                code, proven = _reserve(directory, save_bytes, held)
            except OSError as error:
                code, proven = error.errno or errno.EIO, False
            if code in _FULL:
                return Forecast(directory, Room.SHORT, save_bytes, number, free, proven=True, reason=_FULL[code])
            if code:
                return Forecast(directory, Room.UNKNOWN, save_bytes, None, free, proven=False, reason=os.strerror(code))
            if not proven:
                why = "this file system reserves nothing, so that a quota which is nearly used up would not show"
                return Forecast(directory, Room.ENOUGH, save_bytes, saves, free, proven=False, reason=why)
    return Forecast(directory, Room.ENOUGH, save_bytes, saves, free, proven=True)


def _reserve(directory: str, n_bytes: int, held: contextlib.ExitStack) -> tuple[int, bool]:
    """Take space until `held` is closed: errno (0: it is there), and whether all of it was taken. Raises OSError."""
    held.callback(os.close, fd := _nameless(directory))
    code = _fallocate()(fd, max(n_bytes, 1))
    if code not in _UNKNOWN_HERE:
        return code, code == 0
    piece = bytes(1 << 20)
    for _ in range(min(n_bytes, _WRITTEN_BYTES) // len(piece) + 1):
        os.write(fd, piece)
    os.fsync(fd)  # over a network a quota may answer no sooner
    return 0, False


def _nameless(directory: str) -> int:
    """Open a new file without a name: whatever ends us, the space comes back, and whoever watches the directory sees nothing. OSError."""
    try:
        return os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (*_UNKNOWN_HERE, errno.EISDIR, errno.ENOENT):
            raise
    fd, path = tempfile.mkstemp(prefix=_PREFIX, dir=directory)
    os.unlink(path)  # noqa: PTH108 -- paths are plain strings throughout the package
    return fd


@functools.cache
def _fallocate() -> Callable[[int, int], int]:
    """Give what allocates: errno, 0 for done. Not posix_fallocate: where a file system cannot, that writes into every block."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if function is None:
        return lambda _fd, _n_bytes: errno.ENOSYS
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

    def allocate(fd: int, n_bytes: int) -> int:
        while True:
            if not function(fd, 0, 0, n_bytes):
                return 0
            code = ctypes.get_errno()
            if code != errno.EINTR:
                return code

    return allocate
