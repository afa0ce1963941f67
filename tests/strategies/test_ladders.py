"""The ladders: which plan answers which failure. Tables of situations."""

from __future__ import annotations

import pytest

from supervisor.core.budget import family
from supervisor.core.failure.rank_endings import Ending
from supervisor.core.model import Cause, CheckpointRef, Claim, Evidence, Failure, FailureVerdict, Knob, Plan, PlanKind, Policy, RankExit
from supervisor.core.policy_settings import Restart
from supervisor.core.values import replace
from supervisor.strategies import LADDERS, propose
from supervisor.strategies.guards import reads_what_is_missing, start_again
from supervisor.strategies.situation import Situation, exit_code_of
from supervisor.strategies.storage import without_kept

T = 10_000.0


def situation(cause: Cause = Cause.KILLED_UNKNOWN, **changes: object) -> Situation:
    base = Situation(
        t=T,
        verdict=FailureVerdict(cause, 0.9, "it failed", f"{cause}:print"),
        policy=Policy(),
        first=RankExit(0, 1, 1, code=42),
        step=100,
        before_first_step=False,
        failures=(),
        attempts=1,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # the test names the fields


def failure(cause: Cause = Cause.KILLED_UNKNOWN, **changes: object) -> Failure:
    return replace(Failure(1, T - 60, cause, f"{cause}:print", 100, before_first_step=False, charged=True), **changes)  # type: ignore[arg-type]


def stop(code: int) -> tuple[PlanKind, int]:
    return (PlanKind.STOP, code)


RESTART = (PlanKind.RESTART, 0)


@pytest.mark.parametrize(
    ("situation", "wanted"),
    [
        (situation(), RESTART),
        (situation(Cause.USER_CODE), RESTART),
        (situation(Cause.USER_CODE, before_first_step=True), stop(42)),
        (situation(Cause.DEPENDENCY, before_first_step=True, first=RankExit(0, 1, 1, code=255)), stop(1)),
        (situation(Cause.KILLED_UNKNOWN, before_first_step=True), RESTART),
        (situation(Cause.USER_CODE, failures=(failure(Cause.USER_CODE),)), stop(65)),
        (situation(Cause.USER_CODE, failures=(failure(Cause.USER_CODE, step=111),)), RESTART),
        (situation(Cause.USER_CODE, failures=(failure(Cause.USER_CODE, step=110),)), stop(65)),
        (situation(Cause.USER_CODE, failures=(failure(Cause.USER_CODE, progressed_since=True, passed_since=True),)), RESTART),
        (situation(Cause.USER_CODE, failures=(failure(Cause.USER_CODE, fingerprint="other"),)), RESTART),
        (situation(Cause.USER_CODE, step=None, failures=(failure(Cause.USER_CODE, step=None),)), RESTART),
        (situation(Cause.SEGFAULT, before_first_step=True, failures=(failure(Cause.SEGFAULT, before_first_step=True),)), stop(65)),
        (situation(failures=(failure(),)), RESTART),
        (situation(failures=(failure(), failure(), failure())), stop(65)),
        (situation(failures=(failure(fingerprint="a"), failure(fingerprint="b"), failure(fingerprint="c"))), stop(1)),
        (situation(Cause.RENDEZVOUS, failures=(failure(Cause.GLOO_ERROR, charged=False),) * 8), RESTART),
        (situation(Cause.RENDEZVOUS, failures=(failure(Cause.GLOO_ERROR, charged=False),) * 9), stop(75)),
        (situation(Cause.RENDEZVOUS, failures=(failure(Cause.GLOO_ERROR, charged=False, t=T - 4000),) * 9), stop(75)),
        (situation(Cause.RENDEZVOUS, failures=(failure(Cause.GLOO_ERROR, charged=False, t=T - 86_401),) * 9), RESTART),
        (situation(Cause.DISK_FULL, failures=(failure(Cause.DISK_FULL, charged=False),) * 8), RESTART),
        (situation(Cause.DISK_FULL, failures=(failure(Cause.DISK_FULL, charged=False),) * 9), stop(75)),
        (situation(Cause.RENDEZVOUS, failures=(failure(Cause.GLOO_ERROR, charged=False, progressed_since=True),) * 9), RESTART),
        (situation(Cause.GPU_LOST, failures=(failure(Cause.GPU_LOST, charged=False, changed=True),) * 9), RESTART),
        (situation(failures=(failure(t=T - 4000),) * 3), RESTART),
        (situation(failures=(failure(progressed_since=True),) * 9), RESTART),
        (situation(failures=(failure(Cause.USER_CODE),) * 3), RESTART),
        (situation(attempts=5000, charged=4000), RESTART),
        (situation(attempts=900, charged=58, policy=Policy(restart=Restart(max_attempts=60))), RESTART),
        (situation(attempts=60, charged=59, policy=Policy(restart=Restart(max_attempts=60))), stop(1)),
        (situation(Cause.RENDEZVOUS, policy=Policy(restart=Restart(max_attempts=1))), stop(75)),
        (situation(policy=Policy(max_restarts=1), charged=1), stop(42)),
        (situation(policy=Policy(max_restarts=55), attempts=900, charged=54), RESTART),
        (situation(policy=Policy(max_restarts=55), charged=55), stop(42)),
        (situation(policy=Policy(max_restarts=1), charged=0), RESTART),
        (situation(failures=tuple(failure(t=T - 3000.0 * n) for n in range(1, 10))), stop(65)),
        (situation(failures=tuple(failure(t=T - 30_000.0 * n) for n in range(1, 10))), stop(65)),
        (situation(failures=tuple(failure(t=T - 30_000.0 * n, progressed_since=True) for n in range(1, 50))), RESTART),
        (situation(step=None, failures=tuple(failure(t=T - 30_000.0 * n, step=None) for n in range(1, 10))), RESTART),
        (situation(step=None, failures=tuple(failure(t=T - 3000.0 * n, step=None) for n in range(1, 10))), stop(65)),
        (situation(Cause.DATA_ERROR, before_first_step=True, trained=True), RESTART),
        (situation(Cause.USER_CODE, before_first_step=True, trained=True), stop(42)),
        (situation(policy=Policy(max_restarts=0), first=RankExit(0, 1, 1, signal=9)), stop(137)),
        (situation(Cause.PREEMPTED), stop(75)),
        (situation(Cause.INTERRUPTED), stop(130)),
        (situation(Cause.INTERRUPTED, policy=Policy(max_restarts=0), failures=(failure(Cause.INTERRUPTED),) * 9), stop(130)),
    ],
)
def test_the_plan_for_a_failure(situation: Situation, wanted: tuple[PlanKind, int]) -> None:
    plan = propose(situation)
    assert (plan.kind, plan.exit_code) == wanted


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_a_plan_with_a_reason_and_a_next_step(cause: Cause) -> None:
    plan: Plan = propose(situation(cause))
    assert plan.reason
    assert plan.next_ladder_step
    assert family(cause)


@pytest.mark.parametrize("cause", LADDERS, ids=str)
def test_a_plan_names_the_strategy_that_made_it(cause: Cause) -> None:
    assert propose(situation(cause)).strategy in LADDERS[cause]


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (None, 1),
        (RankExit(0, 1, 1, code=1), 1),
        (RankExit(0, 1, 1, code=63), 63),
        (RankExit(0, 1, 1, code=64), 1),
        (RankExit(0, 1, 1, code=255), 1),
        (RankExit(0, 1, 1, signal=9), 137),
        (RankExit(0, 1, 1, signal=15), 143),
    ],
)
def test_a_ranks_own_end_as_our_exit_code(first: RankExit | None, code: int) -> None:
    assert exit_code_of(first) == code


