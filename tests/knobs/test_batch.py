"""The arithmetic of batches: whatever the knobs count, the product is what the user asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.model import Knob
from supervisor.core.values import replace
from supervisor.knobs.batch import Batch, changes, for_world, halved_alone, read, smaller

positive = st.integers(1, 64)


def size(value: str, counts: str = "gpu") -> Knob:
    return Knob("batch_size", value, "--bs", counts=counts)


def accum(value: str, counts: str = "rank") -> Knob:
    return Knob("grad_accum", value, "--accum", counts=counts)


@given(positive, positive, positive, st.sampled_from(["gpu", "global"]), st.sampled_from(["rank", "world"]))
def test_a_smaller_micro_batch_keeps_the_global_batch_however_the_knobs_count(
    micro: int, steps: int, world: int, of_size: str, of_accum: str
) -> None:
    given_size = size(str(micro * world * steps if of_size == "global" else micro), of_size)
    given_accum = accum(str(steps * world if of_accum == "world" else steps), of_accum)
    old = read(given_size, given_accum, world)
    assert old == Batch(micro, steps, world)
    new = smaller(old)
    assert isinstance(new, str) == (micro == 1), "one is left, odd or even"
    if isinstance(new, str):
        return
    assert new.total == old.total
    assert new.micro == max(m for m in range(1, micro) if micro * steps % m == 0)
    values = {change.knob: change.new for change in changes(new, given_size, given_accum)}
    applied = [replace(knob, value=values.get(knob.name, knob.value)) for knob in (given_size, given_accum)]
    assert read(applied[0], applied[1], world) == new, "what is written reads as what was planned"


@given(positive, positive, positive, positive)
def test_another_world_size_keeps_the_product_or_is_refused(micro: int, steps: int, world: int, left: int) -> None:
    old = Batch(micro, steps, world)
    new = for_world(old, left)
    if isinstance(new, str):
        assert all(old.total % (left * m) for m in range(1, micro + 1)), "there was a plan"
        near = for_world(old, left, drift=True)
        assert isinstance(near, Batch)
        assert near.micro <= micro
        return
    assert (new.total, new.world) == (old.total, left)
    assert new.micro <= micro, "no GPU holds more than it did"


@pytest.mark.parametrize(
    ("given_size", "given_accum", "world", "words"),
    [
        (size(""), accum("1"), 2, "write --bs out"),
        (size("auto"), accum("1"), 2, "write --bs out"),
        (size("0"), accum("1"), 2, "write --bs out"),
        (size("8"), accum(""), 2, "write --accum out"),
        (size("8", "global"), accum("1"), 0, "how many ranks"),
        (size("8"), accum("8", "world"), 0, "how many ranks"),
        (size("9", "global"), accum("1"), 2, "not a multiple of 2 ranks"),
        (size("8"), accum("9", "world"), 2, "not a multiple of the 2 ranks"),
        (size("8", "global"), accum("", "derived"), 2, "nothing sets the micro-batch"),
    ],
)
def test_an_unknown_global_batch_names_the_missing_part(given_size: Knob, given_accum: Knob, world: int, words: str) -> None:
    assert words in str(read(given_size, given_accum, world))


def test_a_derived_accumulation_is_not_written() -> None:
    new = smaller(Batch(8, None, 2))
    assert isinstance(new, Batch)
    assert [c.knob for c in changes(new, size("8"), accum("", "derived"))] == ["batch_size"]


def test_the_smaller_micro_batch_skips_sizes_known_not_to_fit() -> None:
    assert smaller(Batch(12, 1, 2), 4) == Batch(4, 3, 2)
    assert smaller(Batch(12, 1, 2), 5) == Batch(4, 3, 2)
    assert smaller(Batch(7, 1, 2), 6) == Batch(1, 7, 2)
    assert smaller(Batch(12, 1, 2), 100) == Batch(6, 2, 2)
    assert halved_alone(size("64"), 2, 9) == 8
    assert halved_alone(size("64", "global"), 3, 9) == 6
    assert halved_alone(size("64", "global"), 3, 1) == 3, "each rank keeps a sample"


@pytest.mark.parametrize(
    ("old", "micros"),
    [
        (Batch(12, 1, 2), [6, 4, 3, 2, 1]),
        (Batch(12, 1, 3), [6, 4, 3, 2, 1]),
        (Batch(15, 1, 5), [5, 3, 1]),
        (Batch(7, 1, 1), [1]),
        (Batch(4, 3, 2), [3, 2, 1]),
        (Batch(32, 1, 0), [16, 8, 4, 2, 1]),
        (Batch(6, None, 2, 24), [4, 3, 2, 1]),
        (Batch(9, None, 2), [3, 1]),
        (Batch(9, None, 4, 27), [3, 1]),  # the program refuses its own numbers: each divisor of the old one is as good
    ],
)
def test_the_smaller_micro_batches_are_the_divisors_of_a_ranks_share(old: Batch, micros: list[int]) -> None:
    sizes: list[int] = []
    now: Batch | str = old
    while isinstance(now := smaller(now), Batch):
        assert now.total == old.total
        sizes.append(now.micro)
    assert sizes == micros
