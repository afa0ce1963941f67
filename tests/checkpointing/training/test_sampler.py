"""UnevenSampler: the shares of all ranks are the epoch, without overlap, and a training that resumes sees each sample once."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing import UnevenSampler
from supervisor.agent import batch_plan

if TYPE_CHECKING:
    from supervisor.agent.batch_plan import BatchPlan

shapes = st.tuples(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 3))


def plans(micro: list[int], accumulation: int) -> list[BatchPlan]:
    text = json.dumps({"micro": micro, "accumulation": accumulation})
    world = str(len(micro))
    parts = [batch_plan.of_rank({batch_plan.VARIABLE: text, "RANK": str(rank), "WORLD_SIZE": world}) for rank in range(len(micro))]
    return [part for part in parts if part is not None]


def steps_of(sampler: UnevenSampler, plan: BatchPlan, most: int | None = None) -> list[list[int]]:
    """Return the indices of each optimizer step to the end of the epoch, or of the first `most` steps."""
    count = None if most is None else most * plan.samples
    indices = list(itertools.islice(sampler, count))
    return [indices[at : at + plan.samples] for at in range(0, len(indices), plan.samples)]


@given(shapes, st.integers(1, 80), st.booleans(), st.booleans())
def test_the_shares_are_the_epoch_without_overlap(shape: tuple[list[int], int], size: int, shuffle: bool, drop_last: bool) -> None:  # noqa: FBT001
    ranks = plans(*shape)
    whole = ranks[0].global_batch
    samplers = [UnevenSampler(size, plan, shuffle, 5, drop_last) for plan in ranks]
    lengths = [len(sampler) for sampler in samplers]
    dealt = [steps_of(sampler, plan) for sampler, plan in zip(samplers, ranks, strict=True)]
    batches = size // whole if drop_last else -(-size // whole)
    assert [len(steps) for steps in dealt] == [batches] * len(ranks), "all ranks make the same steps"
    assert lengths == [batches * plan.samples for plan in ranks]
    order = [index for step in zip(*dealt, strict=True) for part in step for index in part]
    epoch = order[: min(size, len(order))]
    assert len(set(epoch)) == len(epoch)
    if not drop_last:
        assert set(epoch) == set(range(size))
        assert order[size:] == (order[:size] * whole)[: len(order) - size], "filled up from the beginning"
    if not shuffle:
        assert epoch == list(range(len(epoch)))


@given(shapes, shapes, st.integers(1, 80), st.integers(0, 6))
def test_the_sampler_resumes_under_another_plan_with_the_remaining_samples(
    before: tuple[list[int], int], after: tuple[list[int], int], size: int, steps: int
) -> None:
    old, new = plans(*before), plans(*after)
    trained, states = [], []
    for plan in old:
        sampler = UnevenSampler(size, plan, seed=2)
        sampler.set_epoch(3)
        plan_steps = steps_of(sampler, plan, min(steps, len(sampler) // plan.samples))
        trained += [index for step in plan_steps for index in step]
        states.append(json.loads(json.dumps(sampler.state_dict())))
    assert all(state == states[0] for state in states), "the state of one rank is that of all"
    rest = []
    for plan in new:
        sampler = UnevenSampler(size, plan, seed=2)
        sampler.load_state_dict(states[0])
        rest += [index for step in steps_of(sampler, plan) for index in step]
    assert set(trained) | set(rest) == set(range(size))
    past = min(states[0]["position"], size)
    assert len(set(trained)) == past
    assert len(set(rest) - set(trained)) == size - past


def test_a_position_stands_behind_a_step_as_soon_as_its_last_index_is_dealt() -> None:
    (plan,) = plans([4], 1)
    sampler = UnevenSampler(10, plan, shuffle=False)
    indices = iter(sampler)
    assert [next(indices) for _ in range(3)] == [0, 1, 2]
    assert sampler.state_dict()["position"] == 0
    assert next(indices) == 3
    assert sampler.state_dict()["position"] == 4


def test_each_pass_is_the_next_epoch_in_another_order() -> None:
    (plan,) = plans([5], 1)
    sampler = UnevenSampler(50, plan)
    first, second = list(sampler), list(sampler)
    assert sampler.state_dict() == {"epoch": 2, "position": 0, "seed": 0, "size": 50}
    assert first != second
    sampler.set_epoch(1)
    assert list(sampler) == second
    assert list(UnevenSampler(50, plan, seed=1)) != first


def test_a_state_of_another_data_set_is_refused() -> None:
    (plan,) = plans([4], 1)
    state = UnevenSampler(10, plan).state_dict()
    with pytest.raises(ValueError, match="has size 10, and this sampler 11"):
        UnevenSampler(11, plan).load_state_dict(state)
    with pytest.raises(ValueError, match="has seed 0, and this sampler 1"):
        UnevenSampler(10, plan, seed=1).load_state_dict(state)
    with pytest.raises(ValueError, match="without samples"):
        UnevenSampler(0, plan)
