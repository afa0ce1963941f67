"""What a drill shows of a resume, from the states that the ranks recorded, and what it does not show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.cli.drill.comparison import StateRow, compare, rows_of
from supervisor.core.values import asdict, replace


def row(after: int, *, steps: int | None = None, optimizer: int = 0, rank: int = 0, **changed: Any) -> StateRow:  # noqa: ANN401  any field
    """Return the row of the state after so many steps of one training, recorded after `steps` of this process."""
    made = StateRow(
        optimizer,
        after if steps is None else steps,
        None,
        f"w{rank}.{optimizer}.{after}",
        f"s{rank}.{after}",
        f"g{rank}.{after}",
        ({"lr": 0.1},),
    )
    return replace(made, **changed)


FIRST = [row(step) for step in range(8)]


def test_a_resume_is_proven_by_the_state_after_the_step_that_was_saved() -> None:
    found = compare({0: FIRST}, {0: [row(5, steps=0), row(6, steps=1)]})
    assert (found.is_proven, found.after, found.shown) == (True, 5, ("weights", "optimizer", "data"))
    assert dict(found.lines)["step"].startswith("not shown")


def test_a_seeded_start_from_scratch_is_no_resume_though_each_of_its_states_is_known() -> None:
    found = compare({0: FIRST}, {0: [row(0), row(1)]})
    assert (found.is_proven, found.after) == (False, None)
    assert dict(found.lines)["weights"] == "those of the beginning: it started from scratch"


def test_where_the_steps_change_nothing_a_start_from_scratch_is_no_proof() -> None:
    first = [row(step, weights="w", state="s") for step in range(8)]
    found = compare({0: first}, {0: [replace(first[0], gradients="g"), replace(first[1], gradients="h")]})
    assert (found.is_proven, found.after) == (False, None)
    assert dict(found.lines)["weights"].startswith("not shown: by step")
    other = [*first, row(8)]
    assert compare({0: other}, {0: [row(8, steps=0)]}).is_proven


def test_weights_of_no_step_are_no_resume_and_the_rank_is_named() -> None:
    first = {rank: [row(step, rank=rank) for step in range(8)] for rank in (0, 1)}
    resumed = {0: [row(5, steps=0)], 1: [row(5, steps=0, rank=1, weights="other")]}
    found = compare(first, resumed)
    assert not found.is_proven
    assert "rank 1 resumed with weights that the first attempt had after none" in dict(found.lines)["weights"]


def test_ranks_that_resumed_after_different_steps_are_no_resume() -> None:
    first = {rank: [row(step, rank=rank) for step in range(8)] for rank in (0, 1)}
    found = compare(first, {0: [row(5, steps=0)], 1: [row(4, steps=0, rank=1)]})
    assert (found.is_proven, dict(found.lines)["weights"]) == (False, "the ranks resumed after different steps")


CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("optimizer", {"state": "fresh"}, "is not the one that was saved"),
    ("optimizer", {"settings": ({"lr": 0.2},)}, "other settings: lr 0.1→0.2"),
    ("optimizer", {"settings": ()}, "1→0 groups"),
    ("step", {"step": 0}, "0 where the first attempt counted 5"),
]


@pytest.mark.parametrize(("part", "changed", "text"), CHANGES, ids=lambda value: value if isinstance(value, str) else "")
def test_weights_alone_are_no_proof(part: str, changed: dict[str, Any], text: str) -> None:
    first = [replace(one, step=one.steps) for one in FIRST]
    found = compare({0: first}, {0: [row(5, steps=0, **{"step": 5, **changed})]})
    assert (found.weights, getattr(found, part), found.is_proven) == (True, False, False)
    assert text in dict(found.lines)[part]


def test_a_count_that_is_known_only_after_the_first_step_is_compared_there() -> None:
    first = [replace(one, step=one.steps + 100) for one in FIRST]
    found = compare({0: first}, {0: [row(5, steps=0), row(6, steps=1, step=106)]})
    assert (found.step, found.is_proven) == (True, True)
    assert compare({0: first}, {0: [row(5, steps=0), row(6, steps=1, step=6)]}).step is False


def test_other_gradients_show_nothing_and_the_proof_holds() -> None:
    found = compare({0: FIRST}, {0: [row(5, steps=0, gradients="other")]})
    assert (found.data, found.is_proven) == (None, True)
    assert compare({0: [replace(one, gradients="") for one in FIRST]}, {0: [row(5, steps=0, gradients="")]}).data is None


def test_of_two_steps_with_the_same_weights_the_one_with_the_same_optimizer_counts() -> None:
    first = [*FIRST[:6], row(6, weights="w0.0.5", state="s0.5"), row(7)]  # a learning rate of 0 at the step before
    first[5] = replace(first[5], state="other")
    assert compare({0: first}, {0: [row(5, steps=0)]}).after == 6


def test_a_step_of_zeros_before_the_load_is_passed_over() -> None:
    found = compare({0: FIRST}, {0: [row(0, weights="init"), row(5, steps=1)]})
    assert (found.after, found.is_proven) == (5, True)


def test_each_optimizer_of_a_rank_is_compared() -> None:
    first = [row(step, optimizer=number) for step in range(8) for number in (0, 1)]
    resumed = [row(5, steps=0), row(5, steps=0, optimizer=1)]
    assert compare({0: first}, {0: resumed}).is_proven
    assert not compare({0: first}, {0: [resumed[0], replace(resumed[1], weights="other")]}).is_proven
    assert compare({0: first}, {0: [resumed[0], replace(resumed[1], state="fresh")]}).optimizer is False
    alone = compare({0: first}, {0: resumed[:1]})
    assert (alone.optimizer, alone.is_proven) == (None, False)


def test_an_optimizer_that_is_made_anew_in_each_epoch_is_found_under_another_number() -> None:
    first = [replace(one, optimizer=one.steps // 3) for one in FIRST]
    assert compare({0: first}, {0: [replace(row(5, steps=0), weights=first[5].weights)]}).is_proven


RESUMED = [row(5, steps=0)]
UNREAD = [row(5, steps=0, weights="")]
#: What is missing: the rows of the first attempt and of the resumed one, by rank.
MISSING: dict[str, tuple[dict[int, list[StateRow]], dict[int, list[StateRow]]]] = {
    "a rank": ({}, {}),
    "a later attempt": ({0: FIRST}, {}),
    "a rank of the later attempt": ({0: FIRST, 1: FIRST}, {0: RESUMED}),
    "a later row": ({0: FIRST}, {0: []}),
    "an earlier row": ({0: []}, {0: RESUMED}),
    "a digest of the later attempt": ({0: FIRST}, {0: UNREAD}),
    "all digests": ({0: [replace(one, weights="") for one in FIRST]}, {0: UNREAD}),
}


@pytest.mark.parametrize("what", MISSING)
def test_what_was_not_recorded_is_not_proven(what: str) -> None:
    found = compare(*MISSING[what])
    assert not found.is_proven
    assert found.lines


def test_rows_are_read_back_and_a_torn_line_is_passed_over() -> None:
    text = "".join(json.dumps(asdict(one)) + "\n" for one in FIRST)
    assert rows_of(text.encode()) == FIRST
    assert rows_of(text[:-9].encode() + b"\n[]\n\xff\n") == FIRST[:-1]
