"""Steps for a GPU that failed by itself: take it out of use; continue with a spare, with fewer if the user allowed that, or not here (69).

NVIDIA's catalogue (health/nvidia/xids.py) says after which Xid the same GPU is usable. With fewer GPUs whole replicas of the model continue
(core/nodes/replicas.py), and the micro-batch and the accumulation are planned anew so that the global batch stays exactly the same. If
no whole numbers do that, the nearest is taken only with --allow-batch-drift. A command that launches its own ranks chooses their number and
GPUs itself: it is restarted on the GPUs that are left only if fewer ranks and another global batch are both allowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.nvidia.xids import Retry, lookup_text
from supervisor.classify.remedies import remedy
from supervisor.core.budget import INFRASTRUCTURE_PERIOD_S, family
from supervisor.core.model import Cause, Change, Gpu, HangKind, Launcher, Phase, Plan
from supervisor.core.nodes import replicas
from supervisor.core.values import Struct
from supervisor.knobs import batch
from supervisor.strategies import consent, plans
from supervisor.strategies.ladder_step import ladder_step
from supervisor.strategies.memory import BATCHNORM, batch_options
from supervisor.strategies.repetition import HANGS

if TYPE_CHECKING:
    from supervisor.core.model import Failure, Knob, Policy
    from supervisor.strategies.situation import Situation

#: The remedy follows this text; a stop shows it in a line of its own, to be copied.
TO_GO_ON = "; to continue with them, "
#: So many older failures on this GPU, and none elsewhere, blame it although progress was made between them.
OLDER = 2


class FewerRanks(Struct, frozen=True):
    """How to continue with fewer ranks on this node: how many, the changes of the job, and notes for a person."""

    nproc: int
    changes: tuple[Change, ...]
    notes: tuple[str, ...]


@ladder_step(
    "the GPU is quarantined: a spare, or fewer ranks where --min-gpus allows, else stop (69)", tried="other GPUs", changes_job=True
)
def exclude_gpu(situation: Situation) -> Plan | None:
    """Exclude the culprit, unless its Xid says that the job may use it again, or it is out of use already and so not the job's.

    An Xid that came again within a day on this GPU and on no other is suspected to be the hardware's, whatever the catalogue says of one.
    """
    if usable_again(situation.fact("xid"), situation.fact("hardware")):
        return None
    if (not situation.gpu and consent.objection(situation)) or _is_out_of_use(situation):
        return None
    return _without_gpu(situation, "exclude_gpu")


@ladder_step("again on the same GPU: as exclude_gpu; over several: stop (65)", tried="other GPUs", changes_job=True)
def same_gpu_twice(situation: Situation) -> Plan | None:
    """Exclude the GPU on which the failure came again; stop with 65 if it came on several GPUs: then it is the program's.

    Only failures since the last progress are compared; of older ones, three on the same GPU and none elsewhere: two accidents in a month
    prove nothing. A crash is the program's until much speaks against it. The same step twice is the business of `same_place`, which is
    before this step. Beyond that, a rank must be known to use the GPU (an illegal access; evidence that names it; one rank for each GPU),
    the steps must differ, and there must have been another GPU on which it did not happen.
    """
    in_program = family(situation.verdict.cause) == "native"
    if not situation.gpu or _is_out_of_use(situation) or (in_program and not _rank_uses_gpu(situation)):
        return None
    past = [f for f in situation.failures if f.cause is situation.verdict.cause and f.gpu]
    here = [f for f in past if f.gpu == situation.gpu]
    elsewhere = [f for f in past if f.gpu != situation.gpu and not f.passed_since and f.fingerprint == situation.verdict.fingerprint]
    if elsewhere:
        return plans.stop(
            "same_gpu_twice",
            65,
            f"the same failure on {len({f.gpu for f in elsewhere}) + 1} GPUs, with no progress in between: the program is at fault",
            remedy(situation.verdict),
        )
    again = [f for f in here if not f.passed_since and (not in_program or _steps_differ(situation, f))]
    if in_program and situation.ranks < 2:  # noqa: PLR2004 (another one, to tell them apart)
        return None
    if not again and (len(here) < OLDER or len(here) < len(past)):
        return None
    return _without_gpu(situation, "same_gpu_twice")


@ladder_step(
    "the rank of one GPU did not come to a collective twice, at different steps: as exclude_gpu", tried="other GPUs", changes_job=True
)
def same_gpu_hangs(situation: Situation) -> Plan | None:
    """Exclude the GPU whose rank did not come to a collective twice in a day, at steps that differ, while no other GPU's rank did.

    Only a rank in a training step counts: one that saves, loads or reads files does not wait for its GPU. Consent asks for a sure verdict.
    """
    if not situation.gpu or _is_out_of_use(situation) or situation.fact("hang_phase") != Phase.TRAIN:
        return None
    if situation.fact("hang_kind") not in {HangKind.LATE, HangKind.STILL}:
        return None
    recent = (f for f in situation.failures if situation.t - f.t <= INFRASTRUCTURE_PERIOD_S)
    past = [f for f in recent if f.cause in HANGS and f.gpu]
    twice = any(f.gpu == situation.gpu and _steps_differ(situation, f) for f in past)
    return _without_gpu(situation, "same_gpu_hangs") if twice and all(f.gpu == situation.gpu for f in past) else None


def usable_again(xid: str, hardware: str) -> bool:
    """Whether the catalogue says of the Xid that the job may use the GPU again."""
    known = lookup_text(xid)
    return known is not None and known.retry is Retry.YES and hardware != "suspected"


def _is_out_of_use(situation: Situation) -> bool:
    """Whether the GPU that the evidence names was hidden from the ranks already."""
    return any(gpu.uuid == situation.gpu and gpu.quarantined for gpu in situation.gpus)


def _rank_uses_gpu(situation: Situation) -> bool:
    one_for_each = situation.ranks == sum(not gpu.quarantined for gpu in situation.gpus)
    return situation.verdict.cause is Cause.CUDA_ILLEGAL_ACCESS or bool(situation.verdict.gpu) or one_for_each


def _steps_differ(situation: Situation, past: Failure) -> bool:
    """Whether both steps are known, and are not the same place."""
    if situation.before_first_step != past.before_first_step:
        return True
    if situation.step is None or past.step is None:
        return False
    return abs(situation.step - past.step) > situation.policy.same_place_steps


def _without_gpu(situation: Situation, strategy: str) -> Plan:
    """Return the plan that continues without the culprit's GPU, or the stop that names it."""
    culprit = next((gpu for gpu in situation.gpus if gpu.uuid == situation.gpu and gpu.uuid), None)
    failed = {situation.gpu, *(uuid for uuid, _ in situation.failed_gpus)}
    others = tuple(gpu for gpu in situation.gpus if gpu.uuid in failed and gpu is not culprit and not gpu.quarantined) if culprit else ()
    name = " and ".join((_gpu_name(situation, culprit), *(_gpu_name(situation, gpu) for gpu in others)))
    healthy = tuple(gpu for gpu in situation.gpus if not gpu.quarantined and gpu is not culprit and gpu not in others)
    exclude = (culprit.uuid, *(gpu.uuid for gpu in others)) if culprit else ()
    if culprit is None:
        return _stop(situation, strategy, name, exclude, "which of this node's GPUs it is, or what others there are, is not known")
    if situation.policy.launcher is not Launcher.ELASTIC:
        return _for_own_launcher(situation, strategy, name, exclude, len(healthy))
    if situation.ranks and len(healthy) >= situation.ranks:
        return plans.restart(
            strategy,
            f"{name} {_are(exclude)} taken out of use; {len(healthy)} others are there for {situation.ranks} ranks",
            exclude=exclude,
            notes=(_return_text(situation),),
        )
    plan = fewer_ranks(situation, len(healthy))
    if isinstance(plan, str):
        return _stop(situation, strategy, name, exclude, plan)
    return plans.restart(
        strategy,
        f"{name} {_are(exclude)} taken out of use; on with {plan.nproc} of {situation.ranks} ranks on this node",
        exclude=exclude,
        nproc=plan.nproc,
        changes=plan.changes,
        notes=(*plan.notes, _return_text(situation)),
    )


