"""Has the kernel read the checkpoint of an attempt into memory while its ranks are still being started and import their libraries.

The background verification gives its pages back to the kernel, so that a restart would read the file from the disk after the imports.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.observe.host.memory_room import rooms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: One request. The kernel cuts a longer one to what it reads ahead of a file, which is no less than this by default.
CHUNK_BYTES = 128 * 1024
#: A checkpoint that is larger than this part of the free memory is left to the ranks.
PART = 0.25


def read_ahead(path: str, interrupted: Callable[[], bool], free: Callable[[], int] | None = None) -> int:
    """Request the files of a checkpoint; return how many bytes. Raises OSError. free: bytes of memory that may be taken.

    Nothing is copied, and what is in memory already is not read. Ends early once `interrupted` returns True.
    """
    sizes = dict(_files(Path(path)))
    if sum(sizes.values()) > PART * (_free() if free is None else free()):
        return 0
    requested = 0
    for file, size in sizes.items():
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            for offset in range(0, size, CHUNK_BYTES):
                if interrupted():
                    return requested
                os.posix_fadvise(fd, offset, CHUNK_BYTES, os.POSIX_FADV_WILLNEED)
                requested += min(CHUNK_BYTES, size - offset)
        finally:
            os.close(fd)
    return requested


def _files(path: Path) -> Iterator[tuple[Path, int]]:
    path = path.resolve()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and not file.is_symlink():
            yield file, file.stat().st_size


def _free() -> int:
    return min((room.free for room in rooms()), default=0)
