"""The actions that the core orders: imperative, frozen, and complete.

`executor.py` has one function for each. An action that must be durable before it is done says so (`waits_for_journal`): the start of
an attempt. Stopping ranks never waits for a disk.
"""

from __future__ import annotations

from typing import ClassVar

from supervisor.core.model import Beginning, CheckpointRef, Gpu, HeldBatch, JobDecision, PastFailures, Plan, Verdict
from supervisor.core.values import Struct

#: signal(7); core imports nothing that touches the system.
SIGTERM = 15


class BeginAttempt(Struct, frozen=True):
    """Start the ranks as `attempt`; start the launcher first where none runs. `reason` is start, failure, membership or takeover.

    overrides: knob (or `env:NAME`) to value, all that differs from the user's own command. gpus: UUIDs that the ranks may see, empty: as
    the user's environment says. nproc: ranks of this node, None: as the user's command says. trace: record the
    collectives (launch/tracing.py). resume_by: whose knob hands `resume` over (Knob.by), "": none does.
    """

    attempt: int
    reason: str
    resume: CheckpointRef | None
    overrides: tuple[tuple[str, str], ...] = ()
    gpus: tuple[str, ...] = ()
    nproc: int | None = None
    trace: bool = False
    resume_by: str = ""
    waits_for_journal: ClassVar[bool] = True


class GatherNodes(Struct, frozen=True):
    """Have this node meet the others for `attempt`; start the launcher first where none runs. Answered by NodesGathered.

    No rank starts before BeginAttempt. nproc: as there. least_nodes: so many are waited for, 0: as many as the command says.
    """

    attempt: int
    nproc: int | None = None
    least_nodes: int = 0
    waits_for_journal: ClassVar[bool] = True


class BroadcastStart(Struct, frozen=True):
    """Send the other nodes how the ranks of this one (`node`) began. Theirs come as NodeBegan, with the same fields."""

    attempt: int
    node: int = 0
    first_step: int | None = None
    loaded_step: int | None = None
    waits_for_journal: ClassVar[bool] = False


class StopRanks(Struct, frozen=True):
    """Stop this attempt's ranks and their process trees: `signum`, then KILL after `grace_s`. Answered by AttemptEnded.

    why: failure, membership, stop, hurry. text: what failed. torchrun's agent stops them by itself when a rank fails.
    """

    attempt: int
    signum: int
    grace_s: float
    why: str
    text: str = ""
    waits_for_journal: ClassVar[bool] = False


class EndLauncher(Struct, frozen=True):
    """Kill the launcher and all processes below the guardian at once, because it did not answer. Answered by AttemptEnded."""

    attempt: int
    reason: str
    waits_for_journal: ClassVar[bool] = False


class CollectEvidence(Struct, frozen=True):
    """Collect every observer's evidence; answered by EvidenceCollected within `deadline_s`."""

    attempt: int
    incident: int
    deadline_s: float
    waits_for_journal: ClassVar[bool] = False


class SelectCheckpoint(Struct, frozen=True):
    """Find and verify the newest checkpoint that is not among `rejected` (paths); answered by CheckpointSelected.

    nodes: where it is above 0, so many nodes have met, and agree on one that all have; this one is `node`. had_checkpoint: this node knows
    a good checkpoint. last_agreement: attempt of the last one that this node took part in. The node that took part in the newest decides
    with which overrides all go on, and hands over
    what failed before (past). least_nodes, most_nodes: that an attempt may begin with, 0: unknown. agreed_attempts: of earlier ones.
    mixed_from_t: what was written since
    is never used, because the nodes trained from different states; None: no such time. resume_by: as in BeginAttempt. own_only: what
    earlier runs saved does not count. programs: those that a rank was seen to run, or that the user names. resume_knobs: whose knobs could
    hand a checkpoint over here (Knob.by), the preferred one first. check: why this node wants the nodes tried against each other first:
    start, doubt, or "" for no reason. gpus: UUIDs of those that its ranks may use. batch: how this node would hold the global batch.
    ever_loaded, begun_from: as in Run (core/state.py). reached: this run's greatest step, None if none is known.
    """

    attempt: int
    rejected: tuple[str, ...] = ()
    nodes: int = 0
    node: int = 0
    last_agreement: int = 0
    overrides: tuple[tuple[str, str], ...] = ()
    had_checkpoint: bool = False
    least_nodes: int = 0
    most_nodes: int = 0
    agreed_attempts: tuple[int, ...] = ()
    mixed_from_t: float | None = None
    resume_by: str = ""
    own_only: bool = False
    programs: tuple[str, ...] = ()
    resume_knobs: tuple[str, ...] = ()
    past: PastFailures | None = None
    check: str = ""
    gpus: tuple[str, ...] = ()
    batch: HeldBatch = HeldBatch()
    ever_loaded: bool = False
    reached: int | None = None
    begun_from: tuple[str, ...] = ()
    waits_for_journal: ClassVar[bool] = False


