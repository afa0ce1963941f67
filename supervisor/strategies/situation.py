"""All that a step may read, as one value, so that a step's test is a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.remedies import has_loader, is_in_save
from supervisor.core.budget import family
from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.failure.rank_endings import Ending
from supervisor.core.model import FROM_OUTSIDE, Cause, CheckpointRef, Evidence, Failure, FailureVerdict, Gpu, Knob, Phase, Policy, RankExit
from supervisor.core.setup_model import OwnChange
from supervisor.core.values import Struct, replace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.core.model import Change, Plan

#: The knobs that a plan for the batch needs; --no-batch-change disables them.
BATCH_KNOBS = frozenset({"batch_size", "grad_accum"})
#: The knobs that save memory and keep the numbers, the cheapest first.
MEMORY_SWITCHES = ("activation_checkpointing", "cpu_offload")
ALLOCATOR = "env:PYTORCH_CUDA_ALLOC_CONF"
#: A plan's new value of a variable that an earlier plan set, and that is taken back.
UNSET = "unset"
#: The fact of a verdict that names the rank that was writing what the culprit read (observe/ranks/races.py).
RACE_WRITER = "race_writer"
#: The evidence that a path which a rank did not find, or found made, is there since this attempt (observe/ranks/late_paths.py).
LATE_PATH = "late_path"
#: The fact that the attempt loaded another training's checkpoint: its path.
FOREIGN_CHECKPOINT = "foreign_checkpoint"
#: The fact that whole checkpoints of this run have no file by which their framework finds them: its path; and what would write it.
MISSING_POINTER = "missing_pointer"
POINTER_COMMAND = "pointer_command"
#: Facts of checkpoints/path_faults.py. What an earlier attempt left in the way of a save, and whether we may set it aside; the number of
#: the change by which we set aside what the script looks for; the pointer that leads to no whole checkpoint; the command that helps.
LEFTOVER, LEFTOVER_IS_OURS, SET_ASIDE, POINTER, REMEDY = "leftover", "leftover_is_ours", "set_aside", "pointer", "remedy"
#: Variables that a step sets only where the user did not.
VARIABLES = (
    "TORCH_DISTRIBUTED_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_SHM_DISABLE",
)


class Situation(Struct, frozen=True):
    """A failure and its history."""

    t: float
    verdict: FailureVerdict
    policy: Policy
    first: RankExit | None
    step: int | None  # absolute, at the failure; None: unknown
    before_first_step: bool  # proven, never assumed
    failures: tuple[Failure, ...]  # the newest earlier ones of this run, oldest first
    attempts: int  # started in this run, for whatever reason, this one included
    charged: int = 0  # how many of all earlier failures were charged to a budget
    jitter: float = 0.0  # uniform in [0, 1)
    knobs: tuple[Knob, ...] = ()  # with their current values; `enabled` returns those that a plan may set
    overrides: tuple[tuple[str, str], ...] = ()
    world_size: int = 0
    ranks: int = 0  # of this node, of `world_size` in all; 0: unknown
    pids: tuple[int, ...] = ()
    gpus: tuple[Gpu, ...] = ()  # of this node, in CUDA's order
    gpu: str = ""  # UUID of the culprit's, "" if unknown
    verified: tuple[CheckpointRef, ...] = ()  # checkpoints that are good and not rejected, oldest first
    known_good: int = 0  # how many good checkpoints the last listing had, the selected one included
    rejected: tuple[str, ...] = ()
    steps_back: int = 0  # taken in this run
    resume: CheckpointRef | None = None  # the checkpoint that the attempt got
    loading: bool = False  # the attempt failed within the load of `resume`, or because that is damaged
    loaded: bool = False  # the culprit's last load was of `resume`, and had ended
    saved: bool = False  # the attempt saved as only a training does
    phase: Phase = Phase.UNKNOWN
    counted: int | None = None  # steps since the attempt began from scratch; None: it is not known to have
    lasted_s: float | None = None  # from the start of the ranks to the failure; None: unknown
    trained: bool = False  # an earlier attempt of this run trained with the same program, and this one made no step
    # the failures that another start answered, since the attempt that trained and since the newest requeue
    in_vain: tuple[Failure, ...] = ()
    vain_requeues: int = 0  # how many requeues led to no step since the attempt that trained
    programs: tuple[str, ...] = ()
    batchnorm: bool = False
    disputes: tuple[tuple[str, str, str], ...] = ()  # knobs of which a rank reports another value than it was started with
    traced: bool = False  # the attempt recorded its collectives
    # what supervise, or the nodes that met, changed since an attempt that is known to start; None: nothing, or this attempt made a step
    own_change: OwnChange | None = None
    resized: OwnChange | None = None  # by how many ranks the attempt differs from what saved, where its loader says so
    gpus_now: tuple[Gpu, ...] = ()  # of all nodes, as the ledgers show them now; empty: none was out of use
    all_ranks: bool = False  # no rank is given up any more
    unworkable: tuple[tuple[tuple[str, str], ...], ...] = ()  # values of knobs with which no attempt starts
    # UUID and proof of each GPU that is proven to have failed by itself; `gpu` may be among them
    failed_gpus: tuple[tuple[str, str], ...] = ()
    evidence: tuple[Evidence, ...] = ()  # all that was collected; the verdict uses a part of it
    ending: Ending = Ending()  # how the ranks left, and whether the training was over by then

    def enabled(self, name: str) -> Knob | None:
        """Return the knob if a plan may set it."""
        return enabled_knob(self.knobs, name, self.policy)

    def variable(self, name: str) -> str:
        """Return the value of a variable that the next attempt gets, of a plan or else the user's own; "" where it is not set."""
        return dict(self.overrides).get(f"env:{name}") or self.users(name)

    def users(self, name: str) -> str:
        """Return the value of one of VARIABLES in the user's own environment, "" where it is not set."""
        return dict(self.policy.variables).get(name, "")

    def fact(self, name: str) -> str:
        """Return the evidence's fact of this name, "" if there is none."""
        return next((value for key, value in self.verdict.facts if key == name), "")

    def amount(self, name: str) -> int:
        """Return a fact in bytes, 0 if there is none."""
        text = self.fact(name)
        return int(text) if text.isdigit() else 0

    @property
    def replicas(self) -> int:
        """Return among how many ranks the global batch is divided: one for each copy of the model; 0: unknown."""
        return self.world_size // self.policy.replica_size

    @property
    def late_path(self) -> str:
        """Return the path that the culprit raced another rank for at the start, "" for none. A second failure there is no race."""
        named = (f.text for f in self.evidence if f.name == LATE_PATH and f.rank == self.verdict.rank)
        return "" if any(f.ladder_step == "raced" for f in self.unanswered) else next(named, "")

    @property
    def unanswered(self) -> tuple[Failure, ...]:
        """Return the earlier failures of the same cause that the run did not get beyond."""
        return tuple(f for f in self.failures if f.cause is self.verdict.cause and not f.is_over)

    def tried(self, ladder_step: str) -> int:
        """Return how often a step answered this cause, and the run did not get beyond that."""
        return sum(1 for failure in self.unanswered if failure.ladder_step == ladder_step)

    def tried_since(self, ladder_step: str) -> bool:
        """Whether a step answered a failure of this run, of whatever cause, that the run did not get beyond."""
        return any(failure.ladder_step == ladder_step and not failure.is_over for failure in self.failures)

    def failure(self, plan: Plan) -> Failure:
        """Return the record of this failure, answered by `plan`."""
        return Failure(
            self.attempts,
            self.t,
            self.verdict.cause,
            self.verdict.fingerprint,
            self.step,
            self.before_first_step,
            charged=plan.charged and self.verdict.cause not in FROM_OUTSIDE,
            ladder_step=plan.strategy,
            gpu=self.gpu,
            resumed=self.resume.path if self.resume else "",
            loading=self.loading,
            changed=changes(plan),
            counted=self.counted,
            lasted_s=self.lasted_s,
        )

    def again(self, plan: Plan) -> Situation:
        """Return the situation if the same failure comes again, at the same place, after `plan`."""
        new = {change.knob: change.new for change in plan.changes}
        good = tuple(c for c in self.verified if c.path not in plan.rejected)
        failure = self.failure(plan)
        return replace(
            self,
            t=self.t + plan.delay_s + 1.0,
            failures=(*self.failures, failure),
            attempts=self.attempts + 1,
            charged=self.charged + failure.charged,
            in_vain=(*self.in_vain, failure) if self.in_vain or self.trained else (),
            knobs=tuple(replace(k, value=new.get(k.name, k.value)) for k in self.knobs),
            overrides=overridden(self.overrides, plan.changes),
            ranks=self.ranks if plan.nproc is None else plan.nproc,
            world_size=self.world_size if plan.nproc is None else self.world_size - self.ranks + plan.nproc,
            gpus=with_excluded(self.gpus, plan, "it failed"),
            verified=good,
            known_good=max(self.known_good - len(plan.rejected), 0),
            rejected=(*self.rejected, *plan.rejected),
            steps_back=self.steps_back + len(plan.rejected),
            traced=self.traced or plan.trace,
            own_change=None,
            resized=None,
            all_ranks=self.all_ranks or plan.all_ranks,
            resume=(good[-1] if good else None) if plan.rejected else self.resume,
        )


