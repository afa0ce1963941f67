"""The actions that the core orders: imperative, frozen, and complete.

`executor.py` has one function for each. Those of DURABLE are done once the record that ordered them is on disk; stopping ranks never waits
for one.
"""

from __future__ import annotations

from supervisor.core.model import Beginning, CheckpointRef, FailureVerdict, Gpu, JobDecision, PastFailures, Plan
from supervisor.core.setup_model import HeldBatch
from supervisor.core.values import Struct

#: signal(7); core imports nothing that touches the system.
SIGTERM = 15


class AttemptAction(Struct, frozen=True):
    """The fields of every action on one attempt."""

    attempt: int


class BeginAttempt(AttemptAction, frozen=True):
    """Start the ranks as `attempt`; start the launcher first where none runs."""

    reason: str  # start, failure, membership or takeover
    resume: CheckpointRef | None
    overrides: tuple[tuple[str, str], ...] = ()  # knob (or `env:NAME`) to value: all that differs from the user's own command
    gpus: tuple[str, ...] = ()  # UUIDs that the ranks may see; empty: as the user's environment says
    nproc: int | None = None  # ranks of this node; None: as the user's command says
    trace: bool = False  # record the collectives (launch/tracing.py)
    resume_by: str = ""  # whose knob hands `resume` over (Knob.by), "": none does


class GatherNodes(AttemptAction, frozen=True):
    """Have this node meet the others for `attempt`; start the launcher first where none runs. Answered by NodesGathered.

    No rank starts before BeginAttempt.
    """

    nproc: int | None = None  # as in BeginAttempt
    least_nodes: int = 0  # how many nodes are waited for, 0: as many as the command says
    node_group: int = 1  # nodes take part in groups of so many (core/nodes/replicas.py)


class BroadcastStart(AttemptAction, frozen=True):
    """Send the other nodes how the ranks of this one began. Theirs come as NodeBegan, with the same fields."""

    node: int = 0  # this one
    first_step: int | None = None
    loaded_step: int | None = None


class StopRanks(AttemptAction, frozen=True):
    """Stop this attempt's ranks and their process trees. Answered by AttemptEnded.

    torchrun's agent stops them by itself when a rank fails.
    """

    signum: int
    grace_s: float  # KILL comes after so long
    why: str  # failure, membership, stop or hurry
    text: str = ""  # what failed


class EndLauncher(AttemptAction, frozen=True):
    """Kill the launcher and all processes below the guardian at once, because it did not answer. Answered by AttemptEnded."""

    reason: str


class CollectEvidence(AttemptAction, frozen=True):
    """Collect every observer's evidence. Answered by EvidenceCollected."""

    incident: int
    deadline_s: float  # within so long


class SelectCheckpoint(AttemptAction, frozen=True):
    """Find and verify the newest checkpoint that is not rejected; answered by CheckpointSelected.

    Of several nodes, the one that took part in the newest agreement decides with which overrides all continue, and hands over what failed
    before.
    """

    rejected: tuple[str, ...] = ()  # paths
    nodes: int = 0  # how many nodes have met, and agree on a checkpoint that all have; 0: this one is alone
    node: int = 0  # the number of this node among them
    last_agreement: int = 0  # attempt of the last agreement that this node took part in
    overrides: tuple[tuple[str, str], ...] = ()
    had_checkpoint: bool = False  # this node knows a good checkpoint
    least_nodes: int = 0  # with how many nodes an attempt may begin, 0: unknown
    most_nodes: int = 0  # likewise
    agreed_attempts: tuple[int, ...] = ()  # attempts of earlier agreements
    # later checkpoints are never used, because the nodes trained from different states; None: no such time
    diverged_since_t: float | None = None
    resume_by: str = ""  # as in BeginAttempt
    own_only: bool = False  # what earlier runs saved does not count
    programs: tuple[str, ...] = ()  # those that a rank was seen to run, or that the user names
    resume_knobs: tuple[str, ...] = ()  # whose knobs could hand a checkpoint over here (Knob.by), the preferred one first
    past: PastFailures | None = None  # what failed before
    check: str = ""  # why this node wants the nodes tried against each other first: start, doubt, or "" for no reason
    gpus: tuple[str, ...] = ()  # UUIDs of those that its ranks may use
    batch: HeldBatch = HeldBatch()  # how this node would hold the global batch
    ever_loaded: bool = False  # as in Run (core/state.py)
    reached: int | None = None  # this run's greatest step; None: none is known
    begun_from: tuple[str, ...] = ()  # as in Run


class CheckHealth(AttemptAction, frozen=True):
    """Examine this node before the next attempt, while its checkpoint is selected; answered by HealthChecked."""

    awaited: bool = True  # the attempt begins after the answer; else it may have begun before it, and the answer is HealthChanged


class SetTimer(Struct, frozen=True):
    """Send TimerFired(name, token) after `delay_s`. Earlier timers of that name fire too, with other tokens."""

    name: str
    token: int
    delay_s: float


class DumpStacks(AttemptAction, frozen=True):
    """Ask every instrumented rank for the stacks of its threads."""


class EndForAll(AttemptAction, frozen=True):
    """End the attempt on all nodes; the first end holds."""

    kind: str  # failure or membership (AttemptEndedByPeer)
    text: str


class ReportAttempt(AttemptAction, frozen=True):
    """Send the nodes what this one saw of the attempt, as the state has it. The one that decides gets ReportsGathered."""


