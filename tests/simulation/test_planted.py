"""Bugs planted in the core: each must break a seed, and a scenario or a story."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core import machine as core
from supervisor.core.attempt import start
from supervisor.core.failure import judgement, planning
from supervisor.core.health import findings
from supervisor.core.model import Cause
from supervisor.core.state import JobState, Stage
from supervisor.core.values import replace
from supervisor.core.watch import hangs
from supervisor.knobs import batch
from supervisor.strategies import LADDER_STEPS, LADDERS, consent, memory, repetition, shortage
from supervisor.strategies.situation import Situation
from tests.scenarios import driver, test_scenarios
from tests.simulation import seeds
from tests.support.silent_ladder_steps import silence

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = tuple[JobState, tuple[act.Action, ...]]
    Plant = Callable[[pytest.MonkeyPatch], None]


def around(patch: pytest.MonkeyPatch, kind: type, bug: Callable[[Callable[[JobState, Any], Step], JobState, Any], Step]) -> None:
    """Put a bug around what answers a kind of event."""
    row = core.EVENTS[kind]
    patch.setitem(core.EVENTS, kind, row._replace(handler=lambda state, event: bug(row.handler, state, event)))


def refilled_without_progress(patch: pytest.MonkeyPatch) -> None:
    def bug(real: Any, state: JobState, event: Any) -> Step:  # noqa: ANN401
        state, actions = real(state, event)
        return replace(
            state, run=replace(state.run, failures=tuple(replace(f, progressed_since=True, passed_since=True) for f in state.run.failures))
        ), actions

    around(patch, events.AttemptStarted, bug)


def stale_attempt_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core, "is_of_another_attempt", lambda _state, _event: False)


def last_verified_forgotten(patch: pytest.MonkeyPatch) -> None:
    def bug(real: Any, state: JobState, event: Any) -> Step:  # noqa: ANN401
        return real(replace(state, run=replace(state.run, newest=None)), event if event.chosen else replace(event, n_found=0))  # type: ignore[no-any-return]

    around(patch, events.CheckpointSelected, bug)


def rejected_chosen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(start, "SelectCheckpoint", lambda attempt, _avoid, **_: act.SelectCheckpoint(attempt))


def disabled_knob_set(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Situation, "enabled", lambda self, name: next((k for k in self.knobs if k.name == name), None))


def consent_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(consent, "objection", lambda _situation: "")


def batch_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batch, "smaller", lambda old, _most=None: batch.Batch(old.micro // 2, old.accum, old.world) if old.micro > 1 else "no")


def sizes_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shortage, "of_message", lambda _situation: None)


def unknown_step_changed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory, "at_unknown_step", lambda _situation: False)


def ladder_step_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(LADDERS, Cause.NAN_LOSS, tuple(name for name in LADDERS[Cause.NAN_LOSS] if name != "step_back"))


def backoff_lost(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(core.TIMERS, ("backoff", Stage.WAITING))


def quarantined_used(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planning, "usable", lambda _state: ())


def requeue_loses_overrides(patch: pytest.MonkeyPatch) -> None:
    around(patch, events.SupervisorStarted, lambda real, state, event: real(replace(state, run=replace(state.run, overrides=())), event))


def recurring_ignored(patch: pytest.MonkeyPatch) -> None:
    silence(patch, "recurring")


def own_answer_ignored(patch: pytest.MonkeyPatch) -> None:
    silence(patch, "own_code_at_once")


def unknown_phase_is_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(judgement, "before_first_step", lambda *_given: True)


def same_line_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(repetition, "_same_line", lambda _situation, _past: False)
    patch.setattr(repetition, "_is_stepless", lambda _failed: False)


def counted_steps_are_no_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(judgement, "_counted", lambda _state, _verdict: None)


def race_rejected(patch: pytest.MonkeyPatch) -> None:
    silence(patch, "raced")


def interrupt_started_again(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(LADDERS, Cause.INTERRUPTED, LADDERS[Cause.KILLED_UNKNOWN])


def users_row_without_end(patch: pytest.MonkeyPatch) -> None:
    row = LADDER_STEPS["users_row"]
    patch.setitem(LADDER_STEPS, "users_row", replace(row, propose=lambda at: row.propose(replace(at, failures=(), overrides=()))))


def cap_ignored(patch: pytest.MonkeyPatch) -> None:
    silence(patch, "within_cap")


def stop_request_lost(patch: pytest.MonkeyPatch) -> None:
    def bug(real: Any, state: JobState, event: Any) -> Step:  # noqa: ANN401
        return (state, ()) if state.stage in {Stage.WAITING, Stage.SELECTING} else real(state, event)

    around(patch, events.StopRequested, bug)


def evidence_never_overdue(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(core.TIMERS, ("evidence", Stage.TEARDOWN))


def health_ends_a_healthy_attempt(patch: pytest.MonkeyPatch) -> None:
    def bug(real: Any, state: JobState, event: Any) -> Step:  # noqa: ANN401
        everything = tuple(finding.check for finding in event.findings)
        return real(replace(state, run=replace(state.run, policy=replace(state.run.policy, evict_on=everything))), event)  # type: ignore[no-any-return]

    around(patch, events.HealthChanged, bug)


def every_hang_ends_the_attempt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hangs, "why_it_goes_on", lambda *_args, **_more: "")


def unfit_node_used(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(findings, "judged", lambda state, _t: findings.NodeDecision(state, (), None))


def look_waited_for_without_end(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(core.TIMERS, ("health", Stage.CHECKING))


PLANTED: tuple[Plant, ...] = (
    health_ends_a_healthy_attempt,
    every_hang_ends_the_attempt,
    unfit_node_used,
    look_waited_for_without_end,
    refilled_without_progress,
    stale_attempt_accepted,
    last_verified_forgotten,
    rejected_chosen,
    disabled_knob_set,
    consent_ignored,
    batch_not_kept,
    sizes_ignored,
    unknown_step_changed,
    ladder_step_removed,
    backoff_lost,
    quarantined_used,
    requeue_loses_overrides,
    recurring_ignored,
    own_answer_ignored,
    unknown_phase_is_early,
    same_line_not_seen,
    counted_steps_are_no_place,
    race_rejected,
    interrupt_started_again,
    users_row_without_end,
    cap_ignored,
    stop_request_lost,
    evidence_never_overdue,
)
#: What only a job to which this happens can show.
NEEDS = {"requeue_loses_overrides": "crash", "stop_request_lost": "signal"}
#: Those that the fast tests plant, too: that the simulation sees anything at all. They are found in a moment.
FAST = (backoff_lost, cap_ignored, consent_ignored, stale_attempt_accepted)
NAMES = [plant.__name__ for plant in PLANTED]


def meets(seed: int, number: int, event: str) -> bool:
    """Whether this happens to a job of a seed."""
    return any(happening.text.startswith(event) for happening in seeds.job_of(seed, number)[0].happenings)


PLANTS = [pytest.param(plant, marks=() if plant in FAST else pytest.mark.slow) for plant in PLANTED]


@pytest.mark.parametrize("plant", PLANTS, ids=NAMES)
def test_a_seed_is_broken(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    wanted = NEEDS.get(plant.__name__, "")
    jobs = ((seed, number) for seed in range(seeds.SEEDS) for number in range(seeds.JOBS) if not wanted or meets(seed, number, wanted))
    assert any(seeds.play_job(seed, number)[1] for seed, number in jobs)


def fails(play: Callable[[], object]) -> bool:
    """Whether a history ends otherwise than it should."""
    try:
        play()
    except Exception:  # noqa: BLE001 (a bug may raise anything)
        return True
    return False


@pytest.mark.parametrize("plant", PLANTS, ids=NAMES)
def test_a_scenario_ends_otherwise(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    stories = (fails(partial(driver.play_story, name, cause)) for name, cause in driver.PLAYED)
    histories = (fails(partial(test_scenarios.test_scenario, name)) for name in test_scenarios.SCENARIOS)
    assert any(stories) or any(histories)
