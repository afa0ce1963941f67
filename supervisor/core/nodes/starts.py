"""How the ranks of each node began, compared: nodes that train from different states are stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.actions import BroadcastStart
from supervisor.core.attempt import resumption, start
from supervisor.core.failure import teardown
from supervisor.core.state import Stage

if TYPE_CHECKING:
    from supervisor.core.events import NodeBegan
    from supervisor.core.state import JobState, Step

#: A script may count a step before or after it is made, and a sample may fall between.
STEPS_APART = 1


def compare(state: JobState, t: float) -> Step:
    """Tell the other nodes how this node's ranks began, once it is known; and compare."""
    attempt = state.attempt
    if state.stage is not Stage.RUNNING or not start.gathers(state) or attempt.steps_seen < 1 or attempt.reported_start is not None:
        return state, ()
    loaded = resumption.loaded_checkpoint(state)
    began = attempt.first_step, None if loaded is None else loaded.step
    if began == (None, None):
        return state, ()
    state, actions = _compared(state.with_attempt(reported_start=began), t)
    return state, (BroadcastStart(attempt.number, attempt.node, *began), *actions)


def on_node_began(state: JobState, event: NodeBegan) -> Step:
    """Compare how another node's ranks began with how this node's did. It may show that the attempt resumed, where nothing here does."""
    peer_starts = state.attempt.peer_starts
    if any((first, loaded) == (event.first_step, event.loaded_step) for _, first, loaded in peer_starts):
        return state, ()  # as another node did: of a thousand nodes nearly all begin alike
    peer_starts = (*peer_starts, (event.text, event.first_step, event.loaded_step))
    state, actions = resumption.reported(state.with_attempt(peer_starts=peer_starts))
    state, more = _compared(state, event.t)
    return state, (*actions, *more)


def _compared(state: JobState, t: float) -> Step:
    """End an attempt whose nodes train on from different states. No attempt resumes from its saves, or saves until its ranks are gone.

    A value is compared only if both nodes know it: rank 0 alone may load, and broadcast the state.
    """
    mine = state.attempt.reported_start
    if mine is None or state.stage is not Stage.RUNNING:
        return state, ()
    for text, first_step, loaded_step in state.attempt.peer_starts:
        if _apart(mine[0], first_step, STEPS_APART) or _apart(mine[1], loaded_step, 0):
            differs = f"this node's ranks {began_text(*mine)}, those of {text}"
            state = state.with_attempt(start_mismatch=differs).with_run(diverged_since_t=state.attempt.began_t)
            return teardown.stop_attempt(state, t, differs)
    return state, ()


def _apart(mine: int | None, theirs: int | None, tolerance: int) -> bool:
    return mine is not None and theirs is not None and abs(mine - theirs) > tolerance


def began_text(first_step: int | None, loaded_step: int | None) -> str:
    """Return how ranks began, for people."""
    if loaded_step is not None:
        return f"loaded step {loaded_step}" + ("" if first_step is None else f" and trained on from step {first_step}")
    return f"trained on from step {first_step}"
