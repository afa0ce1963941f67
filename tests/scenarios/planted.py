"""Bugs that the core could have, planted one at a time: what guards against them must fail then.

Each is a function that plants it with pytest's monkeypatch (or anything else that has `setattr` and `setitem`). The scenarios and the
simulator are played with each of them; one that makes neither fail shows a hole in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from supervisor.core import actions, budget, events, machine
from supervisor.core.attempt import checkpoints, start, takeover
from supervisor.core.failure import judgement, planning
from supervisor.core.nodes import joint_decision
from supervisor.core.state import Attempt
from supervisor.core.values import replace
from supervisor.knobs import batch
from supervisor.strategies import consent, repetition
from supervisor.strategies.situation import Situation

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.core.model import Knob
    from supervisor.core.state import JobState


class Patch(Protocol):
    """pytest.MonkeyPatch, as far as it is used."""

    def setattr(self, target: object, name: str, value: object, /) -> None:
        """Set an attribute for as long as the bug is planted."""

    def setitem(self, dic: Any, name: Any, value: Any, /) -> None:  # noqa: ANN401 (as pytest has it)
        """Set an item for as long as the bug is planted."""


def budget_refilled_without_progress(patch: Patch) -> None:
    """Every checkpoint that is verified clears the budget, an old one too."""

    def handler(state: JobState, event: events.CheckpointVerified) -> Any:  # noqa: ANN401 (as the real one)
        state, actions = checkpoints.on_checkpoint_verified(state, event)
        return replace(
            state, run=replace(state.run, failures=tuple(replace(f, progressed_since=True, passed_since=True) for f in state.run.failures))
        ), actions

    patch.setitem(machine.EVENTS, events.CheckpointVerified, machine.EVENTS[events.CheckpointVerified]._replace(handler=handler))


def stale_attempt_accepted(patch: Patch) -> None:
    """What the dead say is believed."""
    patch.setattr(machine, "is_of_another_attempt", lambda _state, _event: False)


def rejected_chosen(patch: Patch) -> None:
    """A poisoned checkpoint is handed out again."""
    patch.setattr(start, "SelectCheckpoint", lambda attempt, _avoid=(), **_: actions.SelectCheckpoint(attempt))


def unavailable_ladder_step_taken(patch: Patch) -> None:
    """A knob is used although its program was never seen to run."""

    def enabled(self: Situation, name: str) -> Knob | None:
        return next((knob for knob in self.knobs if knob.name == name), None)

    patch.setattr(Situation, "enabled", enabled)


def words_believed(patch: Patch) -> None:
    """Log text alone changes the job."""
    patch.setattr(consent, "proves", lambda _fact, _cause: True)


def unsure_verdict_believed(patch: Patch) -> None:
    """A verdict that is not sure changes the job."""
    patch.setattr(consent, "is_sure", lambda _cause, confidence: confidence >= 0.5)


def overrides_forgotten(patch: Patch) -> None:
    """The next attempt runs with the user's own values."""

    def begin(attempt: int, reason: str, resume: Any, _overrides: Any, *rest: Any, **named: Any) -> actions.BeginAttempt:  # noqa: ANN401 (as the real one)
        return actions.BeginAttempt(attempt, reason, resume, (), *rest, **named)

    patch.setattr(start, "BeginAttempt", begin)


def global_batch_changed(patch: Patch) -> None:
    """The micro-batch shrinks and the accumulation stays."""
    real = batch.smaller

    def smaller(old: batch.Batch, most: int | None = None) -> batch.Batch | str:
        new = real(old, most)
        return new if isinstance(new, str) else replace(new, accum=old.accum)

    patch.setattr(batch, "smaller", smaller)


def quarantined_gpu_handed_out(patch: Patch) -> None:
    """The ranks see a GPU that is out of use."""
    patch.setattr(planning, "usable", lambda state: tuple(gpu.uuid for gpu in state.gpus))


def infrastructure_charged(patch: Patch) -> None:
    """A network that flaps spends the budget."""
    patch.setattr(budget, "family", lambda _cause: "program")


def steps_back_without_end(patch: Patch) -> None:
    """Nobody counts how often an older checkpoint was taken."""
    fold = planning.folded
    patch.setattr(planning, "folded", lambda *given: _with(fold(*given), steps_back=0))


def recurrence_not_counted(patch: Patch) -> None:
    """The tenth equal failure is as good as the first."""
    fold = planning.folded
    patch.setattr(planning, "folded", lambda *given: _with(fold(*given), recurrences=()))


def same_place_not_seen(patch: Patch) -> None:
    """A deterministic failure is restarted until the budget ends."""
    patch.setattr(repetition, "_same_place", lambda _situation, _past: False)


def run_begun_anew_by_a_requeue(patch: Patch) -> None:
    """A requeue brings fresh budgets."""

    def handler(state: JobState, event: events.SupervisorStarted) -> Any:  # noqa: ANN401 (as the real one)
        return takeover.on_supervisor_started(state, replace(event, continues=False))

    patch.setitem(machine.EVENTS, events.SupervisorStarted, machine.EVENTS[events.SupervisorStarted]._replace(handler=handler))


def unknown_step_read_as_none(patch: Patch) -> None:
    """A step that was not seen is taken for "before the first step"."""
    patch.setattr(judgement, "before_first_step", lambda *_given: True)


def peers_part_ways(patch: Patch) -> None:
    """The other nodes continue with values of their own."""

    def handler(state: JobState, event: events.DecisionMade) -> Any:  # noqa: ANN401 (as the real one)
        decision = event.decision and replace(event.decision, plan=replace(event.decision.plan, changes=(), rejected=()))
        return joint_decision.on_decision_made(state, replace(event, decision=decision))

    patch.setitem(machine.EVENTS, events.DecisionMade, machine.EVENTS[events.DecisionMade]._replace(handler=handler))


def one_node_decides_alone(patch: Patch) -> None:
    """A node judges by what it saw itself, and asks nobody."""
    patch.setattr(Attempt, "is_shared", property(lambda _attempt: False))


def failures_forgotten(patch: Patch) -> None:
    """Nothing is remembered of a failure."""
    fold = planning.folded
    patch.setattr(planning, "folded", lambda *given: _with(fold(*given), failures=()))


def _with(step: tuple[JobState, Any], **changes: Any) -> tuple[JobState, Any]:  # noqa: ANN401 (fields of the run)
    state, actions = step
    return replace(state, run=replace(state.run, **changes)), actions


PLANTED: dict[str, Callable[[Patch], None]] = {
    bug.__name__: bug
    for bug in (
        budget_refilled_without_progress,
        stale_attempt_accepted,
        rejected_chosen,
        unavailable_ladder_step_taken,
        words_believed,
        unsure_verdict_believed,
        overrides_forgotten,
        global_batch_changed,
        quarantined_gpu_handed_out,
        infrastructure_charged,
        steps_back_without_end,
        recurrence_not_counted,
        same_place_not_seen,
        run_begun_anew_by_a_requeue,
        unknown_step_read_as_none,
        peers_part_ways,
        one_node_decides_alone,
        failures_forgotten,
    )
}
