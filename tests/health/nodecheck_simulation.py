"""Nodes that do not exist, with faults, in front of the real plan and the real judge; and a single-pass check to compare with.

From the number of nodes, faults and a seed it makes Evidence as a real check would have it.

Times are lognormal around those of a small cluster; `disturbed` of the trials take several times as long, as on a machine that others use.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from health.nodecheck import schedule
from health.nodecheck.model import NOBODY, Fault, FaultKind, Kind, Member, PairTrial, Sample, TrialEvidence
from health.nodecheck.trial_judge import second_look

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Seconds of each kind on a healthy node, and the trials of one meeting.
_HEALTHY: Final = {Kind.COMPUTE: (2e-3, 5), Kind.SMALL: (2e-4, 10), Kind.LARGE: (4e-3, 5), Kind.SWAP: (1e-3, 5), Kind.OVERLAP: (5e-3, 3)}


@dataclass(frozen=True, slots=True)
class World:
    """What is simulated. spread: of a trial, relative. disturbed: share of trials that others disturb. ranks_per_machine: of one kernel."""

    nodes: int = 8
    faults: tuple[Fault, ...] = ()
    spread: float = 0.05
    disturbed: float = 0.1
    ranks_per_machine: int = 1


def check(world: World, seed: int, rounds: int = schedule.ROUNDS) -> TrialEvidence:
    """Return what a whole check would have seen: the tournament, and the second looks that its verdicts ask for."""
    rng = random.Random(seed)  # noqa: S311  a simulation
    members = {
        rank: Member(rank, f"node-{rank}", str(rank // world.ranks_per_machine), "cuda:0", "simulated") for rank in range(world.nodes)
    }
    samples = [sample for pair_trials in schedule.schedule(world.nodes, rounds) for sample in _round(world, pair_trials, rng)]
    first = TrialEvidence(members, tuple(samples), world=world.nodes)
    samples += [sample for pair_trials in schedule.second_looks(*second_look(first)) for sample in _round(world, pair_trials, rng)]
    return TrialEvidence(members, tuple(samples), world=world.nodes)


def single_pass(world: World, seed: int) -> set[int]:
    """Return whom a check of two rounds names: who failed in both, or is slower in sum than twice the median.

    First neighbours meet, then the slowest the fastest. It is
    the one that DLRover makes: a round takes one time for compute and communication together, and one good round acquits.
    """
    rng = random.Random(seed)  # noqa: S311  a simulation
    took: dict[int, list[float]] = {rank: [] for rank in range(world.nodes)}
    failed = dict.fromkeys(range(world.nodes), 0)
    order = [*range(world.nodes)]
    for number in range(2):
        pairs = zip(order[::2], order[1::2], strict=True) if not number else zip(order[: len(order) // 2], reversed(order), strict=False)
        for sample in _round(world, [PairTrial(0, number, min(pair), max(pair)) for pair in pairs], rng):
            failed[sample.rank] += bool(sample.failure)
            took[sample.rank].append(sum(median(sample.seconds[kind]) for kind in (Kind.COMPUTE, Kind.LARGE) if kind in sample.seconds))
        order.sort(key=lambda rank: took[rank][-1])
    typical = median(min(times) for times in took.values())
    return {rank for rank in took if failed[rank] == 2 or min(took[rank]) > 2 * typical}


def _round(world: World, pair_trials: Sequence[PairTrial], rng: random.Random) -> Iterable[Sample]:
    """Yield the samples of both ends of each meeting, and of those that rest."""
    for pair_trial in pair_trials:
        pair = (pair_trial.a, pair_trial.b)
        failed = any(
            rng.random() < fault.amount
            for fault in world.faults
            if fault.kind in (FaultKind.FAIL, FaultKind.CORRUPT) and fault.rank in pair
        )
        until = rng.choice((Kind.SMALL, Kind.LARGE, Kind.SWAP)) if failed else None
        for rank in pair:
            seconds = {Kind.COMPUTE: _trials(world, Kind.COMPUTE, (rank,), rng)}
            for kind in (Kind.SMALL, Kind.LARGE, Kind.SWAP, Kind.OVERLAP):
                if kind is until:
                    break
                seconds[kind] = _trials(world, kind, pair, rng)
            failure = f"{until.value}: connection closed" if until is not None else ""
            yield Sample(pair_trial.phase, pair_trial.number, rank, pair_trial.partner(rank), seconds, failure)
    for rank in {*range(world.nodes)} - {rank for pair_trial in pair_trials for rank in (pair_trial.a, pair_trial.b)}:
        compute = {Kind.COMPUTE: _trials(world, Kind.COMPUTE, (rank,), rng)}
        yield Sample(pair_trials[0].phase if pair_trials else 0, pair_trials[0].number if pair_trials else 0, rank, NOBODY, compute)


def _trials(world: World, kind: Kind, ranks: tuple[int, ...], rng: random.Random) -> tuple[float, ...]:
    """Return the seconds of every trial of one kind."""
    typical, count = _HEALTHY[kind]
    slow = [fault.amount for fault in world.faults if fault.kind is FaultKind.SLOW_COMPUTE and fault.rank in ranks]
    if slow and kind in (Kind.COMPUTE, Kind.OVERLAP):
        typical += _HEALTHY[Kind.COMPUTE][0] * (max(slow) - 1)
    if kind is not Kind.COMPUTE:
        pair = (min(ranks), max(ranks))
        typical += sum(fault.amount for fault in world.faults if fault.of_link(pair))
    times = []
    for _ in range(count):
        second = typical * rng.lognormvariate(0, world.spread)
        times.append(second * (1 + 5 * rng.random()) if rng.random() < world.disturbed else second)
    return tuple(times)
