"""The ownership rule as a measurement: what is outside our state directory is the same before and after."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

Row = tuple[str, int, str]


def everything(directory: Path, *excluded: Path) -> list[Row]:
    """List (path, inode, SHA-256) of everything below `directory` but what is below `excluded`, sorted.

    A link counts by where it leads, anything that is neither file nor directory by its kind; a FIFO is not opened.
    """
    rows: list[Row] = []
    for parent, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if Path(parent, name) not in excluded]
        for path in (Path(parent, name) for name in (*directories, *files)):
            st = path.lstat()
            if stat.S_ISREG(st.st_mode):
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
            else:
                content = str(path.readlink()) if stat.S_ISLNK(st.st_mode) else stat.filemode(st.st_mode)
            rows.append((str(path), st.st_ino, content))
    return sorted(rows)
