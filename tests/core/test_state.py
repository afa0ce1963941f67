"""The copy of a state."""

from __future__ import annotations

import pytest

from supervisor.core.state import Attempt, JobState, Run, Stage, changed
from supervisor.core.values import replace


def test_a_changed_state_is_what_replace_would_make_and_leaves_the_old_one_alone() -> None:
    old = JobState(attempt=Attempt(number=3), run=Run(programs=("hf_trainer",)))
    new = changed(old, stage=Stage.RUNNING, attempt=changed(old.attempt, number=4))
    assert new == replace(old, stage=Stage.RUNNING, attempt=replace(old.attempt, number=4))
    assert (old.stage, old.attempt.number) == (Stage.NEW, 3)
    with pytest.raises(AttributeError):
        new.attempt.number = 5  # type: ignore[misc]  # that is the point
