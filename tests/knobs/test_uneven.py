"""The global batch on unequal GPUs: whatever their speeds and memories are, the sum is exact, and no rank holds more than fits."""
# ruff: noqa: RUF001  the sign of a product

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.agent import batch_plan
from supervisor.core.model import Knob
from supervisor.core.values import replace
from supervisor.errors import ExitCode, SuperviseError
from supervisor.knobs.batch import Batch, changes, for_world, read, smaller
from supervisor.knobs.uneven import RankGpu, UnevenPlan, explained, share
from tests.knobs.scripts import find

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.knobs.knob_set import KnobSet

FAST, SLOW = RankGpu(2.5, 80), RankGpu(1, 32)
FOUR = [FAST, FAST, SLOW, SLOW]


def asked(total: int, micro: int, world: int = 4) -> Batch:
    return Batch(micro, None, world, total, planned=True)


def test_two_gpus_of_80_and_two_of_32_gib_share_64_samples_exactly() -> None:
    plan = share(asked(64, 10), FOUR)
    assert plan == UnevenPlan((23, 23, 9, 9), 1)
    assert explained(plan, FOUR) == (
        "the global batch is shared by the speeds 2.5, 2.5, 1, 1: 1 × (23 + 23 + 9 + 9) = 64; every rank makes the same optimizer steps,"
        " each of 1 micro-batch, and a step takes 57% of the time of equal shares"
    )


@pytest.mark.parametrize(
    ("micro", "gpus", "expected"),
    [
        (8, FOUR, "2 × (12 + 12 + 4 + 4) = 64"),
        (4, FOUR, "4 × (6 + 6 + 2 + 2) = 64"),
        (10, FOUR[1:], "2 × (18 + 7 + 7) = 64"),
        (16, FOUR[2:], "2 × (16 + 16) = 64"),
        (64, [RankGpu(1)], "1 × (64) = 64"),
        (22, [RankGpu(1)] * 3, "1 × (22 + 21 + 21) = 64"),
    ],
)
def test_with_less_memory_or_fewer_gpus_the_plan_is_another_one_of_the_same_sum(micro: int, gpus: list[RankGpu], expected: str) -> None:
    assert str(share(asked(64, micro), gpus)) == expected


def test_without_an_exact_plan_the_nearest_one_is_named_and_taken_only_where_drift_is_allowed() -> None:
    refused = share(asked(61, 2), FOUR)
    assert refused == (
        "4 ranks cannot share a global batch of 61 exactly; the nearest is 5 × (5 + 5 + 1 + 1) = 60: --allow-batch-drift takes it"
    )
    assert str(share(asked(61, 2), FOUR, drift=True)) == "5 × (5 + 5 + 1 + 1) = 60"
    assert "the nearest is 1 × (1 + 1 + 1 + 1) = 4" in str(share(asked(3, 2), FOUR))


gpus_of_ranks = st.lists(st.builds(RankGpu, st.floats(0.1, 10), st.integers(1, 96)), min_size=1, max_size=12)


@given(gpus_of_ranks, st.integers(1, 400), st.integers(1, 32), st.booleans())
def test_the_sum_is_exact_or_refused_and_every_rank_has_1_to_what_fits(gpus: list[RankGpu], total: int, micro: int, drift: bool) -> None:  # noqa: FBT001
    least = min(gpu.memory for gpu in gpus)
    most = [int(micro * gpu.memory / least + 1e-9) for gpu in gpus]
    plan = share(asked(total, micro, len(gpus)), gpus, drift=drift)
    possible = {steps * samples for steps in range(1, 2 * total + 1) for samples in range(len(gpus), min(sum(most), 2 * total + 12) + 1)}
    if isinstance(plan, str):
        assert total not in possible
        assert not drift
        return
    assert plan.total == (total if total in possible else plan.total)
    assert abs(plan.total - total) == min(abs(other - total) for other in possible)
    assert all(1 <= size <= limit for size, limit in zip(plan.micro, most, strict=True))
    # no sample would be done earlier on another rank
    slowest = max(size / gpu.speed for size, gpu in zip(plan.micro, gpus, strict=True))
    for rank, size in enumerate(plan.micro):
        if size > 1 and math.isclose(size / gpus[rank].speed, slowest):
            others = [o for o in range(len(gpus)) if o != rank and plan.micro[o] < most[o]]
            assert all((plan.micro[o] + 1) / gpus[o].speed >= slowest - 1e-9 for o in others)


@given(gpus_of_ranks, st.integers(1, 400), st.integers(1, 32))
def test_the_ranks_shares_fill_the_global_batch_and_their_weighted_means_are_its_mean(gpus: list[RankGpu], total: int, micro: int) -> None:
    plan = share(asked(total, micro, len(gpus)), gpus, drift=True)
    assert isinstance(plan, UnevenPlan)
    world = len(gpus)
    ranks = [batch_plan.of_rank({batch_plan.VARIABLE: plan.text(), "RANK": str(r), "WORLD_SIZE": str(world)}) for r in range(world)]
    parts = [part for part in ranks if part is not None]
    dealt = [sample for part in parts for sample in range(part.offset, part.offset + part.samples)]
    assert dealt == list(range(plan.total))
    assert {(part.accumulation, part.global_batch) for part in parts} == {(plan.accumulation, plan.total)}
    # the mean over the ranks of the weighted means of their micro-batches, of samples that are each 1: and so it is 1
    assert math.isclose(sum(part.weight * part.accumulation for part in parts) / world, 1)
    for part in parts:  # each sample counts 1 / global batch
        assert math.isclose(part.weight / part.micro_batch / world, 1 / plan.total)