def enabled_knob(knobs: Iterable[Knob], name: str, policy: Policy) -> Knob | None:
    """Return the knob that may be set: the user's declaration first, then a row of a program that a rank was seen to run."""
    if name in BATCH_KNOBS and not policy.batch_change:
        return None
    visible = [knob for knob in knobs if knob.name == name and knob.seen]
    return next((knob for knob in visible if knob.by == "declared"), visible[0] if visible else None)


def may_halve_workers(situation: Situation) -> bool:
    """Whether fewer loader workers may free memory: the rank was in no save, and is not known to have no loader with workers."""
    verdict = situation.verdict
    if verdict.cause is Cause.HOST_OOM and is_in_save(verdict):
        return False
    return has_loader(verdict) or not any((f.source, f.name, f.text) == ("heartbeat", "loader", "none") for f in verdict.because)


def enabling_options(situation: Situation) -> tuple[str, ...]:
    """Return the words of supervise's command line that let it answer this lack of memory, with the script's own flags.

    None where a flag is not known: a command with a gap in it cannot be pasted. A batch that may shrink is nothing to paste either.
    """
    likely, cause = dict(situation.policy.likely), situation.verdict.cause
    missing = [name for name in ("batch_size", "grad_accum") if situation.enabled(name) is None]
    names: list[str] = []
    if cause is Cause.CUDA_OOM and situation.policy.batch_change and all(name in likely for name in missing):
        names = missing
    if cause is Cause.CUDA_OOM and not names:
        names = [name for name in MEMORY_SWITCHES if name in likely and situation.enabled(name) is None][:1]
    if CAUSE_TABLE[cause].of_workers and may_halve_workers(situation) and situation.enabled("num_workers") is None:
        names = [name for name in ("num_workers",) if name in likely]
    return tuple(word for name in names for word in likely[name].split(" ", 1))


