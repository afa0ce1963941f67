"""The duty of process 1 of a container before a run catches its signals: to end when it is asked to.

The kernel delivers no signal to process 1 that it has no handler for (pid_namespaces(7)). Without these handlers a TERM that comes while
modules are imported would be lost, and the pod would be killed when its grace is over. Process 1 also reaps: guardian/ownership.py.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


def end_on_signals() -> None:
    """Let these signals end process 1 as they end any other process. Ignored ones stay so; run/stop_signals.py takes their place."""
    if os.getpid() != 1:
        return
    for signum in _ENDS:
        if signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, _end)


def _end(signum: int, _frame: FrameType | None) -> None:
    os._exit(128 + signum)
