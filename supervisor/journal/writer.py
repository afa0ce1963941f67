"""The journal's writer: records go in at once, a thread of its own brings them to the disk.

The caller never sees a failure. A full, slow or hung disk leaves the records in memory (bounded, counted), reports `degraded` once, and
`recovered` when all is on the disk. Nothing raises.

There are two threads, because one that is stuck in a write cannot report that: the writer owns the file, the notifier calls the listener,
in order and never under the lock. The data that both and the caller share is `_Shared`, under one condition.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from supervisor.classify import redact
from supervisor.core.actions import ReportDecision
from supervisor.core.events import ProgressObserved
from supervisor.core.state import JobState
from supervisor.core.values import Struct, asdict, field, replace
from supervisor.journal import records
from supervisor.journal.records import EventTaken, Note, RunBegan, event_taken
from supervisor.journal.state_json import changed, lean, progressed

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.core.actions import Action
    from supervisor.core.events import Event
    from supervisor.core.state import Attempt, Run
    from supervisor.journal.file import JournalFile
    from supervisor.journal.records import Body, ViewTaken

#: No answer of the disk for this long is reported, and decisions stop waiting for it.
ANSWER_DEADLINE_S = 5.0
RETRY_FIRST_S = 0.1
RETRY_CAP_S = 5.0
#: The bytes that wait in memory while the disk does not take them; records that need not be durable get half of it.
PENDING_CAP_BYTES = 32 << 20
#: One write, so that a disk with little room left still takes something.
BATCH_BYTES = 1 << 20
_NO_ROOM = "records had no room in memory while the disk did not answer"
_FRESH = JobState()
wall_clock = time.time


def difference(after: JobState, before: JobState) -> dict[str, Any]:
    """Return the fields of `after` that differ from `before`. `run` and `attempt` are compared field by field."""
    changes = _differing(after, before)
    if "run" in changes:
        changes["run"] = _differing(after.run, before.run)
    if "attempt" in changes:
        changes["attempt"] = _differing(after.attempt, before.attempt)
    return changes


def _differing(after: JobState | Run | Attempt, before: JobState | Run | Attempt) -> dict[str, Any]:
    old = asdict(before)
    return {name: changed(value, old[name]) for name, value in asdict(after).items() if value is not old[name] and value != old[name]}


def _shortened(taken: EventTaken, before: JobState) -> EventTaken:
    """Return the record of a report of progress without its state, where that is no more than what `progressed` makes of it."""
    run, attempt = before.run, before.attempt
    values = {"run": {"high_water": run.high_water}, "attempt": lean({"progress": attempt.progress, "steps_seen": attempt.steps_seen})}
    return replace(taken, state=None) if not taken.actions and taken.state == progressed(values, taken.data) else taken


class Listener(Protocol):
    """The listener for the journal's condition. Called from the journal's thread: put it into a queue and return."""

    def journal_synced(self, seq: int) -> None:
        """Every record up to `seq` is durable."""
        ...

    def journal_degraded(self, text: str) -> None:
        """The disk does not take the records; they wait in memory. Reported once, until recovered."""
        ...

    def journal_recovered(self) -> None:
        """All that waited is durable."""
        ...


class ViewKeeper(Protocol):
    """The maker of the views among the records of a journal (supervisor/view/keeping.py)."""

    def take(self, line: bytes) -> None:
        """Take the line of a record."""
        ...

    def is_due(self, t: float) -> bool:
        """Return whether a view is to be written. t: of the last record."""
        ...

    def record(self, seq: int, t: float) -> ViewTaken:
        """Return the view up to now as the record of this number."""
        ...

    def written(self) -> None:
        """Take that the record was taken, and the next one can continue from it."""
        ...


class JournalHealth(Struct, frozen=True):
    """How the journal does. `lost` counts records that memory had no room for; `trouble` is empty where all is well."""

    trouble: str
    synced_seq: int
    pending_records: int
    pending_bytes: int
    lost: int


class _Pending(Struct, frozen=True):
    seq: int
    line: bytes
    durable: bool
    taken_at: float


class _Shared(Struct):
    """The data that caller, writer and notifier share, under `Journal._changed`."""

    next_seq: int
    waiting: deque[_Pending] = field(default_factory=deque)  # the oldest first; it stays here until it is written
    waiting_bytes: int = 0
    written_seq: int = 0
    synced_seq: int = 0
    lost: int = 0
    lost_unreported: int = 0
    trouble: str = ""  # why the disk takes nothing. The state learns it by an event, and cannot be read from the writer's thread
    calls: list[Callable[[], None]] = field(default_factory=list)
    closing: bool = False
    through: bool = False  # the writer has ended


class Journal:
    """The writer. Its methods may be called from any thread and never wait for the disk, but for `close`."""

    def __init__(self, path: Path, file: JournalFile, next_seq: int, listener: Listener, keeper: ViewKeeper | None = None) -> None:
        self.path = path
        self._file = file
        self._keeper = keeper
        self._listener = listener
        self._recorded: JobState | None = None  # the last state that a record holds, whole or as a difference
        self._changed = threading.Condition()
        self._shared = _Shared(next_seq)
        self._hurry = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, name="journal-writer", daemon=True),
            threading.Thread(target=self._notify, name="journal-notifier", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def append(self, body: Body, *, t: float, durable: bool = False) -> int:
        """Take a record and return its number. `t` is the time on the supervisor's clock. Secrets in a command become digests here."""
        if isinstance(body, RunBegan):
            body = replace(body, command=redact.command(body.command), invocation=redact.command(body.invocation))
        with self._changed:
            return self._take(body, t, durable=durable)

    def record(self, event: Event, actions: tuple[Action, ...], state: JobState, *, durable: bool) -> int:
        """Take a decision: the event, what `decide` answered, and the state after it.

        The state is written whole with a decision about a failure and where the record before it was lost; else only its changes.
        """
        with self._changed:
            whole = self._recorded is None or any(isinstance(action, ReportDecision) for action in actions)
            fields = difference(state, _FRESH if whole or self._recorded is None else self._recorded)
            taken = event_taken(event, actions, attempt=state.attempt.number, stage=state.stage.value, state=fields, whole=whole)
            if isinstance(event, ProgressObserved) and not whole and self._recorded is not None:
                taken = _shortened(taken, self._recorded)
            lost = self._shared.lost
            seq = self._take(taken, event.t, durable=durable)
            self._recorded = state if self._shared.lost == lost else None
            return seq

    def health(self) -> JournalHealth:
        """Return how the journal does."""
        with self._changed:
            shared = self._shared
            return JournalHealth(shared.trouble, shared.synced_seq, len(shared.waiting), shared.waiting_bytes, shared.lost)

    def close(self, deadline_s: float) -> bool:
        """Bring everything to the disk, at most until the deadline. True: all that was ever taken is durable. Else `health` says why."""
        until = time.monotonic() + deadline_s
        with self._changed:
            self._shared.closing = True
            self._changed.notify_all()
        self._hurry.set()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        shared = self._shared
        with self._changed:
            if not shared.through:
                shared.trouble = shared.trouble or f"{self.path}: no answer for {deadline_s:g} s"
            elif shared.lost:
                shared.trouble = f"{self.path}: {shared.lost} {_NO_ROOM}"
            return shared.through and not shared.lost

    def _take(self, body: Body, t: float, *, durable: bool) -> int:
        seq = self._shared.next_seq
        self._shared.next_seq += 1
        line = records.encode(seq, t, wall_clock(), body)
        if not self._wait(seq, line, durable=durable):
            self._shared.lost += 1
            self._shared.lost_unreported += 1
        elif self._keeper is not None:
            try:
                self._keep_view(self._keeper, line, t)
            except Exception as error:  # noqa: BLE001  no job ends for what only makes its journal quick to read
                self._keeper = None
                self._take(Note("view_failed", f"{type(error).__name__}: {error}"), t, durable=False)
        return seq

    def _keep_view(self, keeper: ViewKeeper, line: bytes, t: float) -> None:
        """Take a record into the view, and put the view into the journal where it is time."""
        keeper.take(line)
        if keeper.is_due(t):
            seq = self._shared.next_seq
            if self._wait(seq, records.encode(seq, t, wall_clock(), keeper.record(seq, t)), durable=False):
                self._shared.next_seq += 1
                keeper.written()

    def _wait(self, seq: int, line: bytes, *, durable: bool) -> bool:
        """Let a record wait for the writer; return whether there is room for it."""
        shared = self._shared
        if shared.waiting_bytes + len(line) > (PENDING_CAP_BYTES if durable else PENDING_CAP_BYTES // 2):
            return False
        shared.waiting.append(_Pending(seq, line, durable, time.monotonic()))
        shared.waiting_bytes += len(line)
        if len(shared.waiting) == 1:  # both sleep without a deadline only while nothing waits
            self._changed.notify_all()
        return True

    # the writer

    def _write(self) -> None:
        delay_s = RETRY_FIRST_S
        while True:
            batch = self._next_batch()
            sync = not batch or any(p.durable for p in batch) or bool(self._shared.trouble)
            try:
                self._file.append(b"".join(p.line for p in batch), sync=sync)
            except OSError as error:
                self._degrade(f"{self.path}: {error.strerror}")
                self._hurry.wait(delay_s)
                if self._hurry.is_set():
                    time.sleep(RETRY_FIRST_S)
                delay_s = min(2 * delay_s, RETRY_CAP_S)
                continue
            delay_s = RETRY_FIRST_S
            self._written(batch, sync=sync)
            if not batch and self._shared.closing:
                break
        self._file.close()
        with self._changed:
            self._shared.through = True
            self._changed.notify_all()

    def _next_batch(self) -> list[_Pending]:
        """Return what to write next, waiting for it. An empty batch asks for a sync, after trouble or at the end."""
        shared = self._shared
        with self._changed:
            while not (shared.waiting or shared.trouble or shared.closing):
                self._changed.wait()
            batch: list[_Pending] = []
            size = 0
            for pending in shared.waiting:
                size += len(pending.line)
                if batch and size > BATCH_BYTES:
                    break
                batch.append(pending)
            return batch

    def _written(self, batch: list[_Pending], *, sync: bool) -> None:
        shared = self._shared
        with self._changed:
            for pending in batch:
                shared.waiting.popleft()
                shared.waiting_bytes -= len(pending.line)
            shared.written_seq = batch[-1].seq if batch else shared.written_seq
            if sync and shared.synced_seq < shared.written_seq:
                shared.synced_seq = seq = shared.written_seq
                self._report(lambda: self._listener.journal_synced(seq))
            if shared.waiting:
                return
            if shared.lost_unreported:
                text = f"{shared.lost_unreported} {_NO_ROOM}"
                shared.lost_unreported = 0
                self._take(Note("records_lost", text, {"lost": shared.lost}), time.time(), durable=True)
            elif shared.trouble and sync:
                shared.trouble = ""
                self._report(self._listener.journal_recovered)

    def _degrade(self, text: str) -> None:
        with self._changed:
            if not self._shared.trouble:
                self._report(lambda: self._listener.journal_degraded(text))
            self._shared.trouble = text

    # the notifier

    def _report(self, call: Callable[[], None]) -> None:
        self._shared.calls.append(call)
        self._changed.notify_all()

    def _notify(self) -> None:
        while calls := self._next_calls():
            for call in calls:
                call()

    def _next_calls(self) -> list[Callable[[], None]]:
        """Return the next report, waiting for it and watching the clock; nothing at all when the writer has ended."""
        shared = self._shared
        with self._changed:
            while not shared.calls and not shared.through:
                wait_s = None
                if shared.waiting and not shared.trouble:
                    wait_s = shared.waiting[0].taken_at + ANSWER_DEADLINE_S - time.monotonic()
                    if wait_s <= 0:
                        self._degrade(f"{self.path}: no answer for {ANSWER_DEADLINE_S:g} s")
                        break
                self._changed.wait(wait_s)
            calls, shared.calls = shared.calls, []
            return calls
