"""Judges pair trials (in reports: meetings): which rank or link fails or is slow, and which deserve a second look.

failures  Every failed meeting counts, however many passed. Ranks that failed with several partners are removed one by one, the one with
          most partners first. Remaining failures between two ranks without other failures are those of their link. If a rank fails with
          few partners, and with these nearly always, its links are bad and the rank is not.
times     The time of a meeting is that of its best trial, because disturbances only add time. The time of a pair or rank is the lower
          median of its meetings. Where ranks share a CPU, the time of a pair is that of its best meeting: most may be disturbed.
          It is slow if it is `ratio` times that of the others, and differs from them by more than the meetings of one pair differ. Pairs
          within a machine, pairs between machines, and different models are not compared with each other.
partners  A rank is judged by its pairs with ranks that are not accused: an accused rank is removed before the next one is judged. Links
          are judged last, among ranks that all passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median, median_low
from typing import TYPE_CHECKING, Final

from health.nodecheck.model import NOBODY, TOGETHER, Kind, Pair

if TYPE_CHECKING:
    from health.nodecheck.model import Sample, TrialEvidence


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits above which something is slow. All but `noise` are ratios to the others' times."""

    #: Matrix products: GPUs of one model differ by some percent (SuperBench: 3-5 % between healthy A100s).
    compute: float = 1.25
    #: The work of a pair: other switches, other NUMA nodes.
    pair: float = 1.5
    #: The same where ranks share a machine's CPU: its time is not all theirs.
    crowded_compute: float = 1.6
    crowded_pair: float = 3.0
    #: How many times farther than the meetings of one pair lie apart (median of all pairs' ranges).
    noise: float = 3.0
    #: From when on it is FAILED instead of DEGRADED (DLRover calls it a straggler from 2 times the median on).
    failed: float = 2.0
    #: Share of a rank's pairs by which it is judged: the pair at this place of its sorted pairs is slow. A third: one good pair in
    #: three acquits, since no slow rank has any.
    of_pairs: float = 1 / 3
    #: Share of meetings that failed from which a pair is treated as always failing.
    always: float = 0.75


@dataclass(frozen=True, slots=True)
class Slow:
    """A slow subject: its time, that of the others (median), and how many they are."""

    kind: Kind

    seconds: float
    others: float
    count: int

    @property
    def ratio(self) -> float:
        """How many times the others' time."""
        return self.seconds / self.others


@dataclass(frozen=True, slots=True)
class Verdicts:
    """All faults. A rank or link is in one of them at most, but a failing rank may also compute slowly.

    failing, failing_links: what failed in each meeting that did. doubts: pairs that failed, or were slow,
    once, so that it may be chance, the link or either end.
    """

    failing: Mapping[int, tuple[str, ...]]
    failing_links: Mapping[Pair, tuple[str, ...]]
    doubts: Mapping[Pair, str]
    slow_compute: Mapping[int, Slow]
    slow_ranks: Mapping[int, tuple[Slow, ...]]
    slow_links: Mapping[Pair, tuple[Slow, ...]]

    @property
    def touched(self) -> set[int]:
        """The ranks with any fault here other than slow computing."""
        pairs = (*self.failing_links, *self.doubts, *self.slow_links)
        return {*self.failing, *self.slow_ranks, *(rank for pair in pairs for rank in pair)}


DEFAULT: Final = Limits()


def judge(known: TrialEvidence, limits: Limits = DEFAULT) -> Verdicts:
    """Return the faults of the ranks that are not gone."""
    failed = failed_pairs(known)
    ranks, links, once = _failing(known, failed, limits)
    slow = _slow_compute(known, limits)
    slow_ranks, slow_links, seldom = _slow_together(known, {*ranks, *slow}, links, limits)
    return Verdicts(
        failing={
            rank: tuple([sample.failure for sample in known.samples if sample.rank == rank and sample.own])
            + tuple(f"with rank {sum(pair) - rank}: {word}" for pair, why in failed.items() if rank in pair for word in why)
            for rank in ranks
        },
        failing_links={pair: tuple(failed[pair]) for pair in links},
        doubts={**{pair: failed[pair][0] for pair in once}, **seldom},
        slow_compute=slow,
        slow_ranks=slow_ranks,
        slow_links=slow_links,
    )


