"""How many steps a training has: by the script, its log, its command, its epochs; and nothing where that is not known."""

from __future__ import annotations

import shlex

import pytest

from supervisor.classify.step_counts import count_of
from supervisor.view.step_total import step_total


def total(step: int | None, line: str = "", command: str = "", *, is_relative: bool = False, reported: int | None = None) -> object:
    answer = step_total(step, is_relative=is_relative, reported=reported, count=count_of(line), command=shlex.split(command))
    return None if answer is None else (answer.steps, answer.source)


@pytest.mark.parametrize(
    ("step", "line", "command", "expected"),
    [
        (10, "", "torchrun train.py --max_steps 120", (120, "from --max_steps 120")),
        (10, "", "torchrun train.py --max-steps=120", (120, "from --max-steps=120")),
        (10, "", "python train.py --steps=50 --steps=120", (120, "from --steps=120")),
        (10, "", "python train.py --num_iterations 1e3", (1000, "from --num_iterations 1e3")),
        (10, "", "python train.py --train-iters 120", (120, "from --train-iters 120")),
        (10, "", "python train.py trainer.max_steps=120", (120, "from trainer.max_steps=120")),
        (10, "", "python train.py --max_steps -1", None),
        (10, "", "python train.py --max_steps", None),
        (10, "", "python train.py --max_steps auto", None),
        (10, "", "python train.py steps 120", None),
        (130, "", "python train.py --max_steps 120", None),
        (12, "step 10/120 loss 4.1", "", (120, "from its log (step 10/120)")),
        (900, "step 800/9000 loss 4.1", "", (9000, "from its log (step 800/9000)")),
        (900, "step 10/120 loss 4.1", "", None),
        (12, "step 10/120 loss 4.1", "python train.py --max_steps 1000", (1000, "from --max_steps 1000")),
        (12, "step 10/120 loss 4.1", "python train.py --steps 120", (120, "from its log (step 10/120)")),
        (130, "Epoch [2/3], Step [10/120], loss 4.1", "", (360, "3 epochs of 120 steps")),
        (130, "Epoch: [1][ 10/120] loss 4.1", "python train.py --epochs 3", (360, "3 epochs of 120 steps")),
        (130, "  8%|▊ | 10/120 [00:05<00:52]", "python train.py --num_train_epochs=3", (360, "3 epochs of 120 steps")),
        (10, "Epoch [1/3], Step [10/120], loss 4.1", "", None),
        (10, "  8%|▊ | 10/120 [00:05<00:52]", "python train.py --epochs 3", None),
        (130, "epoch 2/3 step 130/360 loss 4.1", "", (360, "from its log (step 130/360)")),
        (None, "step 10/120 loss 4.1", "", (120, "from its log (step 10/120)")),
        (None, "step 10/120 loss 4.1", "python train.py --epochs 3", None),
        (None, "", "python train.py --max_steps 120", None),
    ],
)
def test_the_source_of_the_total_is_named_and_a_contradicted_total_is_none(
    step: int | None, line: str, command: str, expected: tuple[int, str] | None
) -> None:
    assert total(step, line, command) == expected


def test_a_total_reported_by_the_script_comes_first() -> None:
    assert total(10, "step 10/120 loss 4", "python train.py --max_steps 99", reported=240) == (240, "reported by the script")


def test_steps_that_supervise_counted_itself_are_no_measure_for_an_option() -> None:
    """The script may have begun at a step of its own."""
    assert total(10, command="python train.py --max_steps 120", is_relative=True) is None
    assert total(10, "step 10/120 loss 4", is_relative=True) == (120, "from its log (step 10/120)")
    assert total(10, "step 1010/5000 loss 4", is_relative=True) is None
