"""Finds references to a checkpoint: a link, or the file in which a framework names its latest.

If a checkpoint with a reference were moved, a script that follows the reference would silently start from scratch. The checkpoint's
directory and the one above are searched, up to a limit. A directory that cannot be read is treated as a reference.
"""

from __future__ import annotations

import os
from typing import Final

from checkpointing.formats import pointer_files

MOST_ENTRIES: Final = 4096


def leads_to(path: str) -> str:
    """Return the path of a reference to the checkpoint at the absolute `path`, or into it; "" without one."""
    directory, _, name = path.rpartition("/")
    real = os.path.realpath(path)
    try:
        pointer = pointer_files.read(directory or "/")
    except OSError:
        return directory
    if pointer is not None and pointer.target == name:
        return f"{directory}/{pointer.name}"
    return _link_in(directory or "/", path, real) or _link_in(directory.rpartition("/")[0] or "/", path, real)


def _link_in(directory: str, path: str, real: str) -> str:
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number >= MOST_ENTRIES:
                    return directory
                if entry.path != path and entry.is_symlink() and f"{os.path.realpath(entry.path)}/".startswith(f"{real}/"):
                    return entry.path
    except PermissionError:  # the script cannot list it either
        return ""
    except OSError:
        return directory
    return ""
