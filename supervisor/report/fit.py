"""Computes the micro-batch that fits into a GPU, for `supervise plan --fit`: from a checkpoint's headers and an attempt's lack of memory.

With plain data parallelism each GPU holds the parameters, as many gradients, and the optimizer's states. What an attempt held and asked for
when its memory ran out shows what a sample needs beside that, at least: the rest of that step is not known. No GPU's peak is recorded
otherwise. An estimate is never more than its sources, so each line names them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.core.model import Cause
from supervisor.core.units import bytes_text
from supervisor.core.values import Struct, replace
from supervisor.knobs import batch
from supervisor.report.layout import Fact, FactPage, Tone
from supervisor.strategies import shortage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from checkpointing.sizes import TensorSizes
    from supervisor.core.model import Knob
    from supervisor.view.incidents import RecordedFailure

_MOST_ROWS = 8


class Measured(Struct, frozen=True):
    """An attempt that ran out of a GPU's memory. batch: its batch, or why that is not known."""

    attempt: int
    lack: shortage.Shortage
    batch: batch.Batch | str


def measured(failures: Iterable[RecordedFailure], knobs: Sequence[Knob], world: int) -> Measured | None:
    """Return the last attempt whose message has the sizes. knobs: as the command has them, before any plan changed one."""
    now: dict[str, str] = {}
    newest = None
    for failure in failures:
        if failure.decision is None:
            continue
        verdict, plan = failure.decision.verdict, failure.decision.plan
        lack = shortage.of_facts(dict(verdict.facts)) if verdict.cause is Cause.CUDA_OOM else None
        if lack is not None:
            newest = Measured(failure.attempt, lack, _batch(knobs, now, world))
        now |= {change.knob: change.new for change in plan.changes}
    return newest


def _batch(knobs: Sequence[Knob], now: Mapping[str, str], world: int) -> batch.Batch | str:
    known = {knob.name: replace(knob, value=now.get(knob.name, knob.value)) for knob in knobs}
    size, accum = known.get("batch_size"), known.get("grad_accum")
    if size is None:
        return "no batch size is declared"
    if accum is not None:
        return batch.read(size, accum, world)
    if size.counts == "global" or not size.value.isdigit():
        return "the micro-batch is not known without the accumulation"
    return batch.Batch(int(size.value), 1, world)


def document(path: str, sizes: TensorSizes, seen: Measured | None, world: int) -> dict[str, Any]:
    """Return the estimate as data; bytes, None where unknown. path: the checkpoint. world: ranks, 0 unknown."""
    fixed = 2 * sizes.weights + sizes.beside
    data: dict[str, Any] = {
        "checkpoint": path,
        "weights_bytes": sizes.weights,
        "optimizer_bytes": sizes.beside,
        "unread": list(sizes.unread),
        "fixed_bytes": fixed,
        "ranks": world or None,
        "measured": None,
        "sample_bytes": None,
        "micro_batches": [],
    }
    if seen is None:
        return data
    lack = seen.lack
    data["measured"] = {"attempt": seen.attempt, "held_bytes": lack.held, "asked_bytes": lack.asked, "room_bytes": lack.room}
    if isinstance(seen.batch, str):
        data["measured"]["micro_batch"] = None
        data["measured"]["why"] = seen.batch
        return data
    data["measured"]["micro_batch"] = seen.batch.micro
    need = lack.held + lack.asked
    if fixed >= need:
        return data
    data["sample_bytes"] = sample = (need - fixed) // seen.batch.micro
    now: batch.Batch | str = seen.batch
    while isinstance(now, batch.Batch) and len(data["micro_batches"]) < _MOST_ROWS:
        needs = fixed + sample * now.micro
        verdict = "does not fit" if needs > lack.room else "barely" if needs > lack.room * shortage.USABLE else "should fit"
        data["micro_batches"].append({"micro_batch": now.micro, "accumulation": now.accum, "bytes": needs, "verdict": verdict})
        now = batch.smaller(now)
    return data


def page(data: Mapping[str, Any]) -> FactPage:
    """Return the estimate for a person."""
    return FactPage("memory of one GPU (an estimate; each GPU holds the whole model, as with DDP)", tuple(_facts(data)))


def _facts(data: Mapping[str, Any]) -> Iterator[Fact]:
    weights, states, fixed = (bytes_text(data[f"{name}_bytes"]) for name in ("weights", "optimizer", "fixed"))
    shard = (
        f"; sharded over {data['ranks']} ranks (FSDP, ZeRO-3): {bytes_text(data['fixed_bytes'] // data['ranks'])}" if data["ranks"] else ""
    )
    yield Fact("checkpoint", f"{data['checkpoint']}: parameters {weights}, optimizer states {states}")
    yield Fact("fixed", f"parameters {weights} + gradients {weights} + optimizer states {states} = {fixed}{shard}")
    if data["unread"]:
        yield Fact("not read", f"{len(data['unread'])} of its files, of another format: {data['unread'][0]}; the need is greater")
    seen = data["measured"]
    if seen is None:
        yield Fact(
            "measured", "nothing: no GPU's peak is recorded, and no attempt of this job ran out of GPU memory with sizes in its message"
        )
        return
    held, asked, room = (bytes_text(seen[f"{name}_bytes"]) for name in ("held", "asked", "room"))
    at = f"with a micro-batch of {seen['micro_batch']}" if seen["micro_batch"] else f"with a micro-batch that is not known: {seen['why']}"
    yield Fact("measured", f"attempt {seen['attempt']} held {held} and asked for {asked}, of {room}, {at}")
    if not data["micro_batches"]:
        why = "" if not seen["micro_batch"] else ": it held less than the fixed part, so that the model is sharded, or kept elsewhere"
        yield Fact("micro-batch", f"what fits is not known{why}")
        return
    yield Fact("each sample", f"at least {bytes_text(data['sample_bytes'])}")
    for row in data["micro_batches"]:
        accum = f", accumulation {row['accumulation']}" if row["accumulation"] else ""
        tone = Tone.BAD if row["verdict"] == "does not fit" else Tone.WARNING if row["verdict"] == "barely" else Tone.GOOD
        yield Fact("micro-batch", f"{row['micro_batch']}{accum}: {bytes_text(row['bytes'])} of {room}: {row['verdict']}", tone)
