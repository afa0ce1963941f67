"""Asks a rank by the FIFO that its background thread reads (`_supervise_shim/background.py`): safe whatever the rank is doing."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class NotAskedError(Exception):
    """Why a rank cannot be asked, after "it"."""


def ask(directory: Path, pid: int, word: str) -> Path:
    """Write a word into the FIFO of a process, and return the FIFO. Raises NotAskedError."""
    fifo = next(iter(sorted(directory.glob(f"collectives-*-{pid}.fifo"))), None)
    if fifo is None:
        raise NotAskedError("has no process group and made no step, or is not instrumented")
    try:
        fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NotAskedError("does not answer" if error.errno == errno.ENXIO else os.strerror(error.errno or 0)) from error
    try:
        os.write(fd, f"{word}\n".encode())
    except OSError as error:
        raise NotAskedError(os.strerror(error.errno or 0)) from error
    finally:
        os.close(fd)
    return fifo
