"""Rows of the user's own, in a run: a signature gives a message of the program its cause, and a row gives the next attempt its values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

#: It leaves with a code of its own, and only its output says why. With a batch of 8 and the slow reader it ends well.
SCRIPT = """
import os, sys
batch, reader = int(sys.argv[sys.argv.index("--batch-size") + 1]), os.environ.get("READER", "fast")
with open("seen", "a") as seen:
    print(batch, reader, os.environ.get("READER_TOKEN", "none"), file=seen)
if batch > 8 or reader != "slow":
    print(f"our reader: shard is damaged: {batch}", flush=True)
    sys.exit(3)
"""
SETTINGS = """
[knobs]
declared = ["batch_size=--batch-size"]
[classify]
signatures = ["mine.toml"]
[recover.data_error]
set = { batch_size = 8, "env:READER" = "slow", "env:READER_TOKEN" = "hunter2-of-the-reader" }
"""
SIGNATURE = """
[[signature]]
id = "our.reader"
cause = "data_error"
where = ["exception", "line"]
pattern = 'shard is damaged: \\d+'
anchors = ["shard is damaged"]
weight = 0.95
"""
SECRET = "hunter2-of-the-reader"  # noqa: S105

pytestmark = pytest.mark.process


def logged(run: Supervised, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in run.state.glob("*/nodes/*/supervise.log") for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def test_a_signature_of_ones_own_gives_the_cause_and_its_row_gives_the_next_attempt_the_values(
    tmp_path: Path, supervise: Callable[..., Supervised]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "supervise.toml").write_text(SETTINGS)
    (tmp_path / "mine.toml").write_text(SIGNATURE)
    for name in ("supervise.toml", "mine.toml"):
        (tmp_path / name).chmod(0o600)
    run = supervise("python", "train.py", "--batch-size", "32", _SUPERVISE_TEST_INTERVALS="0.04")
    assert run.exit_code() == 0
    assert (tmp_path / "seen").read_text().splitlines() == ["32 fast none", f"8 slow {SECRET}"]
    assert [(line["cause"], line["strategy"]) for line in logged(run, "plan.decided")] == [("data_error", "users_row")]
    first, second = [dict(line["overrides"]) for line in logged(run, "attempt.begun")]
    assert first == {}
    assert (second.pop("env:READER_TOKEN") != SECRET, second) == (True, {"batch_size": "8", "env:READER": "slow"})
    written = [path for path in run.state.rglob("*") if path.is_file()]
    assert any(path.name == "journal.jsonl" for path in written)
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == [], "the ranks alone are given it"
    assert SECRET not in run.stderr
    card = max(run.state.glob("*/nodes/*/incidents/*/card.txt")).read_text()
    assert "your row [recover.data_error] sets batch_size=8, READER=slow" in card
    assert "--batch-size 32 -> 8" in card
    assert "the global batch changes with --batch-size" in card


#: It fails until its damping is set and its clip is on. Its own words name what happened.
SOLVER = """
import argparse, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--damping", default="none")
parser.add_argument("--clip", action="store_true")
arguments = parser.parse_args()
with open("seen", "a") as seen:
    print(arguments.damping, arguments.clip, file=seen)
if arguments.damping != "0.5" or not arguments.clip:
    raise ArithmeticError(f"solver diverged at damping {arguments.damping}")
while not os.path.exists("seen_by_the_test"):
    time.sleep(0.02)
"""
OWN_CAUSE = """
[[signature]]
id = "our.solver"
cause = "solver_diverged"
meaning = "The solver diverged"
advice = "lower the damping of the solver"
where = ["exception", "line"]
anchors = ["solver diverged"]
pattern = 'solver diverged at damping (?P<damping>\\S+)'
weight = 0.95
[signature.fields]
damping = "str"
"""


@pytest.mark.slow
def test_a_cause_of_ones_own_is_answered_by_its_row_and_stands_in_card_why_report_and_metrics(
    tmp_path: Path, supervise: Callable[..., Supervised]
) -> None:
    (tmp_path / "train.py").write_text(SOLVER)
    (tmp_path / "supervise.toml").write_text(
        '[classify]\nsignatures = ["mine.toml"]\n[metrics]\ntextfile_dir = "metrics"\n'
        '[recover.solver_diverged]\nset = { "--damping" = 0.5, "--clip" = true }\n'
    )
    (tmp_path / "mine.toml").write_text(OWN_CAUSE)
    (tmp_path / "metrics").mkdir()
    for name in ("supervise.toml", "mine.toml"):
        (tmp_path / name).chmod(0o600)
    run = supervise("python", "train.py", "--damping=0.9", _SUPERVISE_TEST_INTERVALS="0.04")

    def counted() -> list[str] | None:
        lines = [line for file in (tmp_path / "metrics").glob("*.prom") for line in file.read_text().splitlines()]
        return [line for line in lines if "solver_diverged" in line and line.endswith(" 1.0")] or None

    metrics = wait_for(counted, "the failure among the metrics", 60, alive=run.alive)
    assert {line.partition("{")[0] for line in metrics} == {"supervise_incidents_total", "supervise_restarts_total"}, metrics
    (tmp_path / "seen_by_the_test").touch()
    assert run.exit_code() == 0, run.stderr
    assert (tmp_path / "seen").read_text().splitlines() == ["0.9 False", "0.5 True"]
    assert [(line["cause"], line["strategy"]) for line in logged(run, "plan.decided")] == [("solver_diverged", "users_row")]
    card = max(run.state.glob("*/nodes/*/incidents/*/card.txt")).read_text()
    for text in (" ".join(page.split()) for page in (card, run.ask("why").stdout)):
        assert "what The solver diverged" in text
        assert "solver_diverged, 95 % sure" in text
        assert "your row [recover.solver_diverged] sets --damping=0.5, --clip" in text
    assert '"cause": "solver_diverged"' in run.ask("why", "--json").stdout
    report = run.ask("report", "--json")
    assert "solver_diverged" in report.stdout, report
