"""Every seed keeps the laws of a register, whatever is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.quorum.laws import RegisterLawBroken, check, world_of

SEEDS = 200
ALL_SEEDS, A_CHUNK = 10_000, 1000


def broken(first: int, count: int) -> str:
    """Play seeds; return those in which a law does not hold."""
    found = []
    for seed in range(first, first + count):
        world = world_of(seed)
        world.play()
        try:
            check(world)
        except RegisterLawBroken as law:
            found.append(f"seed {seed}: {law}")
    return "\n".join(found)


def test_no_law_is_broken() -> None:
    assert not broken(0, SEEDS)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(SEEDS, ALL_SEEDS, A_CHUNK))
def test_no_law_is_broken_in_any_of_many_seeds(first: int) -> None:
    assert not broken(first, min(A_CHUNK, ALL_SEEDS - first))


def test_the_faults_meet_every_part() -> None:
    met: Counter[str] = Counter()
    for seed in range(40):
        world = world_of(seed)
        world.play()
        met.update(one.kind if one.seen is not None else "unknown" for one in world.operations)
        met["rejoined"] += sum(host.state is not None and host.state.incarnations[host.index].number > 1 for host in world.hosts)
    assert all(met[kind] for kind in ("read", "write", "changed", "unknown", "rejoined")), met
