"""Compares the ranks that a command starts on this node with the GPUs that they will see, before any of them is there. Pure.

One thing holds a start back: a list of GPUs names one that is not there, and a rank is to have it. CUDA shows those in front of that word
and no other (CUDA C++ Programming Guide, "CUDA Environment Variables"), so that rank ends with "invalid device ordinal". All else is a
warning, for it may be on purpose: ranks that speak gloo, or have MPS, share a GPU. How many ranks are right is not decided here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from health.checks.gpu.presence import gpu_count
from health.thresholds import Thresholds
from supervisor.core.health.findings import RANK_PLACES
from supervisor.core.model import Finding
from supervisor.launch.launchers import ALL, VISIBLE
from supervisor.node import visible_gpus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from health.model import Readings
    from supervisor.launch.launchers import PlannedRanks
    from supervisor.node.visible_gpus import GpuChoice, NodeGpu

#: The probes whose readings are compared.
PROBES: Final = ("nvml", "pci", "infiniband")
_ORDINAL: Final = "invalid device ordinal"
#: Of a longer list only the beginning is shown.
_MOST: Final = 60
_INSTANCES: Final = f"{VISIBLE}=MIG-…,MIG-… (`nvidia-smi -L` names them), and "
_OF_EACH_RANK: Final = (
    f'os.environ["{VISIBLE}"] = os.environ["{VISIBLE}"].split(",")[int(os.environ["LOCAL_RANK"])] in the script, before torch is imported'
)


def findings(planned: PlannedRanks, environ: Mapping[str, str], now: Readings, cpus: Collection[int]) -> tuple[Finding, ...]:
    """Return what does not fit; one that blocks is proven to fail. Nothing where this node has no GPU, or one that does not answer.

    cpus: those on which this process may run.
    """
    named = visible_gpus.node_gpus(now)
    there = visible_gpus.in_container(named, environ)
    is_lost = len(named) != now.count("nvml.count") or any(finding.blocks for finding in gpu_count(now, None, Thresholds()))
    # with a lost GPU nobody knows which numbers would be there, and its own check reports it
    if is_lost or not there or visible_gpus.is_container_without_gpus(environ):
        return ()
    listed = environ.get(VISIBLE) if planned.devices is None else None if planned.devices == ALL else planned.devices
    chosen = visible_gpus.choice(listed, there)
    split = [gpu for gpu in there if now.value("gpu.mig_mode", f"gpu:{gpu.uuid}") in ([1, 0], [1, 1])]  # (now, after a reset)
    names = [*_list(planned, listed or "", chosen, there, is_sure=not split)]
    places = names or [*_shared(planned, listed, chosen, there, split)]
    if planned.problem:
        places.append(_finding("configuration", planned.problem))
    used = chosen.gpus[: planned.ranks]
    if used and not planned.binds and (visible_gpus.order_is_known(there, environ) or used == chosen.gpus):
        places += [*_far_cpus(used, now, cpus), *_far_ports(used, now, environ)]
    return tuple(places)


def _list(planned: PlannedRanks, listed: str, chosen: GpuChoice, there: Sequence[NodeGpu], *, is_sure: bool) -> Iterator[Finding]:
    """Yield the faults of the list of GPUs itself. is_sure: no number can be that of an instance of MIG."""
    count, seen, text = len(there), len(chosen.gpus), _short(listed)
    outside = [number for number in planned.excluded if number.isdecimal() and int(number) >= count]
    if outside:
        why = f"{planned.launcher} is to leave GPU {outside[0]} out ({planned.how}), which this node does not have ({_numbers(count)})"
        yield _finding("list", f"{why}: it ends with an error", f"no slot {outside[0]} after --exclude", blocks=True)
    elif chosen.why == "missing":
        missing = f"{planned.place}{text} names GPU {chosen.end}, which this node does not have ({_numbers(count)})"
        line = (
            f"{planned.place}{_named(planned.ranks or max(seen, 1), chosen, there, listed)}"
            if not planned.ranks or planned.ranks <= count
            else planned.written(count)
        )
        if planned.ranks is None and seen == 0:
            why = f"{missing}: CUDA shows none, and {planned.launcher} starts a rank for each that is visible ({planned.how})"
            yield _finding("list", why, line, blocks=is_sure)
        elif planned.ranks is not None and planned.ranks > seen:
            why = f"{missing}: of {_ranks(planned)} rank {seen} gets no GPU, because CUDA shows {_seen(seen)} before it ({_ORDINAL})"
            yield _finding("list", why, line, blocks=is_sure)
        else:
            yield _finding("list", f"{missing}: CUDA shows {_seen(seen)} before it", line)
    elif chosen.why == "repeated":
        words = ",".join(dict.fromkeys(map(str.strip, listed.split(","))))
        yield _finding("list", f"{planned.place}{text} names GPU {chosen.end} twice, and CUDA then shows none", f"{planned.place}{words}")
    elif chosen.why == "unreadable":
        why = f"{planned.place}{text}: {chosen.end!r} is the name of no GPU, or of several: CUDA shows {_seen(seen)} before it"
        yield _finding("list", why, f"{planned.place}{_named(planned.ranks or count, chosen, there, listed)}")


def _shared(
    planned: PlannedRanks, listed: str | None, chosen: GpuChoice, there: Sequence[NodeGpu], split: Sequence[NodeGpu]
) -> Iterator[Finding]:
    """Yield that ranks have no GPU of their own, or that GPUs have no rank because the command names no number. split: GPUs with MIG."""
    seen = len(chosen.gpus) - sum(str(number) in planned.excluded for number in range(len(chosen.gpus)))
    ranks = seen if planned.ranks is None else planned.ranks
    parts = [gpu for gpu in chosen.gpus[:ranks] if gpu in split]
    if ranks > 1 and (chosen.why == "mig" or parts):
        where = f"MIG is on at GPU {parts[0].index}" if parts else f"{planned.place}{_short(listed or '')} names instances of MIG"
        why = f"{where}, and CUDA shows a process one instance at most: of {_ranks(planned)} rank 1 finds none of its own ({_ORDINAL})"
        yield _finding("shared", why, f"{_INSTANCES if parts else ''}{_OF_EACH_RANK}")
    elif not seen or chosen.why == "mig" or (planned.launcher == "srun" and seen == 1):  # Slurm has bound a GPU to each task
        return
    elif ranks > seen and planned.needs_several and seen == 1:
        why = f"accelerate starts one rank and not {ranks} ({planned.how}): without --multi_gpu it starts several for several visible GPUs"
        yield _finding("shared", f"{why}, and 1 is visible", planned.written(1))
    elif ranks > seen:
        at = f" by {planned.place}{_short(listed)}" if listed is not None else ""
        why = f"{_ranks(planned)}, and {_visible(seen)}{at}: rank {seen} fails if it takes the GPU of its LOCAL_RANK ({_ORDINAL})"
        wider = f" or {planned.place}{_named(ranks, chosen, there, listed)}" if listed is not None and ranks <= len(there) else ""
        yield _finding("shared", f"{why}, and NCCL takes no two ranks on one GPU; gloo and MPS do", f"{planned.written(seen)}{wider}")
    elif planned.launcher == "torchrun" and not planned.how and seen > 1:
        why = f"torchrun starts 1 rank, because no --nproc-per-node is given, and {_visible(seen)}"
        yield _finding("idle", why, "--nproc-per-node=gpu for a rank on each, --nproc-per-node=1 if one rank is meant")


def _named(ranks: int, chosen: GpuChoice, there: Sequence[NodeGpu], listed: str) -> str:
    """Return a list of so many GPUs, or of all: those that the user's list names, then others, by UUID where the user has UUIDs."""
    by_uuid = listed.strip().startswith("GPU-")
    others = [gpu for gpu in there if gpu not in chosen.gpus]
    names = [gpu.uuid if by_uuid else str(there.index(gpu)) for gpu in (*chosen.gpus, *others)]
    return ",".join(names[:ranks])


