"""Helps the hooks on functions of os: the path that an argument means, a file's identity, and a wrapper that passes for the original."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: S_IFMT and S_IFDIR: importing stat is for those who need more of it.
_KIND, _DIRECTORY = 0o170000, 0o040000


def as_good_as(inner: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Have the wrapper of a function of os stand for the original: shutil looks it up in these sets, and pickle by its name."""
    for able in (os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks):
        if inner in able:
            able.add(wrapper)
    wrapper.__module__ = "os"
    return wrapper


def path_of(target: Any) -> str | None:  # noqa: ANN401 - whatever the script gave
    """Return the absolute path of a path or an open file; None for a descriptor, an address, or a file without a name.

    Of an open member of a zip archive (stable-baselines3 saves so) it is the archive's.
    """
    path = target if isinstance(target, (str, bytes, os.PathLike)) else getattr(archive_of(target) or target, "name", None)
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    path = os.fsdecode(path)
    return None if not path or "://" in path else os.path.abspath(path)  # noqa: PTH100 - pathlib costs 5 ms of start-up


def archive_of(target: Any) -> Any:  # noqa: ANN401 - as above
    """Return the open file of the zip archive of which `target` is an open member; None for anything else."""
    if type(target).__module__.partition(".")[0] != "zipfile":
        return None
    opened = getattr(target, "_fileobj", None)
    return getattr(opened, "_file", opened)  # a reader has what shares it


def stat_of(path: str) -> list[int] | None:
    """Return device, inode, size and modification time of a file; None if there is none.

    The size of a directory is -1: its content may change while its own numbers do not.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - as above
    except OSError:
        return None
    is_directory = status.st_mode & _KIND == _DIRECTORY
    return [status.st_dev, status.st_ino, -1 if is_directory else status.st_size, status.st_mtime_ns]
