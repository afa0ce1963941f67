"""The events that the core decides on: everything that can happen to a job, in the past tense.

Producers (the guardian's link, the agent's link, timers, signals, the heartbeat sampler, the checkpoint watcher) put them into one queue.
One thread takes them out and calls `decide`, which reads no clock and no file: an event carries every fact that decides. `t` is the time
(core/model.py). `attempt` is the fence: an event of another attempt than the state's is void.

The journal records every event that changes the state. So a new field needs a default: `why` reads old journals. The agent's messages
(agent/messages.py) have some of the same fields and are types of their own: the agent imports nothing of core, and its messages have
neither the supervisor's clock nor core's types.
"""

from __future__ import annotations

from supervisor.core.checkpoint_model import LoadedCheckpoint, UnusedCheckpoints, WithoutTracker
from supervisor.core.event import AttemptEvent, JobEvent
from supervisor.core.model import (
    CheckpointRef,
    Evidence,
    Finding,
    Gpu,
    Hang,
    JobDecision,
    Launcher,
    PastFailures,
    Phase,
    Policy,
    RankExit,
    RankInfo,
    RankMemory,
)
from supervisor.core.setup_model import HeldBatch
from supervisor.core.state import NodeReport
from supervisor.core.step_shares import StepShares
from supervisor.core.training_events import LossChanged, MemoryForecast, PaceChanged


class SupervisorStarted(JobEvent, frozen=True):
    """This supervisor took the job over."""

    run_id: str
    policy: Policy
    continues: bool = False  # the previous one of the same run ended without an end record, or with 75
    command_digest: str = ""
    last_alive_t: float | None = None  # when a previous one that was killed was last known to live
    heartbeats_read: bool = False  # the last progress in its ranks' heartbeats was posted before this event
    unfinished_before: bool = False  # a new run: the last run of the same command did not end well
    programs_seen: tuple[str, ...] = ()  # a new run that continues from there: what its ranks ran


class LauncherStarted(JobEvent, frozen=True):
    """torchrun's agent is ready, and reports how torch parsed the command line."""

    pid: int
    max_restarts: int | None  # a cap on restarts; None: not given
    nodes: int  # how many
    nproc: int = 0  # ranks of this node, 0: torch did not report it
    least_nodes: int = 0  # an attempt begins with at least so many, 0: torch did not report it


class LauncherFellBack(JobEvent, frozen=True):
    """A name in torch that the agent needs is missing: the command runs as stock torchrun, which the supervisor restarts."""

    launcher: Launcher
    reason: str


class NodesGathered(AttemptEvent, frozen=True):
    """The nodes of the attempt have met, so that no rank of an earlier one lives on any of them."""

    node: int  # the number of this one among `nodes`
    nodes: int
    number: int = 0  # of the attempt from now on, the same on all nodes; 0: it stays
    members: tuple[str, ...] = ()  # the nodes in their order; empty: they have no coordinator
    world_size: int = 0  # the ranks that they have together, 0: unknown
    coordinator: str = ""  # the node of the coordinator, which need not be a member


class NodeBegan(AttemptEvent, frozen=True):
    """How the ranks of another node began, as their instrumentation saw it."""

    text: str  # describes both for people
    first_step: int | None = None  # the absolute step at which their training began, as the optimizer or the script counts; None: unknown
    loaded_step: int | None = None  # of the checkpoint that they loaded; None: unknown


class AttemptStarted(AttemptEvent, frozen=True):
    """Every rank of this node's share of the attempt exists. For a plain command: the command itself, as rank 0, until RanksFound."""

    ranks: tuple[RankInfo, ...]
    world_size: int


class ProgramIdentified(AttemptEvent, frozen=True):
    """The program of the attempt, as it lies on the disk: digests by name (command, script, packages).

    A file that cannot be read now is left out, because a file system that does not answer is not a change of the program.
    """

    program: tuple[tuple[str, str], ...]


class RanksFound(AttemptEvent, frozen=True):
    """All ranks on this node of a plain command that started some by itself, as their environment says. Each time that one is new."""

    ranks: tuple[RankInfo, ...]
    world_size: int


