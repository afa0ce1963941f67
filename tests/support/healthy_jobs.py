"""Healthy jobs that look as if they hung, in virtual time: what they do for how long, and what their heartbeats and a look would show."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor.core.model import Phase
from supervisor.core.values import replace
from tests.support.virtual_job import VirtualJob, VirtualLook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from supervisor.core.model import RankInfo
    from supervisor.observe.ranks.heartbeats import RankHeartbeat


@dataclass(frozen=True, slots=True)
class Stretch:
    """What rank 0 does for a while. `same`: how often a look shows the usual place; `cpu`: CPU time is used; `grows`: a checkpoint grows.

    phase: that it reports meanwhile, with its own limit. is_step: a step ends it.
    """

    name: str
    seconds: float
    same: float = 0.7
    cpu: bool = True
    grows: bool = False
    phase: Phase | None = None
    at_most_s: float | None = None
    is_step: bool = False


def step(dice: random.Random, usual_s: float, sigma: float) -> Stretch:
    """Return one step of a training, of a length with a heavy tail: lognormal, now and then Pareto (data, a slow peer, the network)."""
    seconds = usual_s * (dice.lognormvariate(0.0, sigma) if dice.random() > 0.02 else min(dice.paretovariate(1.5), 60.0))
    return Stretch("step", min(seconds, 100.0 * usual_s), is_step=True)


def first_step(dice: random.Random, usual_s: float) -> Iterator[Stretch]:
    """Import, load and compile: 60 times a step."""
    yield Stretch("import", dice.uniform(2, 40), phase=Phase.IMPORT)
    yield Stretch("load", dice.uniform(1, 200), same=0.95, cpu=False, grows=True, phase=Phase.LOAD)
    yield Stretch("compile", 60.0 * usual_s, same=0.2, phase=Phase.LOAD)
    yield step(dice, usual_s, 0.1)


def plain(dice: random.Random, usual_s: float) -> Iterator[Stretch]:
    """Steps alone, some with a garbage collection of 30 s."""
    sigma = dice.uniform(0.05, 1.2)
    while True:
        yield step(dice, usual_s, sigma)
        if dice.random() < 0.002:
            yield Stretch("gc", 30.0, same=1.0)


def evaluates(dice: random.Random, usual_s: float) -> Iterator[Stretch]:
    """Evaluations that no call declares, up to 300 times a step; in some a look mostly shows the same place."""
    every, longest, same = dice.choice([20, 50, 200, 1000]), dice.uniform(5, 300) * usual_s, dice.uniform(0.1, 0.95)
    for number in itertools.count(1):
        yield step(dice, usual_s, 0.4)
        if number % every == 0:
            yield Stretch("evaluation", min(longest * dice.uniform(0.5, 1.0), 7200.0), same=same)


def declares(dice: random.Random, usual_s: float) -> Iterator[Stretch]:
    """Evaluations in a declared phase, which take what was declared at most, often in one call into C that uses no CPU time here."""
    at_most_s = 300.0 * usual_s
    for number in itertools.count(1):
        yield step(dice, usual_s, 0.3)
        if number % 40 == 0:
            yield Stretch("evaluation", dice.uniform(0.1, 0.99) * at_most_s, 1.0, cpu=False, phase=Phase.EVAL, at_most_s=at_most_s)


def saves(dice: random.Random, usual_s: float) -> Iterator[Stretch]:
    """Long checkpoints of rank 0, at times 20 times slower, on a disk that now and then stands still for a while."""
    usual_save_s = dice.uniform(1, 120)
    for number in itertools.count(1):
        yield step(dice, usual_s, 0.5)
        if number % 30 == 0:
            seconds = usual_save_s * (20.0 if dice.random() < 0.1 else 1.0)
            yield Stretch("save", seconds, same=0.99, cpu=False, grows=True, phase=Phase.CHECKPOINT)
            yield Stretch("save", dice.uniform(0, 300), same=1.0, cpu=False, phase=Phase.CHECKPOINT)
            yield Stretch("save", seconds / 2, same=0.99, cpu=False, grows=True, phase=Phase.CHECKPOINT)


def rollouts(dice: random.Random, usual_s: float) -> Iterator[Stretch]:
    """Reinforcement learning: a rollout of widely varying length before each few steps; half of the jobs declare it."""
    phase = dice.choice([None, Phase.DATA])
    while True:
        yield Stretch("rollout", min(usual_s * dice.lognormvariate(3.0, 1.0), 3000.0), same=0.8, phase=phase)
        yield from (step(dice, usual_s, 0.3) for _ in range(4))


def infers(dice: random.Random, usual_s: float) -> Iterator[Stretch]:
    """No optimizer: no step is ever seen. Some write results."""
    same = dice.uniform(0.3, 0.95)
    while True:
        yield Stretch("batch", usual_s * dice.lognormvariate(0.0, 0.5), same=same)


FAMILIES: dict[str, Callable[[random.Random, float], Iterator[Stretch]]] = {
    function.__name__: function for function in (plain, evaluates, declares, saves, rollouts, infers)
}


class SimulatedJob(VirtualJob):
    """One job of a family, by its seed. Rank 0 does what the family says, rank 1 waits for it and steps with it."""

    def __init__(self, seed: int) -> None:
        """Choose a family and the length of a step, from 0.2 s to 10 minutes."""
        super().__init__(ranks=2)
        self.dice = random.Random(seed)  # noqa: S311 - a simulation
        self.family = self.dice.choice(list(FAMILIES))
        self.usual_s = 10 ** self.dice.uniform(-0.7, 1.5) if self.dice.random() > 0.05 else self.dice.uniform(60, 600)
        self.tick_s = 1.0 if self.usual_s < 10 else 4.0
        self.stretches = itertools.chain(first_step(self.dice, self.usual_s), FAMILIES[self.family](self.dice, self.usual_s))
        self.now = next(self.stretches)
        self.began_t, self.written = self.t, 0
        self.frozen: str | None = None
        self._show()

    # what a look shows

    def start(self, ranks: Sequence[RankInfo], beats: Sequence[RankHeartbeat], done: Callable[[VirtualLook | None], None]) -> None:
        """Show the usual place of the work, or another."""
        if self.frozen is not None:
            place, cpu_s = "frozen", self.t if self.frozen == "spins" else 0.0
        else:
            place = self.now.name if self.dice.random() < self.now.same else f"{self.now.name} {self.dice.random()}"
            cpu_s = self.t if self.now.cpu else 0.0
        self.look = VirtualLook(place, cpu_s)
        super().start(ranks, beats, done)

    # what happens

    def _show(self) -> None:
        """Write the beginning of a stretch into the heartbeat of rank 0."""
        phase = self.now.phase or (Phase.TRAIN if self.beats[0].steps else self.beats[0].phase)
        if (phase, self.now.at_most_s) != (self.beats[0].phase, self.beats[0].phase_limit_s):
            self.set(0, phase=phase, phase_since_ns=round(self.began_t * 1e9), phase_limit_s=self.now.at_most_s)

    def _goes_on(self) -> None:
        """Do what is over by now."""
        while self.began_t + self.now.seconds <= self.t:
            self.began_t += self.now.seconds
            if self.now.is_step:
                ended_ns = round(self.began_t * 1e9)
                self.beats = tuple(
                    replace(beat, steps=beat.steps + 1, last_step_ns=ended_ns)
                    if beat.phase is Phase.TRAIN
                    else replace(beat, steps=beat.steps + 1, last_step_ns=ended_ns, phase=Phase.TRAIN, phase_since_ns=ended_ns)
                    for beat in self.beats
                )
            self.now = next(self.stretches)
            self._show()
        if self.now.grows:
            self.written += 400_000
        self.moved_bytes[100] = self.written

    def runs(self, seconds: float) -> None:
        """Let it run, with a pause of ours now and then."""
        end = self.t + seconds
        while self.t < end:
            self.t += self.tick_s
            draw = self.dice.random()
            if draw < 0.0001:
                self.t += self.dice.uniform(10, 600)  # supervise was stopped, the job continued
            elif draw < 0.0002:
                self.suspended_s += 3600.0
            self._goes_on()
            self.sample()

    def hangs(self, how: str, at_most_s: float) -> float | None:
        """Have it stand still for ever (`spins`: with CPU time), and return after how long that is confirmed."""
        self.frozen = how
        began, known = self.t, len(self.posted)
        while self.t < began + at_most_s:
            self.t += self.tick_s
            self.sample()
            if "Confirmed" in self.kinds[known:]:
                return self.t - began
        return None
