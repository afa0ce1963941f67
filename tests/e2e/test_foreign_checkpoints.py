"""A script that resumes by itself from the greatest number takes another training's checkpoint after a kill: the run's own saves stay.

A real gloo training under torchrun. The other one comes while the job runs, as from a second run in the same directory; its rank's own
saves are what is protected.
"""

from __future__ import annotations

import hashlib
import os
import signal
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing.model import Verdict
from checkpointing.verification import verify
from tests.e2e.selfresuming import TRAIN, fast
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("short_intervals"),
]  # two starts, each of which imports torch


def killed_beside_a_stray(supervise: Callable[..., Supervised], place: Path, *more: str) -> tuple[Supervised, Path]:
    """Have a training save step 10, lay a checkpoint of step 5000 beside it, and kill a rank."""
    run = supervise(*TRAIN, "--steps=6000", "--pace-s=0.3", *more, options=["--config", str(fast(place))])
    saved = place / "ckpt" / "step_10.pt"
    wait_for(saved.exists, "step 10", 120, alive=run.alive)
    stray = place / "ckpt" / "step_5000.pt"
    torch.save({"model": torch.nn.Linear(8, 8).state_dict(), "step": 5000}, place / "stray")
    (place / "stray").rename(stray)
    os.kill(run.rank_pids()[0], signal.SIGKILL)
    return run, stray


def unwrapped(text: str) -> str:
    """Return a text without any space: a card breaks its lines before and within a long path."""
    return "".join(text.split())


def digests(place: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (place / "ckpt").glob("*.pt")}


def test_another_trainings_checkpoint_ends_the_run_before_a_save(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run, stray = killed_beside_a_stray(supervise, tmp_path)
    before = digests(tmp_path)
    assert run.exit_code(deadline_s=120) == 65, run.account()
    assert run.attempts() == 2
    assert digests(tmp_path) == before
    assert unwrapped(f"the ranks loaded {stray}") in unwrapped(run.stderr)
    assert f"mv {stray}" in run.stderr
    shown = run.ask("why").stdout
    assert "The ranks loaded another training's checkpoint" in shown


def test_a_path_that_the_command_names_may_be_loaded(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run, stray = killed_beside_a_stray(supervise, tmp_path, f"--names={tmp_path}/ckpt/step_5000.pt")  # a word of the command
    wait_for(lambda: f"from {stray}" in run.stderr, "the second attempt", 120)
    run.signal(signal.SIGTERM)
    run.exit_code()


def test_a_removed_newest_save_is_reported_as_soon_as_the_ranks_are_gone(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    options = ["--config", str(fast(tmp_path)), "--checkpoints", "ckpt/*.pt", "--resumes-itself"]
    run = supervise(*TRAIN, "--steps=40", "--pace-s=0.3", options=options)
    newest = tmp_path / "ckpt" / "step_20.pt"
    wait_for(lambda: newest.exists() and verify(str(newest)).verdict is Verdict.VERIFIED, "step 20", 120, alive=run.alive)
    newest.unlink()
    os.kill(run.rank_pids()[0], signal.SIGKILL)
    assert run.exit_code(deadline_s=120) == 0, run.account()
    gone = f"the newest save of this run, {tmp_path}/ckpt/step_20.pt, is gone"
    assert run.stderr.count(gone) == 1
    assert "resumed at step 10" in run.stderr
    assert unwrapped("step_20.pt, is gone") in unwrapped(run.ask("why").stdout)
