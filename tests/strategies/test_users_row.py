"""[recover.CAUSE]: the step of the user's own rows. It answers first, once, and without a proof of the cause."""

from __future__ import annotations

import pytest

from supervisor.core.causes import OWN_CAUSE, SUSPECTS
from supervisor.core.model import Cause, Claim, Evidence, FailureVerdict, Knob, PlanKind, Policy
from supervisor.core.values import replace
from supervisor.strategies import LADDERS, ladder, propose
from supervisor.strategies.network import still_permitted
from tests.strategies.test_ladders import failure, situation

KNOBS = (Knob("batch_size", "32", "--batch-size", counts="gpu"), Knob("grad_accum", "1", "--accum", counts="rank"))
ROW = (("batch_size", "8"), ("grad_accum", "4"))
POLICY = Policy(knobs=KNOBS, recover=(("cuda_oom", ROW),))
PROOF = Evidence("error_file", "cuda_oom.torch", "x", claim=Claim(Cause.CUDA_OOM, 0.97))
SURE = FailureVerdict(Cause.CUDA_OOM, 0.97, "it failed", "cuda_oom:print", because=(PROOF,))
OOM = situation(Cause.CUDA_OOM, verdict=SURE, policy=POLICY, knobs=KNOBS, world_size=2, ranks=2)


def test_the_users_row_stands_behind_the_guards() -> None:
    mismatch = ladder(Cause.CHECKPOINT_MISMATCH, Policy(recover=(("checkpoint_mismatch", ROW),)))
    assert mismatch.index("users_row") == mismatch.index("own_change") + 1, "it has two steps before the guards"
    assert ladder(Cause.CUDA_OOM, POLICY) == (*SUSPECTS, "users_row", *LADDERS[Cause.CUDA_OOM][len(SUSPECTS) :])
    assert ladder(Cause.HOST_OOM, POLICY) == LADDERS[Cause.HOST_OOM]


def test_a_cause_of_the_users_own_has_the_ladder_of_a_program_and_its_row_answers_first() -> None:
    own = Cause("solver_diverged")
    assert ladder(own, Policy()) == OWN_CAUSE.ladder
    row = (("--damping", "0.5"), ("--safe", "on"), ("solver.kind=", "lu"))
    knobs = (Knob("--damping", "0.9", "--damping"), Knob("--safe", "", "--safe", counts="alone"), Knob("solver.kind=", "", "solver.kind="))
    policy = Policy(knobs=knobs, recover=((own.value, row),))
    failed = situation(own, verdict=FailureVerdict(own, 0.4, "it diverged", "solver_diverged:x"), policy=policy, knobs=knobs)
    plan = propose(failed)
    assert plan.reason == "your row [recover.solver_diverged] sets --damping=0.5, --safe, solver.kind=lu"
    assert [(c.knob, c.old, c.new) for c in plan.changes] == [("--damping", "0.9", "0.5"), ("--safe", "", "on"), ("solver.kind=", "", "lu")]
    again = failed.again(plan)
    assert propose(again).strategy == "same_place"


def test_the_users_row_sets_its_values_and_is_not_charged() -> None:
    plan = propose(OOM)
    assert (plan.kind, plan.strategy, plan.charged) == (PlanKind.RESTART, "users_row", False)
    assert plan.reason == "your row [recover.cuda_oom] sets batch_size=8, grad_accum=4"
    assert [(c.knob, c.old, c.new, c.how) for c in plan.changes] == [
        ("batch_size", "32", "8", "--batch-size"),
        ("grad_accum", "1", "4", "--accum"),
    ]
    assert plan.notes == (), "the global batch is the same"


@pytest.mark.parametrize(
    ("row", "note"),
    [
        ((("batch_size", "8"),), "the global batch changes from 2 × 32 × 1 = 64 to 2 × 8 × 1 = 16, as your row says"),  # noqa: RUF001  the sign
        ((("env:MODE", "careful"),), ""),
    ],
)
def test_a_row_with_another_global_batch_is_noted(row: tuple[tuple[str, str], ...], note: str) -> None:
    plan = propose(replace(OOM, policy=replace(POLICY, recover=(("cuda_oom", row),))))
    assert plan.strategy == "users_row"
    assert plan.notes == ((note,) if note else ())


def test_writing_it_is_the_consent_where_the_cause_is_only_likely_or_no_step_was_made() -> None:
    policy = Policy(recover=(("user_code", (("env:MODE", "careful"),)),))
    likely = FailureVerdict(Cause.USER_CODE, 0.4, "it failed", "user_code:x")
    plan = propose(situation(Cause.USER_CODE, verdict=likely, policy=policy, before_first_step=True))
    assert [(c.knob, c.new) for c in plan.changes] == [("env:MODE", "careful")]


def test_a_knob_that_is_not_enabled_is_not_set() -> None:
    unseen = tuple(replace(knob, seen=False) for knob in KNOBS)
    plan = propose(replace(OOM, policy=replace(POLICY, knobs=unseen), knobs=unseen))
    assert plan.strategy != "users_row"
    assert any(line.startswith("users_row is skipped: batch_size, grad_accum not enabled") for line in plan.notes)
    assert propose(replace(OOM, policy=replace(POLICY, batch_change=False))).strategy != "users_row"


def test_the_users_row_acts_once_and_a_later_change_stays() -> None:
    taken = replace(OOM, failures=(failure(Cause.CUDA_OOM, ladder_step="users_row", changed=True),), overrides=ROW)
    now = tuple(replace(knob, value=dict(ROW)[knob.name]) for knob in KNOBS)
    again = propose(replace(taken, knobs=now))
    assert again.strategy == "halve_batch"
    assert [(c.knob, c.new) for c in again.changes] == [("batch_size", "4"), ("grad_accum", "8")]
    halved = tuple(replace(knob, value={"batch_size": "4", "grad_accum": "8"}[knob.name]) for knob in KNOBS)
    third = propose(replace(taken, knobs=halved, overrides=(("batch_size", "4"), ("grad_accum", "8"))))
    assert [(c.knob, c.new) for c in third.changes] == [("batch_size", "2"), ("grad_accum", "16")]


def test_a_row_that_was_taken_back_in_this_run_does_not_act_again() -> None:
    answered, back = failure(Cause.CUDA_OOM, ladder_step="users_row", changed=True), failure(Cause.DATA_ERROR, ladder_step="own_change")
    assert propose(replace(OOM, failures=(answered, back))).strategy != "users_row"
    assert propose(replace(OOM, failures=(back,))).strategy == "users_row"


def test_an_edited_row_acts_again_once_its_changes_were_taken_back() -> None:
    edited = replace(POLICY, recover=(("cuda_oom", (("batch_size", "4"),)),))
    plan = propose(replace(OOM, policy=edited, failures=(failure(Cause.CUDA_OOM, ladder_step="users_row", changed=True),)))
    assert [(c.knob, c.new) for c in plan.changes] == [("batch_size", "4")]


def test_a_value_that_the_attempt_already_had_is_no_change() -> None:
    policy = replace(POLICY, recover=(("cuda_oom", (("batch_size", "32"),)),))
    assert propose(replace(OOM, policy=policy)).strategy == "halve_batch"


def test_a_variable_for_the_network_that_a_row_sets_outlives_a_takeover() -> None:
    set_now = (("env:NCCL_IB_DISABLE", "1"),)
    assert still_permitted(set_now, Policy()) == ()
    assert still_permitted(set_now, Policy(recover=(("nccl_network", set_now),))) == set_now
