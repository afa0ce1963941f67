"""The pages about knobs and programs are true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from supervisor.knobs.bindings import LEAST, NAMES, Env, FileKey, Flag, Override, Pair, Placeholder, Shares
from supervisor.knobs.declaration import parse

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
PAGE = (GUIDES / "knobs.md").read_text(encoding="utf-8")
WRITTEN = re.findall(r"--knob ('[^']+'|[^'\s`]+)", PAGE + (GUIDES / "unequal-gpus.md").read_text(encoding="utf-8"))
EXAMPLES = [shlex.split(text)[0] for text in WRITTEN if not text.startswith("NAME")]


@pytest.mark.parametrize("text", dict.fromkeys(EXAMPLES))
def test_every_example_can_be_declared(text: str) -> None:
    assert parse(text)


def test_there_is_an_example_of_every_form_and_knob() -> None:
    declared = [parse(text) for text in EXAMPLES]
    assert {type(knob.binding) for knob in declared} == {Flag, Pair, Override, Placeholder, Env, FileKey, Shares}
    assert any(knob.binding.deepspeed for knob in declared if isinstance(knob.binding, FileKey))
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, flags=re.MULTILINE)
    assert [name for name, _ in rows] == [name for name in NAMES if name != "resume"]
    for name, value in rows:
        if name in LEAST:
            assert value == f"a whole number from {LEAST[name]}"
