"""The nouns of a supervised job.

Job > Run > Attempt > Rank. A *job* is what a person means by "my training"; a *run* is one start of it by a person; an *attempt* is
one life of the whole worker group, and its number is the fence: it only grows within a run, across restarts of the
supervisor too, and every message that speaks of ranks carries it. A failure is data, never an exception:

    Evidence (an observed fact)  ->  FailureVerdict (the cause, and how sure)  ->  Plan (what the next attempt changes, or a stop)

Everything here is a frozen value. Times `t` are seconds on one clock (`supervisor.job.clock`): the wall time at which the process began
plus monotonic seconds since, so that they never run backwards within a process and can still be compared after a restart.
UNKNOWN is a value of its own everywhere: a step of None is unknown, which is neither zero nor "before the first step".
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, cast

from supervisor.core.policy_settings import Gpus, NetworkSection, NodesSection, Restart, Stop
from supervisor.core.values import Struct

#: How a cause of the user's own may be called.
_OWN_NAME: Final = re.compile(r"[a-z][a-z0-9_]{2,39}")


class Cause(StrEnum):
    """Why an attempt ended: our list (docs/reference/causes.md), and the names that signatures of the user's give."""

    CUDA_OOM = "cuda_oom"
    HOST_OOM = "host_oom"
    SHM_EXHAUSTED = "shm_exhausted"
    NCCL_TIMEOUT = "nccl_timeout"
    NCCL_NETWORK = "nccl_network"
    NCCL_INIT = "nccl_init"
    GLOO_ERROR = "gloo_error"
    RENDEZVOUS = "rendezvous"
    NODE_LOST = "node_lost"
    GPU_ECC = "gpu_ecc"
    GPU_LOST = "gpu_lost"
    GPU_XID_OTHER = "gpu_xid_other"
    NVLINK = "nvlink"
    GPU_DRIVER = "gpu_driver"
    DEVICE_ORDINAL = "device_ordinal"  # a rank asked for a GPU by a number that it does not see
    CUDA_ILLEGAL_ACCESS = "cuda_illegal_access"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    CHECKPOINT_MISMATCH = "checkpoint_mismatch"
    CHECKPOINT_LEFTOVER = "checkpoint_leftover"  # of an earlier attempt or of supervise: in the way, or missed
    CHECKPOINT_POINTER = "checkpoint_pointer"  # a link, or the file that names the latest, leads to no whole one
    CACHE_CORRUPT = "cache_corrupt"
    DISK_FULL = "disk_full"
    IO_ERROR = "io_error"
    STORAGE_REMOTE = "storage_remote"
    DATALOADER_WORKER = "dataloader_worker"
    DATA_ERROR = "data_error"
    DDP_UNSYNCED = "ddp_unsynced"
    NAN_LOSS = "nan_loss"
    HANG_NO_ERROR = "hang_no_error"
    EXIT_STUCK = "exit_stuck"  # the training was over, and a rank did not leave
    EXIT_ABORT = "exit_abort"  # the training was over, and a rank died in its teardown
    USER_CODE = "user_code"
    DEPENDENCY = "dependency"
    PREEMPTED = "preempted"
    INTERRUPTED = "interrupted"  # a person pressed Ctrl-C
    SEGFAULT = "segfault"
    UNKNOWN_NATIVE_ABORT = "unknown_native_abort"
    KILLED_UNKNOWN = "killed_unknown"
    UNKNOWN = "unknown"  # it failed, and nothing says convincingly why
    NONE = "none"

    @classmethod
    def _missing_(cls, value: object) -> Cause | None:
        """Return the cause of the user's own of this name, which no iteration yields; None where nothing can be called so."""
        if not isinstance(value, str) or _OWN_NAME.fullmatch(value) is None:
            return None
        own = str.__new__(cls, value)
        own._name_, own._value_ = value.upper(), value
        return cast("Cause", cls._value2member_map_.setdefault(value, own))

    @property
    def is_own(self) -> bool:
        """Whether it is a cause of the user's own."""
        return self.name not in Cause.__members__


#: In `Claim.consequence_of`: every cause of the user's own.
ANY_OWN_CAUSE: Final = "@own"
#: Ends from outside: the job did not fail, so nothing is charged, and no guard of failures holds.
FROM_OUTSIDE = frozenset({Cause.PREEMPTED, Cause.INTERRUPTED})


