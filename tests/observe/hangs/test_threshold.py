"""How long a job may stand still, by its step times and its phase."""

from __future__ import annotations

import dataclasses

import pytest

from supervisor.config.watch_settings import HangSection
from supervisor.core.model import Phase
from supervisor.core.values import replace
from supervisor.core.watch.hangs import CALIBRATION_STEPS
from supervisor.observe.hangs.threshold import KEPT, StepTimes, train_limit
from supervisor.observe.ranks.heartbeats import RankHeartbeat

LIMITS = HangSection()
FIRST = RankHeartbeat(
    local_rank=0,
    rank=0,
    pid=100,
    start_ticks=1,
    hello_ns=1,
    phase=Phase.TRAIN,
    phase_since_ns=1,
    steps=1,
    last_step_ns=10**9,
    step=None,
    step_source=None,
    torch_loaded=True,
    backward_seen=True,
    save_asked=False,
)


@pytest.mark.parametrize(
    ("times_s", "limit_s"),
    [
        ([], 60.0),
        ([0.1] * 100, 60.0),
        ([7.0] * 100, 70.0),
        ([1.0] * 49 + [300.0], 450.0),
        ([1.0] * 98 + [300.0] * 2, 450.0),
        ([1.0] * 80 + [30.0] * 20, 300.0),
        ([600.0] * 20, 6000.0),
    ],
    ids=["none", "fast", "ten times the usual", "the evaluation", "p99 would be the evaluation", "one step in five is long", "ten minutes"],
)
def test_the_limit_of_a_training(times_s: list[float], limit_s: float) -> None:
    assert train_limit(times_s, max(times_s, default=0.0), LIMITS.train_s) == pytest.approx(limit_s)


def after(beat: RankHeartbeat, seconds: float, *, steps: int = 1) -> RankHeartbeat:
    return replace(beat, steps=beat.steps + steps, last_step_ns=(beat.last_step_ns or 0) + round(seconds * 1e9))


def trained(times: StepTimes, seconds: float, count: int, beat: RankHeartbeat = FIRST) -> RankHeartbeat:
    times.add([beat])
    for _ in range(count):
        beat = after(beat, seconds)
        times.add([beat])
    return beat


def test_before_twenty_steps_the_limit_is_that_of_a_phase() -> None:
    times = StepTimes()
    beat = trained(times, 2.0, CALIBRATION_STEPS - 1)
    assert (times.calibrated, times.limit([beat], LIMITS).seconds) == (False, 600.0)
    beat = trained(times, 2.0, 1, beat)
    assert (times.calibrated, times.limit([beat], LIMITS).seconds) == (True, 60.0)


def test_the_first_step_and_its_compilation_are_no_step_time() -> None:
    times = StepTimes()
    waiting = replace(FIRST, steps=0, last_step_ns=None)
    times.add([waiting])
    beat = trained(times, 1.0, 30, replace(FIRST, last_step_ns=500 * 10**9))
    assert times.limit([beat], LIMITS).seconds == 60.0


@pytest.mark.parametrize(
    ("phase", "at_most_s", "limit_s"),
    [
        (Phase.TRAIN, None, 60.0),
        (Phase.EVAL, None, 600.0),
        (Phase.CHECKPOINT, None, 600.0),
        (Phase.DATA, None, 600.0),
        (Phase.UNKNOWN, None, 600.0),
        (Phase.EVAL, 900.0, 900.0),
        (Phase.EVAL, 20.0, 20.0),
    ],
)
def test_the_phase_sets_the_limit(phase: Phase, at_most_s: float | None, limit_s: float) -> None:
    times = StepTimes()
    beat = replace(trained(times, 1.0, 30), phase=phase, phase_limit_s=at_most_s)
    limit = times.limit([beat], LIMITS)
    assert (limit.seconds, limit.phase) == (limit_s, phase)


def test_the_longest_limit_of_any_rank_holds() -> None:
    times = StepTimes()
    beat = trained(times, 1.0, 30)
    saving = replace(beat, local_rank=1, rank=1, phase=Phase.CHECKPOINT)
    limit = times.limit([beat, saving, replace(beat, local_rank=2)], LIMITS)
    assert (limit.seconds, limit.phase) == (600.0, Phase.CHECKPOINT)


def test_no_phase_has_less_than_the_training() -> None:
    times = StepTimes()
    beat = trained(times, 100.0, 30)
    assert times.limit([replace(beat, phase=Phase.EVAL)], LIMITS).seconds == 1000.0


