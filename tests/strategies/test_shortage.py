"""What the sizes of an out-of-memory message say, in each wording that has them."""

from __future__ import annotations

import pytest

from supervisor.core.model import Cause
from supervisor.core.values import replace
from supervisor.strategies.shortage import Shortage, of_message
from tests.strategies.test_ladders import situation

GIB = 1 << 30


def facts(**gib: float) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(int(amount * GIB))) for name, amount in gib.items())


@pytest.mark.parametrize(
    ("given", "shortage"),
    [
        (facts(asked=60, allocated=4, free=19, capacity=24, reserved_unallocated=0), Shortage(4 * GIB, 60 * GIB, 23 * GIB)),
        (facts(asked=10, allocated=10, free=1, capacity=16, reserved=12), Shortage(10 * GIB, 10 * GIB, 13 * GIB)),  # torch 1.4 to 2.0
        (facts(asked=10, allocated=10, free=6, capacity=24, allowed=12), Shortage(10 * GIB, 10 * GIB, 12 * GIB)),
        (facts(asked=10, allocated=10, capacity=16), Shortage(10 * GIB, 10 * GIB, 16 * GIB)),
        (facts(asked=2, allocated=10, free=1, capacity=24, reserved_unallocated=12), None),  # in pieces: the sizes would suffice
        (facts(asked=60, allocated=0, free=23, capacity=24), Shortage(0, 60 * GIB, 23 * GIB)),
        (facts(asked=2, capacity=24), None),
        (facts(allocated=2, free=1), None),
        ((), None),
    ],
)
def test_held_asked_and_room_are_read(given: tuple[tuple[str, str], ...], shortage: Shortage | None) -> None:
    oom = situation(Cause.CUDA_OOM)
    assert of_message(replace(oom, verdict=replace(oom.verdict, facts=given))) == shortage


@pytest.mark.parametrize(("micro", "most"), [(32, 10), (4, 1), (2, 1), (1, 1)])
def test_a_tenth_of_the_room_is_left(micro: int, most: int) -> None:
    assert Shortage(4 * GIB, 60 * GIB, 23 * GIB).most(micro) == most


def test_the_proposed_micro_batch_is_less_than_the_failed_one() -> None:
    assert Shortage(9 * GIB, 2 * GIB, 10 * GIB).most(8) == 6
    assert Shortage(100 * GIB, GIB, 100 * GIB).most(3) == 2
    assert Shortage(999 * GIB, GIB, 1200 * GIB).most(3) == 2
