"""What a drill concludes about a resume from the loaded checkpoint and the printed losses, and what it leaves open."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import pytest

from supervisor.cli.drill.attempt_losses import AttemptLosses
from supervisor.cli.drill.comparison import LossResult, compare
from supervisor.instrument._supervise_shim import layout
from supervisor.observe.ranks import heartbeats

if TYPE_CHECKING:
    from pathlib import Path

LOADED = "ckpt/step-5.pt, saved after step 5"
#: The losses of the first attempt, which saved after the fifth and was killed after the ninth.
FIRST = [2.5, 2.1, 1.8, 1.62, 1.5, 1.41, 1.35, 1.31, 1.28]
SAVED_AT = 5
BARS = ("10%|# | 1/10 [00:01, loss=2.5", "10%|# | 1/10 [00:02, loss=2.5", "20%|# | 2/10 [00:03, loss=2.1")


def text(losses: list[float], first: list[float] = FIRST) -> str:
    return compare(LOADED, first, losses, SAVED_AT).losses.text


def test_the_losses_of_the_steps_that_are_made_again_prove_a_resume() -> None:
    comparison = compare(LOADED, FIRST, [1.41, 1.35, 1.31, 1.28, 1.27, 1.265], SAVED_AT)
    assert (comparison.is_proven, comparison.proven_parts) == (True, ("checkpoint", "losses"))
    assert comparison.outcome[0] == "yes"
    assert (comparison.loaded, comparison.losses.text) == (LOADED, "the same 4 as in the first attempt")


def test_the_losses_prove_a_resume_though_no_hook_saw_the_load() -> None:
    comparison = compare("", FIRST, [1.41, 1.35, 1.31], SAVED_AT)
    assert (comparison.is_proven, comparison.proven_parts) == (True, ("losses",))
    assert not comparison.loaded


def test_a_seeded_start_from_scratch_is_no_resume_though_each_of_its_losses_is_known() -> None:
    comparison = compare(LOADED, FIRST, FIRST[:4], SAVED_AT)
    assert (comparison.is_proven, comparison.losses.result) == (False, LossResult.DIFFERENT)
    assert text(FIRST[:4]) == "those of the beginning: it started from scratch"


def test_where_the_steps_change_nothing_the_losses_are_no_proof() -> None:
    assert not compare(LOADED, [2.5] * 9, [2.5] * 4, SAVED_AT).is_proven
    assert text([2.5] * 4, [2.5] * 9) == "those of the beginning: the training had changed nothing by the save"


def test_weights_without_their_optimizer_are_no_resume() -> None:
    losses = [1.41, 1.39, 1.36, 1.33]
    assert not compare(LOADED, FIRST, losses, SAVED_AT).is_proven
    assert "the first is the same, the next is 1.39: the optimizer's state" in text(losses)


def test_other_data_leaves_the_proof_to_the_checkpoint_that_was_loaded() -> None:
    losses = [1.37, 1.33, 1.36, 1.29]
    comparison = compare(LOADED, FIRST, losses, SAVED_AT)
    assert (comparison.is_proven, comparison.proven_parts, comparison.losses.result) == (True, ("checkpoint",), LossResult.NEAR)
    assert "other data or randomness" in text(losses)
    assert comparison.outcome[0].startswith("in part: the checkpoint is loaded")
    assert not compare("", FIRST, losses, SAVED_AT).is_proven


def test_where_the_first_attempt_printed_too_little_after_its_save_no_other_data_is_claimed() -> None:
    comparison = compare(LOADED, FIRST[:6], [1.35, 1.31, 1.28], SAVED_AT)
    assert (comparison.is_proven, comparison.losses.result) == (True, LossResult.NEAR)
    assert comparison.losses.text.endswith("before the kill; not compared: print more than 2 losses from one save to the next")
    assert comparison.outcome[0].endswith("whether data and randomness continue is unknown")


@pytest.mark.parametrize("losses", [[2.4, 2.2, 1.9], [8.0, 7.5, 7.2], [math.nan, math.nan]], ids=str)
def test_losses_that_are_far_from_the_first_attempt_s_are_no_resume_whatever_was_loaded(losses: list[float]) -> None:
    assert not compare(LOADED, FIRST, losses, SAVED_AT).is_proven
    assert text(losses).startswith("different: ")


def test_sums_that_vary_in_their_last_digits_are_the_same() -> None:
    assert compare(LOADED, FIRST, [1.41001, 1.34999, 1.31], SAVED_AT).losses.result is LossResult.SAME


@pytest.mark.parametrize(("before", "after"), [([], []), (FIRST, []), (FIRST, [1.41]), ([2.5], FIRST)], ids=str)
def test_losses_that_were_not_printed_prove_nothing(before: list[float], after: list[float]) -> None:
    comparison = compare(LOADED, before, after, SAVED_AT)
    assert (comparison.is_proven, comparison.losses.result) == (False, LossResult.UNKNOWN)


def test_losses_are_read_as_the_output_grows_and_a_bar_that_repeats_one_counts_once(tmp_path: Path) -> None:
    losses = AttemptLosses(tmp_path / "0001", tmp_path / "heartbeat")
    losses.read()
    assert losses.longest() is None
    (tmp_path / "0001").mkdir()
    output = tmp_path / "0001" / "rank-0.out"
    output.write_text("step 1 loss 2.5\nstep 2 loss 2.")
    (tmp_path / "0001" / "rank-1.err").write_text("".join(f"{bar}]\r" for bar in BARS))
    losses.read()
    with output.open("a") as file:
        file.write("1\nstep 3 loss 1.8\n")
    losses.read()
    assert losses.series == {("rank-0.out", "loss"): [2.5, 2.1, 1.8], ("rank-1.err", "loss"): [2.5, 2.1]}
    assert losses.longest() == ("rank-0.out", "loss")
    assert [losses.count_by(("rank-0.out", "loss"), step) for step in (2, 9, None)] == [2, 3, 3]


def report(heartbeat: Path, rank: int, number: int, loss: float) -> None:
    """Write into a rank's slot what its `number`th call of worker.report leaves there."""
    content = bytearray(heartbeat.read_bytes())
    fields = ((layout.PID, 1), (layout.RANK, rank), (layout.LOSS, struct.unpack("<q", struct.pack("<d", loss))[0]), (layout.LOSSES, number))
    for index, value in fields:
        struct.pack_into("<q", content, (1 + rank) * layout.SLOT_BYTES + 8 * index, value)
    heartbeat.write_bytes(content)


def test_losses_that_a_rank_reports_are_read_and_a_rank_of_which_one_was_missed_has_no_series(tmp_path: Path) -> None:
    heartbeat = tmp_path / "heartbeat"
    heartbeats.create(heartbeat, 2)
    losses = AttemptLosses(tmp_path, heartbeat)
    for number, loss in enumerate((2.5, 2.1, 1.8), start=1):
        report(heartbeat, 0, number, loss)
        report(heartbeat, 1, 2 * number - 1, loss)
        losses.read()
    losses.read()
    assert losses.series == {("worker.report", "0"): [2.5, 2.1, 1.8]}