class CheckHealth(Struct, frozen=True):
    """Examine this node before the next attempt, while its checkpoint is selected; answered by HealthChecked.

    awaited: the attempt begins after the answer. If not, it may have begun before it, and the answer is HealthChanged.
    """

    attempt: int
    awaited: bool = True
    waits_for_journal: ClassVar[bool] = False


class SetTimer(Struct, frozen=True):
    """Send TimerFired(name, token) after `delay_s`. Earlier timers of that name fire too, with other tokens."""

    name: str
    token: int
    delay_s: float
    waits_for_journal: ClassVar[bool] = False


class DumpStacks(Struct, frozen=True):
    """Ask every instrumented rank for the stacks of its threads."""

    attempt: int
    waits_for_journal: ClassVar[bool] = False


class EndForAll(Struct, frozen=True):
    """End the attempt on all nodes. kind: failure or membership (AttemptEndedByPeer); the first end stands."""

    attempt: int
    kind: str
    text: str
    waits_for_journal: ClassVar[bool] = False


class ReportEpoch(Struct, frozen=True):
    """Send the nodes what this one saw of the attempt, as the state has it. The one that decides gets ReportsGathered."""

    attempt: int
    waits_for_journal: ClassVar[bool] = False


class ProposeDecision(Struct, frozen=True):
    """Have all nodes act on this, if no other decision is there; answered by DecisionMade. decision: None if nothing failed."""

    attempt: int
    kind: str
    decision: JobDecision | None = None
    waits_for_journal: ClassVar[bool] = False


class CompleteAttempt(Struct, frozen=True):
    """All ranks of all nodes have exited 0: let the launcher end. Answered by AttemptEnded."""

    attempt: int
    waits_for_journal: ClassVar[bool] = False


class Quarantine(Struct, frozen=True):
    """Put a GPU into the ledger of this node, where it stays out of later attempts, runs and jobs until it is cleared or expires."""

    attempt: int
    gpu: Gpu
    reason: str
    evidence: str
    waits_for_journal: ClassVar[bool] = True


class RequestSave(Struct, frozen=True):
    """Have the ranks that poll worker.should_save save now; answered by Saved, or by their end.

    left_s: until they are stopped; None: they train on, until all nodes have saved.
    """

    attempt: int
    left_s: float | None
    waits_for_journal: ClassVar[bool] = False


class FindUnsaved(Struct, frozen=True):
    """Find which ranks have not saved as requested, and where they are; answered by UnsavedFound."""

    attempt: int
    waits_for_journal: ClassVar[bool] = False


class ReportSaved(Struct, frozen=True):
    """The ranks of this node have saved as requested. When those of all nodes have, AttemptEndedByPeer (membership) ends the attempt."""

    attempt: int
    waits_for_journal: ClassVar[bool] = False


class FindSave(Struct, frozen=True):
    """Search the disk for a whole checkpoint that was written since `since_t`; answered by SaveSearched."""

    attempt: int
    since_t: float
    deadline_s: float
    waits_for_journal: ClassVar[bool] = False


class KeepCopies(Struct, frozen=True):
    """Hold copies of the whole checkpoints that `attempt` was not seen to load and may overwrite. Each is reported (CheckpointCopied)."""

    attempt: int
    waits_for_journal: ClassVar[bool] = False


class AccuseCheckpoints(Struct, frozen=True):
    """Record for later runs, too, what this one stepped back from: `attempt` trained from an older checkpoint. It is reported."""

    attempt: int
    reason: str
    waits_for_journal: ClassVar[bool] = False


