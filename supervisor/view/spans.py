"""The data of the ledger: spans of time, each in one state, and the sums of a run's spans.

The spans of a run follow each other without a gap, from its first record to its end. So their sum is the wall clock by construction: a span
may have a wrong state, and the sum is still right.
"""

from __future__ import annotations

import math
from enum import StrEnum
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Final

from supervisor.core.values import Struct, field, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class TimeState(StrEnum):
    """The uses of a run's time, in the order of the report."""

    PRODUCTIVE = "productive"  # the ranks made steps that no attempt of this run had made before; an evaluation counts too
    # new steps too, at less than 80 % of the run's median speed over at least a minute and ten steps; in a run of more than a week over two
    # minutes, then four
    DEGRADED = "degraded"
    REWORK = "rework"  # steps were made again, up to the highest step that the run had reached before the failure
    CHECKPOINT_STALL = "checkpoint_stall"  # the slowest rank saved a checkpoint, for 1 s or longer
    UNMEASURED = "unmeasured"  # ranks ran, and none of their steps was seen in the whole attempt
    START_AND_LOAD = "start_and_load"  # an attempt was prepared, until its first step: selection, launch, import, load, compile
    DETECTION = "detection"  # something had failed, or stood still since the last progress, and supervise did not know it yet
    # ranks were being stopped, or saved because a stop was requested; at the end of a run also our own work after the last rank
    TEAR_DOWN = "tear_down"
    DECISION = "decision"  # no rank was left, and the plan was not made yet: evidence, verdict, the decision of another node
    HEALTH = "health"  # the attempt waited for nothing but the check of its node
    # a restart was decided and waited (backoff, a full disk, a network that is down), or nobody supervised: supervise had died
    WAITING = "waiting"
    PREEMPTED = "preempted"  # the run had ended with 75, and was not started again yet
    UNACCOUNTED = "unaccounted"  # records are missing, and the two sides differ


#: Steps that no attempt of the run had made before.
NEW_STEPS: Final = frozenset({TimeState.PRODUCTIVE, TimeState.DEGRADED})
#: Ranks ran, and could fail.
RANKS_RAN: Final = NEW_STEPS | {TimeState.REWORK, TimeState.CHECKPOINT_STALL, TimeState.UNMEASURED, TimeState.START_AND_LOAD}
#: A stretch of training has at least so many seconds and steps. At least so many stretches are compared.
WINDOW_S, WINDOW_STEPS, LEAST_WINDOWS = 60.0, 10, 5
#: Below this share of the median speed a stretch is degraded.
DEGRADED_BELOW: Final = 0.8
#: A run keeps at least so many spans of time. Beyond twice as many, spans that are alike are joined, up to twice the length.
MOST_SPANS = 5000
#: A run keeps so many samples of the pace: beyond twice as many, every second one is dropped. Its present pace is that of the newest.
MOST_SAMPLES, NEWEST_SAMPLES = 1000, 3


class TimeSpan(Struct, frozen=True, array_like=True):
    """A stretch of time in one state."""

    begin_t: float  # Unix seconds
    end_t: float
    state: TimeState
    attempt: int = 0
    incident: int = 0  # the incident that cost this time, 0: none
    ranks: int = 0  # of the attempt, on all nodes
    first_step: float | None = None  # at the beginning of the span; None: not known, or an evaluation
    last_step: float | None = None  # at its end

    @property
    def took_s(self) -> float:
        """Its length in seconds."""
        return self.end_t - self.begin_t

    @property
    def steps(self) -> float:
        """The steps that were made in it; 0 if they are not known."""
        return 0.0 if self.first_step is None or self.last_step is None else self.last_step - self.first_step

    def joined(self, following: TimeSpan) -> TimeSpan:
        """Return one span of this one and the following one."""
        known = self.last_step is not None and following.last_step is not None
        first, last = (self.first_step, following.last_step) if known else (None, None)
        return replace(self, end_t=following.end_t, first_step=first, last_step=last)

    def is_alike(self, other: TimeSpan) -> bool:
        """Whether the two spans can be joined."""
        of = (self.state, self.attempt, self.incident, self.ranks, self.first_step is None)
        return of == (other.state, other.attempt, other.incident, other.ranks, other.first_step is None)


class PaceSample(Struct, frozen=True, array_like=True):
    """The pace and the loss of the training at a moment. None: not recorded."""

    t: float
    attempt: int
    step: int
    step_s: float | None = None  # for one step, since the sample before
    loss: float | None = None
    is_finite: bool = True  # False: the loss was not a number, or infinite


