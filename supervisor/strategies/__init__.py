"""From a verdict to a plan: the walk up a ladder.

In: a Situation. Out: one Plan, of the first rung that has one; the last of every ladder always does. Three things are added to what the
rung proposed: what was passed over for want of a knob or of sureness (with the line that would arm it), that a change of the job is not
charged, and what the same failure would meet next time, found by walking the ladder again as if it had happened. Nothing can fail.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from supervisor.core.model import Cause, Plan, PlanKind
from supervisor.strategies import (
    consent,
    environment_at_fault,
    exclude_gpu,
    exhausted,
    expandable_segments,
    halve_batch,
    halve_workers,
    memory_held_by_others,
    memory_knobs,
    own_code_before_first_step,
    plugged,
    recurring,
    requeue,
    restart_within_budget,
    same_gpu_twice,
    same_place,
    skip_window,
    start_tries,
    step_back,
    trace_collectives,
    wait_for_storage,
    within_cap,
)
from supervisor.strategies.ladders import GUARDS, LADDERS, LAST
from supervisor.strategies.situation import changes
from supervisor.strategies.strategy import PlugInError, Strategy

if TYPE_CHECKING:
    from supervisor.core.model import Policy
    from supervisor.strategies.situation import Situation

__all__ = ["GUARDS", "LADDERS", "STRATEGIES", "does", "ladder", "names", "propose", "resolve"]

_ALL = (
    Strategy("within_cap", within_cap.propose, "stop: --max-restarts, or the attempts of a run, are used up"),
    Strategy("recurring", recurring.propose, "stop at the tenth equal failure of a run (65; infrastructure without progress 75)"),
    Strategy("requeue", requeue.propose, "leave with 75: the scheduler brings the job back"),
    Strategy("own_code_before_first_step", own_code_before_first_step.propose, "stop with the rank's own code if no step was made"),
    Strategy("start_tries", start_tries.propose, "stop with 75 when a run's start failed three times"),
    Strategy(
        "memory_held_by_others",
        memory_held_by_others.propose,
        "another process holds the GPU: tell a person, restart unchanged, then stop (69)",
    ),
    Strategy(
        "expandable_segments",
        expandable_segments.propose,
        "memory in pieces: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, the same batch",
        changes_job=True,
    ),
    Strategy(
        "halve_batch",
        halve_batch.propose,
        "micro-batch halved, accumulation doubled, global batch kept; repeated down to 1",
        changes_job=True,
        lacks=halve_batch.lacks,
    ),
    Strategy("memory_knobs", memory_knobs.propose, "activation checkpointing, then CPU offload, where declared", changes_job=True),
    Strategy(
        "halve_workers",
        halve_workers.propose,
        "after one restart: num_workers halved, down to 0",
        changes_job=True,
        lacks=halve_workers.lacks,
    ),
    Strategy(
        "step_back",
        step_back.propose,
        "the checkpoint is poisoned for this run, the one before it is taken; at most restart.steps_back times",
        changes_job=True,
        lacks=step_back.lacks,
    ),
    Strategy(
        "skip_window",
        skip_window.propose,
        "the data around the failure is skipped, where declared",
        changes_job=True,
        lacks=skip_window.lacks,
    ),
    Strategy(
        "exclude_gpu",
        exclude_gpu.propose,
        "the GPU is quarantined: a spare, or fewer ranks where --min-gpus allows, else stop (69)",
        changes_job=True,
    ),
    Strategy(
        "same_gpu_twice",
        same_gpu_twice.propose,
        "again on the same GPU: as exclude_gpu; over several: stop (65)",
        changes_job=True,
    ),
    Strategy("trace_collectives", trace_collectives.propose, "restart with NCCL's own log and torch's flight recorder on"),
    Strategy("wait_for_storage", wait_for_storage.propose, "restart after a wait that doubles from 30 s to 600 s; about an hour, then 75"),
    Strategy("environment_at_fault", environment_at_fault.propose, "stop: this node's driver (69) or the set-up (78) does not fit"),
    Strategy("exhausted", exhausted.propose, "stop (65): nothing that would make the next attempt differ is left or armed"),
    Strategy("same_place", same_place.propose, "stop (65; 124 where it hangs): the same failure at the same place, no progress between"),
    Strategy("restart_within_budget", restart_within_budget.propose, "restart with backoff, within the budget of the cause's family"),
)
#: Every strategy of ours, by its name.
STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in _ALL}


def names() -> tuple[str, ...]:
    """Return the names that a ladder of the user's may have, beside plug-ins ("module:function")."""
    return tuple(STRATEGIES)


def does(name: str) -> str:
    """Return one line on what a rung does, "" for one that is not there."""
    strategy = resolve(name)
    return strategy.does if strategy else ""


def resolve(name: str) -> Strategy | None:
    """Return the strategy of a name; None for one that is not there."""
    return STRATEGIES.get(name) or (plugged.strategy(name) if plugged.is_plugged(name) else None)


def ladder(cause: Cause, policy: Policy) -> tuple[str, ...]:
    """Return the rungs for a cause: the user's own row where there is one, between the guards and the restart that ends all of them."""
    own = dict(policy.ladders).get(cause.value)
    if own is None:
        return LADDERS[cause]
    guards = () if cause is Cause.PREEMPTED else tuple(name for name in GUARDS if name not in own)
    return (*guards, *own, *((LAST,) if LAST not in own else ()))


def propose(situation: Situation) -> Plan:
    """Return the plan for a failure, complete with what comes next and what was passed over."""
    plan, passed = _walk(situation)
    if plan.kind is PlanKind.STOP:
        return replace(plan, told=(*passed, *plan.told))
    following, _ = _walk(situation.again(plan))
    counts_down = following.strategy == plan.strategy == restart_within_budget.NAME  # then it says by itself how many more there are
    return replace(plan, told=(*plan.told, *passed), next_rung=plan.next_rung if counts_down else _as_next(following))


def _walk(situation: Situation) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan of the first rung that has one, and what is to be told of those before it."""
    passed: list[str] = []
    cause = situation.verdict.cause
    withheld = consent.withheld(situation)
    for name in ladder(cause, situation.policy):
        strategy = resolve(name)
        if strategy is None:
            passed.append(f"the plug-in {name} is not loaded, so the next rung decides")
            continue
        try:
            plan = strategy.propose(situation)
        except PlugInError as error:
            passed.append(f"the plug-in {name} failed, so the next rung decides: {error}")
            continue
        if plan is None:
            passed.append(strategy.lacks(situation))
            continue
        if not changes(plan):
            return plan, _told(passed)
        why = withheld or consent.unarmed(situation, plan)
        if not why:
            return replace(plan, charged=False), _told(passed)
        passed.append(f"{name} is passed over: {why}")
    msg = f"the ladder of {cause} ends without a plan"
    raise AssertionError(msg)


def _told(passed: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in passed if text))


def _as_next(plan: Plan) -> str:
    """Say what the same failure would meet next time."""
    stop = f"stop ({plan.exit_code})" if plan.kind is PlanKind.STOP else plan.strategy.replace("_", " ")
    return f"the same again: {stop}: {plan.reason}"
