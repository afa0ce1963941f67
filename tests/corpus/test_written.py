"""The logs that were written to be held out: neutral, of all kinds, and never answered so that a job is harmed."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.core.model import Cause

if TYPE_CHECKING:
    from types import ModuleType

HERE = Path(__file__).parent
LOGS: list[dict[str, Any]] = [
    row for file in sorted((HERE / "written").glob("*.toml")) for row in tomllib.loads(file.read_text(encoding="utf-8"))["log"]
]
#: Causes that only a running job can show: by its ranks, its nodes or the files of its checkpoints.
ONLY_LIVE = {Cause.NODE_LOST, Cause.EXIT_STUCK, Cause.EXIT_ABORT, Cause.CHECKPOINT_LEFTOVER, Cause.CHECKPOINT_POINTER}
KEYS = {"id", "label", "alt", "framework", "launcher", "part", "note", "text"}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HERE.parents[1] / "bench"))
    return importlib.import_module("classification")


def test_each_log_says_what_it_is_of() -> None:
    assert max(Counter(row["id"] for row in LOGS).values()) == 1
    for row in LOGS:
        assert set(row) - {"alt", "note"} == KEYS - {"alt", "note"}, row["id"]
        assert {row["label"], *row.get("alt", ())} <= set(Cause), row["id"]
        assert row["id"].startswith(row["label"] + "."), row["id"]
        assert row["text"].strip(), row["id"]


def test_the_samples_cover_all_causes_many_launchers_and_healthy_jobs() -> None:
    labels = Counter(row["label"] for row in LOGS)
    assert len(LOGS) >= 120
    assert labels[Cause.NONE] >= 30
    assert set(Cause) - ONLY_LIVE == set(labels)
    assert len({row["launcher"] for row in LOGS}) >= 20
    assert {row["part"] for row in LOGS} == {"whole", "fragment", "thread"}


def test_the_samples_name_no_machine_or_person() -> None:
    for row in LOGS:
        assert not re.search(r"/(?:home|Users)/(?!user/)", row["text"]), row["id"]


def test_no_healthy_log_gives_an_alarm_and_answers_that_change_a_job_are_right(bench: ModuleType) -> None:
    answers = bench.scored(bench.written())
    healthy = [answer for answer in answers if answer.sample.label == Cause.NONE]
    assert not [answer.sample.name for answer in healthy if answer.cause not in {Cause.NONE, Cause.UNKNOWN}]
    assert not [(answer.sample.name, answer.cause) for answer in answers if answer.cause in bench.CHANGES_A_JOB and not answer.right]
