"""The script of `supervise print slurm` on a real Slurm: preempted, saved, requeued, resumed, finished; and what must not be requeued."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.supervised import clean_environment
from tests.support.waiting import wait_for, words_of

if TYPE_CHECKING:
    from tests.slurm.conftest import SlurmCluster

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
JOB = str(ROOT / "tests" / "jobs" / "saves_on_request.py")
TRAIN = ["torchrun", "--standalone", "--nproc-per-node=2", JOB]
#: All of the node, so that the other job must preempt.
WHOLE = ["--sbatch", "exclusive", "--sbatch", "partition=low"]
OPTIONS = ["--set", "checkpoints.paths=ckpt/step-*.pt", "--set", "knobs.resume.args=--resume {resume}", "--state-dir", "state"]


def printed(place: Path, *words: str) -> str:
    """Return what `supervise print slurm` prints; the tests' script imports supervisor.worker from here."""
    done = subprocess.run(  # noqa: S603  the program under test
        ["supervise", "print", "slurm", *words],  # noqa: S607  as a user types it
        cwd=place,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.replace("\nsrun", f"\nexport PYTHONPATH={shlex.quote(str(ROOT))} SUPERVISE_STANDBY_MODE=off\nsrun", 1)


def steps(place: Path) -> int:
    return max((int(step) for _, step in words_of(place / "steps")), default=0)


def output(place: Path, number: str) -> str:
    (file,) = place.glob(f"*-{number}.out")
    return file.read_text()


def test_a_preempted_job_saves_is_requeued_resumes_where_it_saved_and_finishes(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = printed(tmp_path, *WHOLE, *OPTIONS, "--", *TRAIN, "--steps", "400")
    number = slurm.submit(script, tmp_path)
    wait_for(lambda: steps(tmp_path) > 20, "steps", 120)
    other = slurm.submit("#!/bin/bash\ntrue\n", tmp_path, "--partition=high", "--exclusive")
    slurm.wait_for_state(other, "COMPLETED")
    (saved,) = {int(step) for _, step in words_of(tmp_path / "told")}
    assert (tmp_path / "ckpt" / f"step-{saved:08d}.pt").exists()
    waiting = slurm.wait_for_state(number, "PENDING")
    assert waiting["Restarts"] == "1"
    assert "Exited with exit code 75" in output(tmp_path, number)
    slurm.start_now(number)
    slurm.wait_for_state(number, "COMPLETED", 180)
    starts = words_of(tmp_path / "started")
    assert [int(step) for _, step in starts] == [0, 0, saved, saved]
    assert steps(tmp_path) == 400
    text = output(tmp_path, number)
    assert text.count("continues with run") == 1
    assert text.count(f"supervise: job slurm-{number}, ") == 2, "the second start wrote over the first one's output"


def test_a_job_that_cannot_save_is_requeued_too_when_it_is_preempted(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = printed(tmp_path, *WHOLE, *OPTIONS, "--", *TRAIN, "--never-ask")
    number = slurm.submit(script, tmp_path)
    wait_for(lambda: steps(tmp_path) > 5, "steps", 120)
    other = slurm.submit("#!/bin/bash\ntrue\n", tmp_path, "--partition=high", "--exclusive")
    slurm.wait_for_state(other, "COMPLETED")
    assert slurm.wait_for_state(number, "PENDING")["Restarts"] == "1"
    assert "Exited with exit code 143" in output(tmp_path, number)


def test_a_job_that_a_person_cancels_saves_and_is_not_started_again(slurm: SlurmCluster, tmp_path: Path) -> None:
    number = slurm.submit(printed(tmp_path, *WHOLE, *OPTIONS, "--", *TRAIN), tmp_path)
    wait_for(lambda: steps(tmp_path) > 5, "steps", 120)
    slurm.run("scancel", number)
    wait_for(lambda: not slurm.run("squeue", "-h").strip(), "its end", 60)
    cancelled = slurm.job(number)
    assert (cancelled["JobState"], cancelled["Restarts"]) == ("CANCELLED", "0")
    (saved,) = {int(step) for _, step in words_of(tmp_path / "told")}
    assert (tmp_path / "ckpt" / f"step-{saved:08d}.pt").exists()


def test_a_job_that_supervise_gave_up_fails_and_is_not_requeued(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = printed(tmp_path, "--state-dir", "state", "--", sys.executable, "-c", "import sys; sys.exit(3)")
    number = slurm.submit(script, tmp_path)
    failed = slurm.wait_for_state(number, "FAILED")
    assert (failed["ExitCode"], failed["Restarts"]) == ("3:0", "0")


def test_a_notice_before_the_time_limit_saves_and_requeues(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Slurm looks at its limits twice a minute, and sends the notice up to a minute early."""
    script = printed(tmp_path, *WHOLE, *OPTIONS, "--sbatch", "time=2", "--notice-s", "45", "--", *TRAIN)
    number = slurm.submit(script, tmp_path)
    wait_for(lambda: slurm.job(number)["Restarts"] == "1", "the requeue", 240)
    text = output(tmp_path, number)
    assert "the requested checkpoint is saved" in text
    assert "Exited with exit code 75" in text
    assert len({step for _, step in words_of(tmp_path / "told")}) == 1


def test_an_excluded_node_is_handed_to_slurm_once_the_job_is_taken_back(slurm: SlurmCluster, tmp_path: Path) -> None:
    number = slurm.submit(printed(tmp_path, *WHOLE, *OPTIONS, "--", *TRAIN, "--steps", "4000"), tmp_path)
    wait_for(lambda: steps(tmp_path) > 5, "steps", 120)
    host = slurm.job(number)["NodeList"]
    exclude = ["supervise", "nodes", "exclude", host, "--why", "its disk fails", "--state-dir", "state"]
    subprocess.run(exclude, cwd=tmp_path, env=clean_environment(), check=True, timeout=120)  # noqa: S603  as a person does
    other = slurm.submit("#!/bin/bash\ntrue\n", tmp_path, "--partition=high", "--exclusive")
    slurm.wait_for_state(other, "COMPLETED")
    waiting = wait_for(lambda: (job := slurm.job(number)).get("ExcNodeList") == host and job, "the node to be excluded", 60)
    assert (waiting["JobState"], waiting["Restarts"]) == ("PENDING", "1")
    line = f"job {number} is requeued without {host} (supervise nodes)"
    wait_for(lambda: line in output(tmp_path, number), "the line that says so", 30)
