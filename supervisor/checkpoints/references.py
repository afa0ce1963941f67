"""What else leads to a checkpoint: a link, or the file in which a framework names its latest.

In: a checkpoint's path. Out: the path of what leads to it, "" where nothing was found. Moving such a checkpoint away would leave what leads
to it dangling, and a script that follows it would start from scratch in silence. Looked at are the directory that it lies in and the one
above; bounded. Nothing is raised: what cannot be looked at counts as leading to it.
"""

from __future__ import annotations

import os
from typing import Final

from checkpointing.formats import pointer_files

MOST_ENTRIES: Final = 4096


def leads_to(path: str) -> str:
    """Return what leads to the checkpoint at the absolute `path`, or into it."""
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
    except PermissionError:  # neither could the script list it
        return ""
    except OSError:
        return directory
    return ""