def test_before_the_first_step_only_a_sure_cause_that_stays_ends_the_run_at_once() -> None:
    lasting = situation(Cause.USER_CODE, before_first_step=True)
    passing = replace(lasting, verdict=replace(lasting.verdict, transient=True))
    unsure = replace(lasting, verdict=replace(lasting.verdict, confidence=0.79))
    ending = propose(lasting)
    assert (ending.exit_code, ending.reason) == (42, "it failed before its first step: the same error would come again")
    for first in (passing, unsure):
        plan = propose(first)
        assert (plan.kind, plan.strategy) == (PlanKind.RESTART, "restart_within_budget")
        second = propose(first.again(plan))
        assert (second.exit_code, second.reason) == (42, f"it failed before its first step, as attempt {first.attempts} did")


def test_words_alone_end_no_run_as_preempted_or_interrupted() -> None:
    for cause, code in ((Cause.PREEMPTED, 75), (Cause.INTERRUPTED, 130)):
        sure = situation(cause)
        words = Evidence("log", "words", "received SIGTERM", free_text=True, claim=Claim(cause, 0.6))
        unsure = replace(sure, verdict=replace(sure.verdict, confidence=0.6, because=(words,)))
        seen = replace(unsure, verdict=replace(unsure.verdict, because=(words, replace(words, free_text=False))))
        assert propose(sure).exit_code == propose(seen).exit_code == code
        assert propose(unsure).kind is PlanKind.RESTART
        assert propose(replace(unsure, verdict=replace(unsure.verdict, confidence=0.96))).kind is PlanKind.RESTART, "sure words are words"
        assert propose(replace(unsure, policy=replace(unsure.policy, max_restarts=0))).kind is PlanKind.STOP


def test_the_next_step_for_a_missing_package_is_its_installation() -> None:
    lacking = situation(Cause.DEPENDENCY, before_first_step=True)
    assert propose(lacking).next_ladder_step == "install versions that fit each other"
    for module, remedy in (
        ("cv2", "run `pip install opencv-python` in the job's environment"),
        ("einops", "run `pip install einops` in the job's environment"),
        ("our_models", "install what provides our_models, or correct the import"),
        ("sklearn.future", "install what provides sklearn.future, or correct the import"),
    ):
        named = replace(lacking, verdict=replace(lacking.verdict, facts=(("module", module),)))
        assert propose(named).next_ladder_step == remedy
    misfit = replace(lacking, verdict=replace(lacking.verdict, facts=(("misfit", "torchvision"),)))
    assert propose(misfit).next_ladder_step.startswith(
        "run `pip install --no-deps 'torchvision==0.N.*'` in the job's environment, where N is torch's"
    )


