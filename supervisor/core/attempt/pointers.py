"""Ends an attempt that begins from scratch because the file is missing in which its framework looks for the newest checkpoint.

A framework that saves in the background may have written whole checkpoints and never the tracker (verl, Megatron). An attempt after that
finds none, begins at step 0, and its first save takes the place of theirs. Until its count of steps shows that, nothing is known: another
script may list the same directories. Without a count it continues, and a copy of the newest is kept (core/attempt/resumption.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.attempt import resumption
from supervisor.core.failure import teardown
from supervisor.core.model import Beginning, Cause, Claim, Evidence
from supervisor.core.state import Stage
from supervisor.strategies.situation import MISSING_POINTER, POINTER_COMMAND

if TYPE_CHECKING:
    from supervisor.core.state import JobState, Step

#: No rank was seen to load, the steps began anew, and no tracker is there.
SURE = 0.95


def ended(state: JobState, t: float) -> Step:
    """End an attempt after the first that trains from scratch while whole checkpoints of this run have no tracker."""
    attempt, missing = state.attempt, state.run.without_tracker
    is_first = attempt.number < 2  # noqa: PLR2004 (it has nothing to resume from)
    if missing is None or is_first or state.stage is not Stage.RUNNING or attempt.steps_seen < 1 or attempt.loaded is not None:
        return state, ()
    # a script with names like those may load where no hook sees it: only a count of steps shows that this one did not
    if attempt.first_step is None or resumption.judged(state).began is Beginning.RESUMED:
        return state, ()
    text = f"the attempt began from scratch although {missing.newest} is whole: {missing.tracker}, by which it would be found, is missing"
    fields = ((MISSING_POINTER, missing.tracker), (POINTER_COMMAND, missing.command))
    fact = Evidence("checkpoint", "no_tracker", text, t=t, fields=fields, claim=Claim(Cause.CHECKPOINT_MISMATCH, SURE))
    state = state.with_run(without_tracker=None).with_attempt(ended_for=(fact,))
    return teardown.stop_attempt(state, t, text)
