"""Splits the time from a failure (or from the launch) to the first training step into its parts, for each start of the ranks.

A part is named for its end, and reaches back to the moment before it. So the parts add up to the whole, whatever is known. A
moment that nothing showed leaves its time to the next one. Of a part that ran beside an earlier one (the nodes met while ranks were still
being ended) only the time beyond that one counts.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from supervisor.core import events
from supervisor.core.values import asdict
from supervisor.job import identity
from supervisor.journal.records import START_TIMES, Note, StartTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisor.core.events import Event
    from supervisor.job.clock import Clock

#: Each moment and the part that ends with it, in order; the state then. The ranks' moments are those of observe/ranks/start_files.py.
PARTS: Final = (
    ("taken_over", "supervise"),  # after a launch: it takes its first decision; the lock, the journal and a mirror's restore come before
    ("detected", "detect"),  # supervise knows that a rank died, or that the ranks stand still: since their last progress
    ("gone", "teardown"),  # no rank of the attempt is left on this node
    ("decided", "decision"),  # the evidence is collected, and the plan is made
    ("waited", "backoff"),  # the wait of the plan is over
    ("gathered", "rendezvous"),  # of several nodes: they meet before they select
    ("selected", "selection"),  # the checkpoint is chosen and verified
    ("ordered", "preparation"),  # the node was examined, the decision is on disk, the command is made
    ("agent_ready", "agent"),  # torchrun's agent is ready: mostly its own import of torch, after a launch
    ("met", "rendezvous"),  # the nodes have met
    ("spawned", "start"),
    ("hello", "start"),  # the rank's interpreter runs; of a plain command, and without instrumentation: the process exists
    ("imported", "import"),  # the last module was searched for before the script made its process group, loaded a checkpoint or trained
    ("grouped", "init"),  # its first process group was made
    ("loading", "setup"),  # its first load of a checkpoint began: the model, the optimizer, and what torch imports for them
    ("loaded", "load"),  # the last load before the first step ended
    ("first_step", "first_step"),  # the first optimizer step ended
)

#: The moment that an event is, and that a report of the agent is.
_EVENTS: Final[dict[type, str]] = {
    events.SupervisorStarted: "taken_over",
    events.AttemptEnded: "gone",
    events.DecisionMade: "decided",
    events.NodesGathered: "gathered",
    events.CheckpointSelected: "selected",
    events.AttemptStarted: "spawned",
}
_REPORTS: Final = {"agent.ready": "agent_ready", "rendezvous": "met"}


def split(begun_t: float, moments: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each part that is known; their sum is the time from `begun_t` to the last moment, whatever their order."""
    parts: dict[str, float] = {}
    at = begun_t
    for name, part in PARTS:
        t = moments.get(name)
        if t is not None:
            parts[part] = parts.get(part, 0.0) + max(0.0, t - at)
            at = max(at, t)
    return parts


class StartClock:
    """Collects the moments of one start after the other. Its methods are called on the loop's thread.

    A start begins with the launch, or with the first sign that an attempt failed or is to end. It is reported at the first training step;
    without one, when its attempt ends.
    """

    def __init__(self, clock: Clock, launched_t: float, report: Callable[[StartTimes], None]) -> None:
        self._clock, self._report = clock, report
        self._after, self._begun_t = "launch", launched_t
        self._ended = 0  # the attempt after which this start begins; 0: the launch
        self._attempt = 0
        self._still_since_t: float | None = None  # a confirmed hang that is not over
        self._moments: dict[str, float] = {}
        self._is_reported = False

    def took(self, event: Event) -> None:
        """Note what an event adds."""
        if isinstance(event, events.RankExited) and event.exit.failed:
            self._begin(event.attempt, self._clock.at_monotonic_ns(event.exit.at_ns), event.t)
        elif isinstance(event, events.AttemptEndedByPeer):
            self._begin(event.attempt, event.t, None, "membership" if event.kind == "membership" else "failure")
        elif isinstance(event, events.AttemptEnded):
            self._begin(event.attempt, event.t, None, "membership" if event.outcome == "membership" else "failure")
        elif isinstance(event, events.LauncherExited):
            self._begin(event.attempt, event.t, None)
        elif isinstance(event, events.HangConfirmed):
            self._still_since_t = event.t - event.hang.still_s
        elif isinstance(event, events.HangCleared):
            self._still_since_t = None
        elif isinstance(event, events.AttemptStarted):
            self._attempt = event.attempt
        moment = "waited" if isinstance(event, events.TimerFired) and event.name == "backoff" else _EVENTS.get(type(event))
        if moment is not None:
            self._set(moment, event.t)

    def noted(self, event: str) -> None:
        """Note a moment that only the agent reports."""
        if event in _REPORTS:
            self.reached(_REPORTS[event])

    def incident_opened(self, attempt: int) -> None:
        """Begin where nothing else showed a failure: a hang, a NaN, a node's health."""
        now = self._clock.now()
        self._begin(attempt, now if self._still_since_t is None else self._still_since_t, now)

    def reached(self, moment: str) -> None:
        """Note a moment that no event has."""
        self._set(moment, self._clock.now())

    def trained(self, attempt: int, moments_ns: Mapping[str, int]) -> None:
        """Take the ranks' own moments, CLOCK_MONOTONIC ns, and report."""
        if attempt == self._attempt and not self._is_reported:
            self._moments |= {name: self._clock.at_monotonic_ns(ns) for name, ns in moments_ns.items()}
            self._finish()

    def _set(self, moment: str, t: float) -> None:
        if not self._is_reported:
            self._moments[moment] = t

    def _begin(self, attempt: int, begun_t: float, detected_t: float | None, after: str = "failure") -> None:
        if attempt <= self._ended:
            return
        if not self._is_reported and attempt == self._attempt:
            self._finish()
        self._ended, self._after, self._begun_t, self._is_reported, self._still_since_t = attempt, after, begun_t, False, None
        self._moments = {} if detected_t is None else {"detected": detected_t}

    def _finish(self) -> None:
        self._is_reported = True
        parts = split(self._begun_t, self._moments)
        rounded = {name: round(took_s, 4) for name, took_s in parts.items()}
        trained = "first_step" in self._moments
        self._report(StartTimes(self._attempt, self._after, round(sum(parts.values()), 4), rounded, trained))


def launched_t(clock: Clock) -> float:
    """Return when this process began, on the job's clock; now, where the system does not show it."""
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - identity.this_process().start_ticks / os.sysconf("SC_CLK_TCK")
    return clock.now() - max(0.0, age_s)


def note_of(times: StartTimes) -> Note:
    """Return the journal's note."""
    return Note(START_TIMES, data=asdict(times))
