"""The events that the core decides on: everything that can happen to a job, in the past tense.

Producers (the guardian's link, the agent's link, timers, signals, the heartbeat sampler, the checkpoint watcher) put them into one queue.
One thread takes them out and calls `decide`, which reads no clock and no file: an event carries every fact that decides. `t` is the time
(core/model.py). `attempt` is the fence: an event of another attempt than the state's is void.

The journal records every event that changes the state. So a new field needs a default: `why` reads old journals. The agent's messages
(agent/messages.py) have some of the same fields and are types of their own: the agent imports nothing of core, and its messages have
neither the supervisor's clock nor core's types.
"""

from __future__ import annotations

from supervisor.core.model import (
    CheckpointRef,
    Evidence,
    Finding,
    Gpu,
    Hang,
    HeldBatch,
    JobDecision,
    Launcher,
    LoadedCheckpoint,
    PastFailures,
    Phase,
    Policy,
    RankExit,
    RankInfo,
    UnusedCheckpoints,
    WithoutTracker,
)
from supervisor.core.state import NodeReport
from supervisor.core.training_events import LossChanged, PaceChanged
from supervisor.core.values import Struct


class SupervisorStarted(Struct, frozen=True):
    """This supervisor took the job over.

    continues: the previous one of the same run ended without an end record, or with 75. last_alive_t: when a previous one that was killed
    was last known to live. heartbeats_read: the last progress in its ranks' heartbeats was posted before this. unfinished_before, of a new
    run: the last run of the same command did not end well. programs_seen, of a new run that goes on from there: what its ranks ran.
    """

    t: float
    run_id: str
    policy: Policy
    continues: bool = False
    command_digest: str = ""
    last_alive_t: float | None = None
    heartbeats_read: bool = False
    unfinished_before: bool = False
    programs_seen: tuple[str, ...] = ()


class LauncherStarted(Struct, frozen=True):
    """torchrun's agent is ready, and reports how torch parsed the command line: a cap on restarts (None: not given), and how many nodes.

    nproc: ranks of this node. least_nodes: an attempt begins with at least so many. 0: torch did not report it.
    """

    t: float
    pid: int
    max_restarts: int | None
    nodes: int
    nproc: int = 0
    least_nodes: int = 0


class LauncherFellBack(Struct, frozen=True):
    """A name in torch that the agent needs is missing: the command runs as stock torchrun, which the supervisor restarts."""

    t: float
    launcher: Launcher
    reason: str


class NodesGathered(Struct, frozen=True):
    """The nodes of the attempt have met, so that no rank of an earlier one lives on any of them. `node` of `nodes` is this one.

    number: of the attempt from now on, the same on all nodes; 0: it stays. members: the nodes in their order; empty: no control store.
    world_size: the ranks that they have together, 0: unknown.
    """

    t: float
    attempt: int
    node: int
    nodes: int
    number: int = 0
    members: tuple[str, ...] = ()
    world_size: int = 0


class NodeBegan(Struct, frozen=True):
    """How the ranks of another node began, as their instrumentation saw it.

    first_step: the absolute step at which their training began, as the optimizer or the script counts. loaded_step: of the checkpoint that
    they loaded. None: unknown. `text` describes both for people.
    """

    t: float
    attempt: int
    text: str
    first_step: int | None = None
    loaded_step: int | None = None


class AttemptStarted(Struct, frozen=True):
    """Every rank of this node's share of the attempt exists. For a plain command: the command itself, as rank 0, until RanksFound."""

    t: float
    attempt: int
    ranks: tuple[RankInfo, ...]
    world_size: int
    launcher_pid: int = 0


class ProgramIdentified(Struct, frozen=True):
    """What the attempt is about to run, as it lies on the disk: digests by name (command, script, packages).

    What cannot be read now is left out, because a file system that does not answer is no change of the program.
    """

    t: float
    attempt: int
    program: tuple[tuple[str, str], ...]


class RanksFound(Struct, frozen=True):
    """All ranks on this node of a plain command that started some by itself, as their environment says. Each time that one is new."""

    t: float
    attempt: int
    ranks: tuple[RankInfo, ...]
    world_size: int


class RankExited(Struct, frozen=True):
    """A rank ended, well or not. Its failure ends the attempt: the agent stops the peers without asking."""

    t: float
    attempt: int
    exit: RankExit


