"""The state of a supervised job: all that `decide` remembers, as one frozen value.

    JobState > run: Run > what one start of the job by a person keeps over its attempts
             > attempt: Attempt > the facts of the current attempt, or of the last one where none runs

A new run is `run=Run(...)`, a new attempt is `attempt=Attempt(...)`: nothing of the one before stays. State that outlives a run is in
JobState itself. A fact that is not in here cannot influence a decision.

The journal stores the state beside each decision, and a takeover continues from the last one (supervisor/view/job_facts.py). Every field
has a default, so that an older journal can be read; a default is neutral and never changes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from supervisor.core.checkpoint_model import UnusedCheckpoints, WithoutTracker
from supervisor.core.model import (
    Beginning,
    CheckpointRef,
    Evidence,
    Failure,
    FailureVerdict,
    Finding,
    Gpu,
    Hang,
    JobDecision,
    Plan,
    Policy,
    Progress,
    RankExit,
    RankInfo,
)
from supervisor.core.setup_model import Setup
from supervisor.core.training_events import MemoryForecast
from supervisor.core.values import Struct, replace


class Stage(StrEnum):
    """The stage of the job. docs/reference/stages.md has the drawing, made from the table in core/machine.py."""

    NEW = "new"  # Nothing has begun.
    SELECTING = "selecting"  # The newest verified checkpoint is searched.
    CHECKING = "checking"  # The checkpoint is chosen. The examination of this node is awaited.
    STARTING = "starting"  # An attempt is ordered; no rank is known yet. Several nodes meet in this stage and agree on a checkpoint.
    RUNNING = "running"  # The ranks run.
    TEARDOWN = "teardown"  # A rank failed. The others are stopped, and evidence is collected.
    FOLLOWING = "following"  # This node has reported its evidence. The decision for all nodes is awaited.
    ADMITTING = "admitting"  # Healthy ranks are stopped so that the nodes can meet anew, with those that wait.
    WAITING = "waiting"  # A restart is decided, and its delay runs.
    STOPPING = "stopping"  # A stop was requested.
    ENDED = "ended"  # The run is over.


class StopRequest(Struct, frozen=True):
    """A request to stop."""

    # the signal that counts most of those that came: INT before a notice, and a notice before TERM and HUP, in whatever order they came
    signum: int
    count: int  # how often the end was asked for
    first_t: float  # when the first signal came
    left_s: float | None = None  # seconds that the environment left at left_from_t; None: unknown
    left_from_t: float = 0.0
    save_requested: bool = False  # the ranks were asked to save
    ranks_not_yet_signalled: bool = False  # no rank was asked to end yet
    rank_failed: bool = False  # a rank failed while they were spared, and the cause is being determined
    save_search: bool = False  # the disk is being searched for what they saved
    save_search_done: bool = False  # it was searched
    # the meanings that came (core/signals.py), each with the time of the last signal that counted
    received: tuple[tuple[str, float], ...] = ()


class Incident(Struct, frozen=True):
    """The open incident. It opens at the first bad event and closes at the first progress after it, or with the run."""

    number: int
    opened_t: float
    attempt: int
    verdict: FailureVerdict | None = None
    plan: Plan | None = None
    alerts: bool = True  # False: another node alerts to the decision


class SavedSteps(Struct, frozen=True):
    """The least and the greatest step of the verified checkpoints that this attempt itself saved, None where none is known."""

    lowest: int | None = None
    highest: int | None = None

    def including(self, step: int | None) -> SavedSteps:
        """Return these and one more."""
        known = [number for number in (self.lowest, self.highest, step) if number is not None]
        return SavedSteps(min(known, default=None), max(known, default=None))


class Losses(Struct, frozen=True):
    """The cost of a run's failures (core/failure/losses.py)."""

    incidents: int = 0  # how many there were
    lost_s: float = 0.0  # seconds
    since_t: float | None = None  # since when the training is behind where it was; None: it is not
    seen_t: float = 0.0  # of its newest progress since then
    seen_step: int | None = None  # likewise; None: there was none yet
    scratch: tuple[int, ...] = ()  # the attempts that began from scratch although an earlier one had made steps
    steps_again: int = 0  # how many steps these made again


