"""Damage as disks and kills do it to a file: it is cut short, or one bit of it is another."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def tear(path: Path, share: float = 0.5) -> None:
    """Cut a file short: this share of its bytes stays."""
    os.truncate(path, int(path.stat().st_size * share))


def flip_bit(path: Path, at: int | None = None, bit: int = 0x10) -> None:
    """Change one bit of a byte, the middle one unless `at` says another. The times of the file stay as they were."""
    times, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= bit
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
