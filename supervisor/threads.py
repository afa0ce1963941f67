"""Worker threads for what may wait for a disk, a driver or a tool: the loop's own thread never does.

In: a name and what to do. Out: nothing; who starts one hears of its end through the loop. Where no thread can be had it is tried again
later. Owns the names of what recurs and is under way.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.loop import Loop

#: Where no thread can be had (a limit on processes that loaders use up for a moment), the next try.
RETRY_S = 1.0


class Threads:
    """Its methods are called on the loop's thread."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._under_way: set[str] = set()

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Do what may wait somewhere else."""
        try:
            threading.Thread(target=work, name=name, daemon=True).start()
        except RuntimeError:
            self._loop.call_later(RETRY_S, lambda: self.start(name, work))

    def recur(self, name: str, work: Callable[[], None]) -> None:
        """Do it in a thread, unless the last time is still under way: a disk that hangs must not gather threads."""
        if name in self._under_way:
            return
        self._under_way.add(name)

        def once() -> None:
            try:
                work()
            finally:
                self._under_way.discard(name)

        self.start(name, once)