class Phase(StrEnum):
    """The activity of a rank by its instrumentation; UNKNOWN where that could not see it."""

    UNKNOWN = "unknown"
    IMPORT = "import"
    INIT = "init"
    LOAD = "load"
    TRAIN = "train"
    CHECKPOINT = "checkpoint"
    EVAL = "eval"
    DATA = "data"


#: Phases that prove that no training step was made. UNKNOWN is not one of them.
BEFORE_FIRST_STEP = frozenset({Phase.IMPORT, Phase.INIT, Phase.LOAD})


class Launcher(StrEnum):
    """How the ranks are run."""

    ELASTIC = "elastic"  # torchrun's agent, subclassed (supervisor.agent)
    STOCK = "stock"  # torchrun itself with --max-restarts=0, restarted by us
    PLAIN = "plain"  # any other command


class ResumeKind(StrEnum):
    """The form in which a script gets its checkpoint: `Knob.counts` of the knob RESUME."""

    PATH = "path"  # of the checkpoint
    SWITCH = "switch"  # words without a path, with which it finds the checkpoint
    ITSELF = "itself"  # nothing: it finds the checkpoint by itself


class Beginning(StrEnum):
    """How an attempt began, as its ranks showed it."""

    RESUMED = "resumed"
    FROM_SCRATCH = "started_from_scratch"
    UNCONFIRMED = "resume_not_confirmed"


class RankInfo(Struct, frozen=True):
    """One rank of one attempt."""

    rank: int
    local_rank: int
    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat: with the pid it names a process for one boot


class RankExit(Struct, frozen=True):
    """How a rank ended: exactly one of `code` and `signal` is set."""

    rank: int
    pid: int
    at_ns: int  # CLOCK_MONOTONIC: it orders the deaths
    code: int | None = None  # 0 to 255
    signal: int | None = None
    core_dumped: bool = False

    @property
    def failed(self) -> bool:
        """True unless it exited with 0."""
        return self.code != 0

    @property
    def text(self) -> str:
        """The process and its end, for people."""
        how = f"killed by signal {self.signal}" if self.signal is not None else f"exit code {self.code}"
        return f"rank {self.rank}: {how}"


class Claim(Struct, frozen=True, gc=False):  # as Evidence
    """The conclusion of a signature from its match. The evidence carries it, so that a verdict can be explained without the signatures."""

    cause: Cause
    weight: float  # its confidence if no other evidence exists, 0..1
    transient: bool = False
    consequence_of: tuple[str, ...] = ()  # the causes that this may merely follow from, "*" for any, ANY_OWN_CAUSE for the user's

    def names(self, cause: Cause) -> bool:
        """Whether `consequence_of` names a cause, other than by "*"."""
        return cause.value in self.consequence_of or (cause.is_own and ANY_OWN_CAUSE in self.consequence_of)


class Evidence(Struct, frozen=True, gc=False):  # a fact holds no cycle, and a large job has 100,000s: the collector need not search them
    """One observed fact."""

    # the observer: exit, error_file, tail, log, hang, kernel, nvml, health, cgroup, host, network, nccl, heartbeat, launcher,
    # signal, loss, checkpoint
    source: str
    name: str  # its kind within the source: exit_code, exception, traceback, phase, the id of a signature, …
    text: str
    rank: int | None = None
    t: float = 0.0  # when it happened, 0: unknown; earlier evidence outranks stronger evidence
    free_text: bool = False  # it was read out of log lines: such evidence alone never justifies a change of the job
    fields: tuple[tuple[str, str], ...] = ()  # what a signature extracted from the text
    line: int = 0  # the number of the line in its file, 0: unknown
    node: str = ""  # the host that it speaks of
    claim: Claim | None = None


class HangKind(StrEnum):
    """The kind of a hang by two looks at the ranks. The first that is proven counts."""

    GONE = "gone"  # a rank's process is gone, and nobody ended the attempt
    MISMATCH = "mismatch"  # ranks of one process group wait in collectives of it that differ: they wait for ever
    STOPPED = "stopped"  # a rank is in state T: SIGSTOP, scontrol suspend or a debugger
    BLOCKED = "blocked"  # a rank or its loader worker waits for a disk, or reads a file that does not answer
    LOCK = "lock"  # ranks wait for the end of a file that nobody is left to remove: a restart would wait for it too
    LATE = "late"  # a rank is outside of the collective that its peers wait in
    WAITING = "waiting"  # all wait in the same collective
    EXIT = "exit"  # the scripts of all ranks that live are over, and a thread keeps their processes
    STILL = "still"  # nobody moves, and nothing of the above is proven


