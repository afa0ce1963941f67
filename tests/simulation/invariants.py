"""The invariants of a run: a Watch keeps books of what truly happened, and compares the core's actions with them.

A Watch reads no field of the core's state that it can keep itself. The rules for a single decision are in laws.py.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from signal import SIGINT
from typing import TYPE_CHECKING

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.budget import family
from supervisor.core.model import Cause, FailureVerdict, Hang, HangKind, Knob, Plan, PlanKind
from supervisor.core.state import Stage
from supervisor.errors import ExitCode
from supervisor.strategies.situation import UNSET
from tests.simulation import laws
from tests.simulation.faults import Strike
from tests.simulation.laws import Record
from tests.simulation.world import File, Job, Trial, World
from tests.support.transitions import is_declared

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.core.actions import Action
    from supervisor.core.events import Event
    from supervisor.core.model import Gpu
    from supervisor.core.state import JobState

#: Plans that are made where no failure is judged.
NOT_JUDGED = frozenset({"takeover", "coordinator", "beginning", "health"})
#: The codes of docs/reference/exit-codes.md that a strategy may stop with; () where they are the rank's own, 1 to 63 or 128+n.
CODES: dict[str, tuple[int, ...]] = {
    "requeue": (ExitCode.REQUEUE,),
    "own_code_before_first_step": (),
    "start_tries": (ExitCode.REQUEUE,),
    "start_again": (ExitCode.REQUEUE, ExitCode.DETERMINISTIC),
    "memory_held_by_others": (ExitCode.BAD_NODE,),
    "exclude_gpu": (ExitCode.BAD_NODE,),
    "own_change": (ExitCode.DETERMINISTIC, ExitCode.BAD_NODE),
    "same_gpu_twice": (ExitCode.DETERMINISTIC, ExitCode.BAD_NODE),
    "same_gpu_hangs": (ExitCode.BAD_NODE,),
    "unsynced": (ExitCode.DETERMINISTIC,),
    "environment_at_fault": (ExitCode.BAD_NODE, ExitCode.CONFIG),
    "exhausted": (ExitCode.DETERMINISTIC,),
    "raced": (1, ExitCode.DETERMINISTIC),
    "same_place": (ExitCode.DETERMINISTIC, ExitCode.HANG),
    "restart_within_budget": (1, ExitCode.DETERMINISTIC),  # the guard `recurring` ends infrastructure failures
    "recurring": (ExitCode.DETERMINISTIC, ExitCode.REQUEUE),
    "beginning": (ExitCode.DETERMINISTIC, ExitCode.REQUEUE),
    "health": (ExitCode.BAD_NODE,),
    "batches_left_out": (ExitCode.DETERMINISTIC,),
    "training_over": (ExitCode.HANG,),
}
#: Strategies that may stop with the rank's own code, too.
OWN_CODE_TOO = frozenset({"training_over"})


class Broken(Exception):  # noqa: N818 (it names what an invariant is, not an error of a caller)
    """An invariant that did not hold."""


def demand(holds: object, message: str) -> None:
    """Raise Broken unless it holds."""
    if not holds:
        raise Broken(message)


@dataclass(slots=True)
class Watch:
    """The books of one job's run."""

    job: Job
    world: World
    reached: Counter[tuple[Cause, str]] = field(default_factory=Counter)
    attempt: int = 0
    alive: bool = False
    trial: Trial | None = None
    strike: Strike | None = None
    full: bool = False  # the evidence of the strike was given in time
    fit: bool = False  # all GPUs were in use again when the evidence was given
    all_ranks: bool = False  # no rank is given up any more
    resume: str = ""
    high: int | None = None
    records: list[Record] = field(default_factory=list)
    overrides: dict[str, str] = field(default_factory=dict)
    rejected: dict[str, File | None] = field(default_factory=dict)
    steps_back: int = 0
    traced: bool = False
    verified: dict[str, int] = field(default_factory=dict)
    chosen: str = ""  # was whole when it was chosen: it may be damaged or go until the attempt begins
    programs: set[str] = field(default_factory=set)
    drift_reported: bool = False
    trained: bool = False  # a step of the run was seen
    decided: tuple[FailureVerdict, Plan] | None = None
    stopped: int = 0
    opened: set[int] = field(default_factory=set)
    finished: int | None = None
    refitted: bool = False
    blocked: frozenset[str] = frozenset()  # GPUs that the examination before the next attempt found to be unusable
    t: float = 0.0
    gathered: bool = False  # the nodes of this attempt meet, and no rank was started yet
    agreed: int = 0  # attempt on whose beginning the nodes agreed

    def saw(self, before: JobState, event: Event, state: JobState, actions: tuple[Action, ...]) -> None:
        """Check what an event led to. Raises Broken."""
        if not is_declared(before.stage, event, state.stage):  # the text of each event would cost more than its decision
            raise Broken(f"no way of the table: {before.stage} to {state.stage} by {event}")
        stale = getattr(event, "attempt", self.attempt) != self.attempt
        if stale and (state is not before or actions):
            raise Broken(f"an event of another attempt was acted on: {event}")
        if stale:
            return
        if type(event) in _ON_EVENT:
            self.t = event.t
            _ON_EVENT[type(event)](self, event, before)
        if type(event) is events.HealthChanged and not self.job.policy.evict_on:
            ends = (act.StopRanks, act.EndLauncher, act.Finish, act.OpenIncident)
            demand(not any(isinstance(action, ends) for action in actions), "health alone ended a healthy attempt")
        if type(event) is events.HangConfirmed and any(isinstance(action, act.StopRanks) for action in actions):
            self.hung(event.hang)
        for action in actions:
            check = _ON_ACTION.get(type(action))
            if check is not None:
                check(self, action)

    def hung(self, hang: Hang) -> None:
        """Check that an attempt was ended only for a hang for which its policy ends one."""
        policy, over = self.job.policy, hang.still_s > (hang.group_timeout_s or math.inf)
        demand(policy.on_hang != "warn", "--on-hang warn ended an attempt")
        surely = hang.kind in {HangKind.GONE, HangKind.MISMATCH} or over
        demand(surely or policy.on_hang == "restart", f"a hang that may end by itself was ended: {hang}")
        demand(policy.on_hang != "" or not self.job.gpus, "the default ended a hang where GPUs are visible")

    def given(self, strike: Strike | None, gpus: tuple[Gpu, ...]) -> None:
        """Remember that the evidence reached the core while it was waited for, and whether all GPUs were in use again then."""
        self.full = strike is not None
        self.fit = not any(gpu.quarantined for gpu in gpus)

    def enabled(self, name: str) -> Knob | None:
        """Return the knob that the user, or a program that was seen in a rank, lets a plan set."""
        policy = self.job.policy
        if name in {"batch_size", "grad_accum"} and not policy.batch_change:
            return None
        return next((k for k in policy.knobs if k.name == name and (k.by == "declared" or k.by in self.programs)), None)

    def on_progress(self, event: events.ProgressObserved, before: JobState) -> None:
        """Note a step that is new."""
        step, self.trained = event.step, self.trained or event.steps_seen > 0
        if step is None or (self.high is not None and step <= self.high):
            return
        if before.stage not in {Stage.RUNNING, Stage.STARTING, Stage.STOPPING}:
            return
        if (self.high is not None or event.steps_seen > 0) and not any(self.verified.values()):
            self._gained()
        for record in self.records:
            at = record.strike.at if record.strike is not None else -1
            record.passed = record.passed or step > at + self.job.policy.same_place_steps
        self.high = step

    def on_verified(self, event: events.CheckpointVerified, before: JobState) -> None:
        """Note a checkpoint, and whether it is new."""
        step = event.checkpoint.step or 0
        if step > max([self.high or 0, *self.verified.values()]) or (
            before.stage is Stage.RUNNING and step > max(self.verified.values(), default=0)
        ):
            self._gained()
        self.verified.pop(event.checkpoint.path, None)
        self.verified[event.checkpoint.path] = step

    def on_selected(self, event: events.CheckpointSelected, before: JobState) -> None:
        """Note which checkpoints are good."""
        del before
        self.agreed = event.attempt if event.agreement else 0
        if event.chosen is None:
            return
        if (event.chosen.step or 0) > max(self.verified.values(), default=0):
            self._gained()
        self.verified = {c.path: c.step or 0 for c in (*event.older, event.chosen)}
        file = self.world.files.get(event.chosen.path)
        self.chosen = event.chosen.path if file is not None and not file.torn else ""

    def _gained(self) -> None:
        for record in self.records:
            record.progressed = True

    def on_started(self, event: events.AttemptStarted, before: JobState) -> None:
        """Demand the global batch that the user asked for, or that its drift was allowed and reported."""
        del event, before
        trial = self.trial
        assert trial is not None
        size = self.job.policy.replica_size
        demand(trial.world % size == 0, f"{trial.world} ranks hold a part of a replica of {size}")
        total = self.job.replicas(trial.world) * trial.micro * trial.accum
        derived = any(k.name == "grad_accum" and k.counts == "derived" for k in self.job.policy.knobs)
        if total != self.job.batch and not derived:
            allowed = self.drift_reported and self.job.policy.restart.batch_drift
            demand(allowed, f"global batch {total} instead of {self.job.batch}, and nothing reported it")

    def on_program(self, event: events.ProgramSeen, before: JobState) -> None:
        """Note what trains."""
        del before
        self.programs.update(event.programs)

    def on_checked(self, event: events.HealthChecked, before: JobState) -> None:
        """Note which GPUs may not be used."""
        if before.stage in {Stage.SELECTING, Stage.CHECKING}:
            self.blocked = frozenset(finding.gpu for finding in event.findings if finding.blocks and finding.gpu)

    def on_stop(self, event: events.StopRequested, before: JobState) -> None:
        """Note who wants the end."""
        if before.stage is not Stage.ENDED and (not self.stopped or event.signum == SIGINT):
            self.stopped = event.signum

    def on_supervisor(self, event: events.SupervisorStarted, before: JobState) -> None:
        """Begin anew, with the same books."""
        del event, before
        self.stopped, self.decided, self.finished, self.blocked = 0, None, None, frozenset()

    def gathers(self, action: act.GatherNodes) -> None:
        """Demand that nodes meet for a new attempt, when nothing of the last one is left."""
        self._ordered(action.attempt)
        self.attempt, self.gathered = action.attempt, True

    def _ordered(self, attempt: int) -> None:
        demand(not self.alive, "an attempt was begun while ranks of the last one are alive")
        demand(self.finished is None, "an attempt was begun after the end")
        demand(not self.stopped, "an attempt was begun although a stop was requested")
        demand(attempt == self.attempt + 1, f"attempt {attempt} was begun after attempt {self.attempt}")

    def begins(self, action: act.BeginAttempt) -> None:
        """Demand what must hold of every attempt."""
        policy, world = self.job.policy, self.world
        self.attempt -= self.gathered  # its own number since the nodes met
        self._ordered(action.attempt)
        self.gathered = False
        demand(policy.nodes == 1 or self.agreed == action.attempt, "the ranks of several nodes were started before their nodes agreed")
        if self.refitted:
            self._refits(dict(action.overrides))
        demand(dict(action.overrides) == self.overrides, f"begun with {dict(action.overrides)}, the plans say {self.overrides}")
        demand(action.trace == self.traced, "an attempt is traced where the plans do not say so, or is not where they do")
        demand(not world.quarantined.keys() & set(action.gpus), "a GPU in the ledger was used")
        given = set(action.gpus or (gpu.uuid for gpu in self.job.gpus))
        demand(not self.blocked & given, "a GPU that must be reset was used although the examination before the attempt had found that")
        self.blocked = frozenset()
        demand(action.gpus or not world.quarantined, "nothing keeps the GPUs in the ledger from being used")
        if action.nproc is not None:
            demand(not self.all_ranks, "a rank was given up again, after the program had refused to load with fewer")
            demand(policy.gpus.minimum, "fewer ranks, and --min-gpus was not given")
            demand(action.nproc >= policy.gpus.minimum, f"{action.nproc} ranks are fewer than --min-gpus {policy.gpus.minimum}")
        self._resumes(action)
        self.attempt, self.alive, self.full, self.strike = action.attempt, True, False, None

    def _refits(self, overrides: dict[str, str]) -> None:
        """Take over what a look before the attempt changed, without a plan: fewer ranks, and the batch planned anew for them."""
        news = {name for name, value in overrides.items() if self.overrides.get(name) != value}
        demand(news <= {"batch_size", "grad_accum"}, f"{news} set for fewer GPUs")
        loose = [name for name in news if self.enabled(name) is None]
        demand(not loose, f"{loose} set for fewer GPUs, and nobody enabled that")
        self.overrides, self.refitted = overrides, False

    def alerts(self, action: act.Alert) -> None:
        """Note that fewer ranks than were asked for begin, and what was reported of the global batch."""
        if action.kind == "batch_changed" and "because GPUs are out of use" in action.text:
            self.refitted = True
            self.drift_reported = self.drift_reported or "drift" in action.text or "global batch shrinks" in action.text

    def _resumes(self, action: act.BeginAttempt) -> None:
        self.resume = ""
        if action.resume is None:
            demand(not (self.job.policy.checkpoints_declared and self.verified), "begun from scratch although a checkpoint was verified")
            return
        path = self.resume = action.resume.path
        file = self.world.files.get(path)
        demand(path == self.chosen or (file is not None and not file.torn), f"resumed from {path}, which was not verified")
        demand(path not in self.rejected or self.rejected[path] is not file, f"resumed from {path}, which is rejected")

    def decides(self, action: act.ReportDecision) -> None:
        """Demand what must hold of every decision."""
        plan, verdict = action.plan, action.verdict
        demand(plan.reason and plan.next_ladder_step, f"a plan without a reason or a next step: {plan}")
        demand(action.incident in self.opened, f"a decision about incident {action.incident}, which is not open")
        self.decided = (verdict, plan)
        if plan.strategy == "coordinator":
            self.overrides.update({c.knob: c.new for c in plan.changes})
        if plan.strategy in NOT_JUDGED:
            return
        self.reached[verdict.cause, plan.strategy] += 1
        past = tuple(self.records)
        record = Record(self.attempt, self.t, verdict, plan, self.strike if self.full else None, self.resume)
        violated = laws.broken(record, past, self)
        demand(not violated, f"{verdict.cause} answered by {plan.strategy} ({plan.kind}: {plan.reason}): {violated}")
        self.records.append(record)
        self._folds(plan)
        self._within_budget()

    def _folds(self, plan: Plan) -> None:
        self.overrides.update({c.knob: c.new for c in plan.changes})
        self.overrides = {knob: value for knob, value in self.overrides.items() if value != UNSET}
        for path in plan.rejected:
            self.rejected[path] = self.world.files.get(path)
            self.verified.pop(path, None)
        self.steps_back += len(plan.rejected)
        self.traced = self.traced or plan.trace
        self.all_ranks = self.all_ranks or plan.all_ranks
        self.drift_reported = self.drift_reported or any("drift" in line or "global batch shrinks" in line for line in plan.notes)

    def _within_budget(self) -> None:
        last = self.records[-1]
        if last.plan.kind is PlanKind.STOP or last.changed:
            return
        policy, mine = self.job.policy, family(last.verdict.cause)
        restarts = [
            r for r in self.records if r.plan.kind is PlanKind.RESTART
        ]  # what a stop was requested in, and a requeue continued, is none
        plain = [r for r in restarts if family(r.verdict.cause) == mine and not (r.progressed or r.changed)]
        most = policy.recurring_stop - 1
        if mine != "infrastructure":
            plain, most = [r for r in plain if r.plan.charged and last.t - r.t <= policy.period_s], policy.restart.intensity
        demand(len(plain) <= most, f"plain restart number {len(plain)} of the family {mine} without progress, {most} are allowed")

    def quarantines(self, action: act.Quarantine) -> None:
        """Demand a reason."""
        demand(action.reason, "a GPU was put into the ledger without a reason")

    def opens(self, action: act.OpenIncident) -> None:
        """Note it."""
        self.opened.add(action.incident)

    def closes(self, action: act.CloseIncident) -> None:
        """Demand that it was open."""
        demand(action.incident in self.opened, f"incident {action.incident} was closed, and is not open")
        self.opened.discard(action.incident)

    def finishes(self, action: act.Finish) -> None:
        """Demand an exit code that the documents explain."""
        code = self.finished = action.exit_code
        demand(action.reason, "an end without a reason")
        demand(not self.opened, f"the run ended with incidents {sorted(self.opened)} open")
        if code == 0:
            demand(self.world.done, "0, and the training is not done")
        elif self.stopped:
            demand(code in {75, 128 + self.stopped} - ({75} if self.stopped == SIGINT else set()), f"{code} after signal {self.stopped}")
        else:
            demand(self.decided is not None and self.decided[1].kind is PlanKind.STOP, f"{code} without a decision to stop")
            assert self.decided is not None
            plan = self.decided[1]
            demand(plan.exit_code == code, f"{code}, and the plan says {plan.exit_code}")
            allowed = CODES.get(plan.strategy, ())
            may_be_own = not allowed or plan.strategy in OWN_CODE_TOO
            is_own = 1 <= code <= 63 or code > 128 or code in {65, 75}
            demand(code in allowed or (may_be_own and is_own), f"{code} of {plan.strategy}")


_ON_EVENT: dict[type, Callable[..., None]] = {
    events.ProgressObserved: Watch.on_progress,
    events.CheckpointVerified: Watch.on_verified,
    events.CheckpointSelected: Watch.on_selected,
    events.AttemptStarted: Watch.on_started,
    events.ProgramSeen: Watch.on_program,
    events.HealthChecked: Watch.on_checked,
    events.StopRequested: Watch.on_stop,
    events.SupervisorStarted: Watch.on_supervisor,
}
_ON_ACTION: dict[type, Callable[..., None]] = {
    act.BeginAttempt: Watch.begins,
    act.GatherNodes: Watch.gathers,
    act.ReportDecision: Watch.decides,
    act.Alert: Watch.alerts,
    act.Quarantine: Watch.quarantines,
    act.OpenIncident: Watch.opens,
    act.CloseIncident: Watch.closes,
    act.Finish: Watch.finishes,
}