class AttemptEndedByPeer(Struct, frozen=True):
    """Another node ended the attempt, for all nodes.

    kind: failure: a rank failed there, or the node was lost; left: it was stopped; membership: waiting nodes are to join; void: it had
    given the meeting up before the attempt had its number.
    """

    t: float
    attempt: int
    node: str
    text: str
    kind: str = "failure"


class AttemptEnded(Struct, frozen=True):
    """No rank of the attempt is left on this node, and no process of their process trees.

    outcome: succeeded (all exited 0), failed (a rank failed, or ranks were stopped because one did), membership (stopped to admit
    nodes), stopped (on our request). hidden: of a command that left with 0, the failure of a rank that it did not pass on.
    """

    t: float
    attempt: int
    outcome: str
    hidden: tuple[Evidence, ...] = ()


class LauncherExited(Struct, frozen=True):
    """The process that runs the ranks ended too early, or could not be started. `who`: agent, guardian, or command (a plain one)."""

    t: float
    attempt: int
    who: str
    code: int | None = None
    signal: int | None = None


class NodesWaiting(Struct, frozen=True):
    """Other nodes asked to join an elastic job (torch's num_nodes_waiting)."""

    t: float
    attempt: int
    count: int


class NodesMissing(Struct, frozen=True):
    """This node waits at the rendezvous, where `count` nodes are missing to begin; 0: as many are there as are needed.

    within_s: how long it waits for them.
    """

    t: float
    attempt: int
    count: int
    within_s: float


class ReportsGathered(Struct, frozen=True):
    """This node decides for all: what the nodes of the attempt saw, and which of them report nothing, each with the reason.

    kind, node, text: how the attempt was ended, by which node, and why.
    """

    t: float
    attempt: int
    reports: tuple[NodeReport, ...]
    missing: tuple[tuple[str, str], ...] = ()
    kind: str = "failure"
    node: str = ""
    text: str = ""


class DecisionMade(Struct, frozen=True):
    """The decision about an attempt, the same on all nodes. `kind`: restart, stop, success, or void: nothing is counted, they meet again.

    decision: None where nothing failed. elsewhere: the attempt is one in which this node takes no part, and the job is over.
    """

    t: float
    attempt: int
    kind: str
    decision: JobDecision | None = None
    elsewhere: bool = False


class LeftBehind(Struct, frozen=True):
    """The job went on without this node, and what was decided about its attempt is not known any more."""

    t: float
    attempt: int


class StoreFellSilent(Struct, frozen=True):
    """The control store did not answer for the time of a lease: the other nodes may go on without this one."""

    t: float
    attempt: int


class EvidenceCollected(Struct, frozen=True):
    """The observers' evidence on the incident. `jitter` is uniform in [0, 1): the only randomness the core sees."""

    t: float
    attempt: int
    incident: int
    evidence: tuple[Evidence, ...]
    jitter: float = 0.0