class Hang(Struct, frozen=True):
    """A hang on which two looks agreed (docs/explanation/hangs.md)."""

    kind: HangKind
    text: str  # one sentence, with ranks, collective, file and line
    ranks: tuple[int, ...] = ()  # the culprits; empty: none is known
    code: str = ""  # where they stand in the user's code, "" unknown
    phase: Phase = Phase.UNKNOWN  # of the culprit
    still_s: float = 0.0  # since the last progress of any rank
    limit_s: float = 0.0  # what that passed
    calibrated: bool = True  # the limit comes from steps of this attempt
    busy: bool = False  # a rank used CPU time between the looks, so it may continue
    group_timeout_s: float | None = None  # of the process group that is waited in; None: unknown
    slow: bool = False  # bytes move, fewer than a sign of life, so it continues
    left_file: str = ""  # a file that ranks wait for the end of, and that nobody is left to remove; "" for none
    node: str = ""  # of the culprits, as people are shown it; "" where the job has one node, and where they are on several
    at_exit: str = ""  # the ranks that wait after the training's end, and where; "" where a rank may still train
    working: str = ""  # what a rank, or a process below one, still did between the looks; "" for nothing
    end_step: int | None = None  # the absolute step to which all ranks came by then; None: unknown
    over: bool = False  # so it has been for this long that nothing more can be expected
    devices: str = ""  # what the GPUs of the ranks draw and hold, and where each rank is in its process group; "" without a GPU
    reason: str = ""  # what in the script explains it, with file and line and what to write; "" where nothing does

    def evidence(self, t: float) -> Evidence:
        """Return what the looks showed, as evidence of a failure at the time `t`. It claims no cause."""
        return Evidence("hang", self.kind.value, self.text, self.ranks[0] if len(self.ranks) == 1 else None, t, node=self.node)


class Finding(Struct, frozen=True):
    """A health check's result on one part of this node, as far as a decision or a person needs it (docs/guides/health.md)."""

    check: str  # of which check
    subject: str  # as health/model.py names it (`gpu:UUID`, `path:/data`, `host`)
    result: str  # ok, degraded or failed
    reason: str  # why
    command: str = ""  # what repairs it, or shows more
    blocks: bool = False  # no attempt may begin on it
    event: str = ""  # what happened (`xid 79`), "" for a state

    @property
    def gpu(self) -> str:
        """UUID of the GPU that it speaks of, "" for none, or one that the driver cannot name any more."""
        kind, _, name = self.subject.partition(":")
        return name if kind == "gpu" and not name.startswith("#") else ""

    @property
    def about(self) -> tuple[str, str, str]:
        """The key by which findings of two examinations are compared."""
        return self.check, self.subject, self.event


