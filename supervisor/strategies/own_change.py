"""The step for an attempt that failed before its first step and ran with something that supervise changed: suspect the change first.

A batch that does not divide, an allocator that the program does not know, a checkpoint that is bound to the number of ranks which saved it
(deepspeedai/DeepSpeed#5405): each looks like an error of the program, and none is. So the change is taken back, or the node is waited for,
and neither is tried again in this run. If the same failure comes without the change, it was not at fault, and the other steps answer.

Ranks are given back where the ledger has enough GPUs in use again. A loader that says that another number of ranks saved is believed in
every attempt, before its first step and at it, also where the next ones rule out a suspicion. No checkpoint is rejected for its words.

No change is suspected where ranks raced, where an attempt without it failed in the same way, where its plan answered this cause (the
ladder continues), and where the program is not the one that started. The ladders of the machine, the storage and a kill lack this step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.budget import family
from supervisor.core.model import Launcher, Plan
from supervisor.strategies import plans
from supervisor.strategies.guards import reads_what_is_missing
from supervisor.strategies.ladder_step import ladder_step

if TYPE_CHECKING:
    from supervisor.core.model import Change
    from supervisor.core.setup_model import OwnChange, Setup
    from supervisor.strategies.situation import Situation

NAME = "own_change"


@ladder_step(
    "the first start with what supervise changed failed, or a loader says that other ranks saved: take it back; else 69 or 65",
    explained=True,
    changes_job=True,
    harmless=True,
)
def own_change(situation: Situation) -> Plan | None:
    """Take back what supervise changed, or wait for the node, if the first attempt with it failed before its first step as none did before.

    It stops where neither is possible: with 69 if this node has fewer GPUs, with 65 if there are more ranks than before.
    """
    if situation.resized is not None:
        return _other_ranks(situation, situation.resized, _loads_with(situation.resized))
    change = situation.own_change
    if change is None or situation.late_path or _is_known(situation, change):
        return None
    if change.before.ranks != change.now.ranks or change.before.nodes != change.now.nodes:
        # what may pass, or is a read that fails, shows nothing about the number of ranks
        is_told = _may_pass(situation) or reads_what_is_missing(situation)
        return None if is_told else _other_ranks(situation, change, _suspected(situation, change))
    if change.changes:
        return _taken_back(situation, change) if _may_follow(situation, change.changes) else None
    if _may_pass(situation):
        return None
    return plans.stop(
        NAME, 69, _first(situation, change, "on other GPUs than before"), "use another node, or put the GPU back into use if it is in order"
    )


def _is_known(situation: Situation, change: OwnChange) -> bool:
    """Whether an attempt without the change failed in this way, or the change was the answer to this cause."""
    verdict = situation.verdict
    answered = (f for f in situation.failures if f.changed and f.attempt >= change.before.attempt and f.ladder_step != NAME)
    alike = (f for f in situation.failures if f.ladder_step != NAME)
    return any(f.cause is verdict.cause for f in answered) or any(f.fingerprint == verdict.fingerprint for f in alike)


def _may_follow(situation: Situation, changes: tuple[Change, ...]) -> bool:
    """Whether the failure may follow from these changes: one of the network follows from a variable alone."""
    return family(situation.verdict.cause) != "infrastructure" or any(c.knob.startswith("env:") for c in changes)


def _may_pass(situation: Situation) -> bool:
    """Whether the failure may be over at the next attempt, so that it shows nothing about GPUs or the number of ranks."""
    return situation.verdict.transient or family(situation.verdict.cause) == "infrastructure"


def _taken_back(situation: Situation, change: OwnChange) -> Plan:
    tried = ", ".join(f"{c.how}{f' {c.old}' if c.old else ''}" for c in change.changes)
    return plans.restart(
        NAME,
        f"{_first(situation, change, f'with {tried}, which supervise set')}: that is taken back, and not tried again in this run",
        changes=change.changes,
    )


def _other_ranks(situation: Situation, change: OwnChange, why: str) -> Plan | None:
    """Return the plan where another number of ranks is at fault; None where a scheduler gave fewer, and the loader says nothing."""
    before, now = change.before, change.now
    policy = situation.policy
    if now.nodes < before.nodes <= policy.nodes and policy.launcher is Launcher.ELASTIC:
        return plans.restart(
            NAME,
            f"{why}; the next attempt waits for {before.nodes} nodes, and no other of this run begins with fewer",
            charged=False,
            least_nodes=before.nodes,
        )
    if now.ranks > before.ranks:
        nodes = f"--nnodes={before.nodes}" if before.nodes < now.nodes else f"{before.ranks} ranks"
        return plans.stop(NAME, 65, why, f"start again with {nodes}, or have the program load what another number of ranks saved")
    gpus = situation.gpus_now or situation.gpus
    if sum(not gpu.quarantined for gpu in gpus) >= before.ranks:
        return plans.restart(
            NAME,
            f"{why}; {before.ranks} GPUs are in use again: the next attempt has {before.ranks} ranks, and none of this run fewer",
            changes=change.changes,
            all_ranks=True,
        )
    out_of_use = tuple(gpu.uuid for gpu in gpus if gpu.quarantined)
    if now.nodes > 1 or out_of_use or situation.resized is not None:
        repaired = f"; or repair {' and '.join(out_of_use)}, then `{policy.clears} {out_of_use[0]}`" if out_of_use else ""
        another = f"use {'nodes' if now.nodes > 1 else 'a node'} with {before.ranks} GPUs"
        return plans.stop(NAME, 69, why, f"{another}, where all {before.ranks} ranks resume from the newest checkpoint{repaired}")
    return None  # the scheduler gave it fewer, not supervise


def _suspected(situation: Situation, change: OwnChange) -> str:
    of_nodes = change.now.nodes != change.before.nodes
    sizes = f"{_size(change.now, of_nodes=of_nodes)} instead of {_size(change.before, of_nodes=of_nodes)}"
    return f"{_first(situation, change, f'with {sizes}')}: the number of ranks is suspected, and not the program"


def _loads_with(change: OwnChange) -> str:
    before, now = change.before.ranks, change.now.ranks
    verb = "is" if now == 1 else "are"
    there = f"{now} {verb} left here" if now < before else f"{now} {verb} here"
    return f"the program saved with {_size(change.before, of_nodes=False)} and loads with {before} only; {there}"


def _size(setup: Setup, *, of_nodes: bool) -> str:
    return (
        f"{setup.nodes} {'node' if setup.nodes == 1 else 'nodes'}"
        if of_nodes
        else f"{setup.ranks} {'rank' if setup.ranks == 1 else 'ranks'}"
    )


def _first(situation: Situation, change: OwnChange, setup: str) -> str:
    trained = f" (attempt {change.before.attempt} trained)" if change.trained else ""
    return f"attempt {situation.attempts} ran {setup}, and failed before its first step as no attempt before it did{trained}"
