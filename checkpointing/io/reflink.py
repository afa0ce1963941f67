"""Holding on to a file's content while it is uploaded, without copying it and without touching it.

In: a file, and a name in our own directory. Out: how firmly it is held. A reflink shares the blocks and is a file of its own: nothing
that happens to the original reaches it. A hard link keeps the content from being removed, but not from being overwritten in place. On
another file system than our directory's there is neither, and only the path is known. In the last two cases a change is found by the
identity, and by the checksum of each part as it is sent. Raises OSError where the file cannot be opened.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Final

_FICLONE: Final = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
REFLINK: Final = "reflink"
LINK: Final = "link"
PATH: Final = "path"
_NO_LINKS: Final = {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EACCES}


def pin(source: str, target: str) -> str:
    """Hold the content of `source` under the new name `target`, and say how: REFLINK, LINK or PATH (nothing was made)."""
    if reflink(source, target):
        return REFLINK
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return PATH
        raise
    return LINK


def reflink(source: str, target: str) -> bool:
    """Make `target`, which must not exist, share the blocks of `source`; False, and no file, where the file system has no such thing."""
    read = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if os.fstat(read).st_dev != os.stat(os.path.dirname(target) or ".").st_dev:  # noqa: PTH116, PTH120 -- strings throughout the package
            return False
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.ioctl(write, _FICLONE, read)
        except OSError:
            os.unlink(target)  # noqa: PTH108
            return False
        finally:
            os.close(write)
    finally:
        os.close(read)
    return True
