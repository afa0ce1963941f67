"""Runs the outbox in its own thread, so that a hung disk delays neither the deciding loop nor the sending.

The thread works off what is to be done, not a queue of requests: an alert that is dropped or delivered before its turn needs no file, so
a flood of alerts keeps the newest ones on disk. The order matters for a process that is killed: alerts are written before the threads in
which they count as sent.

Each entry's `settled` event is set once the disk has answered, well or not. A disk that refuses (full, read-only, gone) is reported once.
Entries that could not be written stay in memory and are tried again with the next piece of work, at the latest after `RETRY_S`.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.alerts.outbox import Outbox

RETRY_S = 30.0


@dataclass(slots=True, eq=False)
class QueuedAlert:
    """An alert on its way. `settled`: the disk has it, or will not; `repeated`: it was here before and needs no sending."""

    event_id: str
    body: bytes
    title: str = ""
    settled: threading.Event = field(default_factory=threading.Event)
    repeated: bool = False


class OutboxThread:
    """The thread. Every method returns at once and never raises. Whoever puts alerts here bounds their number with `drop`."""

    def __init__(self, outbox: Outbox, on_loaded: Callable[[list[QueuedAlert]], None], on_trouble: Callable[[str], None]) -> None:
        """Make the thread (started by who owns it); both callbacks are called from it."""
        self._outbox = outbox
        self._on_loaded = on_loaded
        self._on_trouble = on_trouble
        self._changed = threading.Condition()  # guards all below
        self._unsaved: dict[str, QueuedAlert] = {}  # to be written
        self._writing = ""  # of these the one whose turn it is
        self._moves: deque[Callable[[], None]] = deque()  # of alerts that were sent or refused
        self._dropped: list[str] = []  # those that may have a file
        self._drops = 0  # of all that were dropped the number that is not recorded yet
        self._threads: bytes | None = None  # to be written
        self._loaded = self._in_trouble = self._pauses = self._has_news = self._stops = self._gives_up = False
        self.thread = threading.Thread(target=self._run, name="alert-outbox", daemon=True)

    @property
    def in_trouble(self) -> bool:
        """Whether the disk refuses: what is in memory may be nowhere else."""
        return self._in_trouble

    def put(self, entry: QueuedAlert) -> None:
        """Make the entry durable."""
        with self._changed:
            self._unsaved[entry.event_id] = entry
            self._wake()

    def sent(self, event_id: str) -> None:
        """Take an entry out that its receiver has."""
        self._take_out(event_id, partial(self._outbox.sent, event_id))

    def refuse(self, entry: QueuedAlert, reason: str) -> None:
        """Take an entry out that its receiver will never have."""
        self._take_out(entry.event_id, partial(self._outbox.refuse, entry.event_id, entry.body, reason, entry.title))

    def drop(self, entry: QueuedAlert) -> None:
        """Take an entry out that there is no room for."""
        with self._changed:
            has_no_file = self._unsaved.pop(entry.event_id, None) is not None and entry.event_id != self._writing
            self._dropped += [] if has_no_file else [entry.event_id]
            self._drops += 1
            self._wake()
        entry.settled.set()

    def save_threads(self, content: bytes) -> None:
        """Keep the threads that the receiver knows, after the alerts that were put before; of several contents the newest is written."""
        with self._changed:
            self._threads = content
            self._wake()

    def stop(self) -> None:
        """End the thread after the work that was given to it."""
        with self._changed:
            self._stops = True
            self._wake()

    def _take_out(self, event_id: str, move: Callable[[], None]) -> None:
        with self._changed:
            self._unsaved.pop(event_id, None)
            self._moves.append(move)
            self._wake()

    def _wake(self) -> None:
        self._has_news = True
        self._changed.notify()

    def _run(self) -> None:
        while work := self._next():
            try:
                work()
            except Exception as error:  # noqa: BLE001 - a bug in here must not end the thread: alerts are sent from memory, as with a full disk
                self._failed(error)
            else:
                with self._changed:
                    if self._loaded and not self._unsaved and self._threads is None:
                        self._in_trouble = False

    def _next(self) -> Callable[[], None] | None:
        """Wait for work, and return it; None at the end."""
        with self._changed:
            while True:
                if self._pauses and not self._stops:
                    self._changed.wait_for(lambda: self._has_news, RETRY_S)
                self._pauses = self._has_news = False
                if work := self._work():
                    return work
                if self._stops:
                    return None
                self._changed.wait_for(lambda: self._has_news)

    def _work(self) -> Callable[[], None] | None:
        has_tried = self._loaded or self._in_trouble  # to load, which comes first
        if has_tried and self._moves:
            return self._moves.popleft()
        if has_tried and self._drops:
            work = partial(self._outbox.drop, self._dropped, self._drops)
            self._dropped, self._drops = [], 0
            return work
        if self._gives_up:
            return None
        if not self._loaded:
            return self._load
        if self._unsaved:
            self._writing, entry = next(iter(self._unsaved.items()))
            return partial(self._put, entry)
        return self._save_threads if self._threads is not None else None

    def _put(self, entry: QueuedAlert) -> None:
        entry.repeated = self._outbox.knows(entry.event_id)
        if not entry.repeated:
            self._outbox.put(entry.event_id, entry.body, entry.title)
        with self._changed:
            self._unsaved.pop(entry.event_id, None)
            self._writing = ""
        entry.settled.set()

    def _save_threads(self) -> None:
        content = self._threads
        if content is not None:
            self._outbox.save_threads(content)
        with self._changed:
            if self._threads is content:
                self._threads = None

    def _load(self) -> None:
        found = [QueuedAlert(kept.event_id, kept.body, kept.title) for kept in self._outbox.load()]
        for entry in found:
            entry.settled.set()
        self._loaded = True
        self._on_loaded(found)

    def _failed(self, error: Exception) -> None:
        is_new = not self._in_trouble
        with self._changed:
            self._in_trouble = self._pauses = True
            self._gives_up = self._stops  # what could not be written now stays unwritten
            self._writing = ""
            for entry in self._unsaved.values():
                entry.settled.set()
        if is_new:
            self._on_trouble(str(getattr(error, "strerror", None) or type(error).__name__))
