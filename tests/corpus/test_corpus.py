"""The project's own corpus: complete, neutral, and answered right."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from supervisor.classify.engine import classify
from supervisor.classify.logs.match import read_text
from supervisor.config.signatures import read
from supervisor.core.model import Cause

HERE = Path(__file__).parent
LOGS = HERE / "logs"
LABELS: dict[str, dict[str, Any]] = {row["id"]: row for row in tomllib.loads((HERE / "labels.toml").read_text())["log"]}
CASES: dict[str, dict[str, Any]] = {
    row["id"]: row for file in sorted((HERE / "cases").glob("*.toml")) for row in tomllib.loads(file.read_text())["case"]
}
FAILURES = {name: row for name, row in LABELS.items() if "near_miss_of" not in row}
NEAR_MISSES = {name: row for name, row in LABELS.items() if "near_miss_of" in row}
#: Directories that belong to a machine or a person, and what of them a log may name.
OWN_PATH = re.compile(r"(?<![\w.}])/(?:root|home|work|workspace|opt|mnt|srv|data|scratch|var|tmp|Users)/[\w./+-]*")
NEUTRAL_PATH = re.compile(r"/home/user(/|$)|/tmp/(torchelastic_|pymp-|torch_)")
CATALOGUE = read()[0]
REPRODUCED = ["disk_full.legacy_save", "dataloader_worker.killed", "killed_unknown.plain", "killed_unknown.plain.near", "data_error.json"]


def text_of(directory: Path, name: str) -> bytes:
    return (directory / f"{name}.log").read_bytes()


def cause_of(log: bytes) -> str:
    return classify(read_text(log, CATALOGUE)).cause


def accepted(row: dict[str, Any]) -> set[str]:
    return {row["label"], *row.get("alt", [])}


def test_each_log_is_labelled_and_each_label_has_its_log() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(LABELS) == set(CASES)


def test_labels_are_those_of_the_cases_and_of_the_model() -> None:
    for name, row in LABELS.items():
        case = CASES[name]
        assert {key: case.get(key) for key in ("label", "alt", "secondary", "near_miss_of")} == {
            key: row.get(key) for key in ("label", "alt", "secondary", "near_miss_of")
        }, name
        assert {*accepted(row), *row.get("secondary", [])} <= set(Cause), name
    for name, row in FAILURES.items():
        assert name.startswith(row["label"] + "."), name


def test_sixty_failures_each_with_a_near_miss_of_another_cause() -> None:
    assert len(FAILURES) >= 60
    assert {row["near_miss_of"] for row in NEAR_MISSES.values()} == set(FAILURES)
    for name, row in NEAR_MISSES.items():
        assert row["label"] != FAILURES[row["near_miss_of"]]["label"], name


def test_a_healthy_run_ended_with_0_and_a_failure_did_not() -> None:
    assert {name for name, row in LABELS.items() if row["exit"] == 0} == {name for name, row in LABELS.items() if row["label"] == "none"}


def test_a_log_is_short_and_shows_what_its_case_is_about() -> None:
    for name in LABELS:
        log = text_of(LOGS, name)
        assert len(log) <= 16 * 1024, name
        assert CASES[name]["shows"].encode() in log, name


def test_no_log_names_the_machine_that_it_was_produced_on() -> None:
    host = socket.gethostname()
    for name in LABELS:
        log = text_of(LOGS, name).decode(errors="replace")
        assert not (strange := {path for path in OWN_PATH.findall(log) if not NEUTRAL_PATH.match(path)}), (name, strange)
        assert host in {"localhost", "node-1"} or not re.search(rf"host\s*: {re.escape(host)}\b|[\[(]{re.escape(host)}[\]),]", log), name


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_answered_right(name: str) -> None:
    assert cause_of(text_of(LOGS, name)) in accepted(FAILURES[name])


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_a_near_miss_is_not_called_by_the_cause_that_it_resembles(name: str) -> None:
    row = NEAR_MISSES[name]
    answer = cause_of(text_of(LOGS, name))
    assert answer != FAILURES[row["near_miss_of"]]["label"]
    assert answer in accepted(row) | {Cause.UNKNOWN}


@pytest.mark.slow
@pytest.mark.process
def test_failures_produced_anew_are_answered_right(tmp_path: Path) -> None:
    argv = [sys.executable, str(HERE / "produce.py"), "--into", str(tmp_path), *REPRODUCED]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603  our own interpreter
    assert done.returncode == 0, done.stdout + done.stderr
    produced = sorted(path.stem for path in tmp_path.glob("*.log"))
    assert len(produced) >= len(REPRODUCED) - 1, done.stdout  # where there are no namespaces, the full disk is left out
    for name in produced:
        assert cause_of(text_of(tmp_path, name)) in accepted(LABELS[name]), name
