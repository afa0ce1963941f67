"""What a strategy may look at: one value, so that a strategy's test is a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from supervisor.core.budget import family
from supervisor.core.model import Cause, CheckpointRef, Failure, Gpu, Knob, Phase, Policy, RankExit, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.core.model import Change, Plan

#: The knobs that a plan for the batch needs; --no-batch-change takes them away.
OF_BATCH = frozenset({"batch_size", "grad_accum"})
ALLOCATOR = "env:PYTORCH_CUDA_ALLOC_CONF"


@dataclass(frozen=True, slots=True)
class Situation:
    """A failure and its history.

    failures: the newest earlier ones of this run, oldest first; failed: how many there were in all. attempts: begun in this run, this
    one included, whatever they were begun for. step: absolute step at the failure, None if unknown. before_first_step: proven,
    never assumed. jitter: uniform in [0, 1).

    knobs: all that were found, with their current values; `armed` tells which of them may be set. ranks: of this node (0: unknown), of
    world_size in all. gpus: of this node, in CUDA's order; gpu: UUID of the culprit's, "" where nobody knows. verified: checkpoints that
    are good and not poisoned, oldest first; known_good: how many the last look found, the one that was taken included. steps_back: taken in
    this run. resume: what the attempt was given; loading: it failed while that was being read. recurrences: earlier failures of this
    run with the same fingerprint, with progress or without, that no change of the job answered. disputes: knobs of which a rank tells
    another value than it was begun with. traced: the attempt wrote down what its collectives did. failed_gpus: UUID and proof of each GPU
    that is proven to have failed by itself; gpu may be one of them.
    """

    t: float
    verdict: Verdict
    policy: Policy
    first: RankExit | None
    step: int | None
    before_first_step: bool
    failures: tuple[Failure, ...]
    attempts: int
    failed: int
    jitter: float = 0.0
    knobs: tuple[Knob, ...] = ()
    overrides: tuple[tuple[str, str], ...] = ()
    world_size: int = 0
    ranks: int = 0
    pids: tuple[int, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    gpu: str = ""
    verified: tuple[CheckpointRef, ...] = ()
    known_good: int = 0
    poisoned: tuple[str, ...] = ()
    steps_back: int = 0
    resume: CheckpointRef | None = None
    loading: bool = False
    phase: Phase = Phase.UNKNOWN
    recurrences: int = 0
    programs: tuple[str, ...] = ()
    batchnorm: bool = False
    disputes: tuple[tuple[str, str, str], ...] = ()
    traced: bool = False
    failed_gpus: tuple[tuple[str, str], ...] = ()

    def armed(self, name: str) -> Knob | None:
        """Return the knob if a plan may set it: the user's own declaration comes before a program's row, which must have been seen."""
        if name in OF_BATCH and not self.policy.batch_change:
            return None
        found = [knob for knob in self.knobs if knob.name == name and knob.seen]
        return next((knob for knob in found if knob.by == "declared"), found[0] if found else None)

    def fact(self, name: str) -> str:
        """Return what the evidence told under this name, "" for nothing."""
        return next((value for key, value in self.verdict.facts if key == name), "")

    def amount(self, name: str) -> int:
        """Return a fact in bytes, 0 where it was not told."""
        text = self.fact(name)
        return int(text) if text.isdigit() else 0

    @property
    def unanswered(self) -> tuple[Failure, ...]:
        """Return the earlier failures of the same cause that no progress has followed."""
        return tuple(f for f in self.failures if f.cause is self.verdict.cause and not f.progressed_since)

    def tried(self, strategy: str) -> int:
        """Return how often a strategy answered this cause since the last progress."""
        return sum(1 for failure in self.unanswered if failure.rung == strategy)

    def failure(self, plan: Plan) -> Failure:
        """Return what is kept of this failure once `plan` has answered it."""
        return Failure(
            self.attempts,
            self.t,
            self.verdict.cause,
            self.verdict.fingerprint,
            self.step,
            self.before_first_step,
            charged=plan.charged and self.verdict.cause is not Cause.PREEMPTED,
            rung=plan.strategy,
            gpu=self.gpu,
            resumed=self.resume.path if self.resume else "",
            loading=self.loading,
            changed=changes(plan),
        )

    def again(self, plan: Plan) -> Situation:
        """Return the situation in which the same failure, at the same place, meets what `plan` leaves."""
        new = {change.knob: change.new for change in plan.changes}
        good = tuple(c for c in self.verified if c.path not in plan.poison)
        return replace(
            self,
            t=self.t + plan.delay_s + 1.0,
            failures=(*self.failures, self.failure(plan)),
            attempts=self.attempts + 1,
            failed=self.failed + 1,
            recurrences=self.recurrences + (not changes(plan)),
            knobs=tuple(replace(k, value=new.get(k.name, k.value)) for k in self.knobs),
            overrides=overridden(self.overrides, plan.changes),
            ranks=self.ranks if plan.nproc is None else plan.nproc,
            world_size=self.world_size if plan.nproc is None else self.world_size - self.ranks + plan.nproc,
            gpus=without(self.gpus, plan, "it failed"),
            verified=good,
            known_good=max(self.known_good - len(plan.poison), 0),
            poisoned=(*self.poisoned, *plan.poison),
            steps_back=self.steps_back + len(plan.poison),
            traced=self.traced or plan.trace,
            resume=(good[-1] if good else None) if plan.poison else self.resume,
        )


def changes(plan: Plan) -> bool:
    """Whether a plan changes the training itself."""
    return bool(plan.changes or plan.poison or plan.exclude or plan.nproc is not None)


def overridden(old: tuple[tuple[str, str], ...], new: tuple[Change, ...]) -> tuple[tuple[str, str], ...]:
    """Return what the attempts after these changes run with instead of the user's own values."""
    return tuple((dict(old) | {change.knob: change.new for change in new}).items())


def without(gpus: tuple[Gpu, ...], plan: Plan, why: str) -> tuple[Gpu, ...]:
    """Return the GPUs, those out of use that a plan excludes."""
    return tuple(replace(g, quarantined=g.quarantined or why) if g.uuid in plan.exclude else g for g in gpus)


def exit_code_of(first: RankExit | None) -> int:
    """Return our exit code for a rank's own end (docs/exit-codes.md): 1-63 as they are, 128+n for a signal, else 1."""
    if first is None:
        return 1
    if first.signal is not None:
        return 128 + first.signal
    return first.code if first.code is not None and 1 <= first.code <= 63 else 1  # noqa: PLR2004 (the range of docs/exit-codes.md)


def code_of_equals(situation: Situation, failures: Iterable[Failure]) -> tuple[int, str]:
    """Return the exit code, and why it is that one, of a run that these failures and this one have used up."""
    recent = tuple(failures)
    if family(situation.verdict.cause) == "infrastructure":
        return 75, "the infrastructure may recover: requeue"
    if recent and all(f.fingerprint == situation.verdict.fingerprint for f in recent):
        return 65, "and they were equal"
    return 1, "and they differ" if recent else ""


def amount_told(count: int) -> str:
    """Return an amount of memory as a person writes it."""
    gib = count / (1 << 30)
    return f"{gib:.1f} GiB" if gib >= 1 else f"{count / (1 << 20):.0f} MiB"