class CheckpointSelected(Struct, frozen=True):
    """The answer to SelectCheckpoint. `chosen` None with `found` > 0: none of those found is good any more.

    No attempt resumes from these, each with its reason: `torn`; `dangerous`: loading them could run code; `refused`: they could not be read
    or verified, and may be good; `silent`: those of them from which no byte came; `not_finite`. `older`: further ones, oldest first, not
    verified. `unused`: whole ones of which the script gets none. `torn_in_use`: the torn one that the last attempt tried to load;
    `advised_move`: the command that moves it to where the script does not look.
    `repaired`: changes to files of the job, as (path, change), by the rule of ownership (docs/explanation/checkpoints.md).
    `kept_copies`: of torn ones that stay, as (path, newest copy). `notes`: for people. `is_foreign`: another training saved `chosen`, so
    that it is no progress of this run. `has_saved`: ranks of this run were seen to save, or nobody could see it. `without_tracker`: of the
    newest whole one, if the script finds its checkpoint by itself.

    cannot_work: what differs between the nodes' environments so that no attempt can work, the same on all nodes. unfit: nodes that failed
    the node check, by their number, each with the finding. not_excluded: those of them whose ledger could not be written.
    agreement: attempt of the agreement of several nodes on it, else 0; overrides, batch, rejected and past then hold on all. node_offers:
    what each node has if they have none in common, as (node, text), or how each resumes if `resume_differs`: only some nodes add the
    option of a program. remedy: what helps then, with the command. programs: what ranks of any node were seen to run. ever_loaded: whether
    those of any node were seen to load.
    this_node_leaves: this node does not fit the others for one of these reasons, and ends. peer_leaves: only another node does.
    """

    t: float
    attempt: int
    chosen: CheckpointRef | None
    found: int
    torn: tuple[tuple[str, str], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    older: tuple[CheckpointRef, ...] = ()
    repaired: tuple[tuple[str, str], ...] = ()
    not_finite: tuple[tuple[str, str], ...] = ()
    agreement: int = 0
    overrides: tuple[tuple[str, str], ...] = ()
    rejected: tuple[str, ...] = ()
    node_offers: tuple[tuple[str, str], ...] = ()
    this_node_leaves: bool = False
    peer_leaves: bool = False
    notes: tuple[str, ...] = ()
    unused: tuple[UnusedCheckpoints, ...] = ()
    torn_in_use: str = ""
    advised_move: str = ""
    dangerous: tuple[tuple[str, str], ...] = ()
    kept_copies: tuple[tuple[str, str], ...] = ()
    programs: tuple[str, ...] = ()
    resume_differs: bool = False
    cannot_work: tuple[str, ...] = ()
    past: PastFailures | None = None
    remedy: str = ""
    unfit: tuple[tuple[int, str], ...] = ()
    not_excluded: tuple[int, ...] = ()
    batch: HeldBatch = HeldBatch()
    ever_loaded: bool = False
    silent: tuple[tuple[str, str], ...] = ()
    is_foreign: bool = False
    has_saved: bool = True
    without_tracker: WithoutTracker | None = None


class SelectionMoved(Struct, frozen=True):
    """The selection of a checkpoint goes on: bytes come from the disk, or the nodes took another step to their agreement."""

    t: float
    attempt: int


class CheckpointVerified(Struct, frozen=True):
    """The watcher verified a checkpoint that appeared while the job ran. made_in: the attempt that saved it, 0: unknown."""

    t: float
    attempt: int
    checkpoint: CheckpointRef
    made_in: int = 0


class ProgressObserved(Struct, frozen=True):
    """The sampler read the heartbeats: sent at the first step of an attempt, at a change of phase, and at most every few seconds.

    `steps_seen` counts optimizer steps in this attempt (-1: no rank is instrumented). `step` is absolute; None: unknown, and the core adds
    `steps_seen` to the step resumed from and calls it relative. loaded: the checkpoint of this job that a rank loaded before its first
    step. read: a file in none of the job's locations that a rank loaded, which may be data. first_step: the absolute step at which this
    attempt's training began, as the optimizer or the script counts. loss: the newest one that a rank reported or printed, as it was
    then; it decides nothing. total: the absolute step with which the training ends, None: unknown.
    """

    t: float
    attempt: int
    step: int | None
    steps_seen: int
    phase: Phase
    loaded: str | None = None
    read: str | None = None
    first_step: int | None = None
    loss: float | None = None
    total: int | None = None

    @property
    def trains(self) -> bool:
        """Whether it shows a training step: a hook counted one, or the script's own step went on from its first."""
        return self.steps_seen > 0 or (self.first_step is not None and self.step is not None and self.step > self.first_step)


class CheckpointsLoaded(Struct, frozen=True):
    """Ranks loaded checkpoints before their first step: all of this attempt so far, each with who wrote it."""

    t: float
    attempt: int
    loads: tuple[LoadedCheckpoint, ...]


class NewestSaveGone(Struct, frozen=True):
    """The newest save of this run is not where it was saved any more, and none is newer; or one is newer again (`is_over`)."""

    t: float
    attempt: int
    path: str
    is_over: bool = False


class StartCeilingPassed(Struct, frozen=True):
    """These ranks sent no heartbeat: their progress and hangs are UNKNOWN."""

    t: float
    attempt: int
    uninstrumented: tuple[int, ...]


class HangSuspected(Struct, frozen=True):
    """No rank made progress for `still_s` seconds, longer than the limit of the phase that the ranks are in."""

    t: float
    attempt: int
    still_s: float
    limit_s: float
    phase: Phase = Phase.UNKNOWN


class HangConfirmed(Struct, frozen=True):
    """Two looks at the ranks showed the same, and nothing moved between them. Again when the group's own timeout has passed."""

    t: float
    attempt: int
    hang: Hang


class HangCleared(Struct, frozen=True):
    """A suspected or confirmed hang is over: a rank made progress, or moved between two looks. `text`: what showed it."""

    t: float
    attempt: int
    still_s: float
    text: str


class StopRequested(Struct, frozen=True):
    """A person, systemd or Slurm requests a stop by signal `signum`.

    left_s: seconds from now until the environment kills, None: unknown. time_left_follows: a tool is asked for them, and TimeLeft brings
    the answer.
    """

    t: float
    signum: int
    left_s: float | None = None
    time_left_follows: bool = False


class TimeLeft(Struct, frozen=True):
    """A tool's answer: the seconds from now until the environment kills. None: unknown."""

    t: float
    left_s: float | None


class ProgramSeen(Struct, frozen=True):
    """A rank's instrumentation saw which framework trains (names of rows of docs/guides/programs.md), and with which values.

    values: knob to value, as the framework itself holds it. batchnorm: a module whose statistics depend on the micro-batch was seen.
    """

    t: float
    attempt: int
    programs: tuple[str, ...]
    values: tuple[tuple[str, str], ...] = ()
    batchnorm: bool = False


class GpusListed(Struct, frozen=True):
    """The GPUs of this node that the job may use, with the ledger's entry on each. Empty: there is none, or none could be listed."""

    t: float
    gpus: tuple[Gpu, ...]


class HealthChecked(Struct, frozen=True):
    """The answer to CheckHealth: this node's findings, worst first. Empty: it is well, or could not be examined.

    command_nproc: ranks that the command runs on this node, 0: unknown.
    """

    t: float
    attempt: int
    findings: tuple[Finding, ...]
    command_nproc: int = 0


class HealthChanged(Struct, frozen=True):
    """Checks of this node whose result changed while the job ran, with the new result."""

    t: float
    findings: tuple[Finding, ...]


class SaveOnRequestSeen(Struct, frozen=True):
    """A rank polls supervisor.worker.should_save: the script saves on request. Once per attempt."""

    t: float
    attempt: int


class Saved(Struct, frozen=True):
    """Every rank that polls should_save has made the requested checkpoint."""

    t: float
    attempt: int


class UnsavedFound(Struct, frozen=True):
    """The answer to FindUnsaved. text: which ranks did not ask, or have not saved, and where each is; "" where all of them have."""

    t: float
    attempt: int
    text: str


class SaveSearched(Struct, frozen=True):
    """The answer to FindSave: the newest whole checkpoint that was written since the ranks were asked to save, None: there is none."""

    t: float
    attempt: int
    found: CheckpointRef | None


class StacksRequested(Struct, frozen=True):
    """SIGQUIT: dump the stacks of all ranks and go on."""

    t: float


class TimerFired(Struct, frozen=True):
    """A timer of SetTimer fired. A `token` other than the state's is of an earlier stage, and void."""

    t: float
    name: str
    token: int


class JournalDegraded(Struct, frozen=True):
    """The journal did not answer within its deadline: decisions are kept in memory until it does."""

    t: float
    text: str


class JournalRecovered(Struct, frozen=True):
    """The journal answers again, and holds everything."""

    t: float


Event = (
    SupervisorStarted
    | LauncherStarted
    | LauncherFellBack
    | NodesGathered
    | NodeBegan
    | ProgramIdentified
    | SelectionMoved
    | AttemptStarted
    | RanksFound
    | RankExited
    | AttemptEndedByPeer
    | AttemptEnded
    | LauncherExited
    | NodesWaiting
    | NodesMissing
    | ReportsGathered
    | DecisionMade
    | LeftBehind
    | StoreFellSilent
    | EvidenceCollected
    | CheckpointSelected
    | CheckpointVerified
    | ProgressObserved
    | CheckpointsLoaded
    | NewestSaveGone
    | StartCeilingPassed
    | ProgramSeen
    | GpusListed
    | HealthChecked
    | HealthChanged
    | SaveOnRequestSeen
    | Saved
    | UnsavedFound
    | SaveSearched
    | HangSuspected
    | HangConfirmed
    | HangCleared
    | LossChanged
    | PaceChanged
    | StopRequested
    | TimeLeft
    | StacksRequested
    | TimerFired
    | JournalDegraded
    | JournalRecovered
)