def test_the_time_of_another_phase_is_in_no_step_time() -> None:
    times = StepTimes()
    beat = trained(times, 1.0, 30)
    assert beat.last_step_ns is not None
    saved_ns = beat.last_step_ns + 400 * 10**9  # the checkpoint took 400 s
    beat = replace(beat, phase_since_ns=saved_ns, last_step_ns=saved_ns + 10**9, steps=beat.steps + 1)
    times.add([beat])
    assert times.limit([beat], LIMITS).seconds == 60.0
    times.add([after(replace(beat, phase_since_ns=1), 400.0)])
    assert times.limit([beat], LIMITS).seconds == 600.0, "what no phase explains is how long a step may take"


def test_many_steps_between_two_samples_are_averaged_and_one_may_have_taken_it_all() -> None:
    times = StepTimes()
    times.add([FIRST])
    beat = after(FIRST, 1.0, steps=500)
    times.add([beat])
    times.add([beat])
    assert times.calibrated
    assert times.limit([beat], dataclasses.replace(LIMITS, train_s=1.0)).seconds == 1.5


def test_a_step_that_only_the_script_reports_counts() -> None:
    times = StepTimes()
    beat = replace(FIRST, steps=0, step=100, step_source="worker")
    times.add([beat])
    for step in range(101, 121):
        assert beat.last_step_ns is not None
        beat = replace(beat, step=step, last_step_ns=beat.last_step_ns + 10 * 10**9)
        times.add([beat])
    assert (times.calibrated, times.limit([beat], LIMITS).seconds) == (True, 100.0)


@pytest.mark.parametrize(("step", "source"), [(None, None), (1, "optimizer")], ids=["none before", "another source"])
def test_the_first_number_that_a_resumed_script_reports_is_no_number_of_steps(step: int | None, source: str | None) -> None:
    times = StepTimes()
    beat = replace(FIRST, step=step, step_source=source)
    times.add([beat])
    times.add([replace(after(beat, 1.0), step=10_010, step_source="worker")])
    assert not times.calibrated


def test_the_slowest_rank_of_a_sample_counts_and_old_times_are_forgotten() -> None:
    times = StepTimes()
    beat = trained(times, 1.0, 30)
    other = replace(beat, local_rank=1)
    times.add([other])
    times.add([after(beat, 1.0), after(other, 80.0)])
    assert times.limit([beat], LIMITS).seconds == 120.0
    trained(times, 1.0, KEPT, after(beat, 1.0))
    assert times.limit([beat], LIMITS).seconds == 60.0


def test_another_process_in_the_slot_begins_a_new_series() -> None:
    times = StepTimes()
    beat = trained(times, 1.0, 30)
    times.add([replace(after(beat, 500.0), pid=101)])
    assert times.limit([beat], LIMITS).seconds == 60.0


LOOP = replace(FIRST, phase=Phase.UNKNOWN, steps=0, last_step_ns=None, backward_seen=False, rounds=True, life_ns=10**9)


def lived(times: StepTimes, seconds: float, count: int, beat: RankHeartbeat = LOOP) -> RankHeartbeat:
    times.add([beat])
    for _ in range(count):
        beat = replace(beat, life_ns=(beat.life_ns or 0) + round(seconds * 1e9))
        times.add([beat])
    return beat


@pytest.mark.parametrize(
    ("changes", "limit_s"),
    [
        ({}, 70.0),
        ({"phase": Phase.TRAIN, "backward_seen": True}, 70.0),
        ({"rounds": False}, 600.0),
        ({"phase": Phase.INIT, "rounds": False}, 600.0),
        ({"phase": Phase.CHECKPOINT}, 600.0),
    ],
    ids=["collectives", "backward passes", "no loop", "the set-up", "a save"],
)
def test_a_loop_without_steps_is_measured_by_its_signs_of_life(changes: dict[str, object], limit_s: float) -> None:
    times = StepTimes()
    beat = lived(times, 7.0, CALIBRATION_STEPS)
    limit = times.limit([replace(beat, **changes)], LIMITS)  # type: ignore[arg-type]  # fields
    assert (limit.seconds, limit.calibrated) == (limit_s, True)


def test_twenty_signs_are_needed_and_a_pause_lengthens_the_limit() -> None:
    times = StepTimes()
    beat = lived(times, 1.0, CALIBRATION_STEPS - 1)
    assert times.limit([beat], LIMITS).seconds == 600.0
    beat = lived(times, 300.0, 1, beat)
    assert times.limit([beat], LIMITS).seconds == 450.0


def test_the_first_step_begins_anew() -> None:
    """What came before it was the set-up, or the accumulation of its gradients."""
    times = StepTimes()
    beat = lived(times, 50.0, 2 * CALIBRATION_STEPS)
    beat = replace(beat, phase=Phase.TRAIN, steps=1, last_step_ns=(beat.life_ns or 0) + 10**9)
    trained(times, 2.0, CALIBRATION_STEPS - 1, beat)
    assert not times.calibrated
    beat = trained(times, 2.0, 1, after(beat, 100.0))
    assert times.calibrated
