"""Which numbers of a line are losses: a line of each framework, and what only looks like one."""

from __future__ import annotations

import itertools
import re
import time

import pytest

from supervisor.classify.losses.lines import LONGEST, MOST_LINES, NumberReader, captures
from supervisor.classify.losses.rules import LossRule, RuleKind

CAPTURES, _ = captures([LossRule("nan", RuleKind.NAN)])

#: A line, and the losses in it: name, as printed, step.
LINES = [
    ("step 120 loss: nan", [("loss", "nan", 120)]),
    ("iter 10: loss 2.5123, time 123.45ms, mfu 10.00%", [("loss", "2.5123", 10)]),
    ("step 0: train loss 4.2874, val loss 4.2823", [("train loss", "4.2874", 0), ("val loss", "4.2823", 0)]),
    (
        " iteration 100/1000 | elapsed time per iteration (ms): 500.0 | lm loss: 6.912345E+00 | loss scale: 65536.0 | grad norm: 1.2 |",
        [("lm loss", "6.912345E+00", 100)],
    ),
    ("{'loss': 0.5, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.1}", [("loss", "0.5", None)]),
    ("{'loss': 'nan', 'grad_norm': '0.0', 'learning_rate': '5e-05', 'epoch': '0.1'}", [("loss", "nan", None)]),
    ('{"step": 7, "train/loss": NaN}', [("train/loss", "NaN", 7)]),
    (
        "Epoch 0:  10%|#    | 10/100 [00:01<00:09,  9.9it/s, loss=1.23, v_num=0, train_loss_step=nan.0]",
        [("loss", "1.23", 10), ("train_loss_step", "nan", 10)],
    ),
    ("Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.300024", [("Loss", "2.300024", None)]),
    ("Epoch: [0][ 10/5005]\tTime  0.5 ( 0.6)\tLoss nan (nan)\tAcc@1 0.0", [("Loss", "nan", None)]),
    ("Train: 0 [   0/1251 (  0%)]  Loss: 6.93 (6.95)  Time: 1.2s", [("Loss", "6.93", None)]),
    ("1|10|Loss: 1.2345678:  10%|#| 10/100 [00:10<01:00, 1.0s/it]", [("Loss", "1.2345678", 10)]),
    ("\x1b[31mstep:  1  \x1b[32mloss:  8.1366  \x1b[33mgrad_norm:  1.9\x1b[39m", [("loss", "8.1366", 1)]),
    ("steps: 10 loss: 6.6123 iter time (s): 0.500 samples/sec: 16.0", [("loss", "6.6123", 10)]),
    ("Epoch 1 | iter 1 step 0 | loss train: 4.561, val: n/a | iter time: 500 ms", [("loss train", "4.561", 1)]),
    (
        "  eta: 0:10:00  iter: 19  total_loss: 1.2  loss_cls: 0.5  loss_box_reg: nan",
        [("total_loss", "1.2", 19), ("loss_cls", "0.5", 19), ("loss_box_reg", "nan", 19)],
    ),
    ("epoch 003 | loss 8.2 | nll_loss 6.1 | ppl 70", [("loss", "8.2", None), ("nll_loss", "6.1", None)]),
    ("100/100 - 1s - loss: nan - accuracy: 0.1", [("loss", "nan", None)]),
    ("loss=tensor(nan, device='cuda:0', grad_fn=<NllLossBackward0>)", [("loss", "nan", None)]),
    ("[default3]:loss: -inf", [("loss", "-inf", None)]),
    ("TrainLoss = 0.55", [("TrainLoss", "0.55", None)]),
    ("the loss is nan", [("loss", "nan", None)]),
    # no losses
    ("loss scale: nan", []),
    ("loss_scale=inf", []),
    ("val_loss_weight=nan", []),
    ("best_val_loss: inf", []),
    ("best loss: inf", []),
    ("Reducing dynamic loss scale from 65536 to 32768", []),
    ("ping statistics: packet loss: 3%", []),
    ("CrossEntropyLoss(weight=nan, ignore_index=-100)", []),
    ("glossary: 4, colossal 3, lossless 5", []),
    ("loss 3/10", []),
    ("loss: information", []),
    ("training without a number of loss at all", []),
]


@pytest.mark.parametrize(("line", "losses"), LINES, ids=[line[:40] for line, _ in LINES])
def test_the_losses_of_a_line_are_found_in_the_forms_of_the_frameworks(line: str, losses: list[tuple[str, str, int | None]]) -> None:
    numbers = NumberReader(CAPTURES).feed(line.encode() + b"\n")
    assert [(number.name, number.shown, number.step) for number in numbers] == losses


def test_blocks_may_end_anywhere_and_a_carriage_return_ends_a_line() -> None:
    reader = NumberReader(CAPTURES)
    data = b"step 1 loss: 2.5\r 10%|# | 10/100 [00:01<00:09, loss=1.5]\r\nstep 3 loss: nan"
    losses = [number for at in range(len(data)) for number in reader.feed(data[at : at + 1])]
    assert [number.shown for number in (*losses, *reader.finish())] == ["2.5", "1.5", "nan"]


@pytest.mark.parametrize("words", list(itertools.permutations(("loss", "Loss", "LOSS"))), ids=" ".join)
@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_last_lines_of_a_block_are_read_whichever_word_they_have(words: tuple[str, ...], most: int) -> None:
    lines = [f"{words[number % 3]}: {number}.5" for number in range(7)]
    whole = "".join(f"step {number} {line}\n" for number, line in enumerate(lines)).encode()
    for cut in (0, 7, 11, len(whole) // 2):
        reader = NumberReader(CAPTURES, most)
        losses = [*(reader.feed(whole[:cut]) if cut else []), *reader.feed(whole[cut:])]
        assert [reading.shown for reading in losses][-most:] == [line.split()[1] for line in lines][-most:]


def test_a_rule_of_ones_own_reads_its_own_number_name_and_step() -> None:
    pattern = re.compile(r"(?P<name>reward_\w+)=(?P<value>\S+) at (?P<step>\d+)")
    wanted, rules = captures([LossRule("reward", RuleKind.NAN, ("reward",), pattern)])
    (losses,) = NumberReader(wanted).feed(b"reward_mean=nan at 12; loss: 5\n")
    assert (losses.name, losses.shown, losses.step) == ("reward_mean", "nan", 12)
    assert [[rule.id for rule in of_one] for of_one in rules] == [["reward"]]


def test_memory_and_time_are_bounded_whatever_is_printed() -> None:
    reader = NumberReader(CAPTURES)
    began = time.process_time()
    assert len(reader.feed(b"step 1 loss: 2.5\n" * 100_000)) == MOST_LINES
    for hostile in (b"loss " * 50_000, b"a" * 500_000 + b"loss", b"loss:" + b" " * 200_000, b"loss_" * 100_000 + b"\n"):
        reader.feed(hostile)
        assert reader.waiting_bytes <= LONGEST
    assert time.process_time() - began < 5
