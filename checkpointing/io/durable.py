"""Reads regular files only, and makes appends, new names and renames durable. Nothing here ever overwrites a file; staging.py does."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_AT_FDCWD: Final = -100
_RENAME_NOREPLACE: Final = 1
_RENAME_EXCHANGE: Final = 2
_UNSUPPORTED: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)  # by the file system, the kernel or the C library
_NO_LOCKS: Final = (*_UNSUPPORTED, errno.ENOLCK)


def open_regular(path: str) -> int:
    """Open a regular file for reading. Raises OSError for anything else: opening a FIFO would wait for its writer."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return fd


def read(path: str, most_bytes: int = -1) -> bytes:
    """Return the content of a regular file, cut at `most_bytes`. Raises OSError as `open_regular` does."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(most_bytes)


def append(path: str, line: bytes, mode: int = 0o600) -> None:
    """Append a line to a file, durably; the file is made where there is none. Raises OSError. Readers must skip torn lines."""
    is_new = not os.path.lexists(path)
    # O_NONBLOCK: a FIFO in its place is an error
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    fd = os.open(path, flags, mode)
    try:
        append_to(fd, line)
    finally:
        os.close(fd)
    if is_new:
        sync_directory(os.path.dirname(path) or ".")  # noqa: PTH120 -- paths are plain strings throughout the package


def append_to(fd: int, line: bytes) -> None:
    """Append a line to a file that is open with O_RDWR and O_APPEND. One write: lines of several processes do not mix. Raises OSError."""
    size = os.fstat(fd).st_size
    is_torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"  # by a kill or a full disk
    whole = b"\n" * is_torn + line + b"\n"
    if os.write(fd, whole) != len(whole):
        raise OSError(errno.ENOSPC, "the line was written in part")
    os.fsync(fd)


def make_directory(path: str, mode: int = 0o700) -> None:
    """Make a directory and its parents, durably, unless it exists."""
    if os.path.isdir(path):  # noqa: PTH112 -- as above
        return
    parent = os.path.dirname(path)  # noqa: PTH120 -- as above
    if parent and parent != path:
        make_directory(parent, mode)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)  # noqa: PTH102 -- as above
    sync_directory(parent or ".")


def sync_directory(path: str) -> None:
    """Make new, renamed and removed names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


def sync(fd: int) -> None:
    """Make an open file or directory durable. A file system that cannot sync directories needs no sync of them."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _UNSUPPORTED or not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise


def lock(fd: int, *, wait: bool = False) -> bool:
    """Lock an open file or directory until it is closed; False where the file system has no locks.

    Raises BlockingIOError where another process holds the lock, unless it may `wait`.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def is_at(fd: int, path: str) -> bool:
    """Return whether an open file still has this name. While a process waits for a lock, the file may be removed or replaced."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))  # noqa: PTH116 -- as above
    except FileNotFoundError:
        return False


def rename_exclusive(old: str, new: str) -> None:
    """Rename a file or directory, unless `new` exists: then FileExistsError. The caller syncs the directory.

    Where the file system cannot do both in one step, the check comes first, then the rename.
    """
    code = _renameat2()(old, new, _RENAME_NOREPLACE)
    if code == 0:
        return
    if code in _UNSUPPORTED:
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        os.rename(old, new)  # noqa: PTH104 -- as above
        return
    raise OSError(code, os.strerror(code), old, None, new)


def exchange(path: str, other: str) -> bool:
    """Swap two names in one step; False, and nothing done, where the file system cannot. The caller syncs the directory."""
    code = _renameat2()(path, other, _RENAME_EXCHANGE)
    if code and code not in _UNSUPPORTED:
        raise OSError(code, os.strerror(code), path, None, other)
    return code == 0


@functools.cache
def _renameat2() -> Callable[[str, str, int], int]:
    """Return renameat2(2), the rename that takes flags; its result is an errno, 0 for done."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return lambda _old, _new, _flags: errno.ENOSYS

    def rename(old: str, new: str, flags: int) -> int:
        failed = function(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flags)
        return ctypes.get_errno() if failed else 0

    return rename
