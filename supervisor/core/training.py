"""What is strange about a training that runs: its loss, and its pace. See core/decide.py for the rules.

It is reported when it begins and when it is over. It ends nothing, but for a loss that is NaN or infinite if
loss.on_nan asks for it: then the attempt ends as if a rank had failed, and the number is the cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core import failure, planning
from supervisor.core.actions import Alert, PrintMessage
from supervisor.core.model import Cause, Claim, Evidence
from supervisor.core.state import JobState, Stage
from supervisor.core.values import replace

if TYPE_CHECKING:
    from supervisor.core.state import Step
    from supervisor.core.training_events import LossChanged, PaceChanged

STRANGE_LOSS = "strange_loss"
SLOW_TRAINING = "slow_training"
#: Kinds of loss rules that loss.on_nan is about.
NOT_FINITE = frozenset({"nan", "inf"})
#: How sure it is that such a number is the cause: it was read twice.
SURE = 0.95
#: Findings of the node's health that a warning names.
MOST_FINDINGS = 2
#: Warnings that the state keeps; more would say the same of other numbers.
MOST_WARNINGS = 8


def on_loss_changed(state: JobState, event: LossChanged) -> Step:
    """Report a number that became strange, or is good again; end the attempt if loss.on_nan asks for it."""
    text = f"{event.text}{_where(event)}"
    if event.is_over:
        return without_warning(state, event.about), (PrintMessage("info", f"loss: over: {text}"),)
    state = with_warning(state, event.about, text)
    restarts = event.kind in NOT_FINITE and state.run.policy.on_nan == "restart"
    ends = restarts and state.stage is Stage.RUNNING
    option = "; --set loss.on_nan=restart would end the attempt" if event.kind in NOT_FINITE and not restarts else ""
    then = "the attempt is ended (--set loss.on_nan=restart)" if ends else f"the job goes on{option}"
    alert = Alert(STRANGE_LOSS, state.attempt.number, f"loss: {text}; {then}")
    if not ends:
        return state, (alert,)
    claim = Claim(Cause.NAN_LOSS, SURE)
    fact = Evidence("loss", event.rule, text, event.rank, event.t, claim=claim)
    state = replace(state, attempt=replace(state.attempt, ended_for=(fact,)))
    state, actions = failure.stop_attempt(state, event.t, text)
    return state, (alert, *actions)


def on_pace_changed(state: JobState, event: PaceChanged) -> Step:
    """Report that the training is slow, with the GPU and what the node's health shows of it; or that it is over."""
    if event.is_over:
        return without_warning(state, event.about), (PrintMessage("info", f"pace: over: {event.text}"),)
    text = f"{event.text}{_gpu_text(state, event.rank)}"
    state = with_warning(state, event.about, text)
    return state, (Alert(SLOW_TRAINING, state.attempt.number, f"pace: {text}; the job goes on"),)


def _gpu_text(state: JobState, rank: int | None) -> str:
    """Return the GPU of the rank and what is known to be wrong with it; without a rank what is wrong with any part of this node."""
    uuid = planning.gpu_of_rank(state, rank) if rank is not None else ""
    index = next((gpu.index for gpu in state.gpus if gpu.uuid == uuid), None)
    named = f" (GPU {index})" if index is not None else ""
    found = [
        reported_finding.reason
        for reported_finding in state.run.reported_findings
        if rank is None or reported_finding.gpu == uuid or not reported_finding.gpu
    ]
    return f"{named}; health: {'; '.join(found[:MOST_FINDINGS])}" if found else named


def _where(event: LossChanged) -> str:
    known = [
        *([f"rank {event.rank}"] if event.rank is not None else []),
        *([f"step {event.step}"] if event.step is not None else []),
    ]
    return f" ({', '.join(known)})" if known else ""


def with_warning(state: JobState, about: str, text: str) -> JobState:
    """Return the state that knows what is strange about the attempt, under a key."""
    warnings = (dict(state.attempt.warnings) | {about: text}).items()
    return replace(state, attempt=replace(state.attempt, warnings=tuple(warnings)[-MOST_WARNINGS:]))


def without_warning(state: JobState, about: str) -> JobState:
    """Return the state without the warning of a key."""
    return replace(state, attempt=replace(state.attempt, warnings=tuple(row for row in state.attempt.warnings if row[0] != about)))
