"""Lists the GPUs that the job can see, in the order in which CUDA counts them.

NVML's readings (health_watch.py) name them, else nvidia-smi under a deadline. The list is empty where the order is not known: a number that
is taken for another GPU's would quarantine a healthy one.

CUDA_VISIBLE_DEVICES is read as CUDA reads it: numbers, UUIDs and beginnings of UUIDs, up to the first that names no GPU. CUDA numbers
the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID; among GPUs of one kind that is nvidia-smi's order. NVIDIA_VISIBLE_DEVICES (of the
container runtime) is "none", or narrows by UUIDs; its numbers are the host's, and nvidia-smi shows a container its own GPUs only.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Literal

from health.checks.gpu.gpus import all_named
from health.nvidia.precision import common_precision
from supervisor.core.values import Struct
from supervisor.launch import system_command

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from health.model import Readings

DEADLINE_S: Final = 10.0
_NUMBER: Final = re.compile(r"[0-9]{1,18}")  # the first of more digits name no GPU either
#: Words with which people hide all GPUs.
_HIDING: Final = frozenset({"", "-1", "NoDevFiles"})
_QUERY: Final = ("--query-gpu=index,uuid,pci.bus_id,name", "--format=csv,noheader")
_LINE: Final = re.compile(r"(\d+), *(GPU-[0-9A-Za-z-]+), *([0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+\.[0-9A-Fa-f]), *(.*)")


class VisibleGpu(Struct, frozen=True):
    """One GPU. index: nvidia-smi's; CUDA's is its place in the list. pci: as in sysfs (0000:3b:00.0)."""

    index: int
    uuid: str
    pci: str


class NodeGpu(Struct, frozen=True):
    """One GPU of the node, whether the job sees it or not. index: nvidia-smi's. name: its product's."""

    index: int
    uuid: str
    pci: str
    name: str


class GpuChoice(Struct, frozen=True):
    """The GPUs that a list as in CUDA_VISIBLE_DEVICES names, in its order, up to the word at which CUDA stops.

    end: that word, "" where CUDA reads the whole list. why: it names no GPU of this node (missing), hides all from there on (hidden), was
    there before, for which CUDA shows none at all (repeated), is an instance of MIG (mig), or is not a name of a GPU (unreadable).
    """

    gpus: tuple[NodeGpu, ...]
    end: str = ""
    why: Literal["", "missing", "hidden", "repeated", "mig", "unreadable"] = ""


def visible_gpus(environ: Mapping[str, str], deadline_s: float = DEADLINE_S) -> tuple[VisibleGpu, ...]:
    """Return the GPUs that a job with this environment sees, first CUDA's number 0. None where nvidia-smi does not answer."""
    answer = system_command.run_system_command(
        ("nvidia-smi", *_QUERY), deadline_s, environ
    )  # by the job's own PATH, as the job itself would find it
    return () if answer is None else in_cuda_order(_rows(answer.text), environ)


def from_nvml(now: Readings, environ: Mapping[str, str]) -> tuple[VisibleGpu, ...]:
    """Return the same from NVML's readings: nvidia-smi numbers them as NVML does. A GPU that NVML cannot name cannot be used.

    Empty where NVML hung before it came to the last: its list is not complete.
    """
    return in_cuda_order(node_gpus(now), environ)


def node_gpus(now: Readings) -> tuple[NodeGpu, ...]:
    """Return the GPUs of this node by NVML's readings; none where it did not come to the last."""
    if not all_named(now):
        return ()
    gpus = []
    for reading in now.of("gpu.identity"):
        identity, uuid = now.table("gpu.identity", reading.subject), reading.subject.removeprefix("gpu:")
        index = identity.get("index")
        if isinstance(index, int) and not uuid.startswith("#"):
            gpus.append(NodeGpu(index, uuid, str(identity.get("pci") or ""), str(identity.get("name") or "")))
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def precision(now: Readings, uuids: Collection[str]) -> str:
    """Return the number format that all these GPUs have, or all of the node where none is named; "" where one of them is not known."""
    subjects = [f"gpu:{uuid}" for uuid in uuids] or [reading.subject for reading in now.of("gpu.identity")]
    values = [now.value("gpu.compute_capability", subject) for subject in subjects]
    known = [(int(value[0]), int(value[1])) for value in values if isinstance(value, list)]  # type: ignore[arg-type]  # two numbers
    return common_precision(known) if len(known) == len(values) and all_named(now) else ""


