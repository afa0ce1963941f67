"""What a log says beside its rows: normalised records, closed lists, the texts of guides. Each row has a near-miss."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from supervisor.classify.engine import classify
from supervisor.classify.judgement.admissible import JOB_CHANGING
from supervisor.classify.logs import closed_lists, rows, second_look
from supervisor.classify.logs.catalogue import build
from supervisor.classify.logs.match import read_text
from supervisor.config import signatures
from supervisor.core.model import Cause

CATALOGUE, _ = signatures.read()
SAMPLES = tomllib.loads((Path(__file__).parent / "second_look.toml").read_text(encoding="utf-8"))["sample"]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample['structure']}: {sample['text'].strip()[:40]}")
def test_a_text_means_what_its_structure_says(sample: dict[str, str]) -> None:
    verdict = classify(read_text(sample["text"].lstrip("\n"), CATALOGUE))
    assert verdict.cause == sample["cause"] if "cause" in sample else verdict.cause != sample["not"], verdict


@pytest.mark.parametrize("entry", closed_lists.LISTS, ids=lambda entry: f"{entry.cause}: {entry.literal}")
def test_every_entry_of_the_closed_lists_is_capped_and_changes_no_job(entry: closed_lists.ListedText) -> None:
    assert entry.weight <= closed_lists.MOST < 0.8
    assert entry.literal == closed_lists.squashed(entry.literal)
    read = read_text(f"rank 1 died: {entry.literal}\n", CATALOGUE)
    changing = [fact for fact in read if fact.claim is not None and fact.claim.cause in JOB_CHANGING and fact.name.startswith("listed.")]
    assert all(fact.free_text and fact.claim is not None and fact.claim.weight < 0.8 for fact in changing)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("plain words", ["plain words"]),
        ('{"level":"error","msg":"a\\nb"}', ["a", "b"]),
        ('{"text":"a"}', []),
        ('t=1 msg="x failed" n=2', ["x failed"]),
        ("x | ValueError('no')", ["x | ", "ValueError: no"]),
        ("it ends in ValueError: no", ["it ends in ValueError: no"]),
        ("done[rank3]: go", ["done", "[rank3]: go"]),
    ],
)
def test_a_record_is_taken_apart(line: str, parts: list[str]) -> None:
    assert [part.rstrip() for part in second_look.unwrapped(line)] == [part.rstrip() for part in parts]


@pytest.mark.parametrize(
    ("line", "harmless"),
    [
        ("could not read x: Input/output error, retrying", True),
        ("WARNING x: Input/output error", True),
        ("x NCCL WARN Input/output error", False),
        ("Input/output error", False),
        ("FATAL: gave up after retrying: Input/output error", False),
    ],
)
def test_a_line_may_report_that_the_program_continues(line: str, *, harmless: bool) -> None:
    assert second_look.is_harmless(line) is harmless


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError('CUDA error: unspecified launch failure') of the probe",
        '{"level": "error", "exc": "RuntimeError: CUDA error: unspecified launch failure"}',
    ],
)
def test_a_line_benign_by_a_users_row_is_not_read_again(line: str) -> None:
    row = """
[[signature]]
id = "our.probe"
cause = "none"
benign = true
where = ["line", "exception"]
anchors = ["unspecified launch failure"]
pattern = "unspecified launch failure"
"""
    own, problems = rows.parse(row, "signatures.toml")
    assert not problems
    log = f"step 1 loss 2.0\n{line}\njob aborted\n"
    assert classify(read_text(log, CATALOGUE)).cause is Cause.CUDA_ILLEGAL_ACCESS
    assert classify(read_text(log, build((*CATALOGUE.rows, *own)))).cause is Cause.NONE
