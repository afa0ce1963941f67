"""Says how much of a file is in the page cache, without bringing any of it there (a read with RWF_NOWAIT starts a readahead)."""

from __future__ import annotations

import ctypes
import functools
import mmap
from typing import Any

#: Only this bit of a page's byte has a meaning (mincore(2)).
_LOWEST_BIT = bytes(byte & 1 for byte in range(256))


def resident_share(fd: int, offset: int, n_bytes: int) -> float:
    """Return the share, 0 to 1, of a range's pages that are in the page cache; 0 where the file system or the kernel cannot tell.

    offset: a multiple of the page size. n_bytes: at least 1; the range lies within the file. Of a file that this user could not write,
    the kernel says that all of it is there.
    """
    mincore = _mincore()
    if mincore is None:
        return 0.0
    pages = -(-n_bytes // mmap.PAGESIZE)
    answer = (ctypes.c_ubyte * pages)()
    try:
        # private and writable, though nothing is written: only such a mapping shows its address
        with mmap.mmap(fd, n_bytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset) as mapped:
            begin = ctypes.c_ubyte.from_buffer(mapped)
            code = mincore(ctypes.byref(begin), ctypes.c_size_t(n_bytes), answer)
            del begin  # a mapping that is referred to cannot be closed
    except (OSError, ValueError):
        return 0.0
    return bytes(answer).translate(_LOWEST_BIT).count(1) / pages if code == 0 else 0.0


@functools.cache
def _mincore() -> Any:  # noqa: ANN401 -- a function of the C library
    return getattr(ctypes.CDLL(None, use_errno=True), "mincore", None)
