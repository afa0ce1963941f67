"""When a rank of this node last ended a step, and how long a step usually takes."""

from __future__ import annotations

from supervisor.core.model import Phase
from supervisor.observe.ranks.heartbeats import RankHeartbeat
from supervisor.observe.ranks.step_times import NodeSteps

S = 10**9


def beat(rank: int, steps: int, last_step_s: float | None) -> RankHeartbeat:
    last = None if last_step_s is None else int(last_step_s * S)
    return RankHeartbeat(rank, rank, 100 + rank, 1, 0, Phase.TRAIN, 0, steps, last, steps, "optimizer", True, True, False)  # noqa: FBT003  its form


def test_the_rank_that_stepped_last_counts_and_the_usual_step_is_that_of_most_intervals() -> None:
    times = NodeSteps()
    times.take([beat(0, 0, None), beat(1, 0, None)])
    assert (times.since_s(5 * S), times.usual_s) == (None, None)
    for second in range(1, 10):
        times.take([beat(0, 2 * second, second), beat(1, 2 * second, second + 0.25)])
    times.take([beat(0, 20, 60.0), beat(1, 19, 9.25)])  # one long wait, for a save
    assert times.since_s(62 * S) == 2.0
    assert times.usual_s == 0.5


def test_a_heartbeat_that_did_not_move_is_no_step() -> None:
    times = NodeSteps()
    for _ in range(3):
        times.take([beat(0, 7, 3.0)])
    assert (times.since_s(4 * S), times.usual_s) == (1.0, None)


def test_steps_that_the_script_only_reports_have_a_usual_time_too() -> None:
    """Nobody counts the steps of another optimizer than torch's; who is lost is judged by how long a step takes."""
    times = NodeSteps()
    for second in (10, 70, 130, 190):
        times.take([beat(0, 0, float(second))])
    assert (times.since_s(200 * S), times.usual_s) == (10.0, 60.0)


def test_a_step_that_is_counted_and_then_reported_is_one_step() -> None:
    times = NodeSteps()
    for steps in range(1, 9):
        times.take([beat(0, steps, 60.0 * steps)])
        times.take([beat(0, steps, 60.0 * steps + 0.5)])
    assert times.usual_s == 59.5
