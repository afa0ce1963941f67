"""Has psutil read the system that a probe is asked about. No probe itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from health.model import Ask


def use(ask: Ask) -> None:
    """Have psutil read below `ask.root`. It knows one root at a time, for the whole process.

    Only a prober calls this: its process reads one root and ends.
    """
    proc = ask.at("/proc")
    if proc != psutil.PROCFS_PATH:
        psutil.PROCFS_PATH = proc
        psutil.process_iter.cache_clear()