class SaveMark(Struct, frozen=True, array_like=True):
    """When a checkpoint was verified, or when a mirror held one."""

    t: float
    attempt: int
    step: int | None = None  # None: not known
    is_mirrored: bool = False


class RunLedger(Struct, omit_defaults=True):
    """The ledger of one run on one node."""

    run_id: str
    begin_t: float
    end_t: float = 0.0
    is_over: bool = False  # it has an end record
    goes_on: bool = False  # the run continues: its end is now
    exit_code: int | None = None  # of its end record
    attempts: int = 0
    spans: list[TimeSpan] = field(default_factory=list)
    window_s: float = WINDOW_S  # a shorter span is joined with the following one if they are alike
    most_spans: int = 0  # beyond so many, they are joined up to twice the length; 0: 2 * MOST_SPANS
    samples: list[PaceSample] = field(default_factory=list)  # one of each `sample_every`
    newest_samples: tuple[PaceSample, ...] = ()  # the last ones, without gaps
    sampled: int = 0  # how many there were, with those that were not kept
    sample_every: int = 1
    reached: int | None = None  # its highest step; None: not recorded
    kept: int | None = None  # the highest step of a checkpoint that was verified; None: not recorded
    counts_rework: bool = True  # False where an attempt continued from a step that is not known
    ranks: int = 0  # of the newest attempt on all nodes
    gpus: int = 0  # of this node
    saves: list[SaveMark] = field(default_factory=list)  # the oldest first
    incidents: list[int] = field(default_factory=list)  # the numbers of the incidents that opened in it

    def copied(self) -> RunLedger:
        """Return a copy: later changes of this ledger do not touch it."""
        return replace(self, spans=[*self.spans], samples=[*self.samples], saves=[*self.saves], incidents=[*self.incidents])

    @property
    def wall_s(self) -> float:
        """Seconds from its first record to its end."""
        return max(0.0, self.end_t - self.begin_t)

    def seconds(self) -> dict[TimeState, float]:
        """Return the seconds of each state, in the order of the states, also of states without time. They add up to `wall_s`."""
        parts: dict[TimeState, list[float]] = {state: [] for state in TimeState}
        for span in self.spans:
            parts[span.state].append(span.took_s)
        return {state: math.fsum(seconds) for state, seconds in parts.items()}

    def unkept_s(self) -> float | None:
        """Return the seconds of new steps that no checkpoint kept when the run was given up; None: not recorded."""
        if self.goes_on or (self.is_over and self.exit_code == 0):
            return 0.0
        if self.kept is None:
            return None if any(span.steps for span in self.spans) else 0.0
        return math.fsum(_above(span, self.kept) for span in self.spans if span.state in NEW_STEPS)

    def add(self, span: TimeSpan) -> None:
        """Add a span of time. A week has a span for each minute; in a longer run spans are joined, and their sum stays the same."""
        add(self.spans, span, longest_s=self.window_s)
        if len(self.spans) > (self.most_spans or 2 * MOST_SPANS):
            self.window_s *= 2
            joined: list[TimeSpan] = []
            for known in self.spans:
                add(joined, known, longest_s=self.window_s)
            self.spans, self.most_spans = joined, max(2 * MOST_SPANS, 2 * len(joined))

    def sample(self, sample: PaceSample) -> None:
        """Take a sample. At most 2 * MOST_SAMPLES are kept, evenly spread, and the newest ones."""
        self.newest_samples = (*self.newest_samples, sample)[-NEWEST_SAMPLES:]
        if self.sampled % self.sample_every == 0:
            self.samples.append(sample)
        self.sampled += 1
        self._thin_out()

    def sample_not_finite(self, t: float, attempt: int, step: int) -> None:
        """Note that the loss was not finite. This does not count as a sample of the pace."""
        self.samples.append(PaceSample(t, attempt, step, is_finite=False))
        self._thin_out()

    def _thin_out(self) -> None:
        if len(self.samples) > 2 * MOST_SAMPLES:
            self.samples, self.sample_every = self.samples[::2], 2 * self.sample_every


def _above(span: TimeSpan, step: int) -> float:
    """Return the seconds of a span in which the training was above a step."""
    if span.first_step is None or span.last_step is None or span.last_step <= step:
        return 0.0
    share = 1.0 if span.steps <= 0 or span.first_step >= step else (span.last_step - step) / span.steps
    return share * span.took_s


