"""Schedules the ranks that measure together: a tournament in which each rank meets many others, then trials that decide doubtful cases.

Every rank computes the same schedule from the same numbers, so the ranks exchange nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from health.nodecheck.model import NOBODY, Pair, PairTrial

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Rounds of a check, whatever the number of ranks: its time must not grow with the cluster. Eight nodes meet each other three times.
#: Then 0.8^21 = 0.9 % of the checks miss a node that fails one meeting in five; with two rounds it would be 0.8^2 = 64 %.
ROUNDS: Final = 21
#: Meetings with good partners for each rank under suspicion.
SECOND_LOOKS: Final = 12
#: Further meetings of a pair that failed or was slow once.
AGAIN: Final = 6


def tournament(world: int) -> list[list[tuple[int, int]]]:
    """Return rounds in which each of `world` ranks meets each other once (the circle method); of an odd number one rests in each round."""
    circle = [*range(world), *([NOBODY] if world % 2 else [])]
    rounds = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append(sorted((min(a, b), max(a, b)) for a, b in pairs if NOBODY not in (a, b)))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def schedule(world: int, rounds: int = ROUNDS) -> list[list[PairTrial]]:
    """Return the rounds of the check: the tournament again and again, or, of one that is longer, rounds spread over all of it."""
    pairings = tournament(world)
    every = max(len(pairings) / rounds, 1.0)
    return [[PairTrial(0, number, a, b) for a, b in pairings[int(number * every) % len(pairings)]] for number in range(rounds)]


def second_looks(
    suspects: Sequence[int], good: Sequence[int], again: Sequence[Pair] = (), pair_trials: int = SECOND_LOOKS
) -> list[list[PairTrial]]:
    """Return rounds in which each suspect meets partners that passed, ever others, and the doubtful pairs meet AGAIN times."""
    waiting = [pair for _ in range(AGAIN) for pair in again]
    for turn in range(pair_trials if good else 0):
        for place, rank in enumerate(suspects):
            other = good[(place * 3 + turn) % len(good)]
            waiting.append((min(rank, other), max(rank, other)))
    rounds: list[list[PairTrial]] = []
    while waiting:
        busy: set[int] = set()
        later = []
        chosen = []
        for pair in waiting:
            if busy & set(pair):
                later.append(pair)
            else:
                busy.update(pair)
                chosen.append(pair)
        rounds.append([PairTrial(1, len(rounds), a, b) for a, b in chosen])
        waiting = later
    return rounds


def trial_of(rank: int, pair_trials: Iterable[PairTrial]) -> PairTrial | None:
    """Return the trial of a round in which the rank takes part; None where it rests."""
    return next((pair_trial for pair_trial in pair_trials if rank in (pair_trial.a, pair_trial.b)), None)
