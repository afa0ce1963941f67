"""Gives items to a sink in a thread of its own, so that a hung disk or terminal delays nobody else."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Item = TypeVar("Item")
_QUEUED = 1000


class BackgroundWriter(Generic[Item]):
    """A bounded queue, and a thread that gives its items to `sink`. An item that does not fit is dropped and counted."""

    def __init__(self, name: str, sink: Callable[[Item, int], bool], limit: int = _QUEUED) -> None:
        """Start the thread. `sink(item, dropped)` returns False if it dropped the item too; `dropped` counts the items lost before."""
        self._queue: queue.Queue[Item | None] = queue.Queue(limit)
        self._sink = sink
        self._lock = threading.Lock()
        self._dropped = 0
        self._total = 0
        # a daemon: a disk that hangs must not keep the process from ending
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """How much was dropped since the start, in calls of `put`."""
        return self._total

    def put(self, item: Item) -> None:
        """Queue `item`, or drop it if the queue is full."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self._lose(1)

    def close(self, deadline_s: float) -> bool:
        """Wait until all is written, at most `deadline_s`. False: it is not, and a thread that still writes is left alone."""
        until = time.monotonic() + deadline_s
        try:
            self._queue.put(None, timeout=deadline_s)
        except queue.Full:
            return False
        self._thread.join(max(0.0, until - time.monotonic()))
        return self._queue.empty() and not self._thread.is_alive()

    def _lose(self, count: int) -> None:
        with self._lock:
            self._dropped += count
            self._total += count

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            with self._lock:
                dropped, self._dropped = self._dropped, 0
            if not self._sink(item, dropped):
                with self._lock:
                    self._dropped += dropped + 1
                    self._total += 1