def _for_own_launcher(situation: Situation, strategy: str, name: str, exclude: tuple[str, ...], left: int) -> Plan:
    """Return the plan for a command that chooses its ranks by itself."""
    policy = situation.policy
    if situation.all_ranks:
        return _stop(situation, strategy, name, exclude, _needs_all(situation, left))
    fits = replicas.whole(left, policy.replica_size)
    if not policy.gpus.minimum or not policy.restart.batch_drift or fits < max(policy.gpus.minimum, 1):
        why = f"the command chooses its number of ranks by itself, and {replicas.left_text(left)}" + _of_replica(policy, left, fits)
        remedy = f"{TO_GO_ON}--min-gpus {fits} --allow-batch-drift" if fits else ""
        return _stop(situation, strategy, name, exclude, why + remedy)
    return plans.restart(
        strategy,
        f"{name} {_are(exclude)} taken out of use; the command sees {_others(policy, left, fits)}",
        exclude=exclude,
        notes=("with fewer ranks the global batch is another one, unless the command keeps it", _return_text(situation)),
    )


def fewer_ranks(situation: Situation, left: int) -> FewerRanks | str:
    """Return how to continue with at most `left` GPUs, or why that may not be."""
    policy = situation.policy
    if left < 1 or situation.all_ranks:
        return _needs_all(situation, left) if left > 0 else "no other GPU is left on this node"
    fits = replicas.on_node(left, situation.ranks, policy.replica_size)
    of_replica, are_left = _of_replica(policy, left, fits), replicas.left_text(left)
    if not fits:
        why = (
            "which other nodes share: each needs all of its ranks"
            if situation.ranks % policy.replica_size
            else "and too few are left for one"
        )
        return f"{are_left} for {situation.ranks} ranks; a replica has {policy.replica_size}, {why}"
    if not policy.gpus.minimum:
        return f"{are_left} for {situation.ranks} ranks{of_replica}{TO_GO_ON}the same command with --min-gpus {fits}"
    if fits < policy.gpus.minimum:
        return f"{are_left}{of_replica}, and --min-gpus {policy.gpus.minimum} allows no fewer"
    size, accum = situation.enabled("batch_size"), situation.enabled("grad_accum")
    if size is None or accum is None:
        return _shrunk_batch(situation, fits)
    return _replanned_batch(situation, fits, size, accum)


