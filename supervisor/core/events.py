"""The events that the core decides on: everything that can happen to a job, in the past tense.

Producers (the guardian's link, the agent's link, timers, signals, the heartbeat sampler, the checkpoint watcher) put these values
into one queue; one thread takes them out and calls `decide`. What decides must be in here: no clock is read and no file is looked at
on the other side. `t` is the time (see core/model.py); `attempt` is the fencing token, and an event of another attempt than the
state's is answered with nothing.

Every event that changed the state is a record in the journal, so a field added here needs a default: `why` reads old journals.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.model import CheckpointRef, Evidence, Finding, FirstCause, Gpu, Launcher, Phase, Policy, RankExit, RankInfo, Unused


@dataclass(frozen=True, slots=True)
class SupervisorStarted:
    """This supervisor took the job over.

    continues: the previous one of the same run ended without an end record, or with 75. last_alive_t: when a previous one that was killed
    was last known to live. heartbeats_read: the last progress in its ranks' heartbeats was posted before this.
    """

    t: float
    run_id: str
    policy: Policy
    continues: bool = False
    command_digest: str = ""
    last_alive_t: float | None = None
    heartbeats_read: bool = False


@dataclass(frozen=True, slots=True)
class LauncherStarted:
    """torchrun's agent is ready, and reports what torch made of the command line: a cap on restarts (None: not given), and how many nodes.

    nproc: ranks of this node, 0 where torch did not say. least_nodes: an attempt begins with so many at least, 0 where torch did not say.
    """

    t: float
    pid: int
    max_restarts: int | None
    nodes: int
    nproc: int = 0
    least_nodes: int = 0


@dataclass(frozen=True, slots=True)
class LauncherFellBack:
    """torch's names were not as the agent needs them: the command is run as stock torchrun, restarted by us."""

    t: float
    launcher: Launcher
    reason: str


@dataclass(frozen=True, slots=True)
class NodesGathered:
    """The nodes of the attempt have met, so that no rank of an earlier one lives on any of them. `node` of `nodes` is this one."""

    t: float
    attempt: int
    node: int
    nodes: int


@dataclass(frozen=True, slots=True)
class NodeBegan:
    """How the ranks of another node began: what they were seen to do, not what they were given.

    first_step: the absolute step at which their training began, as the optimizer or the script counts. loaded_step: of the checkpoint that
    they were seen to load. None where nobody knows. `text` describes it for people.
    """

    t: float
    attempt: int
    text: str
    first_step: int | None = None
    loaded_step: int | None = None


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """Every rank of this node's share of the attempt exists. For a plain command: the command itself, as rank 0, until RanksFound."""

    t: float
    attempt: int
    ranks: tuple[RankInfo, ...]
    world_size: int
    launcher_pid: int = 0


@dataclass(frozen=True, slots=True)
class RanksFound:
    """All ranks on this node of a plain command that started some by itself, as their environment says. Each time that one is new."""

    t: float
    attempt: int
    ranks: tuple[RankInfo, ...]
    world_size: int


@dataclass(frozen=True, slots=True)
class RankExited:
    """A rank ended, well or not. Its failure ends the attempt: the agent stops the peers without asking."""

    t: float
    attempt: int
    exit: RankExit


@dataclass(frozen=True, slots=True)
class AttemptEndedByPeer:
    """Another node ended the attempt, and this node's ranks are being stopped: one of its ranks failed first, and its decision is awaited.

    kind: failure, or membership: it stopped its ranks so that waiting nodes can join.
    """

    t: float
    attempt: int
    node: str
    text: str
    kind: str = "failure"


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """No rank of the attempt is left on this node, and nothing that descends from one.

    outcome: succeeded (all exited 0), failed (a rank failed, or ranks were stopped because one did), membership (stopped to admit
    nodes), stopped (on our request).
    """

    t: float
    attempt: int
    outcome: str


@dataclass(frozen=True, slots=True)
class LauncherExited:
    """What runs the ranks ended while it should have run, or could not be started. `who`: agent, guardian, or command (a plain one)."""

    t: float
    attempt: int
    who: str
    code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class NodesWaiting:
    """Other nodes asked to join an elastic job (torch's num_nodes_waiting)."""

    t: float
    attempt: int
    count: int


@dataclass(frozen=True, slots=True)
class PeerDecided:
    """The node whose rank failed first has decided for all. `kind`: restart or stop.

    overrides: all that the next attempt runs with instead of the user's own values. rejected: checkpoints that are not handed out any more.
    first: what failed there; None where that node's supervisor is gone, and its agent decided.
    """

    t: float
    attempt: int
    kind: str
    exit_code: int = 0
    reason: str = ""
    overrides: tuple[tuple[str, str], ...] = ()
    rejected: tuple[str, ...] = ()
    first: FirstCause | None = None


