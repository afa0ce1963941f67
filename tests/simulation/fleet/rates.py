"""What fails, and how often: the published counts, and how each of them shows.

published.csv holds what was published, with source and date. KINDS is our reading of it: the cause that the evidence shows, how the ranks
end, and how often the node stays broken. The papers do not give these, so each has its reason beside it.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from supervisor.core.model import Cause

if TYPE_CHECKING:
    from random import Random

TABLE = Path(__file__).with_name("published.csv")
DAY_S = 86_400.0
GPUS_OF_A_NODE = 8


class Published(NamedTuple):
    """A row of published.csv. gpus, days: of what it was counted on; 0: not given."""

    figure: str
    value: float
    unit: str
    gpus: int
    days: float
    source: str
    date: str
    how: str


class Symptom(StrEnum):
    """How a fault shows to who watches the ranks."""

    CRASH = "a rank ends at once"
    HANG = "nobody moves until NCCL's watchdog ends the ranks"
    LOST = "the node is gone"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """How a row of the published table is played.

    broken: the share of cases after which the node fails again until it is repaired; early: it then fails before the first step.
    """

    figure: str
    cause: Cause
    symptom: Symptom
    broken: float
    why: str
    early: bool = False


_NODE = "with all its ranks"
#: One row for each row of Llama 3's table 5.
KINDS = (
    FaultKind("faulty GPU", Cause.GPU_LOST, Symptom.CRASH, 1.0, "Xid 79, 74 or 62: gone until it is repaired", early=True),
    FaultKind("GPU HBM3 memory", Cause.GPU_ECC, Symptom.CRASH, 1.0, "Xid 48 or 94: a row is remapped at a reset only"),
    FaultKind(
        "software bug",
        Cause.USER_CODE,
        Symptom.CRASH,
        0.0,
        "an exception that a restart cures; another ends any job",
    ),
    FaultKind(
        "network switch/cable",
        Cause.NCCL_NETWORK,
        Symptom.CRASH,
        0.3,
        "most links flap (Unicron: a restart cures 73 % of errors)",
    ),
    FaultKind("unplanned host maintenance", Cause.NONE, Symptom.LOST, 1.0, _NODE),
    FaultKind("GPU SRAM memory", Cause.GPU_ECC, Symptom.CRASH, 1.0, "as HBM3"),
    FaultKind("GPU system processor", Cause.GPU_XID_OTHER, Symptom.CRASH, 1.0, "Xid 119: the GPU must be reset", early=True),
    FaultKind("NIC", Cause.NCCL_NETWORK, Symptom.CRASH, 1.0, "the card stays away; the log names no node"),
    FaultKind("NCCL watchdog timeouts", Cause.NCCL_TIMEOUT, Symptom.HANG, 0.0, "of unknown cause, so a restart is all that there is"),
    FaultKind("silent data corruption", Cause.NAN_LOSS, Symptom.CRASH, 0.0, "seen as a NaN; what stays unseen ends nothing"),
    FaultKind("GPU thermal interface and sensor", Cause.GPU_XID_OTHER, Symptom.CRASH, 1.0, "the GPU must be repaired"),
    FaultKind("SSD", Cause.NONE, Symptom.LOST, 1.0, _NODE),
    FaultKind("power supply", Cause.NONE, Symptom.LOST, 1.0, _NODE),
    FaultKind("server chassis", Cause.NONE, Symptom.LOST, 1.0, _NODE),
    FaultKind("IO expansion board", Cause.NONE, Symptom.LOST, 1.0, _NODE),
    FaultKind("dependency", Cause.STORAGE_REMOTE, Symptom.CRASH, 0.0, "a service that the job needs did not answer"),
    FaultKind("CPU", Cause.NONE, Symptom.LOST, 1.0, _NODE),
    FaultKind("system memory", Cause.NONE, Symptom.LOST, 1.0, _NODE),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. slot: the node's place in the job. stays: the node is broken from then on. variant: which of a kind's texts."""

    t: float
    kind: FaultKind
    slot: int
    stays: bool = False
    variant: int = 0


@cache
def published() -> tuple[Published, ...]:
    """Return the rows of published.csv."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(
            Published(
                r["figure"], float(r["value"]), r["unit"], int(r["gpus"] or 0), float(r["days"] or 0), r["source"], r["published"], r["how"]
            )
            for r in csv.DictReader(file)
        )


def figure(name: str, gpus: int = 0) -> Published:
    """Return the published figure of this name, of a job of so many GPUs where there are several."""
    (match,) = [row for row in published() if row.figure == name and gpus in {0, row.gpus}]
    return match


def llama_rate() -> float:
    """Return the unexpected interruptions per GPU and day of Llama 3's 54 days."""
    total = figure("unexpected interruptions")
    return total.value / total.gpus / total.days


def rsc_rate() -> float:
    """Return RSC-1's failures of the infrastructure per GPU and day."""
    return figure("failure rate of the infrastructure").value / 1000 / GPUS_OF_A_NODE


def drawn(gpus: int, days: float, rate: float, rng: Random) -> tuple[Fault, ...]:
    """Return the faults of a job in order: a Poisson process of `rate` per GPU and day, each kind as often as Llama 3 counted it."""
    weights = [figure(kind.figure).value for kind in KINDS]
    nodes = max(gpus // GPUS_OF_A_NODE, 1)
    t, faults = 0.0, []
    while True:
        t += rng.expovariate(rate * gpus / DAY_S)
        if t >= days * DAY_S:
            return tuple(faults)
        (kind,) = rng.choices(KINDS, weights)
        faults.append(Fault(t, kind, rng.randrange(nodes), rng.random() < kind.broken, rng.randrange(3)))
