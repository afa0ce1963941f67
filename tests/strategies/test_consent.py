"""What may change a job, and what may not."""

from __future__ import annotations

import pytest

from supervisor.core.causes import LAST, SUSPECTS
from supervisor.core.model import Cause, Change, Claim, Evidence, Plan, PlanKind, Policy, Verdict
from supervisor.strategies import LADDERS, RUNGS, consent, ladder, names, propose, resolve, users_row
from supervisor.strategies.rung import is_plug_in, nothing_missing
from supervisor.strategies.situation import Situation

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
def test_what_proves_an_out_of_memory_error(fact: Evidence, *, proves: bool) -> None:
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


def test_every_rung_of_ours_is_in_a_ladder_and_every_name_in_a_ladder_is_a_rung() -> None:
    in_a_row_of_the_users = {users_row.NAME}
    assert {name for row in LADDERS.values() for name in row} | in_a_row_of_the_users == set(RUNGS) == set(names())
    assert set(LADDERS) == set(Cause)


def test_a_rung_that_misses_a_knob_reports_it_only_if_it_changes_the_job() -> None:
    assert all(rung.changes_job for rung in RUNGS.values() if rung.missing is not nothing_missing)


def test_a_ladder_of_the_users_keeps_the_guards_and_an_end() -> None:
    policy = Policy(ladders=(("cuda_oom", ("halve_batch",)), ("nan_loss", ("within_cap", "skip_window", LAST))))
    assert ladder(Cause.CUDA_OOM, policy) == (*SUSPECTS, "halve_batch", LAST)
    assert ladder(Cause.NAN_LOSS, policy) == ("recurring", "own_change", "within_cap", "skip_window", LAST)
    assert ladder(Cause.SEGFAULT, policy) == LADDERS[Cause.SEGFAULT]


def stop_it(situation: object) -> Plan:
    """Stand in for a package's strategy."""
    del situation
    return Plan(PlanKind.STOP, "plugged", "nothing", "plug", 65)


def break_it(situation: object) -> Plan:
    """Stand in for a package's strategy with a bug."""
    raise ValueError(situation)


def answer_nonsense(situation: object) -> str:
    """Stand in for a package's strategy that returns what is no plan."""
    return str(situation)


def answer_numbers(situation: object) -> Plan:
    """Stand in for a package's strategy whose plan has a number where a text belongs."""
    del situation
    return Plan(PlanKind.RESTART, "again", "stop", "plug", changes=(Change("env:NCCL_RETRIES", "", 7, "NCCL_RETRIES=7"),))  # type: ignore[arg-type]


def test_a_plug_in_is_found_where_it_was_imported() -> None:
    found = resolve(f"{__name__}:stop_it")
    assert found is not None
    assert found.propose(None).reason == "plugged"  # type: ignore[arg-type, union-attr]  # it does not look
    assert resolve("not.loaded:function") is None
    assert resolve(f"{__name__}:absent") is None
    assert not is_plug_in("halve_batch")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (f"{__name__}:break_it", "failed, so the next rung decides: ValueError: "),
        (f"{__name__}:answer_nonsense", "failed, so the next rung decides: it returned a str, not a Plan"),
        (f"{__name__}:answer_numbers", "failed, so the next rung decides: changes of its plan is of another type"),
        ("gone.away:strategy", "is not loaded, so the next rung decides"),
    ],
)
def test_a_broken_plug_in_is_reported_and_the_next_rung_answers(name: str, why: str) -> None:
    policy = Policy(ladders=(("killed_unknown", (name, LAST)),))
    verdict = Verdict(Cause.KILLED_UNKNOWN, 0.9, "killed", "f")
    plan = propose(Situation(10.0, verdict, policy, None, 5, before_first_step=False, failures=(), attempts=1, jitter=0.5))
    assert plan.strategy == LAST
    (line,) = [line for line in plan.notes if name in line]
    assert line.startswith(f"the plug-in {name} {why}")
