"""Every form of a kernel message that is known is found with its code, address, severity and repair, in every writer's dress."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from health.kernellog.judgefile import judge
from health.kernellog.patterns import FORMS, recognise

HERE = Path(__file__).parent
SAMPLES = [json.loads(line) for line in (HERE / "samples.jsonl").read_text("utf-8").splitlines()]
RELATIVES = tomllib.loads((HERE / "relatives.toml").read_text("utf-8"))["case"]


def _said(text: str) -> list[list[object]]:
    return [[one.kind, one.code, one.pci, one.severity.value, one.repair.value] for one in judge(text)]


@pytest.mark.parametrize("number", range(len(SAMPLES)))
def test_a_line_from_a_real_node_is_judged(number: int) -> None:
    sample = SAMPLES[number]
    assert _said(sample["line"]) == sample["found"], sample["line"]


@pytest.mark.parametrize("number", range(len(RELATIVES)))
def test_a_relative_is_judged(number: int) -> None:
    case = RELATIVES[number]
    said = [" ".join(str(part) or "-" for part in row) for row in _said(case["line"])]
    assert said == case["found"], case["line"]


def test_each_message_has_the_form_whose_anchor_it_holds() -> None:
    """A form whose anchor its own pattern does not hold would never be looked for."""
    for row in FORMS:
        assert row.anchor
        assert row.meaning
        assert recognise(row.anchor) is None or row.pattern.match(row.anchor)