def second_look(known: TrialEvidence, limits: Limits = DEFAULT) -> tuple[list[int], list[int], list[Pair]]:
    """Return the suspects, which meet good partners again, the good ranks, and the pairs that should meet once more.

    A rank is a suspect if a failure or a slow link touches it: further partners show whether rank or link is bad. At most half of the
    ranks are suspects.
    """
    verdicts = judge(known, limits)
    here = [rank for rank in sorted(known.members) if rank not in known.gone]
    weight = Counter(rank for pair, why in failed_pairs(known).items() for rank in pair for _ in why)
    chosen = sorted((rank for rank in verdicts.touched if rank in here), key=lambda rank: (-weight[rank], rank))
    again = [pair for pair in (*verdicts.doubts, *verdicts.failing_links) if set(pair) <= set(here)]
    return sorted(chosen[: max(2, len(here) // 2)]), [rank for rank in here if rank not in verdicts.touched], again


# --- failures -------------------------------------------------------------------------------------------------------------------------


def pair_trials(known: TrialEvidence) -> dict[tuple[int, int, Pair], list[Sample]]:
    """Return the one or two samples of each meeting at which both ranks were present."""
    samples: dict[tuple[int, int, Pair], list[Sample]] = {}
    for sample in known.samples:
        if sample.partner != NOBODY and not sample.absent and not known.gone.keys() & set(sample.pair):
            samples.setdefault((sample.phase, sample.number, sample.pair), []).append(sample)
    return samples


def failed_pairs(known: TrialEvidence) -> dict[Pair, list[str]]:
    """Return the first failure of each failed meeting, by pair. A failure of one rank alone is not the pair's."""
    errors: dict[Pair, list[str]] = {}
    for (_, _, pair), both in pair_trials(known).items():
        bad = [sample for sample in both if sample.failure]
        if bad and not any(sample.own for sample in bad):
            errors.setdefault(pair, []).append(bad[0].failure)
    return errors


def _failing(known: TrialEvidence, failed: Mapping[Pair, list[str]], limits: Limits) -> tuple[set[int], set[Pair], set[Pair]]:
    """Return the ranks that fail, the links, and the pairs that failed once and nobody knows why."""
    ranks = {sample.rank for sample in known.samples if sample.own and sample.rank not in known.gone}
    met = Counter(pair for _, _, pair in pair_trials(known))
    links: set[Pair] = set()
    while True:
        left = {pair: len(why) for pair, why in failed.items() if not ranks & set(pair) and pair not in links}
        partners = Counter(rank for pair in left for rank in pair)
        weight = {rank: sum(count for pair, count in left.items() if rank in pair) for rank in partners}
        worst = max(partners, key=lambda rank: (partners[rank], weight[rank], -rank), default=NOBODY)
        if worst == NOBODY or partners[worst] < 2:  # noqa: PLR2004  one partner alone: it may be the partner or the link
            return ranks, links | {pair for pair, count in left.items() if count > 1}, {pair for pair, count in left.items() if count == 1}
        of_worst = {pair for pair in left if worst in pair}
        met_all = [pair for pair in met if worst in pair and not ranks & set(pair)]
        if 2 * len(of_worst) < len(met_all) and all(left[pair] >= max(2, limits.always * met[pair]) for pair in of_worst):
            links |= of_worst
        else:
            ranks.add(worst)


# --- times ----------------------------------------------------------------------------------------------------------------------------


def speeds(known: TrialEvidence) -> list[float]:
    """Return how fast each rank makes matrix products, in multiples of the slowest; empty where one of them is not known."""
    times = _compute_times(known)
    typical = [median_low(times[rank]) for rank in range(known.world) if rank in times]
    return [round(max(typical) / time, 2) for time in typical] if len(typical) == known.world else []


def _compute_times(known: TrialEvidence) -> dict[int, list[float]]:
    """Return the best time of the matrix products in each meeting, by rank."""
    times: dict[int, list[float]] = {}
    for sample in known.samples:
        if trials := sample.seconds.get(Kind.COMPUTE):
            times.setdefault(sample.rank, []).append(min(trials))
    return times


def _slow_compute(known: TrialEvidence, limits: Limits) -> dict[int, Slow]:
    """Return the ranks whose matrix products take too long, among ranks of the same model."""
    pair_trials = _compute_times(known)
    typical = {rank: median_low(times) for rank, times in pair_trials.items() if rank in known.members}
    slow: dict[int, Slow] = {}
    while True:
        slow_ranks: dict[int, Slow] = {}
        for rank in typical.keys() - slow.keys():
            alike = [other for other in typical if other not in slow and known.members[other].model == known.members[rank].model]
            others = [typical[other] for other in alike if other != rank]
            noise = median([_range(pair_trials[other]) for other in alike])
            ratio = limits.crowded_compute if crowded(known, rank) else limits.compute
            if others and _is_slow(typical[rank], median_low(others), noise, ratio, limits):
                slow_ranks[rank] = Slow(Kind.COMPUTE, typical[rank], median_low(others), len(others))
        if not slow_ranks:
            return slow
        worst = max(slow_ranks, key=lambda rank: slow_ranks[rank].ratio)
        slow[worst] = slow_ranks[worst]


def crowded(known: TrialEvidence, *ranks: int) -> bool:
    """Return whether any of these ranks computes on a CPU that it shares with another rank."""
    machines = Counter(member.machine for member in known.members.values() if member.device == "cpu")
    return any(machines[known.members[rank].machine] > 1 for rank in ranks if known.members[rank].device == "cpu")


def _slow_together(
    known: TrialEvidence, accused: set[int], links: set[Pair], limits: Limits
) -> tuple[dict[int, tuple[Slow, ...]], dict[Pair, tuple[Slow, ...]], dict[Pair, str]]:
    """Return the ranks and the links that communicate too slowly, and pairs that were slow in the only meeting they had."""
    ranks: dict[int, tuple[Slow, ...]] = {}
    pairs: dict[Pair, tuple[Slow, ...]] = {}
    for kind in TOGETHER:
        slow_ranks, slow_pairs = _slow_of(known, kind, accused, links, limits)
        ranks.update({rank: (*ranks.get(rank, ()), trial) for rank, trial in slow_ranks.items()})
        pairs.update({pair: (*pairs.get(pair, ()), trial) for pair, trial in slow_pairs.items()})
    pairs = {pair: slow for pair, slow in pairs.items() if not ranks.keys() & set(pair)}
    met = Counter(pair for _, _, pair in pair_trials(known))
    return (
        ranks,
        {pair: slow for pair, slow in pairs.items() if met[pair] > 1},
        {pair: f"{slow[0].kind} took {slow[0].ratio:.1f} times as long as others" for pair, slow in pairs.items() if met[pair] == 1},
    )


def _slow_of(
    known: TrialEvidence, kind: Kind, accused: set[int], links: set[Pair], limits: Limits
) -> tuple[dict[int, Slow], dict[Pair, Slow]]:
    """Return the slow ranks and the slow links of one kind."""
    ranks: dict[int, Slow] = {}
    pairs: dict[Pair, Slow] = {}
    for times in _classes(known, kind, accused, links):
        noise = median([_range(values) for values in times.values()])
        shared = any(crowded(known, *pair) for pair in times)
        typical = {pair: min(values) if shared else median_low(values) for pair, values in times.items()}
        ratio = limits.crowded_pair if shared else limits.pair
        while (slow := _slowest_rank(kind, typical, noise, ratio, limits)) is not None:
            rank, ranks[rank] = slow
            typical = {pair: second for pair, second in typical.items() if rank not in pair}
        for pair, second in typical.items():
            others = [time for other, time in typical.items() if other != pair]
            if len(others) > 1 and _is_slow(second, median(others), noise, ratio, limits):
                pairs[pair] = Slow(kind, second, median(others), len(others))
    return ranks, pairs


def _classes(known: TrialEvidence, kind: Kind, accused: set[int], links: set[Pair]) -> Iterable[Mapping[Pair, list[float]]]:
    """Yield the meetings' best times of the pairs that may be compared: within machines, then between them, of the same models."""
    classes: dict[tuple[bool, frozenset[str]], dict[Pair, list[float]]] = {}
    for (_, _, pair), both in pair_trials(known).items():
        best = [min(sample.seconds[kind]) for sample in both if sample.seconds.get(kind) and not sample.failure]
        if best and pair not in links and not accused & set(pair) and known.members.keys() >= set(pair):
            a, b = (known.members[rank] for rank in pair)
            classes.setdefault((a.machine == b.machine, frozenset((a.model, b.model))), {}).setdefault(pair, []).append(min(best))
    return classes.values()


def _slowest_rank(kind: Kind, typical: Mapping[Pair, float], noise: float, ratio: float, limits: Limits) -> tuple[int, Slow] | None:
    """Return the rank that is slow with most of its partners, compared with the pairs in which it has no part."""
    slow: dict[int, Slow] = {}
    for rank in {rank for pair in typical for rank in pair}:
        own = sorted(second for pair, second in typical.items() if rank in pair)
        others = sorted(second for pair, second in typical.items() if rank not in pair)
        if len(own) < 2 or not others:  # noqa: PLR2004  one pair alone cannot say which end it is
            continue
        # the others' good ones: a second slow rank among four would be half of all others, and hide this one
        good = others[len(others) // 4]
        if _is_slow(own[int(len(own) * limits.of_pairs)], good, noise, ratio, limits) and _is_slow(own[0], good, noise, ratio**0.5, limits):
            slow[rank] = Slow(kind, median_low(own), median_low(others), len(others))
    worst = max(slow, key=lambda rank: slow[rank].seconds, default=NOBODY)
    return None if worst == NOBODY else (worst, slow[worst])


def _is_slow(second: float, others: float, noise: float, ratio: float, limits: Limits) -> bool:
    return others > 0 and second > ratio * others and second - others > limits.noise * noise


def _range(times: Iterable[float]) -> float:
    """How far the meetings lie apart, by their middle half: one disturbed meeting says nothing."""
    ordered = sorted(times)
    return ordered[(3 * len(ordered)) // 4 if len(ordered) > 3 else -1] - ordered[len(ordered) // 4]  # noqa: PLR2004  less than four have no quarters
