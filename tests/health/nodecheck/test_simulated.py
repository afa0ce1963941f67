"""Simulated nodes before the real plan and judge: who is bad is found, who is not is not accused, in nearly all of many trials."""

from __future__ import annotations

import pytest

from health.model import Result
from health.nodecheck import report
from health.nodecheck.model import NOBODY, Fault
from tests.health import nodecheck_simulation
from tests.support.few import few

TRIALS, FEW_TRIALS = 100, 40


def _accused(world: nodecheck_simulation.World, seed: int) -> set[str]:
    return {
        result.subject
        for result in report.results(nodecheck_simulation.check(world, seed))
        if result.result in (Result.FAILED, Result.DEGRADED)
    }


def _wanted(faults: tuple[Fault, ...]) -> set[str]:
    return {f"rank:{fault.rank}" if fault.other == NOBODY else f"link:{fault.rank}-{fault.other}" for fault in faults}


@pytest.mark.parametrize("disturbed", [pytest.param(0.1, id="quiet"), pytest.param(0.4, id="disturbed", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("nodes", "faults", "trials"),
    [
        pytest.param(8, (), TRIALS, id="8-well", marks=pytest.mark.slow),
        pytest.param(8, ("slow-compute:3:1.5",), TRIALS, id="8-slow", marks=pytest.mark.slow),
        pytest.param(8, ("fail:5:0.2",), TRIALS, id="8-failing", marks=pytest.mark.slow),
        pytest.param(8, ("slow-link:1-6:0.005",), TRIALS, id="8-link", marks=pytest.mark.slow),
        pytest.param(8, ("slow-compute:3:1.5", "fail:5:0.2", "slow-link:1-6:0.005"), FEW_TRIALS, id="8-all"),
        pytest.param(8, ("slow-compute:3:1.5", "fail:5:0.2", "slow-link:1-6:0.005"), TRIALS, id="8-all-many", marks=pytest.mark.slow),
        pytest.param(8, ("corrupt:2:0.2", "fail:5:0.2"), TRIALS, id="8-two-failing", marks=pytest.mark.slow),
        pytest.param(4, ("fail:0:0.2",), TRIALS, id="4-failing", marks=pytest.mark.slow),
        pytest.param(16, ("slow-compute:3:1.5", "fail:5:0.2", "slow-link:1-6:0.005"), TRIALS // 5, id="16-all", marks=pytest.mark.slow),
    ],
)
def test_the_bad_are_found_and_nobody_else_is_accused(nodes: int, faults: tuple[str, ...], trials: int, disturbed: float) -> None:
    world = nodecheck_simulation.World(nodes, tuple(map(Fault.parse, faults)), disturbed=disturbed)
    trials = trials if disturbed < 0.2 else min(trials, TRIALS // 5)
    exactly = sum(_accused(world, seed) == _wanted(world.faults) for seed in range(trials))
    assert exactly >= 0.95 * trials


@pytest.mark.parametrize("fault", few(["fail:5:0.2", "slow-link:1-6:0.005", "slow-compute:3:1.5"]))
def test_a_single_pass_misses_what_this_finds(fault: str) -> None:
    world = nodecheck_simulation.World(8, (Fault.parse(fault),))
    hits = [bool(_wanted(world.faults) & _accused(world, seed)) for seed in range(30)]
    hits_once = [world.faults[0].rank in nodecheck_simulation.single_pass(world, seed) for seed in range(30)]
    assert sum(hits) >= 28
    assert sum(hits_once) <= 5


def test_with_half_of_four_nodes_bad_nobody_good_is_accused() -> None:
    """The case in which rounds of pairs alone accuse 44 % of the good ones."""
    world = nodecheck_simulation.World(4, (Fault.parse("fail:0:1"), Fault.parse("fail:1:1")))
    for seed in range(30):
        assert _accused(world, seed) == {"rank:0", "rank:1"}
