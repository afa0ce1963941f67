"""A line of evidence tells what an exception says, not the advice that a library prints below it."""

from __future__ import annotations

import pytest

from supervisor.classify.engine import classify
from supervisor.core.model import Evidence
from supervisor.report.wording import evidence_facts, evidence_lines, what_text

ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
WORKER = "RuntimeError: Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File"


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("exception", f"{ECC}\nCUDA kernel errors might be asynchronously reported at some other API call.", f"rank 0 raised {ECC}"),
        ("exception", f"{WORKER}\nKeyError: 'label'", "rank 0 raised KeyError: 'label'"),
        ("err", "step 1\nstep 2", "traceback of rank 0: step 2"),
    ],
    ids=["advice", "another's traceback", "output"],
)
def test_the_line_that_tells_most(name: str, text: str, line: str) -> None:
    assert evidence_lines([Evidence("error_file", name, text, rank=0)], 1) == [line]


def test_an_exit_code_stays_beside_the_last_output_and_gives_way_to_an_exception() -> None:
    code, last = Evidence("exit", "exit_code", "1", rank=0), Evidence("tail", "err", "no such file: a.yaml", rank=0)
    verdict = classify((code, last))
    assert [fact.text for fact in evidence_facts(verdict, verdict.because, 3)] == [
        "rank 0 exited with code 1",
        "last output of rank 0: no such file: a.yaml",
        "unknown, 30 % sure",
    ]
    raised = classify((Evidence("error_file", "exception", "KeyError: 'a'", rank=0), code, last))
    assert what_text(raised) == "Probably the training program itself failed: KeyError: 'a'"
    assert [fact.text for fact in evidence_facts(raised, raised.because, 3)] == ["user_code, 85 % sure"], "each fact stands once"