class FailureVerdict(Struct, frozen=True):
    """The cause of a failure."""

    cause: Cause
    confidence: float
    summary: str
    fingerprint: str  # equal for equal failures: cause, exception type and innermost frames, no numbers
    rank: int | None = None
    transient: bool = False
    because: tuple[Evidence, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()  # for recovery: bytes asked, timeout, Xid, path, …
    gpu: str = ""  # an index, UUID or PCI id, whichever the evidence names
    node: str = ""
    runner_up: Cause | None = None  # the next most likely other cause; None: nothing else was claimed
    runner_up_confidence: float = 0.0


class Knob(Struct, frozen=True):
    """One thing of the user's command that a plan may set (docs/guides/knobs.md has the closed list of names)."""

    name: str
    value: str  # as in the user's command, "" unknown
    how: str  # as a person would write it (`--batch-size`)
    by: str = "declared"  # who declared it: "declared", or the program that was recognised
    seen: bool = True  # False: the program was only recognised in the script's text; ProgramSeen enables such a knob
    # what one unit is per. batch_size: "gpu" or "global"; grad_accum: "rank", "world" or "derived" (the program computes it) or
    # "planned" (knobs/uneven.py does);
    # RESUME: a ResumeKind
    counts: str = ""


#: The knob by which a script gets its checkpoint. knobs/resume.py binds it; no --knob declares it.
RESUME: Final = "resume"


class Gpu(Struct, frozen=True):
    """A GPU that the job can see."""

    index: int  # as nvidia-smi shows it, the number by which people know a GPU. CUDA's is its place among those that the job sees
    uuid: str
    pci: str = ""
    quarantined: str = ""  # why the ledger keeps it out of use, "" if it does not


class Change(Struct, frozen=True):
    """The setting of a plan."""

    knob: str  # its name, or `env:NAME`
    old: str  # "" unknown
    new: str
    how: str  # as a person would write it


class PlanKind(StrEnum):
    """Try again, or stop."""

    RESTART = "restart"
    STOP = "stop"


class Plan(Struct, frozen=True):
    """The action about a verdict."""

    kind: PlanKind
    reason: str
    next_ladder_step: str  # the answer to the same failure next time; of a STOP what a person does
    strategy: str  # the step that proposed it
    exit_code: int = 0  # of a STOP
    delay_s: float = 0.0
    changes: tuple[Change, ...] = ()  # what the next attempts run with, beside what earlier plans changed
    rejected: tuple[str, ...] = ()  # checkpoints that no attempt of this run resumes from any more
    exclude: tuple[str, ...] = ()  # UUIDs of GPUs that go into the ledger
    nproc: int | None = None  # ranks of this node from now on; None: as before
    notes: tuple[str, ...] = ()  # lines for the card: arithmetic, cost, warnings
    todo: str = ""  # what a person does meanwhile, though the run continues; "": nothing
    options: tuple[str, ...] = ()  # words of supervise's command line that would let the next start answer this failure
    alert: str = ""  # text for a person beside the incident, "": none
    charged: bool = True  # the failure counts against the budget of its family
    alert_kind: str = ""  # sends it as an alert of this kind (core/actions.py), "": terminal only
    trace: bool = False  # the next attempts record their collectives
    least_nodes: int = 0  # for how many nodes the next attempts wait, 0: as before
    all_ranks: bool = False  # each node has its ranks and its GPUs back, and gives none up any more in this run

    @property
    def waits(self) -> bool:
        """Whether the next attempt waits for something outside of the job. Then the reason begins so: `waits for space (/ckpt)`."""
        return self.reason.startswith("waits ")


class CheckpointRef(Struct, frozen=True):
    """A checkpoint that was verified."""

    path: str  # as the script gets it
    step: int | None  # by which it is ordered, None: unknown
    level: str  # how far it was verified ("structure": zip directory and every record's CRC)
    epoch: int | None = None  # in it, if it has no step; for people
    content_step: int | None = None  # the step in its content, where it is another one
    named: int | None = None  # the number in its name, likewise
    is_index: bool = False  # `step` is a bare number of the name, which may count saves

    @property
    def shown_step(self) -> int | None:
        """The step for people: that of the content, else of a name that says "step"; None if there is only an index."""
        if self.content_step is not None:
            return self.content_step
        return None if self.is_index else self.step


class Progress(Struct, frozen=True):
    """How far the training is."""

    step: int | None = None  # absolute, unless `relative`
    relative: bool = False  # what a hook counted, on top of the step resumed from
    phase: Phase = Phase.UNKNOWN


class RankMemory(Struct, frozen=True, array_like=True):
    """The memory of a rank, in bytes; None: not known."""

    rank: int  # its number
    resident: int | None = None  # its process, shared pages included
    loaders: int | None = None  # its loader workers and all other processes below it, each shared page counted once where that is known
    gpu_allocated: int | None = None  # by torch's allocator, at the end of a step
    gpu_reserved: int | None = None  # what the allocator holds
    gpu_peak: int | None = None  # the most that was allocated
    gpu_limit: int | None = None  # of its GPU, or of the share that the script allows itself
    pinned: int | None = None  # of the host, by torch

    @property
    def gpu_share(self) -> float:
        """How much of its GPU it reserved, 0 where that is not known."""
        return self.gpu_reserved / self.gpu_limit if self.gpu_reserved and self.gpu_limit else 0.0


class Failure(Struct, frozen=True):
    """A past failure of this run, as much as the rules about repetition need."""

    attempt: int
    t: float
    cause: Cause
    fingerprint: str
    step: int | None
    before_first_step: bool
    charged: bool
    # after it a checkpoint was verified beyond any before in this run, or the run set a new highest step where none was ever
    # verified
    progressed_since: bool = False
    ladder_step: str = ""  # the strategy whose plan answered it
    gpu: str = ""  # UUID of the culprit's, "" unknown
    resumed: str = ""  # path of the checkpoint that the attempt was given, "" for none
    loading: bool = False  # it failed while that was being read
    # after it the run trained more than `same_place_steps` past the failed step, or a checkpoint beyond that was verified; the same
    # failure there is then no repetition
    passed_since: bool = False
    changed: bool = False  # the plan that answered it changed the job
    counted: int | None = None  # its steps since the attempt began from scratch; None: it is not known to have
    lasted_s: float | None = None  # from the start of the attempt's ranks to the failure; None: unknown
    incident: int = 0  # its number

    @property
    def is_over(self) -> bool:
        """Whether the run got beyond it, by progress or by steps past its place: what answered it has helped."""
        return self.progressed_since or self.passed_since


class PastFailures(Struct, frozen=True):
    """The failures of a run that count, and what they showed, as its nodes hand them to one that joins: as in Run (core/state.py)."""

    failures: tuple[Failure, ...] = ()
    failed: int = 0
    charged: int = 0
    recurrences: tuple[tuple[str, int], ...] = ()
    least_nodes: int = 0
    unworkable: tuple[tuple[tuple[str, str], ...], ...] = ()
    all_ranks: bool = False


class JobDecision(Struct, frozen=True):
    """The decision about a failed attempt. Where a job has several nodes it is made on one of them, and all act on it."""

    verdict: FailureVerdict
    plan: Plan
    failure: Failure | None = None  # the record that counts against the budgets; None: a person has to act before a rank may start
    step: int | None = None
    gpu: str = ""  # UUID of the culprit's
    failed_gpus: tuple[tuple[str, str], ...] = ()  # UUID and proof of each GPU that failed by itself
    by: str = ""  # the node that made it, "" on a single one


class Policy(Struct, frozen=True):
    """The rules for decisions: sections of the settings, the facts of the command, and constants that a test may replace."""

    launcher: Launcher = Launcher.ELASTIC
    restart: Restart = Restart()
    stop: Stop = Stop()
    gpus: Gpus = Gpus()
    node_rules: NodesSection = NodesSection()
    network: NetworkSection = NetworkSection()
    evidence_deadline_s: float = 3.0
    resumes_itself: bool = False
    checkpoints_declared: bool = False
    checkpoints_learned: bool = False  # where none are declared, what the ranks save and load is managed all the same
    max_restarts: int | None = None  # torchrun's --max-restarts, where the user gave one: so many charged failures are restarted
    period_s: float = 3600.0
    same_place_steps: int = 10
    start_window_s: float = 120.0  # a rank without an optimizer, in which nothing else ran, is believed to be still importing for this long
    select_silence_s: float = 1200.0  # a selection that does not move for this long is given up; a disk without a byte far earlier
    check_nodes: str = "never"  # --check-nodes: never, doubt or start
    is_scheduled: bool = False  # a scheduler or systemd starts this command again after 75
    trace: bool = False  # all attempts record what their collectives do, from the first on
    nodes: int = 1
    least_nodes: int = 0  # an attempt begins with so many; 0: with all of them
    replica_size: int = 1  # ranks that hold one copy of the model together (core/nodes/replicas.py)
    replica_source: str = ""  # what gives that size: flags of the command, or --model-parallel; "": nothing
    node_group: int = 1  # nodes take part in groups of so many, each with whole replicas
    backoff_base_s: float = 1.0
    backoff_cap_s: float = 60.0
    knobs: tuple[Knob, ...] = ()  # that the user declared, or whose program was recognised
    likely: tuple[tuple[str, str], ...] = ()  # of other knobs: the option that would enable one, with a flag of the command or its script
    batch_change: bool = True  # --no-batch-change
    recover: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()  # the user's rows, by cause: what to set, by knob or env:NAME
    steps_back: int = 2  # to an older checkpoint, in one run
    recurring_alert: int = 3  # alert after this many equal failures in a run, with progress or without
    recurring_stop: int = 10  # stop after this many equal ones, or of the infrastructure in a day, without progress (budget.py)
    start_tries: int = 2  # for the infrastructure's failures before the first step
    allocator: str = ""  # torch's allocator settings in the user's own environment
    variables: tuple[tuple[str, str], ...] = ()  # of strategies.situation.VARIABLES, those in the user's own environment
    clears: str = "supervise nodes clear"  # what a person types, before a GPU's name, to put it back into use
    health: bool = False  # this node is examined before each attempt
    health_deadline_s: float = 12.0  # beyond what the examination may take
    evict_on: tuple[str, ...] = ()  # checks whose finding ends a healthy attempt
    on_nan: str = "warn"  # loss.on_nan: warn or restart
    on_hang: str = ""  # --on-hang: warn, restart or auto; "": auto, and warn where GPUs are visible
