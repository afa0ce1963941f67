"""The nodes of a job: which of them are broken, and what strikes an attempt next. The faults are drawn beforehand, for all policies."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from random import Random

from tests.simulation.fleet.rates import Fault, Symptom
from tests.simulation.fleet.site import Course


@dataclass(slots=True)
class Machines:
    """The nodes in the job's slots. replaced: by slot, how often another node took it."""

    course: Course
    faults: tuple[Fault, ...]
    rng: Random
    broken: dict[int, Fault] = field(default_factory=dict)
    replaced: dict[int, int] = field(default_factory=dict)
    _next: int = 0

    def strikes(self, begins_t: float) -> Fault | None:
        """Return what ends an attempt that begins then, None if nothing does: a new fault, or a broken node that is still in the job."""
        course = self.course
        while self._next < len(self.faults) and self.faults[self._next].t <= begins_t:
            missed = self.faults[self._next]  # while nothing ran: the job meets it only if the node is still broken
            self._next += 1
            if missed.stays and missed.kind.symptom is not Symptom.LOST:
                self.broken.setdefault(missed.slot, missed)
        fresh = self.faults[self._next] if self._next < len(self.faults) else None
        again: Fault | None = None
        for fault in self.broken.values():
            after_s = course.starts_s / 2 if fault.kind.early else course.starts_s + self.rng.expovariate(1 / course.site.relapse_s)
            relapse = dataclasses.replace(fault, t=begins_t + after_s, stays=True)
            again = relapse if again is None or relapse.t < again.t else again
        if again is not None and (fresh is None or again.t < fresh.t):
            return again
        if fresh is not None:
            self._next += 1
            if fresh.stays:
                self.broken[fresh.slot] = fresh
        return fresh

    def replace(self, slot: int) -> None:
        """Put another node into a slot."""
        self.broken.pop(slot, None)
        self.replaced[slot] = self.replaced.get(slot, 0) + 1

    def repair(self) -> None:
        """Put another node into the slot of each broken one."""
        for slot in tuple(self.broken):
            self.replace(slot)

    def gpus(self, slot: int) -> tuple[str, ...]:
        """Return the UUIDs of a node's GPUs."""
        return tuple(f"GPU-{slot}.{self.replaced.get(slot, 0)}-{index}" for index in range(8))
