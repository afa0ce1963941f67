"""How a script gets its checkpoint, and which of the user's own variables and words stay as they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.agent.placeholders import filled_command
from supervisor.config.settings import Checkpoints, Knobs, ResumeKnob, Settings
from supervisor.core.model import CheckpointRef
from supervisor.knobs.resume import declared_way
from supervisor.launch.environment import resume_handover

FOUND = CheckpointRef("ckpt/7.pt", 7, "structure")
DECLARED = replace(Settings(), checkpoints=Checkpoints(paths=("ckpt/*.pt",)))


@pytest.mark.parametrize("resume", [None, FOUND], ids=["nothing to resume", "a checkpoint"])
@pytest.mark.parametrize(
    ("settings", "command"),
    [
        (Settings(), ["train.py", "--save-to", "ckpt/step_{step}.pt"]),
        (DECLARED, ["train.py", "--save-to", "ckpt/step_{step}.pt"]),
        (Settings(), ["train.py", "--name", "{resume}-{step}"]),
    ],
)
def test_a_command_that_is_no_template_of_ours_is_run_as_written(
    settings: Settings, command: list[str], resume: CheckpointRef | None
) -> None:
    assert filled_command(command, resume_handover(settings, command, resume).words) == command


def test_a_path_that_holds_a_placeholder_is_left_as_it_is() -> None:
    assert filled_command(["--resume={resume}@{step}"], {"{resume}": "/runs/{step}/{resume}", "{step}": "20"}) == [
        "--resume=/runs/{step}/{resume}@20"
    ]


def test_a_declared_template_is_filled() -> None:
    command = ["train.py", "--resume={resume}", "--from={step}"]
    assert filled_command(command, resume_handover(DECLARED, command, FOUND).words) == ["train.py", "--resume=ckpt/7.pt", "--from=7"]
    assert filled_command(command, resume_handover(DECLARED, command, None).words) == ["train.py", "--resume=", "--from="]


def test_the_declared_arguments_know_both_words_whatever_the_command() -> None:
    settings = replace(DECLARED, knobs=Knobs(resume=ResumeKnob(args="--resume {resume} --from {step}")))
    assert resume_handover(settings, ["train.py"], FOUND, declared_way(settings)).arguments == ("--resume", "ckpt/7.pt", "--from", "7")


def test_a_switch_is_added_once_there_is_a_checkpoint_and_a_path_beside_it_too() -> None:
    settings = replace(DECLARED, knobs=Knobs(resume=ResumeKnob(switch="--init_from=resume", args="--from {resume}")))
    assert resume_handover(settings, ["train.py"], None, declared_way(settings)).arguments == ()
    given = resume_handover(settings, ["train.py"], FOUND, declared_way(settings))
    assert given.arguments == ("--from", "ckpt/7.pt", "--init_from=resume")
