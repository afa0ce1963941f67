"""Strange changes of a training that runs: of its loss, and of its pace. See core/machine.py for the rules.

It is reported when it begins and when it is over. It ends nothing, but for a loss that is NaN or infinite if
loss.on_nan asks for it: then the attempt ends as if a rank had failed, and the number is the cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.actions import Alert, PrintMessage
from supervisor.core.failure import culprit, teardown
from supervisor.core.model import Cause, Claim, Evidence
from supervisor.core.nodes import sharing
from supervisor.core.state import Stage
from supervisor.core.training_events import NOBODY, STRAGGLER

if TYPE_CHECKING:
    from supervisor.core.state import Attempt, JobState, Step
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
    then = "the attempt is ended (--set loss.on_nan=restart)" if ends else f"the job continues{option}"
    alert = Alert(STRANGE_LOSS, state.attempt.number, f"loss: {text}; {then}")
    if not ends:
        return state, (alert,)
    claim = Claim(Cause.NAN_LOSS, SURE)
    fact = Evidence("loss", event.rule, text, event.rank, event.t, claim=claim)
    state = state.with_attempt(ended_for=(fact,))
    state, actions = teardown.stop_attempt(state, event.t, text)
    return state, (alert, *actions)


def on_pace_changed(state: JobState, event: PaceChanged) -> Step:
    """Report that the training is slow, with the GPU and what the node's health shows of it; or that it is over.

    Of several nodes only the comparison of all shows the slow rank: the slowest rank of a node may be as fast as those of the others.
    """
    members, is_ours = state.attempt.members, event.node is None
    if event.kind == STRAGGLER and is_ours and len(members) > 1:
        return state, ()
    if event.node is not None and not 0 <= event.node < len(members):
        return state, ()
    if event.is_over:
        return without_warning(state, event.about), (PrintMessage("info", f"pace: over: {event.text}"),)
    text = with_condition(event.text, gpu_text(state, event.rank), health_text(state, event.rank)) if is_ours else event.text
    state = with_warning(state, event.about, text)
    if event.kind != STRAGGLER:
        return state, (Alert(SLOW_TRAINING, state.attempt.number, f"pace: {text}; the job continues"),)
    node = "" if event.node is None else sharing.node_name(members[event.node], members)
    return state, (Alert(STRAGGLER, state.attempt.number, f"pace: {text}; the job continues", culprit=(event.rank, node)),)


def stragglers(attempt: Attempt) -> tuple[tuple[int, int | None, str], ...]:
    """Return the slow rank: the number of its node among those of the attempt, the rank, None where no one is alone, and the text."""
    rows = [(about.split(), text) for about, text in attempt.warnings]
    slow = [(words, text) for words, text in rows if words[:2] == ["pace", STRAGGLER]]
    return tuple(
        (attempt.node if node == NOBODY else int(node), None if rank == NOBODY else int(rank), text) for (_, _, node, rank), text in slow
    )


def gpu_text(state: JobState, rank: int | None) -> str:
    """Return the GPU of a rank, such as `GPU 3`; "" where it is not known."""
    uuid = culprit.gpu_of_rank(state, rank) if rank is not None else ""
    index = next((gpu.index for gpu in state.gpus if gpu.uuid == uuid), None)
    return "" if index is None else f"GPU {index}"


def health_text(state: JobState, rank: int | None) -> str:
    """Return the known faults of a rank's GPU and of this node; where that GPU is not known, those of any part of the node."""
    uuid = culprit.gpu_of_rank(state, rank) if rank is not None else ""
    findings = [finding for finding in state.run.reported_findings if not uuid or finding.gpu == uuid or not finding.gpu]
    return "; ".join(finding.reason for finding in findings[:MOST_FINDINGS])


def with_condition(text: str, gpu: str, health: str) -> str:
    """Return the slow subject, with its GPU and the faults of that and of its node, as far as they are known."""
    return text + (f" ({gpu})" if gpu else "") + (f"; health: {health}" if health else "")


def _where(event: LossChanged) -> str:
    known = [
        *([f"rank {event.rank}"] if event.rank is not None else []),
        *([f"step {event.step}"] if event.step is not None else []),
    ]
    return f" ({', '.join(known)})" if known else ""


def with_warning(state: JobState, about: str, text: str) -> JobState:
    """Return the state with a strange fact of the attempt, under a key."""
    warnings = (dict(state.attempt.warnings) | {about: text}).items()
    return state.with_attempt(warnings=tuple(warnings)[-MOST_WARNINGS:])


def without_warning(state: JobState, about: str) -> JobState:
    """Return the state without the warning of a key."""
    return state.with_attempt(warnings=tuple(row for row in state.attempt.warnings if row[0] != about))
