"""The tables of `supervise nodes` and `supervise nodes gpus`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.core.units import bytes_text, span_text
from supervisor.core.values import Struct, replace
from supervisor.job.local_time import minute_text
from supervisor.report.layout import Tone
from supervisor.report.nodes_page import SOURCES
from supervisor.report.table import Cell, Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisor.node.listed_gpus import ListedGpu

_GPU: Final = Column("GPU", copied=True)


class ListedExclusion(Struct, frozen=True):
    """Why no job begins on a node. since: Unix seconds. by: `person` or `node check`."""

    reason: str
    since: float
    by: str


class GpuOutOfUse(Struct, frozen=True):
    """A GPU of a node that its ledger keeps out of use. since, until: Unix seconds."""

    uuid: str
    pci: str
    reason: str
    since: float
    until: float


class ListedNode(Struct, frozen=True):
    """One node, and the row of `nodes --json`. number: among the nodes of the attempt. age_s: of this news. source: who gave it."""

    node: str
    number: int | None = None
    state: str = "not in use"
    why: str | None = None
    age_s: float | None = None
    source: str | None = None
    excluded: ListedExclusion | None = None
    gpus: tuple[GpuOutOfUse, ...] = ()


def node_tables(nodes: Sequence[ListedNode]) -> Iterator[Table]:
    """Yield the table of the nodes, and that of their GPUs that are out of use."""
    numbers = {"number", "GPUs out"}
    columns = tuple(Column(name, right=name in numbers) for name in ("node", "number", "state", "GPUs out", "known", "why"))
    rows = [
        (node.node, "-" if node.number is None else str(node.number), _node_state(node), str(len(node.gpus)), _source(node), _why(node))
        for node in nodes
    ]
    yield Table(columns, tuple(rows))
    held = [
        (gpu.uuid or gpu.pci, node.node, minute_text(gpu.since), minute_text(gpu.until), gpu.reason) for node in nodes for gpu in node.gpus
    ]
    if held:
        yield Table((_GPU, Column("node"), Column("since"), Column("until"), Column("why")), tuple(held), title="GPUs out of use")


def _node_state(node: ListedNode) -> Cell:
    if node.excluded is not None:
        return Cell("EXCLUDED" if node.number is None else f"{node.state}, EXCLUDED from the next start on", Tone.WARNING)
    return Cell(node.state.upper(), Tone.BAD) if node.state in {"lost", "left"} else Cell(node.state)


def _source(node: ListedNode) -> str:
    if node.source is None:
        return ""
    age = "" if node.source == "here" or node.age_s is None else f", {span_text(node.age_s)} ago"
    return SOURCES[node.source] + age


def _why(node: ListedNode) -> str:
    excluded = "" if node.excluded is None else f"excluded since {minute_text(node.excluded.since)}: {node.excluded.reason}"
    return "; ".join(text for text in (node.why, excluded) if text)


def gpu_tables(gpus: Sequence[ListedGpu]) -> Iterator[Table]:
    """Yield the state of each GPU, the faults of those that are not well, and the names by which others know them; nothing for none."""
    if not gpus:
        return
    models = sorted({gpu.name for gpu in gpus if gpu.name})
    of_one_model = f"{len(gpus)} {models[0]}" if len(models) == 1 else ""  # else each row names its own
    numbers = {"memory", "busy", "heat"}
    columns = tuple(Column(name, right=name in numbers) for name in ("GPU", "CUDA", "state", "name", "memory", "busy", "heat"))
    rows = [_gpu_row(replace(gpu, name="") if of_one_model else gpu) for gpu in gpus]
    yield Table(columns, tuple(rows), title=of_one_model)
    wrong = tuple(row for gpu in gpus for row in _wrong(gpu))
    if wrong:
        yield Table((_GPU, Column("what"), Column("why")), wrong, title="faults")
    names = tuple((_gpu_name(gpu), gpu.uuid or "unknown", gpu.pci or "unknown") for gpu in gpus)
    yield Table((_GPU, Column("UUID", copied=True), Column("PCI address", copied=True)), names, title="names")


def _gpu_name(gpu: ListedGpu) -> str:
    return (gpu.uuid or gpu.pci) if gpu.index is None else str(gpu.index)


def _gpu_row(gpu: ListedGpu) -> tuple[Cell | str, ...]:
    used, total = gpu.memory_used_bytes, gpu.memory_bytes
    memory = f"{bytes_text(used)} of {bytes_text(total)}" if used is not None and total else ""
    busy = "" if gpu.busy_percent is None else f"{gpu.busy_percent} %"
    heat = "" if gpu.temperature_c is None else f"{gpu.temperature_c} °C"
    return _gpu_name(gpu), "-" if gpu.cuda is None else str(gpu.cuda), _gpu_state(gpu), gpu.name, memory, busy, heat


def _gpu_state(gpu: ListedGpu) -> Cell:
    if not gpu.in_use:
        return Cell("OUT OF USE", Tone.WARNING)
    worst = next((finding.result for finding in gpu.findings), "")
    return Cell(worst.upper(), Tone.BAD if worst == "failed" else Tone.WARNING) if worst else Cell("in use", Tone.GOOD)


def _wrong(gpu: ListedGpu) -> Iterator[tuple[str, ...]]:
    if gpu.since is not None and gpu.until is not None:
        since, until = minute_text(gpu.since), minute_text(gpu.until)
        yield _gpu_name(gpu), "out of use", f"since {since}, until {until}, for job {gpu.job}: {gpu.reason} ({gpu.evidence})"
    for finding in gpu.findings:
        yield _gpu_name(gpu), finding.result, f"{finding.check}: {finding.reason}"