def test_a_leftover_in_which_a_good_checkpoint_lies_is_none() -> None:
    full = FailureVerdict(
        Cause.DISK_FULL, 0.9, "it failed", "print", facts=(("path", "/c"), ("leftovers", "/c/stage/20 (2.0 MiB), /c/tmp-1 (1.0 MiB)"))
    )
    assert without_kept(full, ()) == full
    assert without_kept(full, (CheckpointRef("/c/step-20.pt", 20, "structure"),)) == full
    assert without_kept(full, (CheckpointRef("/c/stage/20/model.pt", 20, "structure"),)).facts == (("path", "/c"),)


@pytest.mark.parametrize(
    ("phase", "loader", "strategy"),
    [
        ("train", "workers", "halve_workers"),
        ("train", "none", "exhausted"),
        ("train", "", "halve_workers"),
        ("checkpoint", "workers", "exhausted"),
    ],
)
def test_fewer_loader_workers_answer_only_where_there_is_a_loader_and_no_save(phase: str, loader: str, strategy: str) -> None:
    beats = (Evidence("heartbeat", "phase", phase, 0), *((Evidence("heartbeat", "loader", loader, 0),) if loader else ()))
    sure = Evidence("cgroup", "oom_kill", "the kernel killed 1 process", 0, claim=Claim(Cause.HOST_OOM, 0.97))
    verdict = FailureVerdict(Cause.HOST_OOM, 0.97, "it failed", "host_oom:print", 0, because=(sure, *beats))
    given = situation(
        Cause.HOST_OOM,
        verdict=verdict,
        knobs=(Knob("num_workers", "4", "--workers"),),
        failures=(failure(Cause.HOST_OOM, fingerprint="host_oom:print"),),
    )
    plan = propose(given)
    assert plan.strategy == strategy
    assert ("loader workers" in f"{plan.reason} {plan.next_ladder_step} {plan.notes}") == (strategy == "halve_workers")


@pytest.mark.parametrize(("is_last", "is_outage"), [(True, False), (False, True)])
def test_a_file_missing_again_at_the_last_step_is_no_outage(is_last: bool, is_outage: bool) -> None:  # noqa: FBT001  parameters
    where = "user_code:FileNotFoundError:train.py:evaluate"
    verdict = FailureVerdict(Cause.USER_CODE, 0.7, "no such file", f"{where}:init", facts=(("exception", "FileNotFoundError"),))
    given = situation(
        verdict=verdict,
        before_first_step=True,
        trained=True,
        failures=(failure(Cause.USER_CODE, fingerprint=f"{where}:train", before_first_step=False),),
        ending=Ending(at_last_step=is_last),
    )
    assert reads_what_is_missing(given)
    assert (start_again(given) is not None) == is_outage
    assert (propose(given).kind is PlanKind.RESTART) == is_outage, "twice at one line, and nothing to train between: it is no accident"


@pytest.mark.parametrize("has_saved", [False, True])
def test_an_exit_code_at_once_is_the_answer_of_a_program_that_did_not_save(has_saved: bool) -> None:  # noqa: FBT001  parameters
    unseen = {"step": None, "lasted_s": 3.0}
    earlier = failure(Cause.UNKNOWN, fingerprint="unknown:print", **unseen)
    verdict = FailureVerdict(Cause.UNKNOWN, 0.3, "exit code 42", "unknown:print")
    plan = propose(situation(verdict=verdict, failures=(earlier,), saved=has_saved, **unseen))
    assert (plan.strategy == "own_code_at_once") == (not has_saved)


@pytest.mark.parametrize("is_set", [False, True])
def test_a_setting_of_the_failed_attempt_is_no_advice(is_set: bool) -> None:  # noqa: FBT001  parameters
    because = (Evidence("error_file", "exception", "OutOfMemoryError", 0, claim=Claim(Cause.CUDA_OOM, 0.97)),)
    facts = (("reserved_unallocated", str(4 * 2**30)), ("capacity", str(80 * 2**30)))
    given = situation(
        Cause.CUDA_OOM,
        verdict=FailureVerdict(Cause.CUDA_OOM, 0.97, "it failed", "cuda_oom:print", 0, because=because, facts=facts),
        failures=(failure(Cause.CUDA_OOM, fingerprint="cuda_oom:print"),),
        policy=Policy(allocator="expandable_segments:True"),
        overrides=(("env:PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),) if is_set else (),
    )
    plan = propose(given)
    assert plan.strategy == "exhausted"
    assert ("set PYTORCH_CUDA_ALLOC_CONF" in plan.next_ladder_step) == (not is_set)
    assert "halve the micro-batch" in plan.next_ladder_step