def _far_cpus(used: Sequence[NodeGpu], now: Readings, cpus: Collection[int]) -> Iterator[Finding]:
    """Yield that this process, and so its ranks, may not run on any CPU of a GPU's NUMA node."""
    near = {str(row.get("address")): cpu_numbers(str(row.get("local_cpulist") or "")) for row in now.rows("pci.gpus")}
    far = [gpu for gpu in used if near.get(gpu.pci) and not near[gpu.pci].intersection(cpus)]
    if far and cpus:
        theirs = frozenset[int]().union(*(near[gpu.pci] for gpu in far))
        why = (
            f"{_names(far)}: their CPUs are {cpu_list(theirs)}, and this process may run on {cpu_list(cpus)} alone: what their ranks load"
            " crosses to another socket"
        )
        line = f"taskset -c {cpu_list(theirs.union(cpus))} supervise …; in Slurm --exclusive or more --cpus-per-task"
        yield _finding("cpus", why, line)


def _far_ports(used: Sequence[NodeGpu], now: Readings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield that NCCL_IB_HCA leaves out all ports at a GPU's NUMA node, where there are some, and names ports at another."""
    wanted = environ.get("NCCL_IB_HCA", "")
    if not wanted or wanted[0] in "^=":  # a list of what to leave out, or of exact names
        return
    words = [word.strip().partition(":")[0] for word in wanted.split(",")]
    ports = [row for reading in now.of("port.state") if (row := now.table("port.state", reading.subject)).get("state") == "ACTIVE"]
    allowed = [row for row in ports if any(str(row["device"]).startswith(word) for word in words)]
    nodes = {str(row.get("address")): str(row.get("numa_node")) for row in now.rows("pci.gpus")}

    def at(node: str, rows: Sequence[Mapping[str, object]]) -> list[str]:
        return sorted({str(row["device"]) for row in rows if str(row.get("numa_node")) == node})

    far = [gpu for gpu in used if allowed and at(nodes.get(gpu.pci, ""), ports) and not at(nodes[gpu.pci], allowed)]
    if far:
        near = [name for gpu in far for name in at(nodes[gpu.pci], ports)]
        why = f"{_names(far)}: NCCL_IB_HCA={_short(wanted)} leaves out the ports beside them ({', '.join(dict.fromkeys(near))})"
        line = f"NCCL_IB_HCA={','.join(dict.fromkeys([*words, *near]))}"
        yield _finding("ports", f"{why}: what they send crosses to another socket", line)


def cpu_numbers(text: str) -> frozenset[int]:
    """Return the CPUs of a list as the kernel writes it: 0-2,8 is 0, 1, 2 and 8."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text)
    return frozenset(cpu for first, last in ranges for cpu in range(int(first), int(last or first) + 1))


def cpu_list(cpus: Collection[int]) -> str:
    """Return CPUs as the kernel and `taskset -c` write them."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return _short(",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans))


def _finding(subject: str, reason: str, line: str = "", *, blocks: bool = False) -> Finding:
    text = f"{reason}; write {line}" if line and not blocks else reason  # a start that is held back has it as its hint
    return Finding(RANK_PLACES, f"ranks:{subject}", "failed" if blocks else "degraded", text, line, blocks)


def _ranks(planned: PlannedRanks) -> str:
    number = "1 rank" if planned.ranks == 1 else f"{planned.ranks} ranks"
    return f"{planned.launcher}'s {number} here ({planned.how})" if planned.how else f"{planned.launcher}'s {number} here"


def _names(gpus: Sequence[NodeGpu]) -> str:
    return f"GPU {_short(', '.join(str(gpu.index) for gpu in gpus))}"


def _numbers(count: int) -> str:
    return "it has GPU 0 alone" if count == 1 else f"it has GPUs 0 {'and' if count == 2 else 'to'} {count - 1}"  # noqa: PLR2004


def _seen(count: int) -> str:
    return "none" if count == 0 else f"the {count}"


def _visible(count: int) -> str:
    return "1 GPU is visible" if count == 1 else f"{count} GPUs are visible"


def _short(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[:_MOST]}…"
