"""A checkpoint is accused only on proof: what fails after its load, or on two alike, leaves all of them in use."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch

from tests.reports.conftest import DECLARED, OFTEN, alone

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


def begun(run: Supervised) -> list[str]:
    """Return where the attempts of a run began, as rank 0 printed it."""
    return [line.removeprefix("training from step ") for line in run.stdout.splitlines() if line.startswith("training from step ")]


# --- what fails after the load: crash_after_load.py


@pytest.mark.slow
def test_a_crash_after_the_load_accuses_no_checkpoint_and_the_next_run_continues(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    command = alone("crash_after_load.py", "--how", "segfault", "--steps", "60")
    run = supervise(*command, options=DECLARED, **OFTEN)
    assert run.exit_code(150) in {1, 65}
    assert begun(run) == ["0", "40", "40", "20"]
    assert (tmp_path / "ckpt" / "step-40.pt").exists()
    assert "out of use" not in run.stderr
    (tmp_path / "mended").touch()
    mended = supervise(*command, options=DECLARED, **OFTEN)
    assert mended.exit_code(100) == 0
    assert begun(mended) == ["40"]
    assert "out of use" not in mended.stderr


# --- verl_7952.py: the script resumes by a tracker that is never written


@pytest.mark.slow
def test_a_training_that_begins_anew_for_want_of_its_tracker_is_ended_before_it_saves(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    run = supervise(*alone("verl_7952.py", "--pace-s", "0.1"), **OFTEN)
    assert run.exit_code(150) == 65
    assert begun(run) == ["0", "0"]
    tracker = tmp_path / "ckpt" / "latest_checkpointed_iteration.txt"
    assert f"{tracker} is missing, though whole checkpoints lie next to it: printf %s 40 > {tracker}" in run.stderr
    assert torch.load(tmp_path / "ckpt" / "global_step_40" / "model.pt")["step"] == 40
    tracker.write_text("40")  # as the card says
    again = supervise(*alone("verl_7952.py", "--steps", "60"), **OFTEN)
    assert again.exit_code(100) == 0
    assert begun(again) == ["40"]


@pytest.mark.slow
def test_a_job_with_its_tracker_continues_from_the_newest_checkpoint(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*alone("verl_7952.py", "--tracker", "--steps", "60"), **OFTEN)
    assert run.exit_code(150) == 0
    assert begun(run) == ["0", "40"]
    assert "missing" not in run.stderr


# --- nemo_10228.py: a save that its framework marks as unfinished


@pytest.mark.slow
def test_a_marked_save_is_passed_over_by_name_and_the_one_before_it_is_taken(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*alone("nemo_10228.py", "--steps", "50"), options=("--checkpoints", "ckpt/step=*", "--resumes-itself"), **OFTEN)
    assert run.exit_code(150) == 0
    assert begun(run) == ["0", "20"]
    assert "step=40-unfinished lies next to it" in " ".join(run.stderr.split())


@pytest.mark.slow
def test_where_the_only_save_is_marked_the_run_stops_and_trains_nothing_anew(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    command = alone("nemo_10228.py", "--steps", "50", "--die-at", "20")
    run = supervise(*command, options=("--checkpoints", "ckpt/step=*", "--resume-args", "--resume {resume}"), **OFTEN)
    assert run.exit_code(150) == 65
    assert begun(run) == ["0"]
    assert "step=20-unfinished lies next to it" in " ".join(run.stderr.split())
    assert (tmp_path / "ckpt" / "step=20" / "model.pt").exists()


# --- fairchem_1055.py: the path stands in the command


@pytest.mark.slow
def test_each_restart_uses_the_path_in_the_command_and_names_the_newer_checkpoint(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    first = supervise(*alone("fairchem_1055.py", "--steps", "20"), **OFTEN)
    assert first.exit_code(100) == 0
    run = supervise(*alone("fairchem_1055.py", "--resume", "ckpt/step-20.pt", "--steps", "80"), **OFTEN)
    assert run.exit_code(150) == 0
    assert begun(run) == ["20", "20"]
    text = " ".join(run.stderr.split())
    assert "each attempt begins at step 20, because the command names ckpt/step-20.pt" in text
    ckpt = tmp_path / "ckpt"
    assert f"resumed at step 20 from {ckpt}/step-20.pt, although it was given {ckpt}/step-60.pt (step 60): steps 21 to 60 are" in text


# --- simpletuner_2989.py, accelerate_3306.py: the number in a name is not what is newest


@pytest.mark.slow
def test_a_stale_save_of_the_greatest_number_is_not_trained_on_from(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    stale = tmp_path / "ckpt" / "step-5000.pt"
    stale.parent.mkdir()
    model = torch.nn.Linear(64, 64)
    torch.save({"model": model.state_dict(), "optimizer": torch.optim.SGD(model.parameters(), lr=0.1).state_dict(), "step": 5000}, stale)
    run = supervise(
        *alone("simpletuner_2989.py", "--pace-s", "0.1"), options=("--checkpoints", "ckpt/step-*.pt", "--resumes-itself"), **OFTEN
    )
    assert run.exit_code(150) == 65
    text = " ".join(run.stderr.split())
    assert f"the newest save of this run, {tmp_path}/ckpt/step-20.pt, is gone" in text
    assert "another training's checkpoint" in text
    assert torch.load(stale)["step"] == 5000


@pytest.mark.slow
def test_a_numbering_that_begins_anew_is_resumed_from_what_was_saved_last(supervise: Callable[..., Supervised]) -> None:
    options = ("--checkpoints", "ckpt/checkpoint_*.pt", "--resume-args", "--resume {resume}")
    run = supervise(*alone("accelerate_3306.py", "--steps", "90"), options=options, **OFTEN)
    assert run.exit_code(200) == 0
    assert begun(run) == ["0", "60", "80"]


@pytest.mark.slow
def test_a_load_through_a_link_is_no_start_from_scratch(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = supervise(*alone("resumes_from_best.py", "--steps", "100"), **OFTEN)
    assert run.exit_code(200) == 0
    text = "".join(run.stderr.split())
    seen = re.findall(r"resumed(?:atstep20)?from(\S+?/step-\d+\.pt)", text)  # the step, where the file was looked at by then
    assert seen[:1] == [f"{tmp_path}/ckpt/step-20.pt"]
    assert "SCRATCH" not in text