def add(spans: list[TimeSpan], span: TimeSpan, *, longest_s: float = math.inf) -> None:
    """Add a span to a list. It is joined with the last one if both are alike and the last one is shorter than `longest_s`."""
    last = spans[-1] if spans else None
    if last is not None and last.took_s < longest_s and last.is_alike(span):
        spans[-1] = last.joined(span)
    else:
        spans.append(span)


def training_spans(waiting: Iterable[TimeSpan], steps: tuple[int, int] | None, high: int | None) -> Iterator[TimeSpan]:
    """Yield the spans of a training as rework up to the step `high`, and as new steps beyond it.

    steps: the first and the last step of all spans together, at an even pace; None: not known, and then nothing is rework.
    """
    waiting = list(waiting)
    whole_s = math.fsum(span.took_s for span in waiting)
    first, last = steps or (0, 0)
    again = 0.0
    if steps is not None and high is not None and first < high:
        again = 1.0 if last <= high else (high - first) / (last - first)
    done_s = 0.0
    for span in waiting:
        change_t = span.begin_t + min(max(again * whole_s - done_s, 0.0), span.took_s)
        for begin_t, end_t, state in ((span.begin_t, change_t, TimeState.REWORK), (change_t, span.end_t, TimeState.PRODUCTIVE)):
            if end_t > begin_t:
                piece = replace(span, begin_t=begin_t, end_t=end_t, state=state)
                begin, end = (first + (done_s + t - span.begin_t) / whole_s * (last - first) for t in (begin_t, end_t))
                yield piece if steps is None else replace(piece, first_step=begin, last_step=end)
        done_s += span.took_s


def with_state(spans: list[TimeSpan], between: tuple[float, float], state: TimeState, incident: int, *, of: frozenset[TimeState]) -> None:
    """Give the time between two moments another state, if its state is one of `of`. Both moments are near the end of the list."""
    begin_t, end_t = between
    tail: list[TimeSpan] = []
    while spans and spans[-1].end_t > begin_t:
        tail.append(spans.pop())
    for span in reversed(tail):
        first, last = max(span.begin_t, begin_t), min(span.end_t, end_t)
        if span.state not in of or first >= last:
            spans.append(span)
            continue
        time_span = replace(span, last_step=span.first_step)  # a job that makes no progress makes no step
        parts = (
            replace(span, end_t=first),
            replace(time_span, begin_t=first, end_t=last, state=state, incident=incident, first_step=None, last_step=None),
            replace(time_span, begin_t=last),
        )
        spans += [piece for piece in parts if piece.took_s > 0]


def with_degraded(spans: Sequence[TimeSpan]) -> list[TimeSpan]:
    """Return the spans with the state DEGRADED where the new steps took long, compared with the median of all stretches."""
    windows = list(_windows(spans))
    slow: set[int] = set()
    if len(windows) >= LEAST_WINDOWS:
        limit_s = median(took_s / steps for _, took_s, steps in windows) / DEGRADED_BELOW
        slow = {number for numbers, took_s, steps in windows for number in numbers if took_s / steps > limit_s}
    shown: list[TimeSpan] = []

    def alike(numbered: tuple[int, TimeSpan]) -> tuple[TimeState, int, int, int, bool]:
        number, span = numbered
        state = TimeState.DEGRADED if number in slow else span.state
        return state, span.attempt, span.incident, span.ranks, span.first_step is None

    for (state, *_), group in groupby(enumerate(spans), key=alike):  # there may be thousands of spans: each is made once
        members = [span for _, span in group]
        first, last = members[0], members[-1]
        known = all(span.last_step is not None for span in members)
        steps = (first.first_step, last.last_step) if known else (None, None)
        shown.append(replace(first, end_t=last.end_t, state=state, first_step=steps[0], last_step=steps[1]))
    return shown


def _windows(spans: Sequence[TimeSpan]) -> Iterable[tuple[list[int], float, float]]:
    """Yield stretches of new steps that are long enough to be compared: the numbers of the spans, seconds, steps."""
    numbers: list[int] = []
    took_s = steps = 0.0
    attempt = 0
    for number, span in enumerate(spans):
        if span.state is not TimeState.PRODUCTIVE or span.first_step is None:
            continue
        if span.attempt != attempt:
            numbers, took_s, steps, attempt = [], 0.0, 0.0, span.attempt
        numbers.append(number)
        took_s, steps = took_s + span.took_s, steps + span.steps
        if took_s >= WINDOW_S and steps >= WINDOW_STEPS:
            yield numbers, took_s, steps
            numbers, took_s, steps = [], 0.0, 0.0