def changes(plan: Plan) -> bool:
    """Whether a plan changes the training itself."""
    return bool(plan.changes or plan.rejected or plan.exclude or plan.nproc is not None or plan.all_ranks)


def unworkable(situation: Situation, plan: Plan) -> str:
    """Return which of the plan's values are known not to start, "" for none."""
    new = overridden(situation.overrides, plan.changes)
    known = any(set(values) <= set(new) for values in situation.unworkable)
    return f"an attempt with {', '.join(f'{c.how} {c.new}' for c in plan.changes)} failed before its first step" if known else ""


def overridden(old: tuple[tuple[str, str], ...], new: tuple[Change, ...]) -> tuple[tuple[str, str], ...]:
    """Return the values that replace the user's own in the attempts after these changes."""
    values = dict(old) | {change.knob: change.new for change in new}
    return tuple((knob, value) for knob, value in values.items() if value != UNSET)


def with_excluded(gpus: tuple[Gpu, ...], plan: Plan, why: str) -> tuple[Gpu, ...]:
    """Return the GPUs, with those that a plan excludes out of use."""
    return tuple(replace(g, quarantined=g.quarantined or why) if g.uuid in plan.exclude else g for g in gpus)


def exit_code_of(first: RankExit | None) -> int:
    """Return our exit code for a rank's own end (docs/reference/exit-codes.md): 1-63 as they are, 128+n for a signal, else 1."""
    if first is None:
        return 1
    if first.signal is not None:
        return 128 + first.signal
    return first.code if first.code is not None and 1 <= first.code <= 63 else 1  # noqa: PLR2004 (the range of docs/reference/exit-codes.md)


def exit_code_after(situation: Situation, failures: Iterable[Failure]) -> tuple[int, str]:
    """Return the exit code of a run that these failures and this one end, and the reason for that code."""
    recent = tuple(failures)
    if family(situation.verdict.cause) == "infrastructure":
        return 75, "the infrastructure may recover: requeue"
    if recent and all(f.fingerprint == situation.verdict.fingerprint for f in recent):
        return 65, "each time in the same way"
    return 1, "not always in the same way" if recent else ""
