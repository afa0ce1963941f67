"""Reads when a file was made, which Python's os.stat does not give on Linux. Layout: struct statx in linux/stat.h, the same everywhere."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

_AT_FDCWD: Final = -100
_BTIME: Final = 0x800
_BTIME_AT: Final = 80
_BYTES: Final = 256


def birth_time_ns(path: str) -> int | None:
    """Return a file's birth time in nanoseconds; None if the kernel or the file system has none."""
    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if statx is None:  # a C library older than glibc 2.28
        return None
    buffer = ctypes.create_string_buffer(_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _BTIME, buffer) != 0:
        return None
    mask = struct.unpack_from("=L", buffer.raw)[0]
    seconds, nanoseconds = struct.unpack_from("=qL", buffer.raw, _BTIME_AT)
    return int(seconds * 1_000_000_000 + nanoseconds) if mask & _BTIME else None
