"""The deciding loop: one thread takes events out of one inbox, calls `decide`, and has the actions carried out.

Any thread may `post` an event. Work for the loop's thread (a timer, a session's message) comes by `call_soon` and `call_later`. The
loop owns the state of the job. Nothing in here waits for a disk, a socket or a child.

The start of an attempt waits until the decision that ordered it is on disk. Only the journal has a clock for that: once it reports that
the disk does not answer (JournalDegraded), nothing waits until it has recovered. Stopping ranks never waits.
"""

from __future__ import annotations

import heapq
import itertools
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from supervisor.core.actions import DURABLE, Finish
from supervisor.core.events import JournalDegraded, JournalRecovered
from supervisor.core.machine import decide

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.events import Event
    from supervisor.core.state import JobState
    from supervisor.job.clock import Clock

#: How often the loop looks at what cannot announce itself: the heartbeats in shared memory, the watchdog.
TICK_S = 0.2


class Recorder(Protocol):
    """Where decisions are written down (supervisor/journal/writer.py)."""

    def record(self, event: Event, actions: tuple[Action, ...], state: JobState, *, durable: bool) -> int:
        """Take the record and return its number at once; `synced(number)` is posted to the loop when it is on disk."""
        ...


@dataclass(order=True)
class _Timer:
    due: float
    number: int
    call: Callable[[], None] = field(compare=False)


class Loop:
    """One job's loop. `perform` carries out an action; `tick` runs about five times a second."""

    def __init__(self, clock: Clock, state: JobState, recorder: Recorder) -> None:
        self.clock = clock
        self.state = state
        self.perform: Callable[[Action], None] = lambda _action: None
        self.tick: Callable[[], None] = lambda: None
        self._recorder = recorder
        self._inbox: queue.SimpleQueue[Event | Callable[[], None]] = queue.SimpleQueue()
        self._timers: list[_Timer] = []
        self._numbers = itertools.count()
        self._awaiting: list[tuple[int, Action]] = []
        self._finished: Finish | None = None

    def post(self, event: Event) -> None:
        """Put an event into the inbox: from any thread, and from a signal handler."""
        self._inbox.put(event)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Have `call` run on the loop's thread, from any thread."""
        self._inbox.put(call)

    def fail(self, error: BaseException) -> None:
        """Have `run` raise `error`, from any thread: a part has failed whose answer the run cannot continue without."""

        def stop() -> None:
            raise error

        self.call_soon(stop)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Have `call` run on the loop's thread after `delay_s` seconds. Only from the loop's thread."""
        heapq.heappush(self._timers, _Timer(self.clock.now() + delay_s, next(self._numbers), call))

    def finish(self, action: Finish) -> None:
        """Leave `run` with this once the current event is dealt with."""
        self._finished = action

    def synced(self, number: int) -> None:
        """Everything up to `number` is on disk: what waited for it may be done. Only from the loop's thread."""
        ready = [action for waits_for, action in self._awaiting if waits_for <= number]
        self._awaiting = [(waits_for, action) for waits_for, action in self._awaiting if waits_for > number]
        for action in ready:
            self.perform(action)

    def run(self) -> Finish:
        """Decide until the run is over. Returns how."""
        next_tick = self.clock.now()
        while self._finished is None:
            now = self.clock.now()
            if now >= next_tick:
                self.tick()
                next_tick = now + TICK_S
            while self._timers and self._timers[0].due <= now:
                heapq.heappop(self._timers).call()
            due = min(next_tick, self._timers[0].due) if self._timers else next_tick
            try:
                item = self._inbox.get(timeout=max(0.0, due - self.clock.now()))
            except queue.Empty:
                continue
            if callable(item):
                item()
            else:
                self.feed(item)
        return self._finished

    def feed(self, event: Event) -> None:
        """Decide on one event and carry its actions out. Only from the loop's thread."""
        before = self.state
        self.state, actions = decide(before, event)
        if self.state == before and not actions:
            return
        # the record of the journal's own trouble would wait for the same slow disk, and be reported as its next trouble
        durable = bool(actions) and not isinstance(event, JournalDegraded | JournalRecovered)
        number = self._recorder.record(event, actions, self.state, durable=durable)
        for action in actions:
            if type(action) in DURABLE and not self.state.journal_degraded:
                self._awaiting.append((number, action))
            else:
                self.perform(action)
            if isinstance(action, Finish):
                return
        if self.state.journal_degraded:
            self.synced(number)
