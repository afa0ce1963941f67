"""The last line of a run, by how it ended."""

from __future__ import annotations

import pytest

from supervisor.core.model import RESUME, Cause, CheckpointRef, Failure, Knob, Policy, Progress, ResumeKind
from supervisor.core.state import Attempt, JobState, Losses, Run, StopRequest
from supervisor.core.values import replace
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
        (ended(65, None, losses=Losses(1, since_t=4.0)), None, "failed, 1 incident, 46 s lost"),
        (
            ended(65, losses=Losses(3, 7.0)),
            SAVED,
            "failed at step 423, 3 incidents, 7 s lost; the newest verified checkpoint is /d/400.pt (step 400)",
        ),
        (ended(1, None, losses=Losses(1)), None, "failed, 1 incident"),
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
def test_the_last_line_shows_the_reached_step_and_the_cost(state: JobState, newest: CheckpointRef | None, text: str) -> None:
    assert last_line(state, state.run.exit_code or 143 * (state.run.stop is not None), newest) == text


def test_an_unverified_last_save_is_named_with_the_command_that_checks_it() -> None:
    text = last_line(ended(0), 0, SAVED, all_verified=False)
    assert text.startswith("done at step 423, no incident; the newest verified checkpoint is /d/400.pt (step 400); the last save was not")
    assert "`supervise checkpoints verify PATH`" in text


def test_a_step_that_is_counted_from_the_beginning_of_the_attempt_says_so() -> None:
    state = JobState(attempt=Attempt(1, progress=Progress(9, relative=True), steps_seen=9), run=Run(exit_code=0))
    assert last_line(state, 0, None) == "done at step 9 (counted by supervise), no incident"
    state = replace(state, run=replace(state.run, losses=Losses(1, 29.0)))
    assert last_line(state, 0, None) == "done at step 9 (counted by supervise), 1 incident, at least 29 s lost"


def test_the_step_at_which_an_attempt_began_is_not_reached_by_it() -> None:
    state = JobState(attempt=Attempt(2, progress=Progress(5, relative=True), steps_seen=0), run=Run(exit_code=0))
    assert last_line(state, 0, SAVED).startswith("done, no incident; the newest checkpoint is verified: /d/400.pt (step 400)")


def test_steps_made_again_from_scratch_are_named() -> None:
    text = last_line(ended(0, losses=Losses(1, 31.0, scratch=(2,), steps_again=71)), 0, None)
    assert text == "done at step 423, 1 incident, 31 s lost, 71 steps made again from scratch"


def test_a_batch_that_is_not_the_commands_is_named() -> None:
    knobs = (Knob("batch_size", "8", "--batch-size"), Knob("grad_accum", "1", "--accum"))
    state = ended(0)
    state = replace(
        state, run=replace(state.run, policy=Policy(knobs=knobs)), attempt=replace(state.attempt, overrides=(("batch_size", "2"),))
    )
    assert last_line(state, 0, None) == "done at step 423, no incident; its last attempt trained with --batch-size 2 instead of 8"
    same = replace(state, attempt=replace(state.attempt, overrides=(("batch_size", "8"), ("grad_accum", "1"))))
    assert last_line(same, 0, None) == "done at step 423, no incident"


@pytest.mark.parametrize(
    ("second", "passed", "count"),
    [("user_code:a", False, "2 incidents (the same failure)"), ("user_code:b", False, "2 incidents"), ("user_code:a", True, "2 incidents")],
    ids=["the same bug", "another one", "it got past the first"],
)
def test_the_same_failure_twice_at_one_place_is_named_as_the_same(second: str, passed: bool, count: str) -> None:  # noqa: FBT001
    def failed(number: int, fingerprint: str) -> Failure:
        is_over = passed and number == 1
        return Failure(
            number, 1.0, Cause.USER_CODE, fingerprint, 50, before_first_step=False, charged=True, passed_since=is_over, incident=number
        )

    state = ended(65, losses=Losses(2))
    state = replace(state, run=replace(state.run, failures=(failed(1, "user_code:a"), failed(2, second)), failed=2))
    assert last_line(state, 65, None).startswith(f"failed at step 423, {count}")
