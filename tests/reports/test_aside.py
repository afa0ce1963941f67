"""Reports 9, 10, 13 and 16: what a save left, what was set aside, and pointers. Our own doing is suspected before the program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.retention.aside import AsideRecord
from tests.reports.conftest import OFTEN, SCRIPTS, alone, torchrun

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkpointing.retention.aside import AsideChange
    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


def output_words(run: Supervised) -> str:
    """Return what was reported, in one line: a card breaks its lines before a long path."""
    return " ".join(run.stderr.split())


def changes(run: Supervised) -> list[AsideChange]:
    """Return what was set aside, each change in its last phase."""
    return [
        change for directory in run.state.glob("*/nodes/*/checkpoints") for change in AsideRecord(CheckpointCatalogue(directory)).changes()
    ]


@pytest.mark.slow
def test_automodel_3254_the_rest_of_a_killed_save_is_set_aside_for_the_next_save(supervise: Callable[..., Supervised]) -> None:
    options = ["--checkpoints", "ckpt/epoch_0_step_*", "--resume-args", "--resume {resume}"]
    run = supervise(*alone("automodel_3254.py", "--steps", "80", "--raises", "makedirs"), options=options, **OFTEN)
    assert run.exit_code(180) == 0
    assert run.attempts() == 3
    torn = run.place / "ckpt" / "epoch_0_step_60"
    assert f"rank 0: {torn} is in the way of the save: attempt 1 left it" in output_words(run)
    assert [(change.path, change.phase) for change in changes(run)] == [(str(torn), "done")]
    assert sorted(path.name for path in torn.iterdir()) == ["model.pt", "optim.pt"], "it was saved again, whole"
    assert "user_code" not in output_words(run)


@pytest.mark.slow
def test_a_killed_dcp_save_in_the_way_is_found_by_the_save_under_way(supervise: Callable[..., Supervised]) -> None:
    options = ["--checkpoints", "ckpt/step-*", "--resume-args", "--resume {resume}"]
    run = supervise(*torchrun("pytorch_dcp_overwrite.py", "--steps", "80", "--left", "torn"), options=options, **OFTEN)
    assert run.exit_code(220) == 0
    assert "Checkpoint already exists and self.overwrite=False." in run.stderr
    assert run.attempts() == 3
    torn = run.place / "ckpt" / "step-60"
    assert f"{torn} is in the way of the save: an earlier attempt left it" in output_words(run)
    assert [(change.path, change.phase) for change in changes(run)] == [(str(torn), "done")]
    assert sorted(path.name for path in torn.iterdir()) == [".metadata", "__0_0.distcp", "__1_0.distcp"], "it was saved again, whole"
    assert "user_code" not in output_words(run)


@pytest.mark.slow
def test_a_whole_one_in_the_way_of_dcp_stays_and_the_command_that_moves_it_is_named(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*alone("pytorch_dcp_overwrite.py", "--steps", "80"), options=["--resumes-itself"], **OFTEN)
    assert run.exit_code(220) == 65
    place = run.place / "ckpt" / "step-60"
    assert f"{place} is in the way of the save: an earlier attempt left it (it is whole)" in output_words(run)
    assert f"mv {place} {run.place}/.supervise-aside/torn-a" in output_words(run)
    assert (place / ".metadata").exists(), "nothing was touched"


@pytest.mark.slow
def test_transformers_begins_anew_where_its_very_first_save_was_killed(
    supervise: Callable[..., Supervised], frameworks: dict[str, str]
) -> None:
    words = alone("transformers_first_save.py", "--killed-before", "arguments")  # weights alone look like an export
    run = supervise(*words, **OFTEN, **frameworks, HF_HUB_OFFLINE="1")
    assert run.exit_code(220) == 0
    assert run.attempts() == 3
    torn = run.place / "out" / "checkpoint-10"
    assert [(change.path, change.phase) for change in changes(run)] == [(str(torn), "done")]
    assert "it was the first save, and nothing older lies there: the run begins anew" in output_words(run)
    begins = [line for line in run.stdout.splitlines() if line.startswith("continues from")]
    assert begins == ["continues from None", "continues from out/checkpoint-10", "continues from None"]
    assert (torn / "trainer_state.json").exists(), "it was saved again, whole"


@pytest.mark.slow
def test_torchtitan_4292_no_way_to_list_steps_meets_what_was_set_aside(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*alone("torchtitan_4292.py", "--steps", "80", "--finds", "listing"), options=["--resumes-itself"], **OFTEN)
    assert run.exit_code(180) == 0
    assert [line for line in run.stdout.splitlines() if line.startswith("continues")] == ["continues from step 0", "continues from step 40"]
    assert run.attempts() == 2
    assert [change.path for change in changes(run)] == [str(run.place / "ckpt" / "step-60")]
    assert sorted(path.name for path in (run.place / "ckpt").iterdir()) == [f"step-{step}" for step in (20, 40, 60, 80)]


@pytest.mark.slow
def test_torchtitan_4292_a_script_that_looks_for_what_was_set_aside_gets_it_back(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*alone("torchtitan_4292.py", "--steps", "80", "--finds", "registry"), options=["--resumes-itself"], **OFTEN)
    assert run.exit_code(180) == 0
    torn = run.place / "ckpt" / "step-60"
    assert f"the script looks for {torn}/meta.json, which was set aside" in output_words(run)
    assert "the script misses the file that was set aside: it was moved back from" in output_words(run)
    assert [(change.path, change.phase) for change in changes(run)] == [(str(torn), "undone")]
    assert [line for line in run.stdout.splitlines() if line.startswith("continues")] == ["continues from step 0", "continues from step 40"]


@pytest.mark.slow
def test_kempnerforge_102_a_link_that_was_moved_too_early_is_named_with_its_command(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*alone("kempnerforge_102.py", "--steps", "100"), options=["--resumes-itself"], **OFTEN)
    assert run.exit_code(180) == 65
    link, ckpt = run.place / "ckpt" / "latest", run.place / "ckpt"
    assert f"{link} leads to {ckpt}/step-60, which is not whole; the newest whole one next to it is step-40" in output_words(run)
    assert f"ln -sfn step-40 {link}" in output_words(run)
    assert (link.readlink(), (ckpt / "step-40" / ".metadata").exists()) == (Path("step-60"), True), "nothing was touched"


@pytest.mark.parametrize(
    "leads_to",
    [
        pytest.param("last.ckpt", id="itself"),
        pytest.param("/old/place/ckpt/step-40.pt", id="where the directory was", marks=pytest.mark.slow),
    ],
)
def test_lightning_21110_a_last_that_leads_to_nothing_is_named_with_its_command(
    supervise: Callable[..., Supervised], tmp_path: Path, leads_to: str
) -> None:
    (tmp_path / "ckpt").mkdir()
    for step in (20, 40):
        torch.save({"step": step}, tmp_path / "ckpt" / f"step-{step}.pt")
        os.utime(tmp_path / "ckpt" / f"step-{step}.pt", (1e9, 1e9))  # both in one tick of the file system's clock
    link = tmp_path / "ckpt" / "last.ckpt"
    link.symlink_to(leads_to)
    run = supervise(sys.executable, str(SCRIPTS / "lightning_21110.py"), "ckpt/last.ckpt")
    assert run.exit_code(60) == 65
    assert run.attempts() == 1
    assert "the newest whole one next to it is step-40.pt" in output_words(run)
    assert f"ln -sfn step-40.pt {link}" in output_words(run)
    assert "file and line" not in output_words(run)