@given(st.integers(1, 16), st.integers(1, 16), st.integers(1, 8), st.integers(1, 8))
def test_where_equal_gpus_keep_the_global_batch_by_equal_shares_there_is_a_plan_too(micro: int, accum: int, world: int, left: int) -> None:
    even = for_world(Batch(micro, accum, world), left)
    if isinstance(even, Batch):
        plan = share(asked(micro * accum * world, micro, left), [RankGpu(1)] * left)
        assert isinstance(plan, UnevenPlan)
        assert plan.total == even.total


def test_a_smaller_micro_batch_and_another_number_of_ranks_keep_what_is_shared() -> None:
    size, accum = Knob("batch_size", "10", "--bs", counts="gpu"), Knob("grad_accum", "64", "plan:", counts="planned")
    batch = read(size, accum, 4)
    assert batch == asked(64, 10)
    assert str(batch) == "64, shared by 4 ranks, 10 at once on the least memory"
    fewer = for_world(batch, 3)
    assert fewer == replace(batch, world=3), "64 is not a multiple of 3, and is shared all the same"
    less = smaller(batch)
    assert less == replace(batch, micro=5)
    assert isinstance(less, Batch)
    assert [(change.knob, change.new) for change in changes(less, size, accum)] == [("batch_size", "5")]
    assert smaller(asked(61, 31, 2)) == "no smaller micro-batch has an exact plan (61, shared by 2 ranks, 31 at once on the least memory)"
    assert for_world(asked(61, 20), 3) == "3 ranks cannot share the global batch 61 exactly"


def knobs_of(declared: tuple[str, ...], place: Path, *, drift: bool = False) -> KnobSet:
    return replace(find(place, "python train.py", *declared), batch_drift=drift)


DECLARED = ("batch_size:8=env:SUPERVISE_JOB_BATCH_SIZE", "grad_accum:planned:64=plan:2.5@80,2.5@80,1@32,1@32")


def test_a_declared_plan_is_given_to_the_ranks_anew_for_each_attempt(tmp_path: Path) -> None:
    knobs = knobs_of(DECLARED, tmp_path)

    def given_plan(*overrides: tuple[str, str], world: int | None = 4, gpus: tuple[int, ...] = ()) -> tuple[str, str]:
        applied = knobs.apply(("python", "train.py"), overrides, tmp_path, world, gpus)
        return applied.environment[batch_plan.VARIABLE], applied.plan

    text, words = given_plan()
    assert text == '{"micro":[12,12,4,4],"accumulation":2}'
    assert "2 × (12 + 12 + 4 + 4) = 64" in words
    assert given_plan(world=None)[0] == text, "a plain command launches its ranks by itself"
    assert given_plan(("batch_size", "4"))[0] == '{"micro":[6,6,2,2],"accumulation":4}', "out of memory"
    assert given_plan(world=3, gpus=(0, 2, 3))[0] == '{"micro":[18,7,7],"accumulation":2}', "the second GPU is out of use"
    assert given_plan(world=3, gpus=(0, 1, 2, 3))[0] == '{"micro":[14,13,5],"accumulation":2}', "it is back, and the run has 3 ranks"
    with pytest.raises(SuperviseError, match="names 4 GPUs, and the attempt has 3 ranks"):
        given_plan(world=3)


def test_without_an_exact_plan_no_rank_starts_unless_drift_is_allowed(tmp_path: Path) -> None:
    nearest = r"the nearest is 15 × \(2 \+ 2\) = 60: --allow-batch-drift takes it"
    with pytest.raises(SuperviseError, match=nearest) as refused:
        knobs_of(("batch_size:2=env:SUPERVISE_JOB_BATCH_SIZE", "grad_accum:planned:61=plan:1,1"), tmp_path)
    assert refused.value.exit_code == ExitCode.USAGE, "it stands on the command line"
    declared, smaller_later = ("batch_size:31=env:SUPERVISE_JOB_BATCH_SIZE", "grad_accum:planned:61=plan:1,1"), (("batch_size", "2"),)
    with pytest.raises(SuperviseError, match=nearest):
        knobs_of(declared, tmp_path).apply(("python", "train.py"), smaller_later, tmp_path, 2)
    applied = knobs_of(declared, tmp_path, drift=True).apply(("python", "train.py"), smaller_later, tmp_path, 2)
    assert applied.environment[batch_plan.VARIABLE] == '{"micro":[2,2],"accumulation":15}'


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (("grad_accum:planned:64=plan:2,1",), "no batch_size says how many samples fit"),
        ((DECLARED[0], "grad_accum:64=plan:2,1"), "a plan is declared as grad_accum:planned:GLOBAL_BATCH=plan:"),
        ((DECLARED[0], "grad_accum:planned:64=--accum"), "a plan is declared as grad_accum:planned:GLOBAL_BATCH=plan:"),
        ((DECLARED[0], "grad_accum:planned=plan:2,1"), "its value is not known"),
        ((DECLARED[0], "grad_accum:planned:64=plan:2@80,1"), "not a list of SPEED@MEMORY or SPEED"),
        ((DECLARED[0], "grad_accum:planned:64=plan:2,0"), "not a list of SPEED@MEMORY or SPEED"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_at_the_start(declared: tuple[str, ...], why: str, tmp_path: Path) -> None:
    with pytest.raises(SuperviseError, match=why):
        knobs_of(declared, tmp_path)
