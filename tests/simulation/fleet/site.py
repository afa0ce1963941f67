"""The place where the job runs: how long things take there, and how far an attempt comes in a given time.

The papers do not publish these times, so they are assumptions, equal for every policy that is compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from supervisor.report.ledger.reliability import save_interval_s
from tests.simulation.fleet.rates import DAY_S, GPUS_OF_A_NODE


@dataclass(frozen=True, slots=True)
class Site:
    """Seconds, unless a field says otherwise. The metadata of a field says why it has its value."""

    step_s: float = field(default=6.0, metadata={"why": "one optimizer step: 16 M tokens at 16,384 GPUs and 400 TFLOP/s each (computed)"})
    save_s: float = field(default=10.0, metadata={"why": "a save holds the ranks; the interval between saves is Daly's for it"})
    start_s: float = field(default=30.0, metadata={"why": "an attempt's start: processes, imports, process groups, load …"})
    doubling_s: float = field(default=10.0, metadata={"why": "… and so much more for each doubling of the GPUs (170 s at 16,384)"})
    watchdog_s: float = field(default=600.0, metadata={"why": "NCCL's watchdog ends ranks that hang: torch's default"})
    lost_s: float = field(default=300.0, metadata={"why": "a node is gone: SlurmdTimeout, then Slurm requeues the job"})
    join_s: float = field(default=600.0, metadata={"why": "torchrun's rendezvous waits so long for a node that is gone: its default"})
    requeue_s: float = field(default=300.0, metadata={"why": "from a job's end to its next start by the scheduler, with idle nodes"})
    person_s: float = field(default=3600.0, metadata={"why": "until a person has seen it, found what is broken, and starts the job again"})
    relapse_s: float = field(default=600.0, metadata={"why": "a node that is still broken fails again so long after the start, on average"})
    switch_s: float = field(default=2.0, metadata={"why": "torchrun: from a rank's end to the next start of the ranks"})

    def starts_s(self, gpus: int) -> float:
        """Return how long an attempt takes from its order to its first step."""
        return self.start_s + self.doubling_s * math.log2(gpus)

    def assumptions(self) -> tuple[tuple[str, float, str], ...]:
        """Return the name, the value and the reason of each time."""
        return tuple((field.name, float(getattr(self, field.name)), field.metadata["why"]) for field in fields(self))


class Reached(NamedTuple):
    """How far an attempt came: steps beyond its base, at its last whole save (None: none), whole saves, and whether one was cut off."""

    steps: int
    saved: int | None
    saves: int
    torn: bool


@dataclass(frozen=True, slots=True)
class Course:
    """How a job of this size trains at a site. every: steps between two saves."""

    site: Site
    gpus: int
    every: int

    @classmethod
    def of(cls, site: Site, gpus: int, rate: float) -> Course:
        """Return the course of a job that fails `rate` times per GPU and day: it saves as often as Daly's estimate says."""
        mtbf_s = DAY_S / (rate * gpus)
        return cls(site, gpus, max(round(save_interval_s(site.save_s, mtbf_s) / site.step_s), 1))

    @property
    def nodes(self) -> int:
        """How many nodes the job has."""
        return max(self.gpus // GPUS_OF_A_NODE, 1)

    @property
    def starts_s(self) -> float:
        """From the order of an attempt to its first step."""
        return self.site.starts_s(self.gpus)

    def reached(self, trained_s: float) -> Reached:
        """Return how far an attempt comes from a checkpoint in so many seconds of training."""
        trains_s = self.every * self.site.step_s
        saves, rest_s = divmod(max(trained_s, 0.0), trains_s + self.site.save_s)
        steps = int(saves) * self.every + min(int(rest_s / self.site.step_s), self.every)
        return Reached(steps, int(saves) * self.every if saves else None, int(saves), rest_s > trains_s)


@dataclass(slots=True)
class Account:
    """Where the time went, in seconds of the job's wall time, and how often. useful: steps that count, each once."""

    useful_s: float = 0.0
    saving_s: float = 0.0
    redone_s: float = 0.0
    starting_s: float = 0.0
    standing_s: float = 0.0
    interruptions: int = 0
    persons: int = 0
    longest_s: float = 0.0  # between two steps

    @property
    def total_s(self) -> float:
        """The wall time."""
        return self.useful_s + self.saving_s + self.redone_s + self.starting_s + self.standing_s

    @property
    def effective(self) -> float:
        """The share of the time in which steps were made that count (the papers' effective training time)."""
        return self.useful_s / self.total_s if self.total_s else 0.0
