"""Appends whole batches to the journal's file, and repairs it after a failed write.

The writer thread of supervisor/journal/writer.py owns it, because every call may block for as long as the disk does.
`FileOperations` is the edge to the operating system, where tests put a disk that hangs.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from checkpointing.io import durable

if TYPE_CHECKING:
    from pathlib import Path

_STEP_BYTES = 1 << 16
#: How many files of earlier runs are kept beside the journal.
KEPT = 5


class FileOperations(Protocol):
    """The system calls that the journal is written with; they raise OSError."""

    def open(self, path: Path) -> int:
        """Open for appending, making the file with mode 0600 where there is none."""
        ...

    def write(self, fd: int, data: bytes) -> int:
        """Write at the end; returns how many bytes were taken."""
        ...

    def fsync(self, fd: int) -> None:
        """Wait until all is on the disk."""
        ...

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to `size` bytes."""
        ...


class OsFiles:
    """The real ones."""

    def open(self, path: Path) -> int:
        """See FileOperations."""
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, fd: int, data: bytes) -> int:
        """See FileOperations."""
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        """See FileOperations."""
        os.fsync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """See FileOperations."""
        os.ftruncate(fd, size)


class JournalFile:
    """An append-only file of whole lines.

    `set_aside`: the present file holds no record, and gets another name. `anew`: it is an earlier run's, and gets a numbered name.
    """

    def __init__(self, path: Path, files: FileOperations, *, set_aside: bool, anew: bool = False) -> None:
        self._path = path
        self._files = files
        self._set_aside = set_aside
        self._anew = anew
        self._fd: int | None = None
        self._end = 0
        self._torn = False

    def append(self, lines: bytes, *, sync: bool) -> None:
        """Write `lines`, and make everything durable if `sync`. After an OSError the caller gives the same lines again.

        They are written again even if only fsync failed: Linux reports such an error once and may have dropped the pages.
        """
        fd = self._open() if self._fd is None else self._fd
        # a deleted file takes all writes, and nothing can read it. Some file systems count no links at all
        if os.fstat(fd).st_nlink == 0 and not self._path.exists():
            raise FileNotFoundError(errno.ENOENT, "it was deleted while it was written", str(self._path))
        if self._torn:
            lines = self._mend(fd) + lines
        self._torn = True
        left = memoryview(lines)
        while left:
            left = left[self._files.write(fd, bytes(left)) :]
        if sync:
            self._files.fsync(fd)
        self._torn = False
        self._end += len(lines)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        if self._set_aside and self._path.exists():
            self._path.rename(_free_name(self._path))
        self._set_aside = False
        if self._anew and self._path.exists():
            self._path.rename(next_name(self._path))
        self._anew = False
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = not self._path.exists()
        fd = self._files.open(self._path)
        try:
            size = os.fstat(fd).st_size
            self._end = _after_last_line(fd, size)
            if self._end < size:
                self._files.truncate(fd, self._end)
            if new:
                with suppress(OSError):
                    durable.sync_directory(str(self._path.parent))
                _forget(self._path)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        return fd

    def _mend(self, fd: int) -> bytes:
        """Cut off what the failed write left; where even that fails, begin on a fresh line."""
        try:
            self._files.truncate(fd, self._end)
        except OSError:
            self._end = os.fstat(fd).st_size
            return b"\n"
        return b""


def _after_last_line(fd: int, size: int) -> int:
    """Return the offset after the last line feed: what follows was never finished."""
    end = size
    while end > 0:
        start = max(0, end - _STEP_BYTES)
        line_feed = os.pread(fd, end - start, start).rfind(b"\n")
        if line_feed >= 0:
            return start + line_feed + 1
        end = start
    return 0


def _free_name(path: Path) -> Path:
    number = 1
    while (name := path.with_name(f"{path.name}.unreadable-{number}")).exists():
        number += 1
    return name


def earlier(path: Path) -> list[Path]:
    """Return the files of earlier runs beside the journal at `path`, the newest first. A directory that cannot be read has none."""
    try:
        beside = list(path.parent.iterdir())
    except OSError:
        return []
    numbered = ((_number(path, other), other) for other in beside)
    return [other for number, other in sorted(numbered, reverse=True) if number]


def _number(path: Path, other: Path) -> int:
    match = re.fullmatch(rf"{re.escape(path.stem)}-(\d{{4,9}}){re.escape(path.suffix)}", other.name)
    return int(match[1]) if match else 0


def next_name(path: Path) -> Path:
    """Return the name under which the journal at `path` is kept beside the next one."""
    last = next((_number(path, other) for other in earlier(path)), 0)
    return path.with_name(f"{path.stem}-{last + 1:04d}{path.suffix}")


def _forget(path: Path) -> None:
    for old in earlier(path)[KEPT:]:
        with suppress(OSError):
            old.unlink()