class RankExited(AttemptEvent, frozen=True):
    """A rank ended, well or not. Its failure ends the attempt: the agent stops the peers without asking."""

    exit: RankExit


class AttemptEndedByPeer(AttemptEvent, frozen=True):
    """Another node ended the attempt, for all nodes."""

    node: str
    text: str
    # failure: a rank failed there, or the node was lost; left: it was stopped; membership: waiting nodes are to join;
    # void: it had given the meeting up before the attempt had its number
    kind: str = "failure"


class AttemptEnded(AttemptEvent, frozen=True):
    """No rank of the attempt is left on this node, and no process of their process trees."""

    # succeeded: all exited 0; failed: a rank failed, or ranks were stopped because one did;
    # membership: they were stopped to admit nodes; stopped: on our request
    outcome: str
    hidden: tuple[Evidence, ...] = ()  # of a command that left with 0: the failure of a rank that it did not pass on


class LauncherExited(AttemptEvent, frozen=True):
    """The process that runs the ranks ended too early, or could not be started."""

    process: str  # agent, guardian, or command (a plain one)
    code: int | None = None
    signal: int | None = None


class NodesWaiting(AttemptEvent, frozen=True):
    """Other nodes asked to join an elastic job (torch's num_nodes_waiting)."""

    count: int


class NodesMissing(AttemptEvent, frozen=True):
    """This node waits at the rendezvous for nodes that are missing to begin."""

    count: int  # how many; 0: as many are there as are needed
    within_s: float  # how long it waits for them


class ReportsGathered(AttemptEvent, frozen=True):
    """This node is the coordinator: what the nodes of the attempt saw.

    It may take no part in the attempt, or be stopping, so this is not void where its own attempt is another.
    """

    reports: tuple[NodeReport, ...]
    missing: tuple[tuple[str, str], ...] = ()  # nodes that report nothing, each with the reason
    kind: str = "failure"  # how the attempt was ended
    node: str = ""  # by which node
    text: str = ""  # why


class DecisionMade(AttemptEvent, frozen=True):
    """The decision about an attempt, the same on all nodes."""

    kind: str  # restart, stop, success, or void: nothing is counted, they meet again
    decision: JobDecision | None = None  # None where nothing failed
    elsewhere: bool = False  # the attempt is one in which this node takes no part, and the job is over


class LeftBehind(AttemptEvent, frozen=True):
    """The job continued without this node, and the decision about its attempt is not known any more."""


class CoordinatorFellSilent(AttemptEvent, frozen=True):
    """The coordinator does not answer, and no rank of this node makes steps: the other nodes may continue without this one."""

    text: str = "the coordinator of the nodes does not answer"


class NodeCutOff(AttemptEvent, frozen=True):
    """This node can take part no more."""

    text: str  # why, for people
    is_refused: bool = False  # by the coordinator, else that is gone for good


class EvidenceCollected(AttemptEvent, frozen=True):
    """The observers' evidence on the incident."""

    incident: int
    evidence: tuple[Evidence, ...]
    jitter: float = 0.0  # uniform in [0, 1): the only randomness the core sees
    # of this node, with the ledger's entry on each as it is now, where one was out of use; they are in force if a plan says so
    gpus: tuple[Gpu, ...] = ()


