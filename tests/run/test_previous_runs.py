"""What a last run leaves to a start of the same command."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config.settings import Settings
from supervisor.core.state import JobState, Run
from supervisor.core.values import replace
from supervisor.job import identity
from supervisor.job.job import Job
from supervisor.journal.records import RunBegan, RunEnded
from supervisor.run import previous_runs
from supervisor.view.opening import Past

HERE = Path("/")
JOB = Job("job", "new", "node", ("python", "train.py"), HERE, {}, Settings(), HERE, HERE, "cookie")


def past(exit_code: int | None, command: tuple[str, ...] = JOB.command) -> Past:
    """Return the past of a run that a rank was seen to train in with nanoGPT."""
    began = RunBegan("old", command, identity.command_digest(command), "1", 1, 1, "boot")
    end = None if exit_code is None else RunEnded(exit_code, "")
    return Past(JobState(Run("old", programs=("nanogpt",))), 3, 1, 4, began, end, ())


@pytest.mark.parametrize(
    ("exit_code", "unfinished", "programs"),
    [(0, False, ()), (143, True, ("nanogpt",)), (129, True, ("nanogpt",)), (130, True, ()), (65, True, ()), (None, False, ())],
)
def test_only_a_run_that_was_ended_from_outside_hands_its_program_on(
    exit_code: int | None, *, unfinished: bool, programs: tuple[str, ...]
) -> None:
    previous = past(exit_code)
    assert (previous_runs.unfinished(previous, JOB), previous_runs.programs_seen(previous, JOB)) == (unfinished, programs)


@pytest.mark.parametrize(("earlier", "programs"), [(143, ("nanogpt",)), (0, ()), (130, ())])
def test_a_run_that_was_ended_before_it_began_changes_nothing(earlier: int, programs: tuple[str, ...]) -> None:
    previous = past(143)
    run = Run("older", programs=("nanogpt",), exit_code=earlier)
    assert previous_runs.programs_seen(replace(previous, state=JobState(run)), JOB) == programs


def test_a_run_of_another_command_is_not_continued() -> None:
    previous = past(143, ("python", "other.py"))
    assert (previous_runs.unfinished(previous, JOB), previous_runs.programs_seen(previous, JOB)) == (False, ())
    assert not previous_runs.unfinished(replace(previous, last_run=None), JOB)
