"""Copies a file while somebody reads it: by sharing its blocks or its inode where that is possible, else from the bytes that are read."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING, Final, Self

from checkpointing.io import durable
from checkpointing.io.reflink import LINK, REFLINK, reflink

if TYPE_CHECKING:
    from collections.abc import Iterable

COPY: Final = "copy"


class FileCopy:
    """A copy that is being made. `way`: how: reflink, link or copy; a copy needs all bytes by `write`. Use as a context manager."""

    def __init__(self, source: str, target: str, *, may_link: bool = False) -> None:
        """Begin it at `target`, which must not exist. Raises OSError. `may_link`: the source is replaced and never rewritten."""
        self.n_bytes = 0
        self._fd = -1
        self.way = REFLINK if reflink(source, target) else LINK if may_link and _link(source, target) else COPY
        if self.way != LINK:  # owner, mode and times of a link are those of the original
            new = os.O_CREAT | os.O_EXCL if self.way == COPY else 0
            self._fd = os.open(target, os.O_WRONLY | os.O_CLOEXEC | new, 0o600)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close the file. Without `finish` before it, it is not a copy."""
        self.close()

    def write(self, piece: memoryview) -> None:
        """Add the next bytes of the source, if it is a copy. Raises OSError."""
        while self.way == COPY and piece:
            n_written = os.write(self._fd, piece)
            self.n_bytes += n_written
            piece = piece[n_written:]

    def take(self, piece: memoryview, _hasher: object) -> None:
        """Write, as what follows the reads of a file is called (manifest/digest.py)."""
        self.write(piece)

    def finish(self, source: os.stat_result) -> None:
        """Give it owner, mode and times of its source, as far as permitted, and make it durable. Raises OSError."""
        if self._fd < 0:
            return
        with contextlib.suppress(PermissionError):
            os.fchown(self._fd, source.st_uid, source.st_gid)
        os.fchmod(self._fd, source.st_mode & 0o777)
        os.utime(self._fd, ns=(source.st_atime_ns, source.st_mtime_ns))
        os.fsync(self._fd)
        if self.way == COPY:  # nobody reads it, unless the original is lost
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def lacks_room(directory: str, n_bytes: int, saves_left: int, way: str) -> str:
    """Return why a disk has no room for a copy of so many bytes, and for `saves_left` more of that size; "" where it has.

    Shared blocks cost nothing until the original is rewritten: then the job needs as many again. Raises OSError.
    """
    room = os.statvfs(directory)
    if room.f_bavail * room.f_frsize >= n_bytes * (saves_left + (way == COPY)):
        return ""
    return f"the disk would not have room for {saves_left} more of its size" if saves_left else "the disk has no room for it"


def copy_modes(source: str, target: str, files: Iterable[str]) -> None:
    """Give the directories of a copied tree the modes of the original, and make their names durable. Raises OSError.

    files: the relative paths of those that were copied.
    """
    for inner in sorted({"", *(file.rpartition("/")[0] for file in files)}):
        shutil.copymode(f"{source}/{inner}", f"{target}/{inner}")
        durable.sync_directory(f"{target}/{inner}")


def _link(source: str, target: str) -> bool:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        return False
    return True