class Admission(Struct, frozen=True):
    """Nodes that ask to join."""

    count: int  # how many, 0: they have gone again
    step: int | None = None  # that the attempt had reached when they came
    save_requested: bool = False  # the ranks of this node were asked to save for it, which they can be once in an attempt


class Run(Struct, frozen=True):
    """The state of a run over its attempts: its rules, its budgets, and the changes of its plans."""

    id: str = ""
    policy: Policy = Policy()
    reason: str = "start"  # why the newest attempt begins, or the next one: start, failure, membership or takeover
    stop: StopRequest | None = None
    exit_code: int | None = None
    # failures
    failures: tuple[Failure, ...] = ()  # the newest, as far back as a rule looks
    failed: int = 0  # all of them
    charged: int = 0  # of all of them, those that were charged to the budget of their family
    recurrences: tuple[tuple[str, int], ...] = ()  # fingerprint to how often in this run
    incident: Incident | None = None
    losses: Losses = Losses()
    hidden: str = ""  # the failure of a rank after which its command left with 0
    jitter: float = 0.0  # came with the newest evidence
    # what its plans changed
    overrides: tuple[tuple[str, str], ...] = ()
    nproc: int | None = None
    rejected: tuple[str, ...] = ()  # paths of checkpoints that no attempt resumes from
    untrusted_through_step: int | None = None  # a checkpoint of a greater step, written anew at a rejected path, is trusted again
    steps_back: int = 0  # checkpoints that its plans rejected
    detours: tuple[tuple[str, str], ...] = ()  # of its overrides for the network: what health showed as the cause of each
    traced: bool = False  # the attempts record what their collectives do
    # its progress, and its checkpoints to resume from
    high_water: int | None = None
    saved_high_water: int = 0  # greatest step of a verified checkpoint; stepping back does not lower it
    reached: int | None = None  # greatest step that its ranks made or saved before the newest attempt; None: none is known
    begun_from: tuple[str, ...] = ()  # what ranks loaded before this run had made a step: a base that a later attempt may load too
    newest: CheckpointRef | None = None
    verified: tuple[CheckpointRef, ...] = ()  # the newest, oldest first: as known_checkpoints.with_verified orders them
    known_good: int = 0  # checkpoints that the last selection found nothing wrong with
    without_tracker: WithoutTracker | None = None  # the newest whole checkpoint, where the newest attempt's framework does not find it
    unused: tuple[UnusedCheckpoints, ...] = ()  # whole checkpoints that the newest attempt was not given
    ever_loaded: bool = False
    trained_in: int = 0  # the newest attempt that made a training step, 0: none did
    starts_with: Setup = Setup()  # what the newest attempt ran with that made a step; until one did, what the first attempt ran with
    # values with which an attempt failed before its first step: never set together again
    unworkable: tuple[tuple[tuple[str, str], ...], ...] = ()
    least_nodes: int = 0  # fewer nodes do so too: an attempt waits for so many, 0: for as many as the command says
    all_ranks: bool = False  # fewer ranks on a node do so too: no attempt begins without a GPU that it is to have
    requeued_after: int = 0  # the attempt before the newest requeue
    vain_requeues: int = 0  # in a row, each after starts in vain (strategies/guards.py) and without a step since
    # what the next attempt waits for
    next_resume: CheckpointRef | None = None  # its checkpoint is chosen, the findings are awaited
    findings: tuple[Finding, ...] | None = None  # of this node's examination before it; None: not known yet
    # facts of the program and the node
    unfinished_before: bool = False  # the last run of the same command did not end well
    goes_on: bool = False  # that run was ended from outside, and its training continues in this one
    programs: tuple[str, ...] = ()
    knob_values: tuple[tuple[str, str], ...] = ()  # as a rank's framework holds them
    disputes: tuple[tuple[str, str, str], ...] = ()  # knob, value in a rank, planned value
    batchnorm: bool = False
    command_nproc: int = 0  # ranks that the user's command runs here, 0: unknown
    reported_findings: tuple[Finding, ...] = ()  # those that were reported and still hold
    # what the nodes of the job agreed on
    last_agreement: int = 0  # attempt of the last one that this node took part in
    agreed_attempts: tuple[int, ...] = ()  # attempts of the newest
    batch_ranks: int = 0  # ranks with which the values of the command, and of its plans, make the run's global batch; 0: not known
    last_ranks: int = 0  # of all nodes, in the newest attempt on which they agreed
    diverged_since_t: float | None = None  # no attempt resumes from a later save: the nodes trained from different states

    @property
    def open_verdict(self) -> FailureVerdict | None:
        """The verdict of the open incident, None where there is none."""
        return None if self.incident is None else self.incident.verdict


