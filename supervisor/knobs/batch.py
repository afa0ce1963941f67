"""The arithmetic of batches: world size x micro-batch x accumulation is what the user asked for, and stays the same.

A function that cannot return a batch returns a str: the reason, with the figures in it.

A *micro-batch* is what one GPU holds in one forward pass, *accumulation* how many of those one rank adds up before a step. Programs count
both in different ways (Knob.counts): a batch per gpu, or the global one, which the program divides by world and accumulation; an
accumulation per rank, over the world, derived (the program divides its global batch by itself, and only the micro-batch is set), or planned
(uneven.py divides it; the micro-batch is what fits the least memory).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Change
from supervisor.core.values import Struct, replace
from supervisor.knobs.bindings import PLANNED

if TYPE_CHECKING:
    from supervisor.core.model import Knob


class Batch(Struct, frozen=True):
    """micro: of one GPU. accum: of one rank, None where the program derives it from `asked`, its global batch (None: not known).

    world: ranks, each with a copy of the model, 0 where that is not known; ranks that share a copy (core/nodes/replicas.py) count as one.
    planned: `asked` is shared out by uneven.py, and need be no multiple of anything.
    """

    micro: int
    accum: int | None
    world: int
    asked: int | None = None
    planned: bool = False

    @property
    def total(self) -> int | None:
        """The global batch; None where a factor of it is not known."""
        if self.accum is None:
            return self.asked
        return self.world * self.micro * self.accum if self.world else None

    def __str__(self) -> str:
        """Return the product as a person would write it."""
        if self.planned:
            return f"{self.total}, shared by {self.world or 'the'} ranks, {self.micro} at once on the least memory"
        factors = [self.world or "ranks", self.micro, "(what the program derives)" if self.accum is None else self.accum]
        return " × ".join(str(f) for f in factors) + (f" = {self.total}" if self.total is not None else "")  # noqa: RUF001 (the sign)


def read(batch: Knob, accum: Knob, world: int) -> Batch | str:
    """Return the batch that two knobs describe, or why it is not known."""
    planned = accum.counts == PLANNED
    derived = planned or accum.counts == "derived"
    for knob, noun in ((batch, "batch size"), (accum, "accumulation")):
        if not (knob is accum and derived) and (not knob.value.isdigit() or int(knob.value) < 1):
            return f"the {noun} that the job runs with is not known: write {knob.how} out in the command"
    if not world and (batch.counts == "global" or accum.counts == "world"):
        return "how many ranks there are is not known"
    if derived:
        asked = int(accum.value) if accum.value.isdigit() and int(accum.value) else None
        return _of_global(batch, None, world) if batch.counts == "global" else Batch(int(batch.value), None, world, asked, planned)
    size, steps = int(batch.value), int(accum.value)
    if accum.counts == "world":
        if steps % world:
            return f"{accum.how} {steps} is not a multiple of the {world} ranks"
        steps //= world
    return Batch(size, steps, world) if batch.counts != "global" else _of_global(batch, steps, world)


def _of_global(batch: Knob, steps: int | None, world: int) -> Batch | str:
    if steps is None:
        return f"{batch.how} is the global batch, and nothing sets the micro-batch"
    if int(batch.value) % (world * steps):
        return f"{batch.how} {batch.value} is not a multiple of {world} ranks × {steps}"  # noqa: RUF001 (the sign)
    return Batch(int(batch.value) // (world * steps), steps, world)


def smaller(batch: Batch, most: int | None = None) -> Batch | str:
    """Return the next smaller micro-batch, of at most `most` samples (1 or more), that keeps the product, or why there is none.

    Of 1 × 12 × 1 they are 6, 4, 3, 2 and 1. An accumulation that the program derives needs a micro-batch that divides its share.
    """  # noqa: RUF002 (the sign)
    if batch.micro == 1:
        return f"the micro-batch is 1 already ({batch})"
    if batch.planned:
        return _smaller_planned(batch, most)
    share = _share(batch)
    micro = next(micro for micro in range(min(batch.micro - 1, most or batch.micro), 0, -1) if share % micro == 0)
    return replace(batch, micro=micro, accum=None if batch.accum is None else share // micro)


def _smaller_planned(batch: Batch, most: int | None) -> Batch | str:
    """Return the greatest micro-batch of at most half the samples with which a plan is exact: the GPU that failed may have had fewer."""
    half, total = batch.micro // 2, batch.asked or 0
    sizes = range(min(half, most or half), 0, -1)
    micro = next((micro for micro in sizes if not batch.world or _is_exact(total, batch.world, micro)), None)
    return f"no smaller micro-batch has an exact plan ({batch})" if micro is None else replace(batch, micro=micro)


def _is_exact(total: int, world: int, micro: int) -> bool:
    """Return whether `world` ranks of 1 to `micro` samples each come to a part of `total` that divides it."""
    return any(total % samples == 0 for samples in range(world, min(world * micro, total) + 1))


def _share(batch: Batch) -> int:
    """Return how many samples one rank adds up before a step, or a divisor of it where the program's global batch is not known."""
    if batch.accum is not None:
        return batch.micro * batch.accum
    return batch.asked // batch.world if batch.asked and batch.world and batch.asked % batch.world == 0 else batch.micro


def halved_alone(batch: Knob, world: int, most: int | None = None) -> int | str:
    """Return half of a batch size, rounded down, where nothing makes up for it; or why there is none.

    It is halved again down to `most` samples. A global one stays a multiple of `world`.
    """
    if not batch.value.isdigit():
        return f"the batch size that the job runs with is not known: write {batch.how} out in the command"
    whole = world if batch.counts == "global" and world else 1
    half = int(batch.value) // 2 // whole * whole
    while most is not None and half > most and half // 2 // whole:
        half = half // 2 // whole * whole
    return half or f"the micro-batch is 1 already ({batch.how} {batch.value})"


def for_world(batch: Batch, world: int, *, drift: bool = False) -> Batch | str:
    """Return the batch for another number of ranks: the same product with no greater micro-batch, the greatest that there is.

    Without such a one: the nearest product if `drift` allows it, else why there is none. A program that derives its accumulation refuses
    what does not divide, and so there is no drift for it.
    """
    total, derived = batch.total, batch.accum is None
    if total is None:
        return "the global batch that the program divides is not known" if derived else "how many ranks there are is not known"
    if batch.planned:
        exact = _is_exact(total, world, batch.micro)
        return replace(batch, world=world) if exact else f"{world} ranks cannot share the global batch {batch.total} exactly"
    for micro in range(batch.micro, 0, -1):
        if total % (world * micro) == 0:
            return replace(batch, micro=micro, accum=None if derived else total // (world * micro), world=world)
    if derived:
        return f"the global batch {batch} is not a multiple of {world} ranks, which its program insists on"
    near = [Batch(micro, max(round(total / (world * micro)), 1), world) for micro in range(batch.micro, 0, -1)]
    if drift:
        return min(near, key=lambda b: (abs((b.total or 0) - total), -b.micro))
    return f"the global batch {batch} is not a multiple of {world} ranks"


def changes(new: Batch, batch: Knob, accum: Knob) -> tuple[Change, ...]:
    """Return what makes the job run with `new` from now on, counted as its knobs count."""
    values = [(batch, new.micro if batch.counts != "global" else new.total or 0)]
    if new.accum is not None:
        values.append((accum, new.accum * (new.world if accum.counts == "world" else 1)))
    return tuple(Change(knob.name, knob.value, str(value), knob.how) for knob, value in values if str(value) != knob.value)
