"""Writing so that a power cut leaves the old or the new, renaming so that nothing is ever overwritten, and reading only regular files.

In: paths and bytes. Out: nothing, or whether a rename took place. OSError where the file system says no; what was begun is taken back
first. Nothing is kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import secrets
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_AT_FDCWD: Final = -100
_RENAME_NOREPLACE: Final = 1
_RENAME_EXCHANGE: Final = 2
_NOT_HERE: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)  # the file system, the kernel or the C library has no such rename


def write(path: str, content: bytes, mode: int = 0o600) -> None:
    """Have `path` hold `content`, durably and all at once: temporary file beside it, fsync, rename, fsync of the directory."""
    directory, _, name = path.rpartition("/")
    # a name that no other thread, process or node has
    temporary = f"{directory or '.'}/.{name}.tmp-{secrets.token_hex(6)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.rename(temporary, path)  # noqa: PTH104 -- paths are plain strings throughout the package
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108 -- as above
        raise
    sync_directory(directory or ".")


def open_regular(path: str) -> int:
    """Open a regular file for reading. Raises OSError, also for anything else: a FIFO in its place would be waited for, for ever."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return fd


def read(path: str, most_bytes: int = -1) -> bytes:
    """Return what a regular file holds, its beginning where it is longer than most_bytes. Raises OSError as open_regular does."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(most_bytes)


def make_directory(path: str, mode: int = 0o700) -> None:
    """Make a directory and those above it, durably; one that is there already is as good."""
    if os.path.isdir(path):  # noqa: PTH112 -- as above
        return
    parent = os.path.dirname(path)  # noqa: PTH120 -- as above
    if parent and parent != path:
        make_directory(parent, mode)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)  # noqa: PTH102 -- as above
    sync_directory(parent or ".")


def sync_directory(path: str) -> None:
    """Make what was made, renamed and removed in a directory durable. A file system that cannot sync directories needs none."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    finally:
        os.close(fd)


def is_at(fd: int, path: str) -> bool:
    """Say whether what is open is what has that name now: who took a lock may have waited for somebody who removed or replaced it."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))  # noqa: PTH116 -- strings throughout the package
    except FileNotFoundError:
        return False


def rename_exclusive(old: str, new: str) -> None:
    """Rename a file or directory, unless `new` exists: then FileExistsError. The caller syncs the directory.

    Where the file system cannot do both at once, it is looked first, and then renamed.
    """
    code = _renameat2()(old, new, _RENAME_NOREPLACE)
    if code == 0:
        return
    if code in _NOT_HERE:
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        os.rename(old, new)  # noqa: PTH104 -- as above
        return
    raise OSError(code, os.strerror(code), old, None, new)


def exchange(one: str, other: str) -> bool:
    """Have two names change places in one step; False, and nothing done, where the file system cannot. The caller syncs the directory."""
    code = _renameat2()(one, other, _RENAME_EXCHANGE)
    if code and code not in _NOT_HERE:
        raise OSError(code, os.strerror(code), one, None, other)
    return code == 0


@functools.cache
def _renameat2() -> Callable[[str, str, int], int]:
    """Give the rename that takes flags (renameat2(2)): errno, 0 for done."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return lambda _old, _new, _flags: errno.ENOSYS

    def rename(old: str, new: str, flags: int) -> int:
        failed = function(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flags)
        return ctypes.get_errno() if failed else 0

    return rename
