"""Makes the ledger of a run from the records of its journal, in their order.

Most of it follows from the stage and the attempt that each event leads to. Three things are known only later, and wait until then:

- whether time before a first step was a start, or a training that nobody could see: until the first step, or the attempt's end;
- whether steps were new: until the next report of progress says how far they came;
- how long supervise was gone: until the record of its successor.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, Final

import msgspec

from checkpointing.io import typed
from supervisor.core.model import BEFORE_FIRST_STEP, Phase
from supervisor.core.state import Stage
from supervisor.core.values import Struct, field, replace
from supervisor.errors import ExitCode
from supervisor.journal.records import MIRRORED, START_TIMES, SUMMARY, EventTaken, Note, RunEnded, StartTimes
from supervisor.view.spans import (
    NEW_STEPS,
    PaceSample,
    RunLedger,
    SaveMark,
    TimeSpan,
    TimeState,
    training_spans,
    with_degraded,
    with_state,
)

#: The use of time in each stage; RUNNING and the ends of an attempt depend on its ranks too (`_doing`).
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
_LIVES: Final = frozenset({Stage.STARTING, Stage.RUNNING})
_BEFORE_FIRST_STEP: Final = frozenset(phase.value for phase in BEFORE_FIRST_STEP)
#: States of a job that stood still, or was dead, before it was known.
_UNNOTICED: Final = NEW_STEPS | {TimeState.REWORK, TimeState.UNMEASURED, TimeState.START_AND_LOAD, TimeState.CHECKPOINT_STALL}


class RunTime(Struct, omit_defaults=True):
    """Makes the ledger of one run; its methods take the run's records in their order."""

    run: RunLedger  # so far
    t: float  # up to which the time is spent, or waits in `unproven` or `training`
    is_lost: bool = False  # records before the next event are missing
    stage: str = str(Stage.NEW)
    attempt: int = 0
    incident: int = 0  # which the time belongs to
    earlier_incident: int = 0  # which it would belong to without that
    absence: TimeState | None = None  # supervise is gone, and so the time is spent
    left_progress: dict[str, Any] | None = None  # the progress in the heartbeats that its ranks left
    failures: dict[int, tuple[float, int]] = field(default_factory=dict)  # of the newest attempts: when each failed, and its incident
    unproven: list[TimeSpan] = field(default_factory=list)  # of ranks of which no step was seen yet
    training: list[TimeSpan] = field(default_factory=list)  # since the newest report; TEAR_DOWN where a stop was requested
    # the attempt that was begun last
    begun_attempt: int = 0
    phase: str = ""  # as the newest report of the attempt has it; "": there was none
    base: int | None = None  # to which the steps seen in it are added
    trains: bool = False
    are_ranks_gone: bool = False
    step: int | None = None  # of the newest report
    still_since_t: float | None = None  # a confirmed hang

    @classmethod
    def begun(cls, run_id: str, t: float, *, gpus: int = 0) -> RunTime:
        """Begin with the run's first record. gpus: of this node, as the run before it had them."""
        return cls(RunLedger(run_id, t, gpus=gpus), t)

    def _new_attempt(self, number: int, resumed_step: int | None) -> None:
        self.begun_attempt, self.base = number, resumed_step
        self.phase, self.step, self.still_since_t = "", None, None
        self.trains = self.are_ranks_gone = False

    def copied(self) -> RunTime:
        """Return one that shares nothing that changes with this one."""
        return replace(self, run=self.run.copied(), failures={**self.failures}, unproven=[*self.unproven], training=[*self.training])

    # --- the records

    def miss(self) -> None:
        """Take that records are missing before the next one."""
        self.is_lost = True

    def take_over(self) -> None:
        """Take that another supervisor continues with the run."""
        run = self.run
        self.absence = TimeState.PREEMPTED if run.exit_code == ExitCode.REQUEUE else TimeState.WAITING
        run.is_over, run.exit_code = False, None

    def end(self, ended: RunEnded, t: float) -> None:
        """Take the end record."""
        self._advance(t)
        self._leave_attempt()
        self.run.exit_code, self.run.is_over = ended.exit_code, True

    def finish(self, now: float | None = None) -> RunLedger:
        """End the ledger with the last record, or at `now` if the run continues, and return it."""
        run = self.run
        run.goes_on = now is not None and not run.is_over
        end_t = now if now is not None and run.goes_on else self.t
        if self.absence is not None:
            self._return(end_t, None)
        self._advance(end_t)
        self._leave_attempt()
        self._stand_still(end_t)
        run.end_t, run.spans = self.t, with_degraded(run.spans)
        return run

    def take_note(self, note: Note, t: float) -> None:
        """Take the newest checkpoint at the end of the run, what a mirror holds, and when a failure was detected."""
        step = _whole(note.data.get("step"))
        if note.name == SUMMARY and step is not None:
            self._keep(step)
        elif note.name == MIRRORED:
            self.run.saves.append(SaveMark(t, self.attempt, step, is_mirrored=True))
        elif note.name == START_TIMES:
            with suppress(msgspec.ValidationError):
                start = typed.converted(note.data, StartTimes)
                failed_t, incident = self.failures.get(start.attempt - 1, (0.0, 0))
                if start.after == "failure" and failed_t:
                    self._unnoticed(failed_t - start.parts.get("detect", 0.0), failed_t, incident)

    # --- events

    def take_event(self, taken: EventTaken, t: float) -> None:
        """Take an event and the stage and attempt that it led to."""
        if self.is_lost:
            self.is_lost = False
            if (taken.stage, taken.attempt) != (self.stage, self.attempt) and self.absence is None:
                self._leave_attempt()
                self._spend(t, TimeState.UNACCOUNTED)
        if self.absence is not None and not self._is_back(taken, t):
            return
        self._advance(t)
        if taken.event == "ProgressObserved":
            self._take_progress(taken)
        else:
            self._take_other(taken, t)
        leaves = taken.attempt != self.attempt or (self.stage in _TRAINS and taken.stage not in _TRAINS)
        if leaves or (self.stage == Stage.RUNNING and taken.stage == Stage.STOPPING and not self.trains):
            self._leave_attempt()
        for name, data in taken.actions:
            self._take_action(name, data)
        if self.stage in {Stage.RUNNING, Stage.STARTING} and taken.stage in {Stage.TEARDOWN, Stage.FOLLOWING}:
            self.failures = dict([*self.failures.items(), (self.attempt, (t, self.incident))][-2:])
        if self.still_since_t is not None and self.stage in _LIVES and taken.stage not in _LIVES:  # also a person's stop ends a hang
            self._leave_attempt()
            self._stand_still(t)
        if taken.attempt not in {self.attempt, self.begun_attempt}:
            self._new_attempt(taken.attempt, None)  # the record of its beginning is missing
        self.stage, self.attempt = taken.stage, taken.attempt

    def _take_other(self, taken: EventTaken, t: float) -> None:
        run, data = self.run, taken.data
        if taken.event == "AttemptStarted":
            run.ranks, run.attempts = _whole(data.get("world_size")) or 0, max(run.attempts, taken.attempt)
        elif taken.event == "RanksFound":
            run.ranks = _whole(data.get("world_size")) or run.ranks
        elif taken.event == "AttemptEnded" and data.get("attempt") == self.attempt:
            self._leave_attempt()
            self.are_ranks_gone = True
        elif taken.event == "GpusListed":
            run.gpus = len(data.get("gpus") or ())
        elif taken.event in {"CheckpointVerified", "CheckpointSelected"}:
            self._take_checkpoint(taken, t)
        elif taken.event == "HangConfirmed":
            still_s = _number((data.get("hang") or {}).get("still_s", 0.0))
            self.still_since_t = None if still_s is None else t - still_s
        elif taken.event == "LossChanged" and data.get("kind") in {"nan", "inf"} and not data.get("is_over"):
            run.sample_not_finite(t, self.attempt, _whole(data.get("step")) or self.step or 0)
        elif taken.event == "HangCleared":
            self._settle_training(self.step)
            self._stand_still(t)

    def _take_checkpoint(self, taken: EventTaken, t: float) -> None:
        checkpoint = taken.data.get("checkpoint") or taken.data.get("chosen") or {}
        step = _whole(checkpoint.get("step"))
        if step is not None:
            self._keep(step)
        if taken.event == "CheckpointVerified":
            self.run.saves.append(SaveMark(t, taken.attempt, step))
            if taken.data.get("made_in") == self.attempt and self.phase in _BEFORE_FIRST_STEP:
                self.phase = ""  # who saves is past the start, whatever the last report of the phase says: it is up to a minute old

    def _take_action(self, name: str, data: dict[str, Any]) -> None:
        if name == "BeginAttempt":
            resume = data.get("resume")
            # a first attempt that is given nothing has no step before it, whatever it loads by itself
            first = None if self.run.reached is not None else 0
            self._leave_attempt()
            self._new_attempt(_whole(data.get("attempt")) or 0, _whole(resume.get("step")) if isinstance(resume, dict) else first)
        elif name == "OpenIncident":
            self.earlier_incident, self.incident = self.incident, _whole(data.get("incident")) or 0
            self.run.incidents.append(self.incident)
        elif name == "CloseIncident" and data.get("outcome") == "withdrawn":
            self.incident = self.earlier_incident

    # --- progress

    def _take_progress(self, taken: EventTaken) -> None:
        data = taken.data
        if data.get("attempt") != self.attempt:
            return
        for name, action in taken.actions:
            if name == "ReportResume" and action.get("confirmed"):
                self.base = 0 if action.get("path") is None else _whole(action.get("step"))
        reached = self._reached(data)
        seen, step, first = _whole(data.get("steps_seen")) or 0, _whole(data.get("step")), _whole(data.get("first_step"))
        if not self.trains and (seen > 0 or (first is not None and step is not None and step > first)):
            self.trains = True
            self._settle_start()
            self.step = reached
            self._count(reached)
        elif self.trains:
            self._sample(reached, _number(data.get("loss")))
            self._settle_training(reached)
        self.phase = str(data.get("phase", ""))

    def _reached(self, data: dict[str, Any]) -> int | None:
        """Return the step of a report: absolute, or counted from the step that was resumed from; None: not known."""
        step, seen = _whole(data.get("step")), _whole(data.get("steps_seen")) or 0
        return self.base + seen if step is None and self.base is not None and seen > 0 else step

    def _sample(self, reached: int | None, loss: float | None) -> None:
        """Keep how long the steps since the last report took."""
        run = self.run
        n_steps = 0 if reached is None or self.step is None else reached - self.step
        if reached is None or (n_steps <= 0 and loss is None):
            return
        took_s = math.fsum(span.took_s for span in self.training)
        run.sample(PaceSample(self.t, self.attempt, reached, took_s / n_steps if n_steps > 0 and took_s > 0 else None, loss))

    def _settle_training(self, reached: int | None) -> None:
        """Add the time since the last report: rework up to the highest step, new steps beyond it."""
        waiting, self.training = self.training, []
        first = self.step
        steps = None if first is None else (first, max(first, first if reached is None else reached))
        for span in training_spans(waiting, steps, self.run.reached):
            if span.state is TimeState.PRODUCTIVE:
                self.incident = 0  # the training is where it was before
            shown = replace(span, first_step=None, last_step=None) if self.phase == Phase.EVAL else span  # its pace is not compared
            self.run.add(replace(shown, incident=self.incident))
        self.step = first if reached is None else reached
        self._count(reached)

    def _count(self, reached: int | None) -> None:
        """Note the highest step; where it is not known, later steps cannot be compared."""
        run = self.run
        if not self.trains:
            return
        if reached is None:
            run.counts_rework = run.counts_rework and self.attempt <= 1
        else:
            run.reached = max(reached, run.reached or 0)

    def _keep(self, step: int) -> None:
        self.run.kept = max(step, self.run.kept or 0)

    # --- time

    def _advance(self, t: float) -> None:
        """Spend the time up to `t` with the present activity."""
        state = self._doing()
        if state is TimeState.PRODUCTIVE and t > self.t:
            self.training.append(self._span_until(t, TimeState.TEAR_DOWN if self.stage == Stage.STOPPING else state))
            self.t = t
        elif state is TimeState.UNMEASURED and t > self.t:
            self.unproven.append(self._span_until(t, TimeState.START_AND_LOAD if self.phase in _BEFORE_FIRST_STEP else state))
            self.t = t
        else:
            self._spend(t, state)

    def _doing(self) -> TimeState:
        stage = self.stage
        if self.absence is not None:
            return self.absence
        if stage in _TRAINS and not self.are_ranks_gone and self.trains:
            return TimeState.CHECKPOINT_STALL if self.phase == Phase.CHECKPOINT else TimeState.PRODUCTIVE
        if stage == Stage.RUNNING:
            return TimeState.UNMEASURED
        if stage in {Stage.TEARDOWN, Stage.FOLLOWING} and self.are_ranks_gone:
            return TimeState.DECISION
        return _STAGES.get(Stage(stage), TimeState.START_AND_LOAD) if stage in set(Stage) else TimeState.UNACCOUNTED

    def _span_until(self, t: float, state: TimeState) -> TimeSpan:
        return TimeSpan(self.t, t, state, self.attempt, self.incident, self.run.ranks)

    def _spend(self, t: float, state: TimeState) -> None:
        if t > self.t:
            self.run.add(self._span_until(t, state))
            self.t = t

    def _settle_start(self) -> None:
        """Add the time before the first step, now that it was made."""
        waiting, self.unproven = self.unproven, []
        for span in waiting:
            self.run.add(replace(span, state=TimeState.START_AND_LOAD))

    def _settle_unproven(self) -> None:
        """Add the time of ranks that made no step that was seen: a start, as long as their phase shows that; else unmeasured."""
        waiting, self.unproven = self.unproven, []
        starts = any(span.state is TimeState.START_AND_LOAD for span in waiting) or self.phase in _BEFORE_FIRST_STEP
        for span in waiting:
            is_first = starts and span is waiting[0]  # until the ranks reported for the first time
            self.run.add(replace(span, state=TimeState.START_AND_LOAD) if is_first else span)

    def _leave_attempt(self) -> None:
        """Add what waits, because the ranks train no more; what they did after a stop was requested is part of the stop."""
        waiting, self.training = self.training, []
        stopping = [span for span in waiting if span.state is TimeState.TEAR_DOWN]
        self.training = [span for span in waiting if span.state is not TimeState.TEAR_DOWN]
        self._settle_training(self.step)
        for span in stopping:
            self.run.add(span)
        self._settle_unproven()

    def _stand_still(self, t: float) -> None:
        """Give the time in which the ranks of a confirmed hang stood still, up to `t`, to the detection: it is not training."""
        if self.still_since_t is not None:
            self._unnoticed(self.still_since_t, t, self.incident)
        self.still_since_t = None

    def _unnoticed(self, begin_t: float, end_t: float, incident: int) -> None:
        """Give the time between a failure and its detection to the detection."""
        with_state(self.run.spans, (begin_t, end_t), TimeState.DETECTION, incident, of=_UNNOTICED)

    # --- while supervise was gone

    def _is_back(self, taken: EventTaken, t: float) -> bool:
        """Take what the successor of a supervisor learned of the time in between; return whether it has taken over."""
        if taken.event == "ProgressObserved" and taken.stage == self.stage:
            self.left_progress = taken.data
            return False
        if taken.event != "SupervisorStarted" and taken.stage == self.stage:
            return False
        self._return(t, _number(taken.data.get("last_alive_t")))
        return True

    def _return(self, t: float, last_alive_t: float | None) -> None:
        """Spend the time until the supervisor died with the activity of then, and the rest with its absence."""
        absence, self.absence = self.absence, None
        left, self.left_progress = self.left_progress, None
        if absence is TimeState.WAITING and last_alive_t is not None:
            self._advance(min(last_alive_t, t))
        if left is not None and self.trains:
            self._settle_training(self._reached(left))
        self._leave_attempt()
        self.are_ranks_gone = True
        if absence is not None:
            self._spend(t, absence)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number and isinstance(value, int | float) else None
