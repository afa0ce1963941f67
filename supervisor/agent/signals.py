"""Makes the agent ignore signals: the supervisor stops it over the link, and ends it through the guardian if it must.

supervisor/run/stop_signals.py handles the signals to the supervisor.

`guard` returns a function that makes it deaf again after torch installed handlers of its own. Main thread only. Standard library only,
because it runs before torch is imported.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: USR1 and USR2 are notices of schedulers, which may reach every process of a job and would end one that does not catch them.
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def nothing(signum: int, frame: object) -> None:
    """Handle a signal by doing nothing."""
    del signum, frame


def guard() -> Callable[[], None]:
    """Ignore INT, TERM, HUP, QUIT, USR1 and USR2. Returns a function that installs the handlers again.

    We install handlers, because exec resets them for the ranks. A signal that was ignored at our start (nohup) stays ignored, also in the
    ranks.
    """
    ignored = {s for s in IGNORED_SIGNALS if signal.getsignal(s) is signal.SIG_IGN}

    def again() -> None:
        for s in IGNORED_SIGNALS:
            signal.signal(s, signal.SIG_IGN if s in ignored else nothing)

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # If SIGCHLD were ignored, the kernel would reap the ranks before we read their status.
    again()
    return again
