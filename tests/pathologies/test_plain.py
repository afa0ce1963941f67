"""Each pathology of tests/jobs/hangs.py is a hang: under plain torchrun no rank makes another step, and nothing ends the job."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.e2e.conftest import Supervised, Surroundings, clean_environment
from tests.jobs.hang_names import HANGS, HEALTHY
from tests.pathologies.hanging_jobs import AT, EPOCH, STEPS, WORDS, command, cpu_s, culprit, mounted, pids, stands_still, state_of
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(120)]

#: Three hundred steps of a job that is well.
STILL_S = 6.0
#: The state in which the culprit is seen then; S otherwise.
STATES = {"python_loop": "R", "c_loop": "R", "frozen": "D"}
PLAIN = Surroundings(without_us=True)


@pytest.mark.parametrize("pathology", HANGS)
def test_a_hang_stands_still_for_ever(supervise: Callable[..., Supervised], tmp_path: Path, pathology: str) -> None:
    with mounted(pathology, tmp_path) as hang:
        run = supervise(*command(pathology), around=PLAIN)
        hang()
        steps = stands_still(run, STILL_S)
        at = int(next((word.removeprefix("--at=") for word in WORDS.get(pathology, ()) if word.startswith("--at=")), AT))
        if pathology == "stuck_save":
            at = -(-AT // EPOCH) * EPOCH + 1  # the first save from there on
        assert all(at - 1 <= step <= at for step in steps), steps
        bad = pids(run)[culprit(pathology)]
        assert state_of(bad) == STATES.get(pathology, "S")
        before = cpu_s(bad)
        stands_still(run, STILL_S + 1.0)
        assert (cpu_s(bad) - before > 0.2) == (pathology in {"python_loop", "c_loop"})
        assert run.alive()


@pytest.mark.parametrize("ranks", [(1,), (0, 1)], ids=["one", "all"])
def test_a_stopped_rank_stops_all(supervise: Callable[..., Supervised], ranks: tuple[int, ...]) -> None:
    run = supervise(*command("none", "--steps=100000"), around=PLAIN)
    run.wait_for_step(20)
    for rank in ranks:
        os.kill(pids(run)[rank], signal.SIGSTOP)
    stands_still(run, STILL_S)
    for rank in ranks:
        assert state_of(pids(run)[rank]) == "T"
        os.kill(pids(run)[rank], signal.SIGCONT)
    gone_on = max(step for _, step in run.progress()) + 20
    run.wait_for_step(gone_on)


@pytest.mark.parametrize("pathology", HEALTHY)
def test_what_is_healthy_ends_by_itself(tmp_path: Path, pathology: str) -> None:
    words = ["--long-s=0.2"] if pathology in {"long_step", "rollouts", "evaluation"} else ["--long-s=1"]
    done = subprocess.run(  # noqa: S603  # plain torchrun
        command(pathology, *words), cwd=tmp_path, env=clean_environment(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "progress").read_text().count(f" {STEPS} ") == 2  # both ranks


def test_the_weights_depend_on_the_steps_alone(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert supervise(*command("none"), around=PLAIN, place=whole).exit_code() == 0
    assert supervise(*command("none", "--steps=100"), around=PLAIN, place=cut).exit_code() == 0
    newest = cut / "ckpt" / "step-000100.pt"
    wait_for(newest.exists, "the checkpoint of the last step")
    assert supervise(*command("none", f"--resume={newest}"), around=PLAIN, place=cut).exit_code() == 0
    assert (cut / "digest").read_bytes() == (whole / "digest").read_bytes()