@dataclass(frozen=True, slots=True)
class EvidenceCollected:
    """What the observers found about the incident. `jitter` is uniform in [0, 1): the only randomness the core sees."""

    t: float
    attempt: int
    incident: int
    evidence: tuple[Evidence, ...]
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckpointSelected:
    """The answer to SelectCheckpoint. `chosen` None with `found` > 0 means that none of those found is good any more.

    `torn`, with why, stay where they are and are never handed out. `dangerous` are those that are not handed out
    because loading them could run code. `refused` are those that could not be
    verified, or not be read: nobody says that they are bad. `older` are the further ones that are there, oldest first, not looked into.
    `repaired`: what was done to files of the job, as (path, what), by the rule of ownership (docs/checkpoints.md).
    `notes`: what a person should know of the choice. `unused`: whole ones that are not handed over. `torn_in_use`: the torn one that the
    last attempt tried to load, and that stays where it is.

    agreement: number of the agreement of several nodes on it, else 0; overrides and rejected are then what the attempt runs with on all of
    them. node_offers: what each node had where they found nothing in common, as (node, text). this_node_leaves: it alone lacks what the
    others resume from, and ends. peer_leaves: another node alone does, and ends.
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
    unused: tuple[Unused, ...] = ()
    torn_in_use: str = ""
    dangerous: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointVerified:
    """The watcher verified a checkpoint that appeared while the job ran. made_in: the attempt that saved it, 0 where nobody knows."""

    t: float
    attempt: int
    checkpoint: CheckpointRef
    made_in: int = 0


@dataclass(frozen=True, slots=True)
class ProgressObserved:
    """The sampler read the heartbeats: sent at the first step of an attempt, at a change of phase, and at most every few seconds.

    `steps_seen` counts optimizer steps in this attempt (-1: no rank is instrumented); `step` is absolute, or None where nothing
    absolute is known (then the core adds `steps_seen` to the step resumed from and calls it relative).
    loaded: the checkpoint of this job that a rank loaded before its first step. read: a file at none of the job's places that one loaded,
    which may be data. first_step: the absolute step at which this attempt's training began, as the optimizer or the script counts.
    """

    t: float
    attempt: int
    step: int | None
    steps_seen: int
    phase: Phase
    loaded: str | None = None
    read: str | None = None
    first_step: int | None = None


@dataclass(frozen=True, slots=True)
class StartCeilingPassed:
    """These ranks sent no heartbeat: their progress and hangs are UNKNOWN."""

    t: float
    attempt: int
    uninstrumented: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A person, systemd or Slurm asked us to stop, by signal `signum`.

    left_s: what the environment leaves from now until it kills, None where nobody knows. time_left_follows: a tool is being asked for it,
    and TimeLeft brings the answer.
    """

    t: float
    signum: int
    left_s: float | None = None
    time_left_follows: bool = False


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """What the environment leaves from now until it kills, as a tool answered; None where nobody knows."""

    t: float
    left_s: float | None


@dataclass(frozen=True, slots=True)
class ProgramSeen:
    """A rank's instrumentation saw which framework trains: names of rows of docs/programs.md, and what it was seen to run with.

    values: knob to value, as the framework itself holds it. batchnorm: a module whose statistics depend on the micro-batch was seen.
    """

    t: float
    attempt: int
    programs: tuple[str, ...]
    values: tuple[tuple[str, str], ...] = ()
    batchnorm: bool = False


@dataclass(frozen=True, slots=True)
class GpusListed:
    """The GPUs of this node that the job may use, with what the ledger says of each. Empty where there is none, or none could be listed."""

    t: float
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class HealthChecked:
    """The answer to CheckHealth: what is not well on this node, worst first. Empty where all is, or where nobody could tell.

    command_nproc: ranks that the command runs on this node, 0 where that is not known.
    """

    t: float
    attempt: int
    findings: tuple[Finding, ...]
    command_nproc: int = 0


@dataclass(frozen=True, slots=True)
class HealthChanged:
    """What became better or worse on this node while the job ran: each check's new result, once."""

    t: float
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class SaveOnRequestSeen:
    """A rank polls supervisor.worker.should_save: the script saves on request. Once per attempt."""

    t: float
    attempt: int


@dataclass(frozen=True, slots=True)
class Saved:
    """Every rank that polls should_save has made the requested checkpoint."""

    t: float
    attempt: int


@dataclass(frozen=True, slots=True)
class SaveSearched:
    """The answer to FindSave: the newest whole checkpoint that was written since the ranks were asked to save, None where there is none."""

    t: float
    attempt: int
    found: CheckpointRef | None


@dataclass(frozen=True, slots=True)
class StacksRequested:
    """SIGQUIT: dump the stacks of all ranks and go on."""

    t: float


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer that SetTimer asked for. `token` tells a timer of now from one of an earlier stage."""

    t: float
    name: str
    token: int


@dataclass(frozen=True, slots=True)
class JournalDegraded:
    """The journal did not answer within its deadline: decisions are kept in memory until it does."""

    t: float
    text: str


@dataclass(frozen=True, slots=True)
class JournalRecovered:
    """The journal answers again, and holds everything."""

    t: float


Event = (
    SupervisorStarted
    | LauncherStarted
    | LauncherFellBack
    | NodesGathered
    | NodeBegan
    | AttemptStarted
    | RanksFound
    | RankExited
    | AttemptEndedByPeer
    | AttemptEnded
    | LauncherExited
    | NodesWaiting
    | PeerDecided
    | EvidenceCollected
    | CheckpointSelected
    | CheckpointVerified
    | ProgressObserved
    | StartCeilingPassed
    | ProgramSeen
    | GpusListed
    | HealthChecked
    | HealthChanged
    | SaveOnRequestSeen
    | Saved
    | SaveSearched
    | StopRequested
    | TimeLeft
    | StacksRequested
    | TimerFired
    | JournalDegraded
    | JournalRecovered
)
