"""Who meets whom: a tournament in which everybody meets many others, and the meetings that settle a doubt.

In: numbers. Out: meetings, the same on every rank, so that nobody has to be told. Nothing here fails, and nothing is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from health.nodecheck.model import NOBODY, Meeting, Pair

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Rounds of a check, whatever the number of ranks: its time must not grow with the cluster. Eight nodes meet each other three times.
#: A node that fails one meeting in five is then not seen in 0.8^21 = 0.9 % of the checks, instead of 0.8^2 = 64 % with two rounds.
ROUNDS: Final = 21
#: Meetings with good partners that a rank under suspicion is given.
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


def schedule(world: int, rounds: int = ROUNDS) -> list[list[Meeting]]:
    """Return the rounds of the check: the tournament again and again, or, of one that is longer, rounds spread over all of it."""
    one = tournament(world)
    every = max(len(one) / rounds, 1.0)
    return [[Meeting(0, number, a, b) for a, b in one[int(number * every) % len(one)]] for number in range(rounds)]


def second_looks(
    suspects: Sequence[int], good: Sequence[int], again: Sequence[Pair] = (), meetings: int = SECOND_LOOKS
) -> list[list[Meeting]]:
    """Return rounds in which each suspect meets partners that passed, ever others, and the doubtful pairs meet AGAIN times."""
    waiting = [pair for _ in range(AGAIN) for pair in again]
    for turn in range(meetings if good else 0):
        for place, rank in enumerate(suspects):
            other = good[(place * 3 + turn) % len(good)]
            waiting.append((min(rank, other), max(rank, other)))
    rounds: list[list[Meeting]] = []
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
        rounds.append([Meeting(1, len(rounds), a, b) for a, b in chosen])
        waiting = later
    return rounds


def meeting_of(rank: int, meetings: Iterable[Meeting]) -> Meeting | None:
    """Return the meeting of a round in which the rank takes part; None where it rests."""
    return next((one for one in meetings if rank in (one.a, one.b)), None)