def _others(policy: Policy, left: int, fits: int) -> str:
    """Return which of the GPUs that are left a command sees that has a rank for each."""
    return f"the {left} others" if fits == left else f"{fits} of the {left} others: whole replicas of {policy.replica_size} ranks"


def _of_replica(policy: Policy, left: int, fits: int) -> str:
    """Return that GPUs stay unused because only whole replicas train, "" where none does."""
    if fits == left:
        return ""
    return (
        f", {fits} of them in whole replicas of {policy.replica_size} ranks"
        if fits
        else f", too few for a replica of {policy.replica_size} ranks"
    )


def _needs_all(situation: Situation, left: int) -> str:
    ranks = situation.world_size or situation.ranks
    return f"{replicas.left_text(left)}, and the program loads its checkpoints with {ranks} ranks only, as an attempt with fewer showed"


def _shrunk_batch(situation: Situation, left: int) -> FewerRanks | str:
    """Return how to continue if no knob is enabled that would keep the global batch."""
    world = situation.world_size
    if not situation.policy.restart.batch_drift:
        return f"the global batch cannot be kept: {batch_options(situation.policy.likely)} enables that, --allow-batch-drift lets it go"
    ranks = f"{world} → {world - situation.ranks + left} ranks"
    return FewerRanks(left, (), (f"the global batch shrinks with the world, {ranks}: no knob is enabled that would keep it",))


def _replanned_batch(situation: Situation, left: int, size: Knob, accum: Knob) -> FewerRanks | str:
    """Return the greatest number of ranks that keeps the global batch exactly; the nearest, with all of them, where drift is allowed.

    left: ranks in whole replicas for which there are GPUs.
    """
    old = batch.read(size, accum, situation.replicas)
    if isinstance(old, str):
        return old
    others, replica = situation.world_size - situation.ranks, situation.policy.replica_size
    changed: batch.Batch | str = ""
    for nproc in range(left, situation.policy.gpus.minimum - 1, -replica):
        changed = batch.for_world(old, (others + nproc) // replica)
        if isinstance(changed, batch.Batch):
            break
    else:
        nproc, changed = left, batch.for_world(old, (others + left) // replica, drift=situation.policy.restart.batch_drift)
    if isinstance(changed, str):
        return f"{changed}, nor is there a plan with fewer GPUs; --allow-batch-drift takes the nearest"
    kept = old.total == changed.total
    note = f"the global batch {'stays' if kept else 'drifts'}: {old}, now {changed}"
    norm = (BATCHNORM,) if situation.batchnorm and changed.micro != old.micro else ()
    return FewerRanks(nproc, batch.changes(changed, size, accum), (note, *norm))


def _are(exclude: tuple[str, ...]) -> str:
    return "is" if len(exclude) == 1 else "are"


def _gpu_name(situation: Situation, culprit: Gpu | None) -> str:
    if culprit is None:
        named = situation.verdict.gpu
        return f"CUDA device {named}" if named.isdigit() else f"GPU {named or '(unnamed)'}"
    return f"GPU {culprit.index} ({culprit.uuid}{', ' * bool(culprit.pci)}{culprit.pci})"


def _return_text(situation: Situation) -> str:
    """Return how the GPUs come back into use."""
    uuids = dict.fromkeys((situation.gpu, *(uuid for uuid, _ in situation.failed_gpus)))
    commands = " and ".join(f"`{situation.policy.clears} {uuid}`" for uuid in uuids)
    stays = "it stays out of use until its entry expires" if len(uuids) == 1 else "they stay out of use until their entries expire"
    return f"{stays}, or {commands}"


def _stop(situation: Situation, strategy: str, name: str, exclude: tuple[str, ...], why: str) -> Plan:
    why, _, remedy = why.partition(TO_GO_ON)
    return plans.stop(
        strategy,
        69,
        f"{name} failed: {why}",
        f"use another node{f'; or continue with fewer GPUs: {remedy}' if remedy else ''}",
        exclude=exclude,
        notes=(_return_text(situation),) if exclude else (),
    )
