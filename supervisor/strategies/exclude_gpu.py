"""A GPU that failed by itself: out of use, and the job goes on with a spare, or with fewer where the user allowed that, or not here (69).

Which Xid leaves the same GPU usable is NVIDIA's catalogue's to say (health/nvidia/xids.py). With fewer GPUs the micro-batch and the
accumulation are planned anew so that the global batch is exactly what it was; where no whole numbers do that, the nearest is taken only if
--allow-batch-drift permits it. How many ranks a command launches that is not ours to launch, and on which GPUs, is not known: it is
restarted on those that are left only where fewer ranks and another global batch are both allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from health.nvidia.xids import Retry, lookup
from supervisor.core.model import Change, Gpu, Launcher, Plan, PlanKind
from supervisor.knobs import batch
from supervisor.strategies import consent
from supervisor.strategies.halve_batch import ARMS, BATCHNORM

if TYPE_CHECKING:
    from supervisor.core.model import Knob
    from supervisor.strategies.situation import Situation

NAME = "exclude_gpu"
#: What follows it is there to be copied, so that a stop tells it in a line of its own.
TO_GO_ON = "; to go on with them, "


def propose(situation: Situation) -> Plan | None:
    """Exclude the culprit, unless its Xid says that the job may use it again, or it is out of use already: then it is not the job's.

    An Xid that came again within a day on this GPU and on no other is suspected to be the hardware's, whatever the catalogue says of one.
    """
    if usable_again(situation.fact("xid"), situation.fact("hardware")):
        return None
    if (not situation.gpu and consent.withheld(situation)) or out_already(situation):
        return None
    return without(situation, NAME)


def usable_again(xid: str, hardware: str) -> bool:
    """Whether the catalogue says of the Xid that the job may use the GPU again."""
    known = lookup(int(xid)) if xid.isdigit() else None
    return known is not None and known.retry is Retry.YES and hardware != "suspected"


def out_already(situation: Situation) -> bool:
    """Whether the ranks did not see the GPU that the evidence names."""
    return any(gpu.uuid == situation.gpu and gpu.quarantined for gpu in situation.gpus)


def without(situation: Situation, strategy: str) -> Plan:
    """Return the plan that goes on without the culprit's GPU, or the stop that names it."""
    culprit = next((gpu for gpu in situation.gpus if gpu.uuid == situation.gpu and gpu.uuid), None)
    failed = {situation.gpu, *(uuid for uuid, _ in situation.failed_gpus)}
    others = tuple(gpu for gpu in situation.gpus if gpu.uuid in failed and gpu is not culprit and not gpu.quarantined) if culprit else ()
    name = " and ".join((_named(situation, culprit), *(_named(situation, gpu) for gpu in others)))
    healthy = tuple(gpu for gpu in situation.gpus if not gpu.quarantined and gpu is not culprit and gpu not in others)
    exclude = (culprit.uuid, *(gpu.uuid for gpu in others)) if culprit else ()
    if culprit is None:
        return _stop(situation, strategy, name, exclude, "which of this node's GPUs it is, or what others there are, is not known")
    if situation.policy.launcher is not Launcher.ELASTIC:
        return _unlaunched(situation, strategy, name, exclude, len(healthy))
    if situation.ranks and len(healthy) >= situation.ranks:
        return Plan(
            kind=PlanKind.RESTART,
            reason=f"{name} {_are(exclude)} taken out of use; {len(healthy)} others are there for {situation.ranks} ranks",
            next_rung="",
            strategy=strategy,
            exclude=exclude,
            told=(_until(situation),),
        )
    plan = fewer(situation, len(healthy))
    if isinstance(plan, str):
        return _stop(situation, strategy, name, exclude, plan)
    return Plan(
        kind=PlanKind.RESTART,
        reason=f"{name} {_are(exclude)} taken out of use; on with {plan.nproc} of {situation.ranks} ranks on this node",
        next_rung="",
        strategy=strategy,
        exclude=exclude,
        nproc=plan.nproc,
        changes=plan.changes,
        told=(*plan.told, _until(situation)),
    )


@dataclass(frozen=True, slots=True)
class Fewer:
    """On with fewer ranks on this node: how many, what that sets, and what is told of it."""

    nproc: int
    changes: tuple[Change, ...]
    told: tuple[str, ...]


