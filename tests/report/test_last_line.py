"""The last line of a run, by how it ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.model import RESUME, CheckpointRef, Knob, Policy, Progress, ResumeKind
from supervisor.core.state import Attempt, JobState, Losses, Run, StopRequest
from supervisor.report.last_line import last_line

NOTHING = Losses()
STOP = StopRequest(15, 1, 50.0)
SAVED = CheckpointRef("/d/400.pt", 400, "digest")
NANOGPT = Knob(RESUME, "", "--init_from=resume", by="nanogpt", seen=False, counts=ResumeKind.SWITCH)


def ended(  # noqa: PLR0913  what the last line is made of
    code: int,
    step: int | None = 423,
    *,
    stop: StopRequest | None = None,
    losses: Losses = NOTHING,
    loads: bool = False,
    way: Knob | None = None,
) -> JobState:
    """A run whose only attempt trained from 10 to 50 seconds, with the program of `way`."""
    policy = Policy(knobs=(way,)) if way is not None else Policy()
    programs = (way.by,) if way is not None else ()
    attempt = Attempt(
        1,
        began_t=9.0,
        started_t=10.0,
        over_t=50.0,
        progress=Progress(step),
        steps_seen=-1 if step is None else step,
        loaded=SAVED.path if loads else None,
    )
    # ever_loaded: it read weights of another project, too
    return JobState(attempt=attempt, run=Run(policy=policy, stop=stop, exit_code=code, losses=losses, ever_loaded=True, programs=programs))


@pytest.mark.parametrize(
    ("state", "newest", "text"),
    [
        (ended(0), SAVED, "done at step 423, no incident; the newest checkpoint is verified: /d/400.pt (step 400)"),
        (ended(0, None), None, "done, no incident"),
        (
            ended(0, losses=Losses(2, 61.4)),
            CheckpointRef("/d/snapshot.pt", None, "digest", 4),
            "done at step 423, 2 incidents, 61 s lost; the newest checkpoint is verified: /d/snapshot.pt (epoch 4)",
        ),
        # behind until the end
        (ended(0, losses=Losses(1, 1.0, since_t=30.0)), None, "done at step 423, 1 incident, 21 s lost"),
        # no step was seen: how much was trained again is not known, only when the ranks were there again
        (ended(0, None, losses=Losses(1, since_t=4.0)), None, "done, 1 incident, at least 6 s lost"),
        (ended(0, None, losses=Losses(1, since_t=9.7)), None, "done, 1 incident"),
        (ended(65, None, losses=Losses(1, since_t=4.0)), None, "given up, 1 incident, 46 s lost"),
        (
            ended(65, losses=Losses(3, 7.0)),
            SAVED,
            "given up at step 423, 3 incidents, 7 s lost; the newest verified checkpoint is /d/400.pt (step 400)",
        ),
        (ended(1, None, losses=Losses(1)), None, "given up, 1 incident"),
        (JobState(run=Run(stop=STOP)), None, "stopped before the first attempt: the command was not started"),
        (ended(143, None, stop=STOP), None, "stopped at step unknown, no incident; no checkpoint of this run was verified"),
        (
            ended(143, stop=STOP, loads=True),
            SAVED,
            "stopped at step 423, no incident; the newest verified checkpoint is /d/400.pt (step 400); the same command resumes from it",
        ),
        (
            ended(143, stop=STOP, way=NANOGPT),
            SAVED,
            "stopped at step 423, no incident; the newest verified checkpoint is /d/400.pt (step 400); the same command resumes from it",
        ),
        (  # whoever presses Ctrl-C may want a new training
            ended(130, stop=STOP, way=NANOGPT, loads=True),  # by its option
            SAVED,
            (
                "stopped at step 423, no incident; the newest verified checkpoint is /d/400.pt (step 400);"
                " the same command resumes only if the script does so by itself"
            ),
        ),
        (
            ended(143, stop=STOP),
            CheckpointRef("/d/a.pt", None, "digest"),
            (
                "stopped at step 423, no incident; the newest verified checkpoint is /d/a.pt;"
                " the same command resumes only if the script does so by itself"
            ),
        ),
    ],
)
def test_the_last_line_has_how_far_the_run_came_and_what_it_cost(state: JobState, newest: CheckpointRef | None, text: str) -> None:
    assert last_line(state, state.run.exit_code or 143 * (state.run.stop is not None), newest) == text


def test_a_save_that_was_not_verified_in_time_is_named_with_the_command_that_checks_it() -> None:
    text = last_line(ended(0), 0, SAVED, all_verified=False)
    assert text.startswith("done at step 423, no incident; the newest verified checkpoint is /d/400.pt (step 400); the last save was not")
    assert "`supervise checkpoints verify PATH`" in text


def test_a_step_that_is_counted_from_the_beginning_of_the_attempt_says_so() -> None:
    state = JobState(attempt=Attempt(1, progress=Progress(9, relative=True), steps_seen=9), run=Run(exit_code=0))
    assert last_line(state, 0, None) == "done at step 9 (counted by supervise), no incident"
    state = replace(state, run=replace(state.run, losses=Losses(1, 29.0)))
    assert last_line(state, 0, None) == "done at step 9 (counted by supervise), 1 incident, at least 29 s lost"


def test_where_an_attempt_began_is_no_step_that_it_reached() -> None:
    state = JobState(attempt=Attempt(2, progress=Progress(5, relative=True), steps_seen=0), run=Run(exit_code=0))
    assert last_line(state, 0, SAVED).startswith("done, no incident; the newest checkpoint is verified: /d/400.pt (step 400)")