class KeepLook(Struct, frozen=True):
    """Keep the text of the newest look at the ranks: beside the card of `incident`, with the attempt's logs if that is 0."""

    attempt: int
    incident: int
    waits_for_journal: ClassVar[bool] = False


class Alert(Struct, frozen=True):
    """Alert a person to what no incident reports.

    kind: recurring_failure, gpu_quarantined, memory_held, batch_changed, node_health: this node became worse, change_ignored: a rank
    trains with another value than a plan set, unkilled: KILL did not end a process, started_from_scratch: a checkpoint was there, and the
    attempt began without it, hang: the ranks stand still, and the attempt goes on, foreign_checkpoint: the ranks loaded another training's,
    save_gone: the newest save of this run was removed, strange_loss, or slow_training.
    subject: tells alerts of one kind apart, such as a GPU's UUID.
    """

    kind: str
    attempt: int
    text: str
    subject: str = ""
    waits_for_journal: ClassVar[bool] = False


class OpenIncident(Struct, frozen=True):
    """An incident begins. It is reported with the decision, a moment later."""

    incident: int
    attempt: int
    rank: int | None
    summary: str
    waits_for_journal: ClassVar[bool] = False


class ReportDecision(Struct, frozen=True):
    """The verdict and the plan of an incident: one line on stderr, its card, the journal's explanation.

    at_least: `step` is the last one seen, and the attempt may have gone further. alerts: False where another node alerts to it.
    """

    incident: int
    attempt: int
    verdict: Verdict
    plan: Plan
    step: int | None
    at_least: bool = False
    alerts: bool = True
    waits_for_journal: ClassVar[bool] = False


class ReportResume(Struct, frozen=True):
    """How an attempt began: resumed at `step` from `path`, from scratch (no path), or not `confirmed`.

    resume_from: the checkpoint that the ranks were given. reason: what shows a beginning from scratch. epoch: of the checkpoint, if no
    step is known. named: the number in its name, and counted: the step at which the ranks' own count began, each if it differs from the
    step. is_new: a beginning from scratch that loses nothing, because no earlier attempt of the run made a step or a checkpoint.
    given_step: of the checkpoint that was given, if the ranks loaded another one, of another step.
    """

    incident: int
    attempt: int
    step: int | None
    path: str | None
    confirmed: bool
    resume_from: str | None = None
    reason: str = ""
    epoch: int | None = None
    is_new: bool = False
    named: int | None = None
    counted: int | None = None
    given_step: int | None = None
    waits_for_journal: ClassVar[bool] = False

    @property
    def began(self) -> Beginning:
        """The three in one word."""
        if not self.confirmed:
            return Beginning.UNCONFIRMED
        return Beginning.FROM_SCRATCH if self.path is None else Beginning.RESUMED


class CloseIncident(Struct, frozen=True):
    """The first progress after the incident, or the end of the run. `outcome`: resolved, given_up, or withdrawn: nothing had failed."""

    incident: int
    attempt: int
    outcome: str
    step: int | None
    waits_for_journal: ClassVar[bool] = False


class PrintMessage(Struct, frozen=True):
    """Print one line at the terminal. `level` is info, warning or error."""

    level: str
    text: str
    waits_for_journal: ClassVar[bool] = False


class Finish(Struct, frozen=True):
    """The run is over: leave with `exit_code`, and `reason` in the end record. After 75 the next start continues the run.

    for_all: the nodes of the job end together, so that none waits for another.
    """

    exit_code: int
    reason: str
    for_all: bool = False
    waits_for_journal: ClassVar[bool] = False


Action = (
    BeginAttempt
    | GatherNodes
    | BroadcastStart
    | StopRanks
    | EndLauncher
    | CollectEvidence
    | SelectCheckpoint
    | CheckHealth
    | SetTimer
    | DumpStacks
    | EndForAll
    | ReportEpoch
    | ProposeDecision
    | CompleteAttempt
    | Quarantine
    | RequestSave
    | FindUnsaved
    | ReportSaved
    | FindSave
    | KeepCopies
    | AccuseCheckpoints
    | KeepLook
    | Alert
    | OpenIncident
    | ReportDecision
    | ReportResume
    | CloseIncident
    | PrintMessage
    | Finish
)