class Attempt(Struct, frozen=True):
    """One life of the worker group, as this node sees it. `number` is 0 before the first."""

    number: int = 0
    # its orders
    began_t: float = 0.0
    resume: CheckpointRef | None = None
    overrides: tuple[tuple[str, str], ...] = ()
    program: tuple[tuple[str, str], ...] = ()  # digests of its command, its script and its packages, by name; none of what cannot be read
    same_program: bool = False  # they are those of the newest attempt that made a step; until one did, of the run's first
    visible_gpus: tuple[str, ...] = ()  # UUIDs that its ranks see; empty: all that were listed
    awaits_agreement: bool = False  # its nodes meet, and agree on what to resume from, before a rank starts
    members: tuple[str, ...] = ()  # the nodes that met, in the order of their group rank; empty: one node, or they have not met
    me: str = ""  # this node among them
    coordinator: str = ""  # the node whose supervisor coordinates them
    missing: int = 0  # nodes that it waits for at the rendezvous, where fewer are there than it may begin with
    missing_until_t: float | None = None  # how long it waits for them; None: it never did
    met_ranks: int = 0  # those of all members, 0: unknown
    scratch_refusal: Plan | None = None  # the plan if it would begin from scratch, where its nodes meet
    unsaved_refusal: Plan | None = None  # the same, if ranks of any node were seen to save
    node: int = 0  # number of this node among those that met
    # its ranks
    started_t: float | None = None  # when they were there
    ranks: tuple[RankInfo, ...] = ()  # kept when they are gone
    world_size: int = 0
    save_on_request: bool = False  # a rank asks whether to save (worker.should_save)
    saved: bool = False  # the save that was requested is made
    unsaved: str = ""  # which ranks had not saved shortly before the deadline, and where they were
    admission: Admission | None = None  # nodes that ask to join, None: none did
    # how it began, and how far it came
    loaded: str | None = None
    first_step: int | None = None  # absolute, at which its training began
    progress: Progress = Progress()
    total: int | None = None  # the absolute step with which the training ends
    steps_seen: int = -1
    began_as: Beginning | None = None  # as it was reported; None: not yet
    saved_steps: SavedSteps = SavedSteps()
    reported_start: tuple[int | None, int | None] | None = None  # first step and step loaded, as the other nodes know them
    peer_starts: tuple[
        tuple[str, int | None, int | None], ...
    ] = ()  # the starts of other nodes that differ, each with the first node's description
    start_mismatch: str = ""  # how the nodes began, where they began differently
    hang_suspected: bool = False  # its ranks are examined; an event that changes nothing is not in the journal
    hang: Hang | None = None  # that was confirmed, and is not over
    warnings: tuple[tuple[str, str], ...] = ()  # strange facts of its loss and its pace now: key and text
    forecasts: tuple[MemoryForecast, ...] = ()  # of the amounts of memory that will be used up
    # its end
    deaths: tuple[RankExit, ...] = ()
    ended: bool = False
    over_t: float | None = None  # when it failed or ended
    evidence: tuple[Evidence, ...] | None = None
    gpus_now: tuple[Gpu, ...] = ()  # this node's at its end, as the ledger shows them now; empty: none was out of use
    awaits_own_signal: bool = False  # a rank died of a signal that may be on its way to us too
    eviction: tuple[Finding, ...] = ()  # what ends it by health.evict_on
    last_save_search: bool = False  # the last step was made, and its checkpoint is looked for
    last_save_searched: bool = False  # that was answered
    ended_for: tuple[Evidence, ...] = ()  # what ends it by loss.on_nan or --on-hang
    # what the nodes decide about it
    ended_by: str = ""  # another node that ended it
    ended_as: str = ""  # kind of that end (supervisor/cluster/model.py)
    peers_failed_node_check: bool = False  # others failed the node check before its ranks, and leave
    stop_wanted: JobDecision | None = None  # this node cannot begin it, and a person has to act
    decided: str = ""  # kind of the decision about it, or aside: the job continued without this node
    decision: JobDecision | None = None  # None where it counts nothing

    @property
    def trains(self) -> bool:
        """Whether it is known to have made a training step: a hook counted one, or the script's own step continued from its first."""
        step = None if self.progress.relative else self.progress.step
        return self.steps_seen > 0 or (self.first_step is not None and step is not None and step > self.first_step)

    @property
    def stopped_t(self) -> float | None:
        """When we ended it by ourselves, while its ranks ran; None where a failure or a person did."""
        return self.over_t if self.ended_for or self.eviction or self.start_mismatch or self.ended_by else None

    @property
    def is_shared(self) -> bool:
        """Whether its nodes have met, and nothing is decided about it: then they decide together."""
        return bool(self.members) and not self.decided

    @property
    def live_ranks(self) -> tuple[RankInfo, ...]:
        """Its ranks, none once all are gone."""
        return () if self.ended else self.ranks