def pci_id(text: str) -> str:
    """Return a PCI address in sysfs's form: lower case, a domain of four digits."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def in_cuda_order(rows: Sequence[NodeGpu], environ: Mapping[str, str]) -> tuple[VisibleGpu, ...]:
    """Return those of the node's GPUs that the environment allows, in CUDA's order."""
    there = in_container(rows, environ)
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    chosen = choice(wanted, there).gpus
    if not order_is_known(there, environ):
        uuids = takewhile(lambda word: not _NUMBER.match(word.strip()), () if wanted is None else wanted.split(","))
        chosen = chosen[: sum(1 for _ in uuids)]
    return tuple(VisibleGpu(row.index, row.uuid, row.pci) for row in chosen)


def order_is_known(there: Sequence[NodeGpu], environ: Mapping[str, str]) -> bool:
    """Return whether CUDA numbers these GPUs as nvidia-smi does."""
    return environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({row.name for row in there}) == 1


def in_container(rows: Sequence[NodeGpu], environ: Mapping[str, str]) -> tuple[NodeGpu, ...]:
    """Return those of the node's GPUs that the container runtime lets through, by nvidia-smi's numbers."""
    there = sorted(rows, key=lambda row: row.index)
    container = environ.get("NVIDIA_VISIBLE_DEVICES", "")
    if container == "none":
        return ()
    named = [word.strip() for word in container.split(",") if word.strip().startswith("GPU-")]
    return tuple(row for row in there if not named or row.uuid in named)


def hides_all(environ: Mapping[str, str]) -> bool:
    """Return whether the environment hides every GPU from the job."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    return (listed is not None and listed.strip() in _HIDING) or is_container_without_gpus(environ)


def is_container_without_gpus(environ: Mapping[str, str]) -> bool:
    """Return whether the container runtime was asked for no GPU; GPUs that are visible all the same came in by another way."""
    return environ.get("NVIDIA_VISIBLE_DEVICES") in {"none", "void"}


def choice(wanted: str | None, there: Sequence[NodeGpu]) -> GpuChoice:
    """Return which of these GPUs a list as in CUDA_VISIBLE_DEVICES names; None: there is no list, and all are visible.

    Numbers are places among `there`, in CUDA's order where that is known. A word is read as strtoul does: `1gpu` is 1.
    """
    if wanted is None:
        return GpuChoice(tuple(there))
    gpus: list[NodeGpu] = []
    for word in map(str.strip, wanted.split(",")):
        number = _NUMBER.match(word)
        if word.startswith("MIG-"):
            return GpuChoice(tuple(gpus), word, "mig")
        if number is None and not word.startswith("GPU-"):
            return GpuChoice(tuple(gpus), word, "hidden" if word in _HIDING else "unreadable")
        named = there[int(number[0]) :][:1] if number is not None else [row for row in there if row.uuid.startswith(word)]
        if len(named) != 1:
            return GpuChoice(tuple(gpus), word, "unreadable" if named else "missing")
        if named[0] in gpus:
            return GpuChoice((), word, "repeated")
        gpus.append(named[0])
    return GpuChoice(tuple(gpus))


def _rows(text: str) -> list[NodeGpu]:
    """Read nvidia-smi's answer. Lines of another form (its text for a lost GPU) name no GPU that can be used."""
    matches = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return [NodeGpu(int(match[1]), match[2], pci_id(match[3]), match[4]) for match in matches if match]
