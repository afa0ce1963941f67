"""Score decisions on labelled logs: what would be done on an answer, against what would be done if the label were certain.

Both are plans of the strategies themselves, for one job: eight GPUs, two verified checkpoints, a micro-batch, an accumulation and loader
workers that a plan may set. It failed after step 100 if its log shows training, else before its first step. The evidence is treated as the
ranks' own, because in a live job their error files hold it; the confidence stays that of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from supervisor.classify import exception_table
from supervisor.config.signatures import read
from supervisor.core.model import Cause, CheckpointRef, FailureVerdict, Gpu, Knob, PlanKind, Policy, RankExit
from supervisor.core.values import replace
from supervisor.errors import ExitCode
from supervisor.strategies import propose
from supervisor.strategies.situation import Situation, changes

if TYPE_CHECKING:
    from collections.abc import Iterable


class Kind(StrEnum):
    """What a decision does with the run."""

    NOTHING = "nothing"  # nothing failed
    RESTART = "restart as it is"
    CHANGE = "restart with a change"
    WAIT = "wait"  # for a store, a network, a name; or for the scheduler, with 75
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer's decision, and those that are right for its sample."""

    kind: Kind
    right: frozenset[Kind]

    @property
    def is_right(self) -> bool:
        """Whether it is of a right kind."""
        return self.kind in self.right

    @property
    def stops_what_lives(self) -> bool:
        """Whether it stops what a restart saves."""
        return self.kind is Kind.STOP and not self.is_right

    @property
    def restarts_in_vain(self) -> bool:
        """Whether it restarts what cannot work."""
        return self.right == {Kind.STOP} and self.kind in {Kind.RESTART, Kind.CHANGE, Kind.WAIT}

    @property
    def changes_wrongly(self) -> bool:
        """Whether it changes a thing that was not a reason for the failure."""
        return self.kind is Kind.CHANGE and not self.is_right


#: A healthy log leads to no decision, whatever uncertain answer it gets.
_NO_FAILURE = frozenset({Cause.NONE, Cause.UNKNOWN})


def decided(verdict: FailureVerdict, labels: Iterable[str], *, trained: bool) -> Decision:
    """Return the decision on an answer. labels: the causes that are right for its sample."""
    causes = [Cause(label) for label in labels]
    if Cause.NONE in causes and verdict.cause in _NO_FAILURE:
        return Decision(Kind.NOTHING, frozenset({Kind.NOTHING}))
    right = frozenset(Kind.NOTHING if cause is Cause.NONE else _kind(_known(cause, verdict), trained=trained) for cause in causes)
    return Decision(_kind(verdict, trained=trained), right)


def _known(cause: Cause, verdict: FailureVerdict) -> FailureVerdict:
    """Return the verdict that the label is."""
    if cause is verdict.cause:
        return replace(verdict, confidence=1.0)
    return FailureVerdict(cause, 1.0, "labelled", f"{cause}:label", transient=_passes(cause), because=verdict.because)


@cache
def _passes(cause: Cause) -> bool:
    """Whether most signatures of a cause say that another try may help."""
    catalogue, _ = read()
    rows = [row.transient for row in catalogue.rows if row.cause is cause]
    return 2 * sum(rows) >= len(rows)


def _kind(verdict: FailureVerdict, *, trained: bool) -> Kind:
    own = any(exception_table.is_own_mistake(fact.text) for fact in verdict.because[:1])
    if verdict.cause is Cause.USER_CODE and own:  # as its rank would have written it down
        verdict = replace(verdict, confidence=max(verdict.confidence, exception_table.OWN_MISTAKE.weight))
    seen = tuple(replace(fact, free_text=False) for fact in verdict.because)
    plan = propose(_situation(replace(verdict, because=seen), trained=trained))
    if plan.kind is PlanKind.STOP:
        return Kind.WAIT if plan.exit_code == ExitCode.REQUEUE else Kind.STOP
    return Kind.CHANGE if changes(plan) else Kind.WAIT if plan.strategy.startswith("wait_for") else Kind.RESTART


def _situation(verdict: FailureVerdict, *, trained: bool) -> Situation:
    verified = tuple(CheckpointRef(f"{step}.pt", step, "structure") for step in (80, 90))
    return Situation(
        t=10_000.0,
        verdict=verdict,
        policy=Policy(),
        first=RankExit(3, 103, 1, code=1),
        step=100 if trained else None,
        before_first_step=not trained,
        failures=(),
        attempts=1,
        knobs=(Knob("batch_size", "8", "--batch"), Knob("grad_accum", "4", "--accum"), Knob("num_workers", "4", "--workers")),
        world_size=8,
        ranks=8,
        gpus=tuple(Gpu(index, f"GPU-{index}", f"0000:{index + 1:02x}:00.0") for index in range(8)),
        gpu="GPU-3",
        verified=verified,
        known_good=len(verified),
        resume=verified[0] if trained else None,
        lasted_s=600.0 if trained else 20.0,
    )
