"""What the log of a rank's loads shows when it died: the load within which it was, or the last one that ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from supervisor.core.model import RankInfo
from supervisor.observe.ranks import load_logs

if TYPE_CHECKING:
    from pathlib import Path


def ended(path: str, *, complete: bool = True, steps: int = 0) -> dict[str, object]:
    """Return the line of a load that ended."""
    return {"path": path, "t": 1.0, "complete": complete, "via": "torch", "steps": steps}


BEGAN = {"loading": "/c/step-20/model.pt"}
MODEL, OPTIMIZER = "/c/step-20/model.pt", "/c/step-20/optim.pt"


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ([], None),
        ([BEGAN], ("loading", MODEL)),
        ([BEGAN, ended(MODEL)], ("loaded", MODEL)),
        ([BEGAN, ended(MODEL), {"loading": OPTIMIZER}], ("loading", OPTIMIZER)),
        ([BEGAN, ended(MODEL), {"loading": OPTIMIZER}, ended(OPTIMIZER)], ("loaded", OPTIMIZER)),
        ([BEGAN, BEGAN, ended(MODEL)], ("loading", MODEL)),  # Lightning's load calls torch's
        ([BEGAN, ended(MODEL, complete=False)], ("loading", MODEL)),
        ([BEGAN, ended(MODEL), ended(OPTIMIZER)], ("loaded", OPTIMIZER)),  # of a rank that was no rank yet, the beginning is not kept
    ],
)
def test_the_end_of_the_load_is_after_the_last_one(tmp_path: Path, lines: list[dict[str, object]], shown: tuple[str, str] | None) -> None:
    (tmp_path / "loads-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"cut')
    facts = load_logs.evidence(tmp_path, (RankInfo(4, 0, 100, 1),))
    assert [(fact.rank, fact.name, fact.text) for fact in facts] == ([] if shown is None else [(4, *shown)])
    assert all(dict(fact.fields)["checkpoint"] == "/c/step-20" for fact in facts)


def test_a_load_of_an_evaluation_is_none_of_a_resume(tmp_path: Path) -> None:
    (tmp_path / "loads-0.jsonl").write_text(json.dumps(ended(MODEL, steps=40)) + "\n")
    assert load_logs.evidence(tmp_path, ()) == ()
