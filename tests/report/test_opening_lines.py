"""What the end of a run recommends: options that it showed, with the script's own flags."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.config.settings import Checkpoints, JobSection, Settings
from supervisor.core.model import RESUME, Cause, CheckpointRef, Failure, Knob, ResumeKind
from supervisor.core.state import Attempt, JobState, Run
from supervisor.knobs.knob_set import KnobSet, ResumeWay
from supervisor.report.opening_lines import next_time, resume_line

SETTINGS = Settings(cwd="/home/ada", job=JobSection(), checkpoints=Checkpoints())
SAVED = CheckpointRef("/home/ada/out/checkpoint-60.pt", 60, "digest")
FLAG = ((RESUME, "--resume-args '--resume_from {resume}'"),)
BATCH = (("batch_size", "--knob batch_size=--bs"), ("grad_accum", "--knob grad_accum:1=--accum"))
COMMAND = ("python", "train.py")
TRAINED = JobState(attempt=Attempt(1), run=Run())
OUT_OF_MEMORY = TRAINED.with_run(failures=(Failure(1, 0.0, Cause.CUDA_OOM, "f", 3, before_first_step=False, charged=True, ladder_step=""),))
PATTERN = "--checkpoints 'out/checkpoint-*.pt'"


def way(by: str) -> tuple[ResumeWay, ...]:
    return (ResumeWay(Knob(RESUME, "", "--load", by=by, counts=ResumeKind.PATH), "--load {resume}"),)


@pytest.mark.parametrize(
    ("knob_set", "state", "newest", "options"),
    [
        (KnobSet(likely=FLAG), TRAINED, SAVED, f"{PATTERN} --resume-args '--resume_from {{resume}}'"),
        (KnobSet(), TRAINED, SAVED, PATTERN),  # no flag of the script is known
        (KnobSet(likely=FLAG), TRAINED.with_attempt(loaded=SAVED.path), SAVED, f"{PATTERN} --resumes-itself"),
        (KnobSet(likely=FLAG), TRAINED, None, ""),
        (KnobSet(resume=way("declared")), TRAINED, SAVED, PATTERN),
        (KnobSet(resume=way("hf_trainer")), TRAINED, SAVED, ""),  # the program finds its own
        (KnobSet(likely=BATCH), TRAINED, None, ""),
        (KnobSet(likely=BATCH), OUT_OF_MEMORY, None, "--knob batch_size=--bs --knob grad_accum:1=--accum"),
        (KnobSet(likely=BATCH[:1]), OUT_OF_MEMORY, None, ""),  # the global batch could not be kept
    ],
    ids=["a flag", "no flag", "it loads by itself", "nothing saved", "declared", "a program", "no OOM", "OOM", "OOM, one flag"],
)
def test_a_run_recommends_what_it_showed(knob_set: KnobSet, state: JobState, newest: CheckpointRef | None, options: str) -> None:
    assert next_time(SETTINGS, knob_set, COMMAND, state, newest) == options


@pytest.mark.parametrize(
    ("knob_set", "saved", "options"),
    [
        (
            KnobSet(likely=FLAG),
            ("/home/ada/out/checkpoint-[0-9]*",),
            "--checkpoints 'out/checkpoint-*' --resume-args '--resume_from {resume}'",
        ),
        (KnobSet(likely=FLAG), ("/home/ada/model_[0-9]*.pt", "/home/ada/optim_[0-9]*.pt"), ""),  # which is to be handed over is not known
        (KnobSet(), ("/home/ada/plots/[0-9]*.pt",), ""),
    ],
    ids=["a flag", "several", "no flag"],
)
def test_a_run_that_saved_and_never_resumed_recommends_where_it_saved(knob_set: KnobSet, saved: tuple[str, ...], options: str) -> None:
    assert next_time(SETTINGS, knob_set, COMMAND, TRAINED, None, saved=saved) == options


def test_a_run_in_the_root_directory_that_saved_nothing_recommends_nothing() -> None:
    """A service of systemd runs there."""
    assert next_time(replace(SETTINGS, cwd="/"), KnobSet(), COMMAND, TRAINED, None) == ""


def test_a_start_without_checkpoints_names_the_scripts_own_flag() -> None:
    assert resume_line(SETTINGS, KnobSet(likely=FLAG)).endswith(
        "; --checkpoints PATTERN --resume-args '--resume_from {resume}' would pass it the newest"
    )
    assert "PATTERN" not in resume_line(SETTINGS, KnobSet())


def test_a_run_recommends_nothing_that_it_was_given() -> None:
    declared = replace(SETTINGS, checkpoints=Checkpoints(paths=("out/*.pt",)))
    assert next_time(declared, KnobSet(likely=FLAG), (*COMMAND, "--from", "{resume}"), TRAINED, SAVED) == ""
    assert next_time(replace(declared, job=JobSection(resumes_itself=True)), KnobSet(likely=FLAG), COMMAND, TRAINED, SAVED) == ""
    assert next_time(declared, KnobSet(likely=FLAG), COMMAND, TRAINED, SAVED) == "--resume-args '--resume_from {resume}'"
