"""Keeps a file's content available while it is uploaded (`pin`): by a reflink, else by a hard link, else only by its path.

A reflink shares the blocks and is a file of its own: no later change of the original shows in it. A hard link survives the removal of
the original, but a write into the original shows in it. If the file is on another file system than our directory, we only know its path.
In the last two cases a change is noticed: the file's size or modification time differs, and so does the checksum of a part when it is sent.
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
    """Hold the content of `source` under the new name `target`. Return how: REFLINK, LINK or PATH (nothing was made)."""
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
    """Make `target`, which must not exist, share the blocks of `source`. Raises OSError if a file cannot be opened.

    Returns False, and makes no file, if that is not possible: another file system, one without reflinks, or an error.
    """
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
