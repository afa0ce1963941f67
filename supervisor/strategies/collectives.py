"""Rungs for collectives that do not fit together, or do not come back.

`trace_collectives`: neither NCCL's own log nor torch's flight recorder can name the hanging rank afterwards unless it was on before. Both
cost next to nothing and change nothing of the training, so this is a restart like any other: charged, within the budget, without consent.

`name_unsynced`: torch names what differs between the ranks only with TORCH_DISTRIBUTED_DEBUG. INFO names parameters. DETAIL compares every
collective before it runs, which is slow; together with unused parameters it crashes (SIGSEGV, torch 2.13), so it is for collectives alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from supervisor.classify import unsynced as explanation
from supervisor.core.model import Cause, Change, Plan, PlanKind
from supervisor.strategies.repetition import restart_within_budget
from supervisor.strategies.rung import Rung

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation

DEBUG = "TORCH_DISTRIBUTED_DEBUG"
#: The signatures of which torch says more with the variable: the level that does it, and what it then prints.
_LEVELS = {
    "ddp_unsynced.unused_parameters": ("INFO", "names", "the parameters"),
    "ddp_unsynced.ready_twice": ("INFO", "parameter", "the parameter"),
    "ddp_unsynced.gloo_size": ("DETAIL", "peer_operation", "both ranks and their operations"),
    "ddp_unsynced.nccl_size": ("DETAIL", "peer_operation", "both ranks and their operations"),
}
_REMEDIES = {
    "ddp_unsynced.unused_parameters": "use them in the loss, or pass find_unused_parameters=True to DistributedDataParallel",
    "ddp_unsynced.ready_twice": "use the parameter once in a forward pass; checkpoint activations with use_reentrant=False",
    "ddp_unsynced.collectives": "make all ranks call the same collectives in the same order: none for one rank alone, equally many batches",
}
#: torch finds unused parameters when the second step begins.
_EARLY_STEPS = 2


def trace_collectives(situation: Situation) -> Plan | None:
    """Restart with both on, as long as the budget lasts; None if they are on already."""
    plan = restart_within_budget(situation)
    if situation.traced or plan.kind is PlanKind.STOP:
        return None
    reason = f"{plan.reason}, with NCCL's own log and torch's flight recorder on: they name what hangs next time"
    return replace(plan, strategy="trace_collectives", reason=reason, trace=True)


def name_unsynced(situation: Situation) -> Plan | None:
    """Restart once with the level of TORCH_DISTRIBUTED_DEBUG that names what differs; None if torch named it, or the user set a level."""
    level, field, what = _LEVELS.get(_signature(situation), ("", "", ""))
    if not level or situation.fact(field) or situation.variable(DEBUG):
        return None
    plan = restart_within_budget(situation)
    if plan.kind is PlanKind.STOP:
        return None
    reason = f"{plan.reason}, once with {DEBUG}={level}, which names {what}"
    return replace(plan, strategy="name_unsynced", reason=reason, changes=(Change(f"env:{DEBUG}", "", level, DEBUG),))


def unsynced(situation: Situation) -> Plan | None:
    """Stop with 65 once it is named and a restart would meet it again: it came again without progress, or within the first steps."""
    signature = _signature(situation)
    remedy = _REMEDIES.get(signature, "")
    early = situation.before_first_step or (situation.step is not None and situation.step <= _EARLY_STEPS and situation.resume is None)
    if not remedy or not (situation.tried("name_unsynced") or (early and not _LEVELS.get(signature, ("", "", ""))[0])):
        return None
    return Plan(
        kind=PlanKind.STOP,
        reason=f"{explanation.summary(dict(situation.verdict.facts)) or situation.verdict.summary}: every restart meets it again",
        next_rung=f"{remedy}; then start again",
        strategy="unsynced",
        exit_code=65,
    )


def _signature(situation: Situation) -> str:
    """Return the id of the signature that the verdict stands on, "" for none."""
    cause = Cause.DDP_UNSYNCED
    return next((fact.name for fact in situation.verdict.because if fact.claim is not None and fact.claim.cause is cause), "")


RUNGS = (
    Rung("trace_collectives", trace_collectives, "restart with NCCL's own log and torch's flight recorder on"),
    Rung("name_unsynced", name_unsynced, "once: restart with TORCH_DISTRIBUTED_DEBUG, so that torch names what differs", harmless=True),
    Rung("unsynced", unsynced, "stop (65): named, and a restart would meet it again"),
)