class ProposeDecision(AttemptAction, frozen=True):
    """Have all nodes act on this, if no other decision is there. Answered by DecisionMade."""

    kind: str
    decision: JobDecision | None = None  # None if nothing failed


class CompleteAttempt(AttemptAction, frozen=True):
    """All ranks of all nodes have exited 0: let the launcher end. Answered by AttemptEnded."""


class Quarantine(AttemptAction, frozen=True):
    """Put a GPU into the ledger of this node, where it stays out of later attempts, runs and jobs until it is cleared or expires."""

    gpu: Gpu
    reason: str
    evidence: str


class RequestSave(AttemptAction, frozen=True):
    """Have the ranks that poll worker.should_save save now; answered by Saved, or by their end."""

    left_s: float | None  # until they are stopped; None: they train on until all nodes have saved


class FindUnsaved(AttemptAction, frozen=True):
    """Find which ranks have not saved as requested, and where they are; answered by UnsavedFound."""


class ReportSaved(AttemptAction, frozen=True):
    """The ranks of this node have saved as requested. When those of all nodes have, AttemptEndedByPeer (membership) ends the attempt."""


class FindSave(AttemptAction, frozen=True):
    """Search the disk for a whole checkpoint. Answered by SaveSearched. No rank is alive."""

    since_t: float  # written since then
    deadline_s: float


class KeepCopies(AttemptAction, frozen=True):
    """Hold copies of the whole checkpoints that `attempt` did not visibly load and may overwrite. Each is reported (CheckpointCopied)."""


class AccuseCheckpoints(AttemptAction, frozen=True):
    """Record for later runs, too, what this one stepped back from: the attempt trained from an older checkpoint. It is reported."""

    reason: str


class KeepLook(AttemptAction, frozen=True):
    """Keep the text of the newest look at the ranks."""

    incident: int  # beside the card of this one; 0: with the attempt's logs


class Alert(Struct, frozen=True):
    """Alert a person to what no incident reports."""

    # recurring_failure, gpu_quarantined, memory_held, batch_changed;
    # node_health: this node became worse; change_ignored: a rank trains with another value than a plan set;
    # unkilled: KILL did not end a process; started_from_scratch: a checkpoint was there, and the attempt began without it;
    # hang: the ranks stand still, and the attempt continues; foreign_checkpoint: the ranks loaded another training's;
    # save_gone: the newest save of this run was removed; strange_loss, slow_training;
    # straggler: a rank or a node makes the others wait; memory_forecast: memory will be used up
    kind: str
    attempt: int
    text: str
    subject: str = ""  # tells alerts of one kind apart, such as a GPU's UUID
    # the rank that a hang is blamed on, that the others wait for or whose memory grows, and its node; None and "": unknown, or several
    culprit: tuple[int | None, str] = (None, "")
    code: str = ""  # where the culprits of a hang stand, as FILE:LINE; "": unknown
    when: str = ""  # the subject of a forecast, and its time; "": the alert is not a forecast


class OpenIncident(Struct, frozen=True):
    """An incident begins. It is reported with the decision, a moment later."""

    incident: int
    attempt: int
    rank: int | None
    summary: str


class ReportDecision(Struct, frozen=True):
    """The verdict and the plan of an incident: one line on stderr, its card, the journal's explanation."""

    incident: int
    attempt: int
    verdict: FailureVerdict
    plan: Plan
    step: int | None
    at_least: bool = False  # `step` is the last one seen, and the attempt may have gone further
    alerts: bool = True  # False: another node alerts to it


class ReportResume(Struct, frozen=True):
    """How an attempt began: resumed at `step` from `path`, from scratch (no path), or not `confirmed`."""

    incident: int
    attempt: int
    step: int | None
    path: str | None
    confirmed: bool
    resume_from: str | None = None  # the checkpoint that the ranks were given
    reason: str = ""  # what shows a beginning from scratch
    epoch: int | None = None  # of the checkpoint, if no step is known
    is_new: bool = False  # a beginning from scratch that loses nothing: no earlier attempt of the run made a step or a checkpoint
    named: int | None = None  # the number in its name, if it differs from the step
    counted: int | None = None  # the step at which the ranks' own count began, if it differs from the step
    given_step: int | None = None  # of the checkpoint that was given, if the ranks loaded another one, of another step

    @property
    def began(self) -> Beginning:
        """The three in one word."""
        if not self.confirmed:
            return Beginning.UNCONFIRMED
        return Beginning.FROM_SCRATCH if self.path is None else Beginning.RESUMED


class CloseIncident(Struct, frozen=True):
    """The first progress after the incident, or the end of the run."""

    incident: int
    attempt: int
    outcome: str  # resolved, given_up, stopped (by a person or a scheduler), or withdrawn: nothing had failed
    step: int | None


class PrintMessage(Struct, frozen=True):
    """Print one line at the terminal."""

    level: str  # info, warning or error
    text: str


class Finish(Struct, frozen=True):
    """The run is over. After 75 the next start continues it."""

    exit_code: int
    reason: str  # for the end record
    for_all: bool = False  # the nodes of the job end together, so that none waits for another


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
    | ReportAttempt
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

#: Actions that wait until their record is on disk: else they would be done again, or nobody would ever know that they were done.
DURABLE: frozenset[type] = frozenset({BeginAttempt, GatherNodes, Quarantine})