class CheckpointSelected(AttemptEvent, frozen=True):
    """The answer to SelectCheckpoint.

    Files of the job are changed by the rule of docs/explanation/own-checkpoints.md. Where several nodes agreed, overrides, batch,
    rejected and past hold on all of them.
    """

    chosen: CheckpointRef | None  # None where `n_found` > 0: none of those is good any more
    n_found: int  # how many paths may be checkpoints
    torn: tuple[tuple[str, str], ...] = ()  # (path, reason) of each that no attempt resumes from, here and in the next such lists
    refused: tuple[tuple[str, str], ...] = ()  # they could not be read or verified, and may be good
    older: tuple[CheckpointRef, ...] = ()  # further ones, oldest first, not verified
    repaired: tuple[tuple[str, str], ...] = ()  # changes to files of the job: (path, change)
    not_finite: tuple[tuple[str, str], ...] = ()  # their weights are NaN or infinite
    agreement: int = 0  # attempt of the agreement of several nodes on it, 0: none
    overrides: tuple[tuple[str, str], ...] = ()
    rejected: tuple[str, ...] = ()
    # (node, text): what each node has if they have none in common, or how each resumes if `resume_differs`
    node_offers: tuple[tuple[str, str], ...] = ()
    this_node_leaves: bool = False  # it does not fit the others for one of these reasons, and ends
    peer_leaves: bool = False  # only another node does
    notes: tuple[str, ...] = ()  # for people
    unused: tuple[UnusedCheckpoints, ...] = ()  # whole ones of which the script gets none
    torn_in_use: str = ""  # the torn one that the last attempt tried to load
    advised_move: str = ""  # the command that moves it to where the script does not look
    dangerous: tuple[tuple[str, str], ...] = ()  # loading them could run code
    kept_copies: tuple[tuple[str, str], ...] = ()  # of torn ones that stay: (path, newest copy)
    programs: tuple[str, ...] = ()  # what ranks of any node were seen to run
    resume_differs: bool = False  # only some nodes add the option of a program
    cannot_work: tuple[str, ...] = ()  # what differs between the nodes' environments so that no attempt can work, the same on all nodes
    past: PastFailures | None = None  # what failed before
    remedy: str = ""  # what helps where the nodes have none in common, with the command
    unfit: tuple[tuple[int, str], ...] = ()  # nodes that failed the node check: (number, finding)
    not_excluded: tuple[int, ...] = ()  # those of them whose ledger could not be written
    batch: HeldBatch = HeldBatch()
    ever_loaded: bool = False  # ranks of a node were seen to load
    silent: tuple[tuple[str, str], ...] = ()  # those of the refused from which no byte came
    is_foreign: bool = False  # another training saved `chosen`: it is not progress of this run
    has_saved: bool = True  # ranks of this run were seen to save, or nobody could see it
    without_tracker: WithoutTracker | None = None  # of the newest whole one, if the script finds its checkpoint by itself
    passed_over: tuple[tuple[str, str], ...] = ()  # those of the refused that are newer than `chosen`, or of unknown age


class SelectionMoved(AttemptEvent, frozen=True):
    """The selection of a checkpoint continues: bytes come from the disk, or the nodes took another step to their agreement."""


class CheckpointVerified(AttemptEvent, frozen=True):
    """The watcher verified a checkpoint that appeared while the job ran."""

    checkpoint: CheckpointRef
    made_in: int = 0  # the attempt that saved it, 0: unknown


class ProgressObserved(AttemptEvent, frozen=True):
    """The sampler read the heartbeats (observe/ranks/progress_sampler.py says how often)."""

    step: int | None  # absolute; None: unknown, and the core adds `steps_seen` to the step resumed from and calls it relative
    steps_seen: int  # optimizer steps in this attempt; -1: no rank is instrumented
    phase: Phase
    loaded: str | None = None  # the checkpoint of this job that a rank loaded before its first step
    read: str | None = None  # a file in none of the job's locations that a rank loaded, which may be data
    first_step: int | None = None  # the absolute step at which this attempt's training began, as the optimizer or the script counts
    loss: float | None = None  # the newest that a rank reported or printed, as it was then; it decides nothing
    total: int | None = None  # the absolute step with which the training ends; None: unknown
    memory: tuple[RankMemory, ...] = ()  # of the ranks that hold most, the worst first; (): not known, or as it was reported last
    time_shares: StepShares | None = (
        None  # where a step goes, where that changed since the last report that has it; None: not known, or as then
    )

    @property
    def trains(self) -> bool:
        """Whether it shows a training step: a hook counted one, or the script's own step continued from its first."""
        return self.steps_seen > 0 or (self.first_step is not None and self.step is not None and self.step > self.first_step)


class CheckpointsLoaded(AttemptEvent, frozen=True):
    """Ranks loaded checkpoints before their first step: all of this attempt so far, each with who wrote it."""

    loads: tuple[LoadedCheckpoint, ...]


