"""Runs the outbox in its own thread, so that a hung disk delays neither the deciding loop nor the sending.

Each entry's `settled` event is set once the disk has answered, well or not. A disk that refuses (full, read-only, gone) is reported once.
Entries that could not be written stay in memory and are tried again with the next piece of work, at the latest after `RETRY_S`.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from supervisor.alerts.outbox import CAP

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.alerts.outbox import Outbox

RETRY_S = 30.0
#: Work that may wait for a disk that hangs; beyond it alerts are in memory only.
WORK_LIMIT = 1024


@dataclass(slots=True, eq=False)
class QueuedAlert:
    """An alert on its way. `settled`: the disk has it, or will not; `repeated`: it was here before and needs no sending."""

    event_id: str
    body: bytes
    title: str = ""
    settled: threading.Event = field(default_factory=threading.Event)
    repeated: bool = False


class OutboxThread:
    """The thread. Every method returns at once and never raises."""

    def __init__(self, outbox: Outbox, on_loaded: Callable[[list[QueuedAlert]], None], on_trouble: Callable[[str], None]) -> None:
        """Make the thread (started by who owns it); both callbacks are called from it."""
        self._outbox = outbox
        self._on_loaded = on_loaded
        self._on_trouble = on_trouble
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._unsaved: dict[str, QueuedAlert] = {}
        self._threads: bytes | None = None  # to be written
        self._loaded = False
        self._in_trouble = False
        self.thread = threading.Thread(target=self._run, name="alert-outbox", daemon=True)

    @property
    def in_trouble(self) -> bool:
        """Whether the disk refuses: what is in memory may be nowhere else."""
        return self._in_trouble

    def put(self, entry: QueuedAlert) -> None:
        """Make the entry durable."""
        if self._work.qsize() < WORK_LIMIT:
            self._work.put(partial(self._put, entry))
        else:
            entry.settled.set()

    def sent(self, event_id: str) -> None:
        """Take an entry out that its receiver has."""
        self._work.put(partial(self._finish, event_id, partial(self._outbox.sent, event_id)))

    def refuse(self, entry: QueuedAlert, reason: str) -> None:
        """Take an entry out that its receiver will never have."""
        self._work.put(partial(self._finish, entry.event_id, partial(self._outbox.refuse, entry.event_id, entry.body, reason, entry.title)))

    def save_threads(self, content: bytes) -> None:
        """Keep the threads that the receiver knows; while one write waits, the newest content takes its place."""
        is_waiting, self._threads = self._threads is not None, content
        if not is_waiting:
            self._work.put(partial(self._finish, "", self._save_threads))

    def stop(self) -> None:
        """End the thread after the work that was given to it."""
        self._work.put(None)

    def _run(self) -> None:
        self._guarded(self._load)
        while True:
            try:
                work = self._work.get(timeout=RETRY_S if self._in_trouble else None)
            except queue.Empty:
                work = self._nothing
            if work is None:
                return
            work()
            if self._in_trouble:
                self._guarded(self._catch_up)

    def _save_threads(self) -> None:
        content, self._threads = self._threads, None
        if content is not None:
            self._outbox.save_threads(content)

    def _nothing(self) -> None:
        """Let the loop come round: what is unsaved is tried again there."""

    def _put(self, entry: QueuedAlert) -> None:
        entry.repeated = self._outbox.knows(entry.event_id)
        # behind one that is unsaved it waits for `_catch_up`, which keeps the order
        if not entry.repeated and (
            self._in_trouble or not self._guarded(partial(self._outbox.put, entry.event_id, entry.body, entry.title))
        ):
            self._unsaved[entry.event_id] = entry
            if len(self._unsaved) > CAP:
                del self._unsaved[next(iter(self._unsaved))]
        entry.settled.set()

    def _finish(self, event_id: str, work: Callable[[], None]) -> None:
        self._unsaved.pop(event_id, None)
        self._guarded(work)

    def _load(self) -> None:
        found = [QueuedAlert(kept.event_id, kept.body, kept.title) for kept in self._outbox.load()]
        for entry in found:
            entry.settled.set()
        self._loaded = True
        self._on_loaded(found)

    def _catch_up(self) -> None:
        if not self._loaded:
            self._load()
        for entry in list(self._unsaved.values()):
            self._outbox.put(entry.event_id, entry.body, entry.title)
            del self._unsaved[entry.event_id]

    def _guarded(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except OSError as error:
            if not self._in_trouble:
                self._on_trouble(error.strerror or type(error).__name__)
            self._in_trouble = True
            return False
        if work == self._catch_up:
            self._in_trouble = False
        return True
