"""The progress of a training, read from its own output."""

from __future__ import annotations

import pytest

from supervisor.classify.step_counts import StepCount, count_of, newest_count


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("step 10/120 loss 4.1123 511.6 ms/step", (10, 120, None, None)),
        ("[rank0]: Step: 10 / 120, loss: 2.1", (10, 120, None, None)),
        (" [2026-11-21 14:13:20] iteration       10/     120 | consumed samples:  80 | lm loss: 6.9E+00", (10, 120, None, None)),
        ("Epoch [1/3], Step [100/600], Loss: 0.21", (100, 600, 1, 3)),
        ("Epoch: [0][ 10/196]\tTime 0.5\tLoss 2.1e+00", (10, 196, 0, None)),
        ("  8%|▊         | 10/120 [00:05<00:52,  2.11it/s, loss=2.1]", (10, 120, None, None)),
        ("Epoch 2/3:  50%|█████     | 60/120 [00:05<00:52]", (60, 120, 2, 3)),
        ("60/120 loss 2.3 lr 1e-4", (60, 120, None, None)),
        ("step 10 of 120: loss 2.31", (10, 120, None, None)),
        ("step 10/120 loss 2.1 val_loss 2.2", (10, 120, None, None)),
        ("Evaluating:  8%|▊         | 10/120 [00:05<00:52]", None),
        ("val step 3/10 loss 2.1", None),
        ("Downloading shards: 100%|██████| 2/2 [00:00<00:00]", None),
        ("Loading checkpoint shards:  50%|█████ | 1/2 [00:00]", None),
        ("2026/11/21 14:13 all is well", None),
        ("see https://example.com/3/12 for loss", None),
        ("step 130/120", None),
        ("1/2 of the files", None),
        ("no count at all, loss 3.1", None),
    ],
)
def test_a_line_counts_the_steps_of_the_training_or_nothing(line: str, count: tuple[int, int, int | None, int | None] | None) -> None:
    step_count = count_of(line)
    assert (None if step_count is None else (step_count.done, step_count.total, step_count.epoch, step_count.epochs)) == count


def test_the_newest_step_count_is_taken_with_its_wording() -> None:
    lines = ["step 10/120 loss 4", "step 20/120 loss 3", "saved ckpt/20.pt", "val step 1/9"]
    assert newest_count(lines) == StepCount(20, 120, "step 20/120")
    assert newest_count(["nothing"]) is None
