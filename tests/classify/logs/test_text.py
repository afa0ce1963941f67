"""What a line says, and that no line is looked at for long."""

from __future__ import annotations

import time

import pytest

from supervisor.classify.logs import text
from tests.support.figures import Figures

#: Of the longest part of a line that is looked at, on a slow machine.
LONGEST_READ_S = 0.004


@pytest.mark.bench
@pytest.mark.parametrize(
    "unit", ["a", "1.", "a.", "a-", "A", "a ", "'a", "_.-", ".", "-", "a$", "error.", "x: ", "[0]", "--a ", "Namespace", "node1."]
)
def test_no_line_takes_long(unit: str) -> None:
    line = (unit * text.LONGEST_LINE)[: text.LONGEST_LINE - 6].encode() + b" Error"
    took = []
    for _ in range(5):
        began = time.process_time()
        text.read(line)
        took.append(time.process_time() - began)
    assert min(took) < LONGEST_READ_S or not Figures.asserted


@pytest.mark.parametrize(
    "line",
    [
        "--resume-from checkpoint-100",
        "user@host:~/job$ python train.py --lr 1e-4",
        "learning_rate ...... 0.1",
        "model_config: {'name': 'CUDA out of memory'}",
        "wandb.notes = 'No space left on device'",
    ],
)
def test_printed_settings_and_commands_are_an_echo(line: str) -> None:
    assert text.is_echo(line)


@pytest.mark.parametrize("line", ["error: 'No space left on device'", "io_timeout: [10.0.0.1]", "loss.... a", "a.b.c"])
def test_a_line_about_an_event_is_no_event(line: str) -> None:
    assert text.is_echo(line) == line.startswith("loss")


@pytest.mark.parametrize(
    ("foreign", "line"),
    [
        ("\x1b[1;31mRuntimeError\x1b[0m: boom\r\n", "RuntimeError: boom"),
        ("\x1b]0;a title\x07shown", "shown"),
        ("first\n\tsecond\rthird", "first second third"),
        ("a\x00b\x9b31mc\x7f", "ab31mc"),
        ("half \ud800", "half ?"),
    ],
)
def test_a_foreign_text_becomes_one_safe_line(foreign: str, line: str) -> None:
    assert text.one_line(foreign) == line
