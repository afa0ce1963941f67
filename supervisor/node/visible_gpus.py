"""Lists the GPUs that the job can see, in the order in which CUDA counts them.

NVML's readings (health_watch.py) name them, else nvidia-smi under a deadline. The list is empty where the order is not known: a number that
is taken for another GPU's would quarantine a healthy one.

CUDA_VISIBLE_DEVICES is read as CUDA reads it: numbers, UUIDs and beginnings of UUIDs, up to the first that names no GPU. CUDA numbers
the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID; among GPUs of one kind that is nvidia-smi's order. NVIDIA_VISIBLE_DEVICES (of the
container runtime) is "none", or narrows by UUIDs; its numbers are the host's, and nvidia-smi shows a container its own GPUs only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from health.checks.gpu.gpus import all_named
from health.nvidia.precision import common_precision
from supervisor.core.values import Struct
from supervisor.launch import system_command

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from health.model import Readings

DEADLINE_S: Final = 10.0
_QUERY: Final = ("--query-gpu=index,uuid,pci.bus_id,name", "--format=csv,noheader")
_LINE: Final = re.compile(r"(\d+), *(GPU-[0-9A-Za-z-]+), *([0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+\.[0-9A-Fa-f]), *(.*)")


class VisibleGpu(Struct, frozen=True):
    """One GPU. index: nvidia-smi's; CUDA's is its place in the list. pci: as in sysfs (0000:3b:00.0)."""

    index: int
    uuid: str
    pci: str


class _Row(Struct, frozen=True):
    index: int
    uuid: str
    pci: str
    name: str


def visible_gpus(environ: Mapping[str, str], deadline_s: float = DEADLINE_S) -> tuple[VisibleGpu, ...]:
    """Return the GPUs that a job with this environment sees, first CUDA's number 0. None where nvidia-smi does not answer."""
    answer = system_command.run_system_command(
        ("nvidia-smi", *_QUERY), deadline_s, environ
    )  # by the job's own PATH, as the job itself would find it
    return () if answer is None else in_cuda_order(_rows(answer.text), environ)


def from_nvml(now: Readings, environ: Mapping[str, str]) -> tuple[VisibleGpu, ...]:
    """Return the same from NVML's readings: nvidia-smi numbers them as NVML does. A GPU that NVML cannot name is none that can be used.

    Empty where NVML hung before it came to the last: what it named is not all that there is.
    """
    if not all_named(now):
        return ()
    rows = []
    for reading in now.of("gpu.identity"):
        identity, uuid = now.table("gpu.identity", reading.subject), reading.subject.removeprefix("gpu:")
        index = identity.get("index")
        if isinstance(index, int) and not uuid.startswith("#"):
            rows.append(_Row(index, uuid, str(identity.get("pci") or ""), str(identity.get("name") or "")))
    return in_cuda_order(rows, environ)


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


def in_cuda_order(rows: Sequence[_Row], environ: Mapping[str, str]) -> tuple[VisibleGpu, ...]:
    """Return those of the node's GPUs that the environment allows, in CUDA's order."""
    there = sorted(rows, key=lambda row: row.index)
    container = environ.get("NVIDIA_VISIBLE_DEVICES", "")
    if container == "none":
        return ()
    named = [word.strip() for word in container.split(",") if word.strip().startswith("GPU-")]
    there = [row for row in there if not named or row.uuid in named]
    order_is_known = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({row.name for row in there}) == 1
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    chosen: list[_Row] = []
    if wanted is None:
        chosen = there if order_is_known else []
    else:
        for word in wanted.split(","):
            row = _named_gpu(word.strip(), there)
            if row is None or (word.strip().isdecimal() and not order_is_known):
                break
            if row in chosen:  # CUDA takes a list that names one twice for an empty one
                return ()
            chosen.append(row)
    return tuple(VisibleGpu(row.index, row.uuid, row.pci) for row in chosen)


def _named_gpu(word: str, there: Sequence[_Row]) -> _Row | None:
    if word.isdecimal():
        return there[int(word)] if int(word) < len(there) else None
    found = [row for row in there if word.startswith("GPU-") and row.uuid.startswith(word)]
    return found[0] if len(found) == 1 else None


def _rows(text: str) -> list[_Row]:
    """Read nvidia-smi's answer. Lines of another form (its text for a lost GPU) name no GPU that can be used."""
    found = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return [_Row(int(match[1]), match[2], pci_id(match[3]), match[4]) for match in found if match]
