"""What may change a job, and what may not."""

from __future__ import annotations

import pytest

from supervisor.core.model import Cause, Claim, Evidence
from supervisor.strategies import LADDER_STEPS, LADDERS, consent, users_row
from supervisor.strategies.ladder_step import nothing_missing

OOM = Claim(Cause.CUDA_OOM, 0.97)


@pytest.mark.parametrize(
    ("fact", "proves"),
    [
        (Evidence("error_file", "cuda_oom.torch", "x", claim=OOM), True),
        (Evidence("log", "cuda_oom.torch", "x", claim=OOM, free_text=True), False),
        (Evidence("log", "cuda_oom.torch", "x", claim=OOM), True),
        (Evidence("kernel", "gpu_lost.xid", "x", claim=Claim(Cause.GPU_LOST, 0.98)), False),
        (Evidence("error_file", "exception", "torch.OutOfMemoryError: CUDA out of memory"), True),
        (Evidence("error_file", "exception", "RuntimeError: CUDA out of memory"), False),
        (Evidence("tail", "last_exception", "torch.OutOfMemoryError: x", free_text=True), False),
        (Evidence("exit", "exit_code", "1"), False),
        (Evidence("exit", "signal", "9"), False),
        (Evidence("heartbeat", "phase", "train"), False),
    ],
    ids=str,
)
def test_only_certain_facts_prove_an_out_of_memory_error(fact: Evidence, *, proves: bool) -> None:
    assert consent.proves(fact, Cause.CUDA_OOM) is proves


@pytest.mark.parametrize(
    ("fact", "cause"),
    [
        (Evidence("exit", "signal", "11"), Cause.SEGFAULT),
        (Evidence("exit", "signal", "6"), Cause.UNKNOWN_NATIVE_ABORT),
        (Evidence("cgroup", "oom_kill", "1"), Cause.HOST_OOM),
        (Evidence("kernel", "gpu_lost.xid", "x", claim=Claim(Cause.GPU_LOST, 0.98)), Cause.GPU_LOST),
    ],
    ids=["segfault", "abort", "oom_kill", "xid"],
)
def test_a_signal_a_cgroup_and_the_kernel_are_believed(fact: Evidence, cause: Cause) -> None:
    assert consent.proves(fact, cause)


def test_every_ladder_step_of_ours_is_in_a_ladder_and_every_name_in_a_ladder_is_a_ladder_step() -> None:
    in_a_row_of_the_users = {users_row.NAME}
    assert {name for row in LADDERS.values() for name in row} | in_a_row_of_the_users == set(LADDER_STEPS)
    assert set(LADDERS) == set(Cause)


def test_a_ladder_step_that_misses_a_knob_reports_it_only_if_it_changes_the_job() -> None:
    assert all(ladder_step.changes_job for ladder_step in LADDER_STEPS.values() if ladder_step.missing is not nothing_missing)