class NewestSaveGone(AttemptEvent, frozen=True):
    """The newest save of this run is not where it was saved any more, and none is newer; or one is newer again."""

    path: str
    is_over: bool = False  # one is newer again


class StartCeilingPassed(AttemptEvent, frozen=True):
    """These ranks sent no heartbeat: their progress and hangs are UNKNOWN."""

    uninstrumented: tuple[int, ...]


class HangSuspected(AttemptEvent, frozen=True):
    """No rank made progress for `still_s` seconds, longer than the limit of the phase that the ranks are in."""

    still_s: float
    limit_s: float
    phase: Phase = Phase.UNKNOWN


class HangConfirmed(AttemptEvent, frozen=True):
    """Two looks at the ranks showed the same, and nothing moved between them. Again when the group's own timeout has passed."""

    hang: Hang
    acting: str = ""  # the node that alerts, or ends the attempt for all nodes; "" where that is this one


class HangCleared(AttemptEvent, frozen=True):
    """A suspected or confirmed hang is over: a rank made progress, or moved between two looks."""

    still_s: float
    text: str  # what showed it


class StopRequested(JobEvent, frozen=True):
    """A person, systemd or Slurm requests a stop by signal `signum`."""

    signum: int
    left_s: float | None = None  # seconds from now until the environment kills; None: unknown
    time_left_follows: bool = False  # a tool is asked for them, and TimeLeft brings the answer


class TimeLeft(JobEvent, frozen=True):
    """A tool's answer: how much time is left."""

    left_s: float | None  # seconds from now until the environment kills; None: unknown
    signum: int = 0  # the signal after which it was asked; 0: not known


class ProgramSeen(AttemptEvent, frozen=True):
    """A rank's instrumentation saw which framework trains (names of rows of docs/guides/programs.md), and with which values."""

    programs: tuple[str, ...]
    values: tuple[tuple[str, str], ...] = ()  # knob to value, as the framework itself holds it
    batchnorm: bool = False  # a module whose statistics depend on the micro-batch was seen


class GpusListed(JobEvent, frozen=True):
    """The GPUs of this node that the job may use, with the ledger's entry on each. Empty: there is none, or none could be listed."""

    gpus: tuple[Gpu, ...]


class HealthChecked(AttemptEvent, frozen=True):
    """The answer to CheckHealth: this node's findings, worst first. Empty: it is well, or could not be examined."""

    findings: tuple[Finding, ...]
    command_nproc: int = 0  # ranks that the command runs on this node, 0: unknown


class HealthChanged(JobEvent, frozen=True):
    """Checks of this node whose result changed while the job ran, with the new result."""

    findings: tuple[Finding, ...]


class SaveOnRequestSeen(AttemptEvent, frozen=True):
    """A rank polls supervisor.worker.should_save: the script saves on request. Once per attempt."""


class Saved(AttemptEvent, frozen=True):
    """Every rank that polls should_save has made the requested checkpoint."""


class UnsavedFound(AttemptEvent, frozen=True):
    """The answer to FindUnsaved."""

    text: str  # which ranks did not ask, or have not saved, and where each is; "" where all of them have


class SaveSearched(AttemptEvent, frozen=True):
    """The answer to FindSave: the newest whole checkpoint that was written since the time that it names, None: there is none."""

    newest: CheckpointRef | None


class StacksRequested(JobEvent, frozen=True):
    """SIGQUIT: dump the stacks of all ranks and continue."""


class TimerFired(JobEvent, frozen=True):
    """A timer of SetTimer fired."""

    name: str
    token: int  # one other than the state's is of an earlier stage, and void


class JournalDegraded(JobEvent, frozen=True):
    """The journal did not answer within its deadline: decisions are kept in memory until it does."""

    text: str


class JournalRecovered(JobEvent, frozen=True):
    """The journal answers again, and holds everything."""


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
    | CoordinatorFellSilent
    | NodeCutOff
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
    | MemoryForecast
    | PaceChanged
    | StopRequested
    | TimeLeft
    | StacksRequested
    | TimerFired
    | JournalDegraded
    | JournalRecovered
)
