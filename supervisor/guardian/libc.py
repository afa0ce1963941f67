"""Functions of the C library that Python does not offer.

Functions are looked up when this is imported: doing that between fork and exec would take the loader's lock.
"""

from __future__ import annotations

import ctypes
import os
import signal

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LIBC = ctypes.CDLL(None, use_errno=True)
_PRCTL = _LIBC.prctl
_PRCTL.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
_FALLOCATE = _LIBC.fallocate
_FALLOCATE.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_MALLOPT = getattr(_LIBC, "mallopt", None)  # glibc alone has these two
_MALLOC_TRIM = getattr(_LIBC, "malloc_trim", None)


def become_subreaper() -> None:
    """Become the parent of every orphan below this process. Raises OSError."""
    if _PRCTL(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Have this process killed, or sent another signal, when the thread that forked it ends."""
    _PRCTL(_PR_SET_PDEATHSIG, signum, 0, 0, 0)


def punch_hole(fd: int, begin: int, count: int) -> None:
    """Give the blocks of a part of a file back; it reads as zeros then, and the file stays as long as it is. Raises OSError."""
    if _FALLOCATE(fd, _PUNCH_HOLE | _KEEP_SIZE, begin, count) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"fallocate(FALLOC_FL_PUNCH_HOLE): {os.strerror(number)}")


def keep_little_memory() -> None:
    """Have blocks of output returned to the system when they are freed, and all threads share one heap.

    Left to itself glibc keeps several MiB after a flood: an arena per thread, full of holes. Does nothing on other C libraries.
    """
    if _MALLOPT:
        _MALLOPT(_M_ARENA_MAX, 1)
        _MALLOPT(_M_MMAP_THRESHOLD, 32 * 1024)


def keep_freed_memory() -> None:
    """Have freed blocks kept for the next ones, up to 64 MiB: for a short command that reads a large file block by block.

    Left to itself glibc returns each block to the system, and faults its pages in again for the next one: a third of the CPU time. Does
    nothing on other C libraries.
    """
    if _MALLOPT:
        _MALLOPT(_M_TRIM_THRESHOLD, 64 << 20)
        _MALLOPT(_M_MMAP_THRESHOLD, 16 << 20)


def return_free_memory() -> None:
    """Give freed memory back to the system now: worth it once, after something large was made. Does nothing on other C libraries."""
    if _MALLOC_TRIM:
        _MALLOC_TRIM(0)
