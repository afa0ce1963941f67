"""A process that hangs, works or dies after the training: it is named as that, nothing is trained again, and the exit code is true."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pathologies.hanging_jobs import taken
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "jobs" / "exits.py"
DECLARED = ["--checkpoints", "ckpt/step-*.safetensors", "--resume-args", "--resume {resume}"]
#: Ten minutes are 3 s, and a hang is suspected after one; the script imports supervisor.worker, as one beside supervise would.
SOON = {
    "_SUPERVISE_TEST_INTERVALS": "0.005",
    "SUPERVISE_HANG_TRAIN_S": "1",
    "SUPERVISE_HANG_PHASE_S": "1",
    "PYTHONPATH": str(ROOT),
}
RESTART = [*DECLARED, "--on-hang", "restart"]


def command(how: str, *words: str, ranks: int = 1) -> list[str]:
    """Return the command of a training that ends so."""
    launch = ["python"] if ranks == 1 else ["torchrun", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launch, str(SCRIPT), "--how", how, *words]


def trained_from(run: Supervised) -> set[str]:
    """Return the steps from which ranks began to train."""
    return {line.split()[1] for line in (run.place / "trained").read_text().splitlines()}


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
def test_a_rank_that_stands_after_its_last_step_is_ended_by_restart_as_an_incident_of_its_own(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*command("stand"), options=RESTART, **SOON)
    assert run.exit_code(60) == 124
    stands = r"the training was over at step 30; rank 0 stands at its exit in stand \(exits\.py:\d+\), for \d+ s"
    assert re.search(stands, flat(run.stderr)), run.stderr
    page = flat(run.ask("why").stdout)
    assert "exit_stuck" in page
    assert "the training had ended at step 30, checkpoint verified" in page
    assert (run.attempts(), trained_from(run)) == (1, {"0"})
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_a_hang_at_the_end_is_only_reported_by_auto(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*command("stand"), options=[*DECLARED, "--on-hang", "auto"], **SOON)
    run.wait_for_line(r"the training was over at step 30; rank 0 stands at its exit in stand .*--on-hang restart ends it")
    assert run.alive()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["upload", "hold", "compute", "evaluate"])
def test_a_rank_that_still_works_after_the_last_step_is_not_over(supervise: Callable[..., Supervised], how: str) -> None:
    run = supervise(*command(how), options=RESTART, **SOON)
    wait_for((run.place / "ckpt" / "step-30.safetensors").exists, "the last save", 30.0, alive=run.alive)
    until = time.monotonic() + 10.0  # three times as long as the ten minutes here
    while time.monotonic() < until:
        assert run.alive()
        assert "the training was over" not in run.stderr
        time.sleep(0.2)
    assert not [hang for hang in taken(run, "HangConfirmed") if hang["hang"]["over"]]


@pytest.mark.slow
@pytest.mark.parametrize(("stands", "code"), [(1, 0), (0, 124)], ids=["rank 0 had left", "rank 1 had left"])
def test_the_code_is_0_only_if_rank_0_had_left_with_0(supervise: Callable[..., Supervised], stands: int, code: int) -> None:
    run = supervise(*command("stand", f"--rank={stands}", ranks=2), options=RESTART, **SOON)
    assert run.exit_code(90) == code
    assert re.search(rf"the training was over at step 30; rank {stands} stands at its exit in stand", flat(run.stderr)), run.stderr
    assert "exit_stuck" in run.ask("why").stdout
    assert (run.attempts(), trained_from(run)) == (1, {"0"})
    run.wait_for_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("all", r"ranks 0, 1 stand at their exit in stand"),
        ("thread", r"rank 0 stands at its exit: a thread of it is in stand"),
        ("barrier", r"rank 0 stands at its exit in stand \(\S+\); rank 1 stands at its exit in barrier \(seq \d+\) \(exits\.py:\d+\)"),
    ],
)
def test_the_ranks_and_threads_that_stand_at_their_exit_are_named(supervise: Callable[..., Supervised], how: str, text: str) -> None:
    run = supervise(*command(how, ranks=2), options=RESTART, **SOON)
    assert run.exit_code(90) == 124
    assert re.search(f"the training was over at step 30; {text}", flat(run.stderr)), run.stderr
    assert run.attempts() == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code", "text", "ranks"),
    [
        ("die", 134, "rank 0 was killed by SIGABRT in its teardown: terminate called after throwing an instance of 'c10::Error'", 2),
        ("die at once", 134, "rank 0 was killed by SIGABRT in its teardown: terminate called", 1),
        ("at exit", 134, "rank 0 was killed by SIGABRT in its teardown: terminate called", 1),
        ("kill", 139, "rank 0 was killed by SIGSEGV in its teardown", 1),
        ("code", 3, "rank 0 left with 3 in its teardown", 1),
    ],
)
def test_a_death_after_the_declared_end_restarts_no_training(
    supervise: Callable[..., Supervised], how: str, code: int, text: str, ranks: int
) -> None:
    run = supervise(*command(how, ranks=ranks), options=DECLARED, **SOON)
    assert run.exit_code(60) == code
    page = flat(run.ask("why").stdout)
    assert f"after the last step: {text}" in page, page
    assert "exit_abort" in page
    assert "the training had ended at step 30, checkpoint verified" in page
    assert (run.attempts(), trained_from(run)) == (1, {"0"})


@pytest.mark.slow
def test_a_death_after_the_declared_end_without_its_checkpoint_is_a_failure(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*command("die", "--no-save"), options=[*DECLARED, "--set", "restart.max_attempts=2"], **SOON)
    assert run.exit_code(60) != 0
    assert run.attempts() == 2
    assert "exit_abort" not in run.ask("why").stdout
