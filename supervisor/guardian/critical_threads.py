"""Threads that the guardian cannot do without.

If the drain thread died, every rank would block in `print` for ever and nobody would know. So an exception in one of these threads ends the
guardian; the supervisor sees that at once and starts another.
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
    except BaseException:  # noqa: BLE001 - whatever it was, continuing without this thread is worse
        sys.excepthook(*sys.exc_info())
        os._exit(EXIT_BUG)
