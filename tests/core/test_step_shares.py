"""Who waits for whom, by where the steps of the ranks go: the sentence names the rank and the part, and is silent where all are alike."""

from __future__ import annotations

import pytest

from supervisor.core.step_shares import PARTS, RankShares, compared, reasons
from supervisor.instrument._supervise_shim import layout


def rank(disk: float = 0.0, place: str = "", **parts: float) -> RankShares:
    """Return the shares of a rank; what is left of the time is forward and backward."""
    known = {"compute": 100 - sum(parts.values()), **parts}
    return RankShares(tuple(float(known.get(part, 0)) for part in PARTS), disk, place=place)


def job(slow: RankShares, other: RankShares, ranks: int = 4) -> dict[int, RankShares]:
    """Return the ranks of a job of which the last but one is another."""
    return {number: slow if number == ranks - 2 else other for number in range(ranks)}


def test_the_parts_are_those_that_a_rank_writes() -> None:
    assert PARTS == layout.PARTS


SLOW = {
    "loader": (rank(data=60), "rank 2 waits 60 % of the time for data"),
    "disk": (rank(data=60, disk=55), "rank 2 waits 60 % of the time for data (55 % on a disk or a network file system)"),
    "peer": (rank(), "rank 2 spends 100 % of the time in forward and backward"),
    "save": (rank(checkpoint=70), "rank 2 spends 70 % of the time saving checkpoints"),
    "slow disk of a save": (
        rank(checkpoint=70, disk=60),
        "rank 2 spends 70 % of the time saving checkpoints (60 % on a disk or a network file system)",
    ),
    "rest": (rank(rest=70), "rank 2 spends 70 % of the time outside of data, forward, backward and optimizer"),
}


@pytest.mark.parametrize("name", SLOW)
def test_the_rank_that_the_others_wait_for_is_named_with_the_part(name: str) -> None:
    slow, text = SLOW[name]
    shares = compared(job(slow, rank(communication=55)))
    assert shares is not None
    assert shares.sentence == f"{text}, the others wait 55 % for rank 2"
    assert reasons(job(slow, rank(communication=55)))[2] == text.removeprefix("rank 2 ")


def test_of_two_ranks_the_other_waits() -> None:
    shares = compared(job(rank(data=60), rank(communication=55), ranks=2))
    assert shares is not None
    assert shares.sentence == "rank 0 waits 60 % of the time for data, the other waits 55 % for rank 0"


def test_with_cuda_the_others_wait_for_the_gpu() -> None:
    waiting = RankShares((0, 0, 0, 0, 0, 55.0, 45.0), place="train.py:57")
    shares = compared(job(RankShares((60.0, 0, 0, 0, 0, 2.0, 38.0)), waiting))
    assert shares is not None
    assert shares.sentence == "rank 2 waits 60 % of the time for data, the others wait 55 % for rank 2"


ALIKE = {
    "healthy": (rank(data=5, communication=10), ""),
    "all wait for data": (rank(data=45, communication=10), "every rank waits for data 45 % of the time"),
    "all wait for a disk": (rank(data=45, disk=40), "every rank waits for data 45 % of the time, of it on a disk"),
    "all save": (rank(checkpoint=30), "every rank waits for its saves 30 % of the time"),
    "network": (
        rank(communication=40),
        "every rank waits for other ranks 40 % of the time, and none of this node is slower than the others",
    ),
    "GPU": (rank(place="train.py:57", compute=0, gpu=80, rest=20), "the host waits for the GPU at train.py:57, 80 % of the time"),
}


@pytest.mark.parametrize("name", ALIKE)
def test_where_all_ranks_are_alike_none_is_named(name: str) -> None:
    row, sentence = ALIKE[name]
    shares = compared(dict.fromkeys(range(4), row))
    assert shares is not None
    assert (shares.sentence, shares.rank) == (sentence, None)
    assert reasons(dict.fromkeys(range(4), row)) == {}


@pytest.mark.parametrize("wait", [5, 14, 33])
def test_a_rank_that_waits_a_little_less_is_not_named(wait: float) -> None:
    shares = compared(job(rank(communication=wait / 2.5), rank(communication=wait)))
    assert shares is not None
    assert shares.rank is None


def test_one_rank_alone_waits_for_nobody() -> None:
    shares = compared({0: rank(data=40)})
    assert shares is not None
    assert shares.sentence == "the rank waits for data 40 % of the time"
    assert compared({}) is None
    assert shares.text == "forward and backward 60 %, data 40 %"