class NodeReport(Struct, frozen=True):
    """One node's evidence of an attempt, once its ranks are gone. Its times are by the clock of the node that judges."""

    node: str
    attempt: Attempt
    gpus: tuple[Gpu, ...] = ()
    run: Run = Run()  # of the first that is reported: the coordinator may take no part, and the run is the same on all that do


class JobState(Struct, frozen=True):
    """One job on this node, as the core sees it."""

    run: Run = Run()
    attempt: Attempt = Attempt()
    stage: Stage = Stage.NEW
    token: int = 0  # of the timers of this stage
    incidents: int = 0  # how many the job had, over all its runs; an open one is the last
    gpus: tuple[Gpu, ...] = ()
    journal_degraded: bool = False

    def with_run(self, **changes: Any) -> JobState:  # noqa: ANN401 (the fields of Run)
        """Return the state with these fields of its run changed."""
        return replace(self, run=replace(self.run, **changes))

    def with_attempt(self, **changes: Any) -> JobState:  # noqa: ANN401 (the fields of Attempt)
        """Return the state with these fields of its attempt changed."""
        return replace(self, attempt=replace(self.attempt, **changes))

    def entering(self, stage: Stage) -> JobState:
        """Return the state in a stage, or anew in the same one: the timers that were set before are void."""
        return replace(self, stage=stage, token=self.token + 1)

    def awaits_ranks(self, attempt: int) -> bool:
        """Whether ranks may be started as `attempt`. False once a stop was requested, or the attempt ended in another way."""
        return self.stage is Stage.STARTING and self.attempt.number == attempt

    @property
    def selects(self) -> bool:
        """Whether the checkpoint of the next attempt is being selected, on this node or by all that have met."""
        return self.stage is Stage.SELECTING or (self.stage is Stage.STARTING and self.attempt.awaits_agreement)

    @property
    def waits_to_meet(self) -> bool:
        """Whether this node waits for the other nodes of the job, to begin an attempt with them."""
        return self.stage is Stage.STARTING and self.attempt.awaits_agreement and not self.attempt.members

    @property
    def stops_ranks(self) -> bool:
        """Whether a request to stop has come to the ranks: they are asked to end, or were."""
        return self.run.stop is not None and not self.run.stop.ranks_not_yet_signalled


if TYPE_CHECKING:
    from supervisor.core.actions import Action

    #: The answer to an event: the next state, and the actions.
    Step = tuple[JobState, tuple[Action, ...]]


__all__ = [
    "Admission",
    "Attempt",
    "Incident",
    "JobState",
    "Losses",
    "NodeReport",
    "Run",
    "SavedSteps",
    "Stage",
    "StopRequest",
]
