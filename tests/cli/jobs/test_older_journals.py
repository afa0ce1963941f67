"""`supervise why` and `status` on journals that earlier versions wrote (tests/journal has them)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.cli.jobs.status import status
from supervisor.cli.jobs.why import why
from supervisor.config.settings import JobSection, Settings
from supervisor.job import identity

JOURNALS = Path(__file__).parents[2] / "journal"


def settings_for(root: Path, journal: str) -> Settings:
    """Return the settings of a job whose journal is this older one."""
    directory = root / "train" / "nodes" / identity.node_name()
    directory.mkdir(parents=True)
    (directory / "journal.jsonl").write_bytes((JOURNALS / journal).read_bytes())
    return replace(Settings(), job=JobSection(state_dir=str(root)))


@pytest.mark.parametrize(
    ("journal", "incident", "patterns"),
    [
        ("format1/requeued.jsonl", 4, (r"decision .*restart as attempt 5",)),
        (
            "format3_0/scenarios.jsonl",
            1,
            (
                r"decision .*restart as attempt 2",
                r"checkpoint .*step 160 from ckpt/160\.pt",
                r"repaired +ckpt/200\.pt: torn: moved",
                r"rejected +ckpt/190\.pt: torn: no directory",
                r"resumed .*attempt 2 resumed at step 160",
            ),
        ),
    ],
)
def test_why(tmp_path: Path, capsys: pytest.CaptureFixture[str], journal: str, incident: int, patterns: tuple[str, ...]) -> None:
    assert why(settings_for(tmp_path, journal), "train", incident) == 0
    text = capsys.readouterr().out
    for pattern in patterns:
        assert re.search(pattern, text), f"{pattern}\n{text}"


@pytest.mark.parametrize(
    ("journal", "stage"),
    [("format1/killed.jsonl", "running"), ("format2/killed.jsonl", "running"), ("format3_0/scenarios.jsonl", "teardown")],
)
def test_status_names_the_stage_as_it_is_called_now(tmp_path: Path, capsys: pytest.CaptureFixture[str], journal: str, stage: str) -> None:
    assert status(settings_for(tmp_path, journal), "train", as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["stage"] == stage
