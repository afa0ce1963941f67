"""Threads that the guardian cannot do without.

A drain thread that died would leave every rank blocked in `print` for ever, with nobody told. So an unexpected exception in one of
these ends the guardian: the supervisor sees that at once, sweeps and starts anew.
"""

from __future__ import annotations

import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_BUG = 70


def start_critical(run: Callable[[], None]) -> None:
    """Run `run` in a thread of its own; its exception is printed and ends the process with exit code 70."""
    threading.Thread(target=_guarded, args=(run,), daemon=True).start()


def _guarded(run: Callable[[], None]) -> None:
    try:
        run()
    except BaseException:  # noqa: BLE001 - whatever it was, going on without this thread is worse
        sys.excepthook(*sys.exc_info())
        os._exit(EXIT_BUG)
