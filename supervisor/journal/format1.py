"""Reads the state of a job out of a journal of format 1, which recorded events and actions, but no state.

The events are not decided on again. What later decisions stand on is read from the actions: what was changed, which checkpoints were
rejected, how often it failed and why. The step of a failure is the one that its decision reported. Whether the job has passed it since
follows from the later progress and checkpoints, by the rule of format 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from supervisor.core.model import Cause, CheckpointRef, Failure, Gpu, Plan, Policy, Progress, Verdict
from supervisor.core.state import Attempt, Incident, JobState, Run, Stage, changed
from supervisor.journal.records import fitting

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.journal.records import EventTaken

_KEPT_FAILURES = 50
_KEPT_CHECKPOINTS = 10
#: Plans that answered no failure of a rank: a takeover, a node or checkpoint that stopped a start, a person's signal.
_NO_FAILURE = frozenset({"takeover", "beginning", "stop"})
_Fields = dict[str, Any]


class Format1:
    """The state of a job, record by record. `problems`: what of them does not fit this version."""

    def __init__(self) -> None:
        self.state = JobState()
        self.problems: list[str] = []
        self._events: dict[str, Callable[[_Fields], None]] = {
            "SupervisorStarted": self._on_supervisor_started,
            "GpusListed": self._on_gpus_listed,
            "CheckpointSelected": self._on_checkpoint_selected,
            "CheckpointVerified": self._on_checkpoint_verified,
            "ProgressObserved": self._on_progress_observed,
            "ProgramSeen": self._on_program_seen,
            "AttemptStarted": lambda data: self._set_attempt(started_t=data["t"], world_size=data["world_size"]),
            "AttemptEnded": lambda data: self._set_attempt(over_t=data["t"]),
        }
        self._actions: dict[str, Callable[[_Fields, float], None]] = {
            "OpenIncident": self._open_incident,
            "ReportDecision": self._report_decision,
            "CloseIncident": lambda _data, _t: self._set_run(incident=None),
            "SelectCheckpoint": lambda data, _t: self._set_run(rejected=tuple(data["rejected"])),
            "BeginAttempt": self._begin_attempt,
        }

    def take(self, taken: EventTaken) -> None:
        """Take one event and what was decided on it."""
        try:
            if taken.event in self._events:
                self._events[taken.event](taken.data)
            for name, data in taken.actions:
                if name in self._actions:
                    self._actions[name](data, taken.data["t"])
            stage = fitting(taken.stage, Stage, self.problems)
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            self.problems.append(f"event {taken.event}: {error}")
        else:
            self._set_attempt(number=taken.attempt)
            self.state = changed(self.state, stage=stage)

    def _set_run(self, **values: Any) -> None:  # noqa: ANN401 (any field)
        self.state = changed(self.state, run=changed(self.state.run, **values))

    def _set_attempt(self, **values: Any) -> None:  # noqa: ANN401 (any field)
        self.state = changed(self.state, attempt=changed(self.state.attempt, **values))

    def _read(self, value: Any, kind: Any) -> Any:  # noqa: ANN401 (JSON and a type)
        return fitting(value, kind, self.problems)

    # events

    def _on_supervisor_started(self, data: _Fields) -> None:
        policy = self._read(data["policy"], Policy)
        if data.get("continues"):
            self._set_run(policy=policy, exit_code=None)
        else:
            self.state = JobState(incidents=self.state.incidents, gpus=self.state.gpus, run=Run(id=data["run_id"], policy=policy))

    def _on_gpus_listed(self, data: _Fields) -> None:
        self.state = changed(self.state, gpus=self._read(data["gpus"], tuple[Gpu, ...]))

    def _on_checkpoint_selected(self, data: _Fields) -> None:
        chosen = self._read(data["chosen"], CheckpointRef | None)
        if chosen is not None:
            older = self._read(data.get("older", []), tuple[CheckpointRef, ...])
            self._set_run(verified=(*older, chosen)[-_KEPT_CHECKPOINTS:])
            self._saved(chosen)

    def _on_checkpoint_verified(self, data: _Fields) -> None:
        found = self._read(data["checkpoint"], CheckpointRef)
        others = tuple(c for c in self.state.run.verified if c.path != found.path)
        self._set_run(verified=tuple(sorted((*others, found), key=lambda c: c.step or 0))[-_KEPT_CHECKPOINTS:])
        self._saved(found)

    def _saved(self, found: CheckpointRef) -> None:
        newest, step = self.state.run.newest, found.step or 0
        if newest is None or step > (newest.step or 0):
            self._set_run(newest=found)
        if step > self.state.run.saved_high_water:
            self._passed(step + 1, step + 1)
            self._set_run(saved_high_water=step)

    def _on_progress_observed(self, data: _Fields) -> None:
        step, seen = data["step"], data["steps_seen"]
        relative = step is None and seen >= 0
        if relative:
            step = seen + ((self.state.attempt.resume.step if self.state.attempt.resume else None) or 0)
        elif step is not None and step > (self.state.run.high_water or 0):
            self._passed(step, step - self.state.run.policy.same_place_steps)
            self._set_run(high_water=step)
        first = self.state.attempt.first_step
        self._set_attempt(
            loaded=data.get("loaded") or self.state.attempt.loaded,
            first_step=step - max(seen, 0) if first is None and not relative and step is not None else first,
            progress=self._read({"step": step, "relative": relative, "phase": data["phase"]}, Progress),
            steps_seen=seen,
        )
        self._set_run(ever_loaded=self.state.run.ever_loaded or data.get("loaded") is not None)

    def _passed(self, step: int, neighbourhood: int) -> None:
        """Mark the failures before `step`; the same failure beyond their neighbourhood is no repetition."""
        known = (
            replace(
                f,
                progressed_since=f.progressed_since or f.step is None or f.step < step,
                passed_since=f.passed_since or f.step is None or f.step < neighbourhood,
            )
            for f in self.state.run.failures
        )
        self._set_run(failures=tuple(known))

    def _on_program_seen(self, data: _Fields) -> None:
        self._set_run(
            programs=tuple(dict.fromkeys((*self.state.run.programs, *data["programs"]))),
            knob_values=tuple((dict(self.state.run.knob_values) | dict(data.get("values", ()))).items()),
            batchnorm=self.state.run.batchnorm or data.get("batchnorm", False),
        )

    # actions

    def _open_incident(self, data: _Fields, t: float) -> None:
        number = data["incident"]
        self._set_run(incident=Incident(number, t, data["attempt"]))
        self.state = changed(self.state, incidents=max(self.state.incidents, number))

    def _begin_attempt(self, data: _Fields, t: float) -> None:
        overrides = tuple((name, value) for name, value in data.get("overrides", ()))
        resume = self._read(data["resume"], CheckpointRef | None)
        attempt = Attempt(data["attempt"], began_t=t, resume=resume, overrides=overrides)
        self.state = changed(self.state, attempt=attempt)
        self._set_run(overrides=overrides, nproc=data.get("nproc"), traced=data.get("trace", False), reason=data["reason"])

    def _report_decision(self, data: _Fields, t: float) -> None:
        verdict, plan = self._read(data["verdict"], Verdict), self._read(data["plan"], Plan)
        state, step = self.state, data["step"]
        if state.run.incident is not None:
            state = changed(state, run=changed(state.run, incident=replace(state.run.incident, verdict=verdict, plan=plan)))
        if plan.strategy not in _NO_FAILURE:
            changes = bool(plan.changes or plan.rejected or plan.exclude or plan.nproc is not None)
            failure = Failure(
                data["attempt"],
                t,
                verdict.cause,
                verdict.fingerprint,
                step,
                before_first_step=False,  # format 1 did not record it; False keeps the more lenient rule
                charged=plan.charged and verdict.cause is not Cause.PREEMPTED,
                rung=plan.strategy,
                gpu=plan.exclude[0] if plan.exclude else "",
                resumed=state.attempt.resume.path if state.attempt.resume else "",
                changed=changes,
            )
            counts = dict(state.run.recurrences)
            counts[verdict.fingerprint] = counts.get(verdict.fingerprint, 0) + (not changes)
            suspect = [s for s in (state.run.untrusted_through_step, step) if s is not None and plan.rejected]
            state = changed(
                state,
                run=changed(
                    state.run,
                    failures=(*state.run.failures, failure)[-_KEPT_FAILURES:],
                    failed=state.run.failed + 1,
                    recurrences=tuple(counts.items()),
                    overrides=tuple((dict(state.run.overrides) | {c.knob: c.new for c in plan.changes}).items()),
                    nproc=state.run.nproc if plan.nproc is None else plan.nproc,
                    rejected=tuple(dict.fromkeys((*state.run.rejected, *plan.rejected))),
                    steps_back=state.run.steps_back + len(plan.rejected),
                    untrusted_through_step=max(suspect, default=state.run.untrusted_through_step),
                ),
            )
        self.state = state
