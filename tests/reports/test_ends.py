"""The end of a process is not the end of a training: reports of exit codes that lie, and of failures after the last step.

ace 1068, accelerate 996, Megatron-LM 1310, ms-swift 7992, autocast 381, wandb 4929. tests/core/test_ending.py has the decisions as a table.
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.reports.conftest import DECLARED, OFTEN, SCRIPTS, alone, torchrun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

#: The steps of these trainings; the last save is at the last step.
STEPS = ("--steps", "40")
END_S = 200
FAILS = f"torchrun --standalone --nproc-per-node=2 {SCRIPTS / 'accelerate_996.py'} --steps 40"
ONE_RANK = f"python {SCRIPTS / 'accelerate_996.py'} --steps 40 --rank 0"


# a command that hides a rank's failure behind 0


@pytest.mark.slow
def test_a_failure_that_the_command_hides_is_named_though_the_code_is_0(supervise: Callable[..., Supervised]) -> None:
    run = supervise("bash", "-c", f"{FAILS} 2>&1 | tee log", options=DECLARED, **OFTEN)
    assert run.exit_code(END_S) == 0
    assert (
        "warning: the command left with 0, but rank 1 raised ValueError: labels of sample 7, and nothing trained after that" in run.stderr
    )
    assert re.search(r"supervise: the command left with 0.*, 1 incident; but rank 1 raised ValueError", run.stderr)
    assert "no incident" not in run.stderr
    assert (run.attempts(), run.status()["exit_code"]) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["segfault", "raise"])
def test_a_hidden_signal_or_exception_of_one_rank_is_named(supervise: Callable[..., Supervised], how: str, tmp_path: Path) -> None:
    run = supervise("bash", "-c", f"{ONE_RANK} --how {how}; echo finished", **OFTEN)
    assert run.exit_code(END_S) == 0
    named = "was killed by SIGSEGV" if how == "segfault" else "raised ValueError: labels of sample 7"
    assert f"but rank 0 {named}" in run.stderr
    assert (tmp_path / "ckpt" / "step-20.pt").exists()


@pytest.mark.slow
def test_a_hidden_exit_is_named_without_a_heartbeat(supervise: Callable[..., Supervised]) -> None:
    run = supervise(
        "bash",
        "-c",
        f"{FAILS}; echo finished",
        options=(
            "--set",
            "instrument.enabled=false",
        ),
        **OFTEN,
    )
    assert run.exit_code(END_S) == 0
    assert "warning: the command left with 0, but rank 1" in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(f"{ONE_RANK} --once || {ONE_RANK} --once", id="the command itself starts it again"),
        pytest.param(f"{ONE_RANK} --how survive", id="a rank that logged an exception and continued"),
        pytest.param(f"{ONE_RANK} --how child; python -c 'raise ValueError(1)' || true", id="exceptions of helpers"),
    ],
)
def test_a_survived_or_repaired_failure_is_no_incident(supervise: Callable[..., Supervised], command: str) -> None:
    run = supervise("bash", "-c", command, **OFTEN)
    assert run.exit_code(END_S) == 0
    assert "done at step 40" in run.stderr
    assert "no incident" in run.stderr


# a rank that leaves with 0 while the others continue


@pytest.mark.slow
def test_a_rank_that_leaves_with_0_is_at_fault_and_at_the_same_step_again_the_run_stops(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*torchrun("ace_1068.py", *STEPS, "--leave", "0"), options=DECLARED, **OFTEN)
    assert run.exit_code(END_S) == 65
    assert "rank 0 left with 0" in run.stderr
    assert "the others continued. Restarting as attempt 2" in run.stderr
    assert "gloo_error" not in run.stderr
    assert run.attempts() == 2


@pytest.mark.slow
def test_a_rank_that_turned_a_term_from_outside_into_0_is_restarted_and_the_run_is_done(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*torchrun("ace_1068.py", *STEPS, "--term"), options=DECLARED, **OFTEN)
    assert run.exit_code(END_S) == 0
    assert "rank 1 left with 0 at step 30, the others continued. Restarting as attempt 2" in run.stderr
    assert "resumed at step 20" in run.stderr
    assert "done at step 40" in run.stderr


@pytest.mark.slow
def test_all_ranks_that_leave_with_0_early_are_a_training_that_stopped_early(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*torchrun("ace_1068.py", *STEPS, "--leave", "0,1"), options=DECLARED, **OFTEN)
    assert run.exit_code(END_S) == 0
    assert "done at step 30" in run.stderr


# failures after the last step


@pytest.mark.slow
def test_a_failure_after_the_last_step_gets_one_more_attempt_and_its_own_code(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = supervise(*torchrun("autocast_381.py", *STEPS, "--waits", "0", "--fail", "save"), options=DECLARED, **OFTEN)
    assert run.exit_code(END_S) == 1
    assert run.attempts() <= 2
    assert "the training had ended at step 40, checkpoint verified" in " ".join(run.stderr.split())
    assert run.stdout.count("training from step 20") == 0
    assert (tmp_path / "ckpt" / "step-40.pt").exists()


@pytest.mark.slow
def test_without_a_checkpoint_to_continue_from_no_step_is_trained_again(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*torchrun("autocast_381.py", *STEPS, "--waits", "1"), **OFTEN)
    assert run.exit_code(END_S) == 1
    assert run.attempts() == 1
    assert "the training had ended at step 40" in " ".join(run.stderr.split())


@pytest.mark.slow
def test_an_evaluation_behind_the_last_step_that_misses_a_file_is_no_outage_to_wait_for(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*torchrun("final_evaluation.py", *STEPS), options=DECLARED, **OFTEN)
    assert run.exit_code(END_S) == 1
    assert run.attempts() == 2
    assert "FileNotFoundError" in run.stderr


@pytest.mark.slow
def test_a_teardown_that_dies_trains_nothing_again_and_rejects_no_checkpoint(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = supervise(*torchrun("ms_swift_7992.py", *STEPS, "--how", "watchdog", "--rank", "1"), options=DECLARED, **OFTEN)
    assert run.exit_code(END_S) == 134
    assert run.attempts() == 1
    assert "the training had ended at step 40" in run.stderr
    assert "after the last step: rank 1 was killed by SIGABRT" in run.stderr
    assert "nccl_timeout" not in run.stderr
    # without its spaces: a card may break its lines within a long path
    assert f"resultverified:{tmp_path}/ckpt/step-40.pt(step40)" in "".join(run.stderr.split())


@pytest.mark.slow
def test_a_crash_right_after_the_last_save_goes_back_to_no_older_checkpoint(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*torchrun("ms_swift_7992.py", *STEPS, "--how", "at once"), options=DECLARED, **OFTEN)
    assert run.exit_code(END_S) == 139
    assert run.attempts() <= 2
    assert run.stdout.count("training from step 20") == 0


@pytest.mark.slow
def test_a_plain_training_that_aborts_at_its_exit_had_ended(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*alone("ms_swift_7992.py", *STEPS), options=DECLARED, **OFTEN)
    assert run.exit_code(END_S) == 128 + signal.SIGABRT
    assert run.attempts() == 1
    assert "the training had ended at step 40" in run.stderr


@pytest.mark.slow
def test_a_last_save_that_fails_on_every_resume_stops_at_once(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*torchrun("megatron_1310.py", *STEPS), options=DECLARED, **OFTEN)
    assert run.exit_code(END_S) == 1
    assert run.attempts() == 2
    assert "the training had ended at step 40, checkpoint verified" in " ".join(run.stderr.split())


@pytest.mark.slow
def test_a_thread_that_never_ends_is_ended_as_an_incident_of_its_own(supervise: Callable[..., Supervised]) -> None:
    limits = {"SUPERVISE_HANG_TRAIN_S": "6", "SUPERVISE_HANG_PHASE_S": "6"}
    run = supervise(*alone("wandb_4929.py", *STEPS), options=(*DECLARED, "--on-hang", "restart"), **OFTEN, **limits)
    assert run.exit_code(END_S) == 124, "rank 0 did not leave"
    assert run.attempts() == 1
    text = " ".join(run.stderr.split())
    assert "the training was over at step 40; rank 0 stands at its exit: a thread of it is in upload (wandb_4929.py:" in text
    assert "--on-hang restart ends it once nothing of it has worked for 10 minutes" in text
    assert re.search(r"failed at step 40 .*1 incident.*; the newest verified checkpoint is", text), text
    assert "exit_stuck" in run.ask("why").stdout
    run.wait_for_nothing_left()
