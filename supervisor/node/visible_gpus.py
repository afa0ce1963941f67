"""The GPUs that the job can see, in the order in which CUDA counts them.

In: the job's environment, and NVML's readings where it was asked (node/health_watch.py), else nvidia-smi. Out: `Listed` values, empty where
there is no GPU, nobody who lists them, or where the order cannot be told: a number that is taken for the wrong GPU's would put a healthy
one out of use. nvidia-smi is asked under a deadline (launch/system_command.py). Nothing can fail, and nothing is kept.

CUDA_VISIBLE_DEVICES is read as CUDA reads it: numbers, UUIDs and beginnings of UUIDs, up to the first that names no GPU. CUDA numbers
the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID; among GPUs of one kind that is nvidia-smi's order. NVIDIA_VISIBLE_DEVICES (of the
container runtime) says "none", or narrows by UUIDs; its numbers are the host's, and nvidia-smi shows a container its own GPUs only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from health.checks.gpu.gpus import all_named
from supervisor.launch import system_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from health.model import Readings

DEADLINE_S: Final = 10.0
_QUERY: Final = ("--query-gpu=index,uuid,pci.bus_id,name", "--format=csv,noheader")
_LINE: Final = re.compile(r"(\d+), *(GPU-[0-9A-Za-z-]+), *([0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+\.[0-9A-Fa-f]), *(.*)")


@dataclass(frozen=True, slots=True)
class Listed:
    """One GPU. index: nvidia-smi's; CUDA's is its place in the list. pci: as in sysfs (0000:3b:00.0)."""

    index: int
    uuid: str
    pci: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found. answered: False where nvidia-smi is there and said nothing within the deadline, so that nothing is known."""

    gpus: tuple[Listed, ...]
    answered: bool = True


@dataclass(frozen=True, slots=True)
class _Row:
    index: int
    uuid: str
    pci: str
    name: str


def visible(environ: Mapping[str, str], deadline_s: float = DEADLINE_S) -> tuple[Listed, ...]:
    """Return the GPUs that a job with this environment sees, first CUDA's number 0."""
    return look(environ, deadline_s).gpus


def look(environ: Mapping[str, str], deadline_s: float = DEADLINE_S) -> Seen:
    """Return the same, and whether it is an answer."""
    answer = system_command.run_system_command(
        ("nvidia-smi", *_QUERY), deadline_s, environ
    )  # by the job's own PATH, as the job itself would find it
    return Seen((), answered=False) if answer is None else Seen(in_cudas_order(_rows(answer.text), environ))


def of_nvml(now: Readings, environ: Mapping[str, str]) -> tuple[Listed, ...]:
    """Return the same from NVML's readings: nvidia-smi numbers them as NVML does. A GPU that NVML cannot name is none that can be used.

    Empty where NVML hung before it came to the last: what it named is not all that there is.
    """
    if not all_named(now):
        return ()
    rows = []
    for reading in now.of("gpu.identity"):
        told, uuid = now.table("gpu.identity", reading.subject), reading.subject.removeprefix("gpu:")
        index = told.get("index")
        if isinstance(index, int) and not uuid.startswith("#"):
            rows.append(_Row(index, uuid, str(told.get("pci") or ""), str(told.get("name") or "")))
    return in_cudas_order(rows, environ)


def pci_id(text: str) -> str:
    """Return a PCI address in sysfs's form: lower case, a domain of four digits."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def in_cudas_order(rows: Sequence[_Row], environ: Mapping[str, str]) -> tuple[Listed, ...]:
    """Return what of the node's GPUs the environment lets through, in CUDA's order."""
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
            row = _meant(word.strip(), there)
            if row is None or (word.strip().isdecimal() and not order_is_known):
                break
            if row in chosen:  # CUDA takes a list that names one twice for an empty one
                return ()
            chosen.append(row)
    return tuple(Listed(row.index, row.uuid, row.pci) for row in chosen)


def _meant(word: str, there: Sequence[_Row]) -> _Row | None:
    if word.isdecimal():
        return there[int(word)] if int(word) < len(there) else None
    found = [row for row in there if word.startswith("GPU-") and row.uuid.startswith(word)]
    return found[0] if len(found) == 1 else None


def _rows(text: str) -> list[_Row]:
    """Read nvidia-smi's answer. Lines of another form (what it says of a GPU that is lost) name no GPU that can be used."""
    found = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return [_Row(int(match[1]), match[2], pci_id(match[3]), match[4]) for match in found if match]