def _unlaunched(situation: Situation, strategy: str, name: str, exclude: tuple[str, ...], left: int) -> Plan:
    """Return the plan for a command that chooses its ranks by itself."""
    policy = situation.policy
    if not policy.min_gpus or not policy.batch_drift or left < max(policy.min_gpus, 1):
        why = f"how many ranks the command launches is its own to choose, and {left} GPUs are left"
        helps = f"{TO_GO_ON}--min-gpus {left} --allow-batch-drift" if left else ""
        return _stop(situation, strategy, name, exclude, why + helps)
    return Plan(
        kind=PlanKind.RESTART,
        reason=f"{name} {_are(exclude)} taken out of use; the command sees the {left} others",
        next_rung="",
        strategy=strategy,
        exclude=exclude,
        told=("with fewer ranks the global batch is another one, unless the command keeps it", _until(situation)),
    )


def fewer(situation: Situation, left: int) -> Fewer | str:
    """Return how to go on with at most `left` GPUs, or why that may not be."""
    policy = situation.policy
    if left < 1:
        return "no other GPU is left on this node"
    if not policy.min_gpus:
        return f"{left} GPUs are left for {situation.ranks} ranks{TO_GO_ON}the same command with --min-gpus {left}"
    if left < policy.min_gpus:
        return f"{left} GPUs are left, and --min-gpus {policy.min_gpus} allows no fewer"
    size, accum = situation.armed("batch_size"), situation.armed("grad_accum")
    if size is None or accum is None:
        return _unkept(situation, left)
    return _replanned(situation, left, size, accum)


def _unkept(situation: Situation, left: int) -> Fewer | str:
    """Return how to go on where no knob is armed that would keep the global batch."""
    world = situation.world_size
    if not situation.policy.batch_drift:
        return f"the global batch cannot be kept: {ARMS} arms that, --allow-batch-drift lets it go"
    told = f"the global batch shrinks with the world, {world} → {world - situation.ranks + left} ranks: nothing is armed that would keep it"
    return Fewer(left, (), (told,))


def _replanned(situation: Situation, left: int, size: Knob, accum: Knob) -> Fewer | str:
    """Return the greatest number of ranks that keeps the global batch exactly; the nearest, with all of them, where drift is allowed."""
    old = batch.read(size, accum, situation.world_size)
    if isinstance(old, str):
        return old
    others = situation.world_size - situation.ranks
    found: batch.Batch | str = ""
    for nproc in range(left, situation.policy.min_gpus - 1, -1):
        found = batch.for_world(old, others + nproc)
        if isinstance(found, batch.Batch):
            break
    else:
        nproc, found = left, batch.for_world(old, others + left, drift=situation.policy.batch_drift)
    if isinstance(found, str):
        return f"{found}, nor is there a plan with fewer GPUs; --allow-batch-drift takes the nearest"
    kept = old.total == found.total
    told = f"the global batch {'stays' if kept else 'drifts'}: {old}, now {found}"
    norm = (BATCHNORM,) if situation.batchnorm and found.micro != old.micro else ()
    return Fewer(nproc, batch.changes(found, size, accum), (told, *norm))


def _are(exclude: tuple[str, ...]) -> str:
    return "is" if len(exclude) == 1 else "are"


def _named(situation: Situation, culprit: Gpu | None) -> str:
    if culprit is None:
        named = situation.verdict.gpu
        return f"CUDA device {named}" if named.isdigit() else f"GPU {named or '(unnamed)'}"
    return f"GPU {culprit.index} ({culprit.uuid}{', ' * bool(culprit.pci)}{culprit.pci})"


def _until(situation: Situation) -> str:
    uuids = dict.fromkeys((situation.gpu, *(uuid for uuid, _ in situation.failed_gpus)))
    back = " and ".join(f"`{situation.policy.clears} {uuid}`" for uuid in uuids)
    stays = "it stays out of use until its entry expires" if len(uuids) == 1 else "they stay out of use until their entries expire"
    return f"{stays}, or {back}"


def _stop(situation: Situation, strategy: str, name: str, exclude: tuple[str, ...], why: str) -> Plan:
    _, named, helps = why.partition(TO_GO_ON)
    return Plan(
        kind=PlanKind.STOP,
        reason=f"{name} failed: {why}",
        next_rung=f"nothing here: another node{', or what is named above' if helps else ''}",
        strategy=strategy,
        exit_code=69,
        exclude=exclude,
        told=(*((f"{named.removeprefix('; ')}{helps}",) if helps else ()), *((_until(situation),) if exclude else ())),
    )
