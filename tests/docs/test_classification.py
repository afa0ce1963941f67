"""The pages about the classification say what is so: every cause, every signature, and the scores."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from health.nvidia import xids
from supervisor.classify import exits
from supervisor.classify.gpu.xid import CAUSES
from supervisor.classify.logs.rows import parse
from supervisor.classify.remedies import documented
from supervisor.cli.classify import rendering
from supervisor.config import signatures
from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.model import Cause, Claim, Evidence, FailureVerdict
from tests.support.pages import page_text

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]
CATALOGUE, PROBLEMS = signatures.read()


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("classification")


def test_the_scores_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "bench/classification.py", "--check"],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), f"{done.stdout}{done.stderr}: run `python bench/classification.py`"


@pytest.mark.parametrize(
    ("cause", "confidence", "labels", "trained", "kind", "harm"),
    [
        (Cause.DEPENDENCY, 0.9, ["dependency"], False, "stop", ""),
        (Cause.DEPENDENCY, 0.9, ["killed_unknown"], False, "stop", "stops_what_lives"),
        (Cause.DEPENDENCY, 0.7, ["dependency"], False, "restart as it is", "restarts_in_vain"),
        (Cause.KILLED_UNKNOWN, 0.6, ["killed_unknown", "host_oom"], True, "restart as it is", ""),
        (Cause.CUDA_OOM, 0.97, ["cuda_oom"], True, "restart with a change", ""),
        (Cause.CUDA_OOM, 0.97, ["nccl_timeout"], True, "restart with a change", "changes_wrongly"),
        (Cause.STORAGE_REMOTE, 0.9, ["storage_remote"], True, "wait", ""),
        (Cause.UNKNOWN, 0.2, ["none"], True, "nothing", ""),
    ],
)
@pytest.mark.usefixtures("tables")
def test_a_decision_is_scored_by_what_the_strategies_would_do(  # noqa: PLR0913, PLR0917 (a row)
    cause: Cause,
    confidence: float,
    labels: list[str],
    trained: bool,  # noqa: FBT001 (a column)
    kind: str,
    harm: str,
) -> None:
    fact = Evidence("error_file", f"{cause}.x", "it failed", 0, claim=Claim(cause, confidence))
    verdict = FailureVerdict(cause, confidence, "it failed", f"{cause}:x", because=(fact,))
    decision = importlib.import_module("decisions").decided(verdict, labels, trained=trained)
    harms = [name for name in ("stops_what_lives", "restarts_in_vain", "changes_wrongly") if getattr(decision, name)]
    assert (decision.kind, decision.is_right, harms) == (kind, not harm, [harm] if harm else [])


def test_a_confidence_keeps_its_promise(tables: ModuleType) -> None:
    rows = tables.reliability("first")
    assert len(rows) >= 5
    for row in rows:
        assert row.answers >= tables.FEWEST_ANSWERS or row is rows[-1]
        assert row.right >= (row.lowest - 0.02) * row.answers, row


def test_a_tenth_with_few_answers_is_joined_with_its_neighbour(tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "reliability.csv"
    table.write_text(
        "scoring,date,logs,told,right,of\nfirst,d,9,0.97,30,31\nfirst,d,9,0.9,1,9\nfirst,d,9,0.75,20,40\nfirst,d,9,0.58,3,4\nlast,d,9,0.9,0,99\n"
    )
    monkeypatch.setattr(tables, "RELIABILITY", table)
    assert tables.reliability("first") == [tables.Reliability(0.9, 0.9, 31, 40), tables.Reliability(0.5, 0.7, 23, 44)]


def test_every_cause_is_explained() -> None:
    assert list(CAUSE_TABLE) == list(Cause)
    for cause, row in CAUSE_TABLE.items():
        assert all(text and not text.endswith(".") for text in (row.meaning, row.proof, documented(cause))), cause


def test_a_cause_is_recognised_by_the_signals_that_are_judged_so() -> None:
    signals = {exits.SIGNAL_NAMES[number]: row.cause for number, row in exits.BY_SIGNAL.items()}
    for cause, row in CAUSE_TABLE.items():
        named = set(re.findall(r"\bSIG[A-Z]+", row.proof))
        assert {signals.get(name, exits.ANY_SIGNAL.cause) for name in named} <= {cause}
        if cause in {Cause.SEGFAULT, Cause.UNKNOWN_NATIVE_ABORT}:
            assert named == {name for name, meant in signals.items() if meant is cause}


@pytest.mark.parametrize("cause", [Cause.GPU_ECC, Cause.GPU_LOST, Cause.NVLINK])
def test_a_cause_is_recognised_by_the_xids_that_are_judged_so(cause: Cause) -> None:
    numbers = [int(number) for number in re.findall(r"\b\d{2,3}\b", CAUSE_TABLE[cause].proof)]
    assert numbers
    assert {number for number in numbers if (known := xids.lookup(number)) is None or CAUSES[known.part] is not cause} == set()
    if cause is Cause.GPU_ECC:
        assert set(numbers) == {code for code, known in xids.TABLE.items() if CAUSES[known.part] is cause}


def test_every_signature_is_documented_with_its_source_and_no_other() -> None:
    assert PROBLEMS == ()
    page = page_text("signatures.md")
    documented = {row[1].strip("` "): row for line in page.splitlines() if (row := re.split(r"(?<!\\)\|", line)) and line.startswith("| `")}
    assert set(documented) == {row.id for row in CATALOGUE.rows}
    assert [name for name, cells in documented.items() if not cells[7].strip()] == []


def test_answers_that_may_change_a_job_are_right(tables: ModuleType) -> None:
    right, given = tables.precision(tables.scored(tables.own()), tables.CHANGES_A_JOB)
    assert given >= 30
    assert right / given >= 0.99


def test_the_scores_of_public_logs_are_well_over_what_was_aimed_at(tables: ModuleType) -> None:
    figures = {name: (part, whole) for name, part, whole in json.loads(tables.SCORES.read_text(encoding="utf-8"))["public"]["rows"]}
    # a healthy log that shows neither training nor an end is unknown: `none` is earned
    assert figures["logs of failed jobs"][0] / figures["logs of failed jobs"][1] >= 0.97
    assert figures["decisions that stop what a restart saves"][0] == figures["decisions that change a job wrongly"][0] == 0
    assert figures["false alarms on logs of healthy jobs"][0] / figures["false alarms on logs of healthy jobs"][1] <= 0.05
    assert figures["answers that may change a job, and are right"][0] / figures["answers that may change a job, and are right"][1] >= 0.99


def test_the_example_of_a_signature_can_be_used() -> None:
    (text,) = re.findall(r"^```toml\n# signatures.toml\n(.*?)^```", page_text("own-rows.md"), flags=re.MULTILINE | re.DOTALL)
    (row,), problems = parse(text, "docs")
    assert problems == ()
    match = row.pattern.search("shard is damaged: part-3")
    assert match is not None
    assert row.values(match) == {"shard": "part-3"}


def test_the_keys_of_the_json_are_those_of_the_page() -> None:
    answer = rendering.Answer("a.log", FailureVerdict(Cause.NONE, 0.9, "", "none"), (), {})
    documented = re.findall(r"^\| `(\w+)` \|", page_text("json.md").partition("\n## classify\n")[2], flags=re.MULTILINE)
    assert documented == [*rendering.as_dict(answer)]
