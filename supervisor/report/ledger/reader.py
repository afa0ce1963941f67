"""Makes the ledgers of a job's runs from the records of its journal: one pass, in the order of the records.

Most of it follows from the stage and the attempt that each event leads to. Three things are known only later, and wait until then:

- whether time before a first step was a start, or a training that nobody could see: until the first step, or the attempt's end;
- whether steps were new: until the next report of progress says how far they came;
- how long supervise was gone: until the record of its successor.
"""

from __future__ import annotations

import math
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from supervisor.core.model import BEFORE_FIRST_STEP, Phase
from supervisor.core.state import Stage
from supervisor.errors import ExitCode
from supervisor.journal.records import START_TIMES, SUMMARY, EventTaken, Note, Record, RunBegan, RunEnded, StartTimes
from supervisor.report.ledger.spans import (
    NEW_STEPS,
    WINDOW_S,
    PaceSample,
    RunLedger,
    TimeSpan,
    TimeState,
    add,
    training_spans,
    with_degraded,
    with_state,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.journal.records import Damage

#: What the time is spent with in each stage; RUNNING and the ends of an attempt depend on its ranks too (`_doing`).
_STAGES: Final = {
    Stage.CHECKING: TimeState.HEALTH,
    Stage.WAITING: TimeState.WAITING,
    Stage.TEARDOWN: TimeState.TEAR_DOWN,
    Stage.FOLLOWING: TimeState.TEAR_DOWN,
    Stage.ADMITTING: TimeState.TEAR_DOWN,
    Stage.STOPPING: TimeState.TEAR_DOWN,
    Stage.ENDED: TimeState.TEAR_DOWN,
}
#: Where the ranks may still train.
_TRAINS: Final = frozenset({Stage.RUNNING, Stage.STOPPING})
_BEFORE_FIRST_STEP: Final = frozenset(phase.value for phase in BEFORE_FIRST_STEP)
#: What stood still, or was dead, before it was known.
_UNNOTICED: Final = NEW_STEPS | {TimeState.REWORK, TimeState.UNMEASURED, TimeState.START_AND_LOAD, TimeState.CHECKPOINT_STALL}


def ledgers_of(records: Iterable[Record | Damage], now: float | None = None) -> list[RunLedger]:
    """Return the ledgers of all runs in these records, the oldest first. now: Unix seconds, where the last one goes on."""
    reading = LedgerReading()
    for record in records:
        reading.take(record)
    return reading.ledgers(now)


class LedgerReading:
    """The ledgers of all runs of a journal while it is read; more records may follow at any time."""

    def __init__(self) -> None:
        self._over: list[RunLedger] = []
        self._last: RunReader | None = None
        self._seq = 0

    def take(self, record: Record | Damage) -> None:
        """Take what stands next in the journal."""
        if not isinstance(record, Record) or record.seq <= self._seq:  # damage shows as a gap; a number that was there is a second copy
            return
        body, is_lost, self._seq = record.body, record.seq != self._seq + 1, record.seq
        run = self._last
        if run is not None and is_lost:
            run.miss()
        if isinstance(body, RunBegan) and run is not None and body.continues:
            run.take_over()
        elif isinstance(body, RunBegan):
            self._over += [run.finish()] if run is not None else []
            self._last = RunReader(RunLedger(body.run_id, record.t, gpus=self._over[-1].gpus if self._over else 0))
        elif run is not None and isinstance(body, EventTaken):
            run.take_event(body, record.t)
        elif run is not None and isinstance(body, RunEnded):
            run.end(body, record.t)
        elif run is not None and isinstance(body, Note):
            run.take_note(body)

    def ledgers(self, now: float | None = None) -> list[RunLedger]:
        """Return the ledgers so far, as `ledgers_of`; what is taken later leaves them as they are."""
        if self._last is None:
            return []
        last = copy(self._last)
        last.detach()
        return [*self._over, last.finish(now)]


class RunReader:
    """Makes the ledger of one run; its methods take the run's records in their order."""

    def __init__(self, run: RunLedger) -> None:
        """Begin with the run's first record."""
        self._run, self._t = run, run.begin_t
        self._is_lost = False  # records before the next event are missing
        self._stage, self._attempt = str(Stage.NEW), 0
        self._incident = self._earlier_incident = 0  # which the time belongs to, and which it would without that
        self._absence: TimeState | None = None  # supervise is gone, and so the time is spent
        self._left_progress: dict[str, Any] | None = None  # the progress in the heartbeats that its ranks left
        self._failures: dict[int, tuple[float, int]] = {}  # of the newest attempts: when each failed, and its incident
        self._unproven: list[TimeSpan] = []  # of ranks of which no step was seen yet
        self._training: list[TimeSpan] = []  # since the newest report; TEAR_DOWN where a stop was requested
        self._new_attempt(0, None)

    def _new_attempt(self, number: int, resumed_step: int | None) -> None:
        self._begun_attempt = number
        self._phase = ""  # as the newest report of the attempt has it; "": there was none
        self._base = resumed_step  # to which the steps seen in it are added
        self._trains = self._are_ranks_gone = False
        self._step: int | None = None  # of the newest report
        self._still_since_t: float | None = None  # a confirmed hang

    def detach(self) -> None:
        """Share nothing that changes with the reader of which this one is a copy."""
        self._run = self._run.copied()
        self._unproven, self._training = [*self._unproven], [*self._training]

    # --- the records

    def miss(self) -> None:
        """Take that records are missing before the next one."""
        self._is_lost = True

    def take_over(self) -> None:
        """Take that another supervisor goes on with the run."""
        run = self._run
        self._absence = TimeState.PREEMPTED if run.exit_code == ExitCode.REQUEUE else TimeState.WAITING
        run.is_over, run.exit_code = False, None

    def end(self, ended: RunEnded, t: float) -> None:
        """Take the end record."""
        self._advance(t)
        self._leave_attempt()
        self._run.exit_code, self._run.is_over = ended.exit_code, True

    def finish(self, now: float | None = None) -> RunLedger:
        """End the ledger with the last record, or at `now` if the run goes on, and return it."""
        run = self._run
        run.goes_on = now is not None and not run.is_over
        end_t = now if now is not None and run.goes_on else self._t
        if self._absence is not None:
            self._return(end_t, None)
        self._advance(end_t)
        self._leave_attempt()
        run.end_t, run.spans = self._t, with_degraded(run.spans)
        return run

    def take_note(self, note: Note) -> None:
        """Take the newest checkpoint at the end of the run, and when a failure was detected."""
        step = note.data.get("step")
        if note.name == SUMMARY and isinstance(step, int):
            self._keep(step)
        elif note.name == START_TIMES:
            with suppress(msgspec.ValidationError):
                start = msgspec.convert(note.data, StartTimes)
                failed_t, incident = self._failures.get(start.attempt - 1, (0.0, 0))
                if start.after == "failure" and failed_t:
                    self._unnoticed(failed_t - start.parts.get("detect", 0.0), failed_t, incident)

    # --- events

    def take_event(self, taken: EventTaken, t: float) -> None:
        """Take an event and the stage and attempt that it led to."""
        if self._is_lost:
            self._is_lost = False
            if (taken.stage, taken.attempt) != (self._stage, self._attempt) and self._absence is None:
                self._leave_attempt()
                self._spend(t, TimeState.UNACCOUNTED)
        if self._absence is not None and not self._is_back(taken, t):
            return
        self._advance(t)
        if taken.event == "ProgressObserved":
            self._take_progress(taken)
        else:
            self._take_other(taken, t)
        leaves = taken.attempt != self._attempt or (self._stage in _TRAINS and taken.stage not in _TRAINS)
        if leaves or (self._stage == Stage.RUNNING and taken.stage == Stage.STOPPING and not self._trains):
            self._leave_attempt()
        for name, data in taken.actions:
            self._take_action(name, data)
        if self._stage in {Stage.RUNNING, Stage.STARTING} and taken.stage in {Stage.TEARDOWN, Stage.FOLLOWING}:
            self._failures = dict([*self._failures.items(), (self._attempt, (t, self._incident))][-2:])
            if self._still_since_t is not None:
                self._unnoticed(self._still_since_t, t, self._incident)
        if taken.attempt not in {self._attempt, self._begun_attempt}:
            self._new_attempt(taken.attempt, None)  # the record of its beginning is missing
        self._stage, self._attempt = taken.stage, taken.attempt

    def _take_other(self, taken: EventTaken, t: float) -> None:
        run, data = self._run, taken.data
        if taken.event == "AttemptStarted":
            run.ranks, run.attempts = _whole(data.get("world_size")) or 0, max(run.attempts, taken.attempt)
        elif taken.event == "RanksFound":
            run.ranks = _whole(data.get("world_size")) or run.ranks
        elif taken.event == "AttemptEnded" and data.get("attempt") == self._attempt:
            self._leave_attempt()
            self._are_ranks_gone = True
        elif taken.event == "GpusListed":
            run.gpus = len(data.get("gpus") or ())
        elif taken.event in {"CheckpointVerified", "CheckpointSelected"}:
            self._take_checkpoint(taken, t)
        elif taken.event == "HangConfirmed":
            still_s = _number((data.get("hang") or {}).get("still_s"))
            self._still_since_t = None if still_s is None else t - still_s
        elif taken.event == "HangCleared":
            self._still_since_t = None

    def _take_checkpoint(self, taken: EventTaken, t: float) -> None:
        found = taken.data.get("checkpoint") or taken.data.get("chosen") or {}
        step = _whole(found.get("step"))
        if step is not None:
            self._keep(step)
        if taken.event == "CheckpointVerified":
            self._run.saves_t.append((taken.attempt, t))

    def _take_action(self, name: str, data: dict[str, Any]) -> None:
        if name == "BeginAttempt":
            resume = data.get("resume")
            # a first attempt that is given nothing has no step before it, whatever it loads by itself
            first = None if self._run.reached is not None else 0
            self._leave_attempt()
            self._new_attempt(_whole(data.get("attempt")) or 0, _whole(resume.get("step")) if isinstance(resume, dict) else first)
        elif name == "OpenIncident":
            self._earlier_incident, self._incident = self._incident, _whole(data.get("incident")) or 0
            self._run.incidents.add(self._incident)
        elif name == "CloseIncident" and data.get("outcome") == "withdrawn":
            self._incident = self._earlier_incident

    # --- progress

    def _take_progress(self, taken: EventTaken) -> None:
        data = taken.data
        if data.get("attempt") != self._attempt:
            return
        for name, found in taken.actions:
            if name == "ReportResume" and found.get("confirmed"):
                self._base = 0 if found.get("path") is None else _whole(found.get("step"))
        reached = self._reached(data)
        seen, step, first = _whole(data.get("steps_seen")) or 0, _whole(data.get("step")), _whole(data.get("first_step"))
        if not self._trains and (seen > 0 or (first is not None and step is not None and step > first)):
            self._trains = True
            self._settle_start()
            self._step = reached
            self._count(reached)
        elif self._trains:
            self._sample(reached, _number(data.get("loss")))
            self._settle_training(reached)
        self._phase = str(data.get("phase", ""))

    def _reached(self, data: dict[str, Any]) -> int | None:
        """Return the step of a report: absolute, or counted from the step that was resumed from; None: not known."""
        step, seen = _whole(data.get("step")), _whole(data.get("steps_seen")) or 0
        return self._base + seen if step is None and self._base is not None and seen > 0 else step

    def _sample(self, reached: int | None, loss: float | None) -> None:
        """Keep how long the steps since the last report took."""
        run = self._run
        made = 0 if reached is None or self._step is None else reached - self._step
        if reached is None or (made <= 0 and loss is None):
            return
        took_s = math.fsum(span.took_s for span in self._training)
        run.sample(PaceSample(self._t, self._attempt, reached, took_s / made if made > 0 and took_s > 0 else None, loss))

    def _settle_training(self, reached: int | None) -> None:
        """Add the time since the last report: rework up to the highest step, new steps beyond it."""
        waiting, self._training = self._training, []
        first = self._step
        steps = None if first is None else (first, max(first, first if reached is None else reached))
        for span in training_spans(waiting, steps, self._run.reached):
            if span.state is TimeState.PRODUCTIVE:
                self._incident = 0  # the training is where it was before
            shown = replace(span, first_step=None, last_step=None) if self._phase == Phase.EVAL else span  # its pace is not compared
            add(self._run.spans, replace(shown, incident=self._incident), longest_s=WINDOW_S)
        self._step = first if reached is None else reached
        self._count(reached)

    def _count(self, reached: int | None) -> None:
        """Note the highest step; where it is not known, later steps cannot be compared."""
        run = self._run
        if not self._trains:
            return
        if reached is None:
            run.counts_rework = run.counts_rework and self._attempt <= 1
        else:
            run.reached = max(reached, run.reached or 0)

    def _keep(self, step: int) -> None:
        self._run.kept = max(step, self._run.kept or 0)

    # --- time

    def _advance(self, t: float) -> None:
        """Spend the time up to `t` with what is being done."""
        state = self._doing()
        if state is TimeState.PRODUCTIVE and t > self._t:
            self._training.append(self._span_until(t, TimeState.TEAR_DOWN if self._stage == Stage.STOPPING else state))
            self._t = t
        elif state is TimeState.UNMEASURED and t > self._t:
            self._unproven.append(self._span_until(t, TimeState.START_AND_LOAD if self._phase in _BEFORE_FIRST_STEP else state))
            self._t = t
        else:
            self._spend(t, state)

    def _doing(self) -> TimeState:
        stage = self._stage
        if self._absence is not None:
            return self._absence
        if stage in _TRAINS and not self._are_ranks_gone and self._trains:
            return TimeState.CHECKPOINT_STALL if self._phase == Phase.CHECKPOINT else TimeState.PRODUCTIVE
        if stage == Stage.RUNNING:
            return TimeState.UNMEASURED
        if stage in {Stage.TEARDOWN, Stage.FOLLOWING} and self._are_ranks_gone:
            return TimeState.DECISION
        return _STAGES.get(Stage(stage), TimeState.START_AND_LOAD) if stage in set(Stage) else TimeState.UNACCOUNTED

    def _span_until(self, t: float, state: TimeState) -> TimeSpan:
        return TimeSpan(self._t, t, state, self._attempt, self._incident, self._run.ranks)

    def _spend(self, t: float, state: TimeState) -> None:
        if t > self._t:
            add(self._run.spans, self._span_until(t, state), longest_s=WINDOW_S)
            self._t = t

    def _settle_start(self) -> None:
        """Add the time before the first step, now that it was made."""
        waiting, self._unproven = self._unproven, []
        for span in waiting:
            add(self._run.spans, replace(span, state=TimeState.START_AND_LOAD))

    def _settle_unproven(self) -> None:
        """Add the time of ranks that made no step that was seen: a start, as long as their phase shows that; else unmeasured."""
        waiting, self._unproven = self._unproven, []
        starts = any(span.state is TimeState.START_AND_LOAD for span in waiting) or self._phase in _BEFORE_FIRST_STEP
        for span in waiting:
            is_first = starts and span is waiting[0]  # until the ranks reported for the first time
            add(self._run.spans, replace(span, state=TimeState.START_AND_LOAD) if is_first else span)

    def _leave_attempt(self) -> None:
        """Add what waits, because the ranks train no more; what they did after a stop was requested is part of the stop."""
        waiting, self._training = self._training, []
        stopping = [span for span in waiting if span.state is TimeState.TEAR_DOWN]
        self._training = [span for span in waiting if span.state is not TimeState.TEAR_DOWN]
        self._settle_training(self._step)
        for span in stopping:
            add(self._run.spans, span)
        self._settle_unproven()

    def _unnoticed(self, begin_t: float, end_t: float, incident: int) -> None:
        """Give the time between a failure and its detection to the detection."""
        with_state(self._run.spans, (begin_t, end_t), TimeState.DETECTION, incident, of=_UNNOTICED)

    # --- while supervise was gone

    def _is_back(self, taken: EventTaken, t: float) -> bool:
        """Take what the successor of a supervisor learned of the time in between; return whether it has taken over."""
        if taken.event == "ProgressObserved" and taken.stage == self._stage:
            self._left_progress = taken.data
            return False
        if taken.event != "SupervisorStarted" and taken.stage == self._stage:
            return False
        self._return(t, _number(taken.data.get("last_alive_t")))
        return True

    def _return(self, t: float, last_alive_t: float | None) -> None:
        """Spend the time until the supervisor died with what was being done then, and the rest with its absence."""
        absence, self._absence = self._absence, None
        left, self._left_progress = self._left_progress, None
        if absence is TimeState.WAITING and last_alive_t is not None:
            self._advance(min(last_alive_t, t))
        if left is not None and self._trains:
            self._settle_training(self._reached(left))
        self._leave_attempt()
        self._are_ranks_gone = True
        if absence is not None:
            self._spend(t, absence)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number and isinstance(value, int | float) else None
