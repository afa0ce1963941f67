"""Ends of a command that has something to take back."""

from __future__ import annotations

import signal
import sys


def exit_on_signals() -> None:
    """Make TERM and HUP raise SystemExit, as Ctrl-C raises KeyboardInterrupt: the command then cleans up. A run has handlers of its own."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup
            signal.signal(signum, lambda number, _frame: sys.exit(128 + number))
