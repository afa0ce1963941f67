"""Finds the culprit of a failure: the rank, and the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.exits import END_SIGNALS
from supervisor.core.model import Cause, Launcher
from supervisor.core.values import replace
from supervisor.strategies.consent import is_sure
from supervisor.strategies.gpu import usable_again
from supervisor.strategies.repetition import HANGS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.core.model import Evidence, FailureVerdict, Gpu, RankExit
    from supervisor.core.state import JobState

#: Failures of a GPU by itself.
OF_ONE_GPU = frozenset({Cause.GPU_ECC, Cause.GPU_LOST, Cause.GPU_XID_OTHER})


def end_of_culprit(deaths: tuple[RankExit, ...], rank: int | None) -> RankExit | None:
    """Return how the culprit ended; where our own stop ended it before it could end by itself, how the first of all did."""
    first = next((death for death in deaths if death.failed), None)
    end = next((d for d in deaths if d.rank == rank and d.failed), first)
    return first if end is not None and end.signal in END_SIGNALS else end


def of_hang(verdict: FailureVerdict) -> FailureVerdict:
    """Return the verdict on a hang with the rank that its diagnosis names: the rank that reports a timeout is one that waited."""
    if verdict.cause not in HANGS:
        return verdict
    named = dict(verdict.facts).get("hang_ranks", "")
    return replace(verdict, rank=int(named) if named.isdigit() else None)


def culprit_gpu(state: JobState, verdict: FailureVerdict) -> str:
    """Return the UUID of the GPU that failed, "" if the evidence does not identify it among the listed ones.

    The evidence names it by UUID, by PCI id (without function, in any case) or by CUDA's index; else it is the one of the rank's place,
    where torchrun's agent places the ranks: how a plain command gives its ranks GPUs is not known.
    """
    visible, one_by_one = _visible(state), state.run.policy.launcher is Launcher.ELASTIC
    place = _place(state, verdict.rank)
    named = verdict.gpu
    gpu: Gpu | None = None
    if named.isdigit():
        # several ranks that each see one GPU all call it 0
        index = int(named)
        alone = len(state.attempt.ranks) == 1 if one_by_one else bool(state.attempt.ranks) and (index > 0 or len(visible) == 1)
        alone = alone or index == place
        gpu = visible[index] if alone and index < len(visible) else None
    elif named:
        gpu = _known_as(state, named)
    else:
        return gpu_of_rank(state, verdict.rank)
    return gpu.uuid if gpu else ""


def gpu_of_rank(state: JobState, rank: int | None) -> str:
    """Return the UUID of the GPU at the rank's place, "" where the place is not known: only torchrun's agent is known to give ranks one."""
    visible, place = _visible(state), _place(state, rank)
    return visible[place].uuid if place is not None and place < len(visible) and len(state.attempt.ranks) <= len(visible) else ""


def failed_gpus(state: JobState, facts: Iterable[Evidence]) -> dict[str, str]:
    """Return the GPUs in use that are proven to have failed by themselves, by UUID, with what proves it: a reading, and no log text.

    A link that is down is reported at both its ends, of which one may be well: it proves nothing here.
    """
    proofs: dict[str, str] = {}
    for fact in facts:
        fields, claim = dict(fact.fields), fact.claim
        name = fields.get("gpu_uuid") or fields.get("pci", "")
        if claim is None or fact.free_text or claim.cause not in OF_ONE_GPU or not is_sure(claim.cause, claim.weight) or not name:
            continue
        if fields.get("hardware") not in {"yes", "suspected"} or usable_again(fields.get("xid", ""), fields["hardware"]):
            continue
        gpu = _known_as(state, name)
        if gpu is not None and not gpu.quarantined:
            proofs.setdefault(gpu.uuid, fact.text)
    return proofs


def _visible(state: JobState) -> tuple[Gpu, ...]:
    return tuple(g for g in state.gpus if not state.attempt.visible_gpus or g.uuid in state.attempt.visible_gpus)


def _place(state: JobState, rank: int | None) -> int | None:
    one_by_one = state.run.policy.launcher is Launcher.ELASTIC
    return next((r.local_rank for r in state.attempt.ranks if r.rank == rank), None) if one_by_one else None


def _known_as(state: JobState, name: str) -> Gpu | None:
    """Return the GPU with this UUID or PCI address."""
    return next((g for g in state.gpus if g.uuid.lower() == name.lower() or (g.pci and _pci(g.pci) == _pci(name))), None)


def _pci(text: str) -> str:
    """Return "0000:3b:00" for 00000000:3B:00.0, PCI:0000:3b:00 and the like."""
    domain, _, rest = text.lower().removeprefix("pci:").partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest.split('.', 1)[0]}"
