"""What the hooks on functions of os share: the path that an argument means, its numbers, and a wrapper that passes for the original."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: S_IFMT and S_IFDIR: importing stat is for those who need more of it.
_KIND, _DIRECTORY = 0o170000, 0o040000


def as_good_as(inner: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Give the wrapper of a function of os the rank of the original: shutil asks these sets for it, and pickle for its name."""
    for able in (os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks):
        if inner in able:
            able.add(wrapper)
    wrapper.__module__ = "os"
    return wrapper


def path_of(target: Any) -> str | None:  # noqa: ANN401 - whatever the script gave
    """Give the absolute path that is meant: of a path, or of an open file; None for a number, an address, and what has no name."""
    path = target if isinstance(target, (str, bytes, os.PathLike)) else getattr(target, "name", None)
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    path = os.fsdecode(path)
    return None if not path or "://" in path else os.path.abspath(path)  # noqa: PTH100 - pathlib costs 5 ms of start-up


def stat_of(path: str) -> list[int] | None:
    """Give device, inode, size and modification time of a file; None where there is none.

    Of a directory the size is -1: what it holds may change while its own numbers do not.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 - as above
    except OSError:
        return None
    is_directory = found.st_mode & _KIND == _DIRECTORY
    return [found.st_dev, found.st_ino, -1 if is_directory else found.st_size, found.st_mtime_ns]
