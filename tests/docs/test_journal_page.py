"""The page on the journal's format: its examples for jq do what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.long_journal import LongJob
from tests.support.pages import page_text

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed (Debian: apt-get install jq)")
def test_the_examples_for_jq_show_the_decisions_and_the_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = LongJob(tmp_path / "journal.jsonl", "node", monkeypatch)
    job.train(61)
    saved = job.state.run.newest
    job.fail()
    job.train(2)
    job.close()
    commands = re.findall(r"^\$ (jq .*)$", page_text("journal-format.md"), flags=re.MULTILINE)
    outputs = [
        subprocess.run(command, shell=True, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.splitlines()  # noqa: S602  the page's own
        for command in commands
    ]
    decisions, pace = outputs
    assert [line.split("\t")[1:] for line in decisions] == [["killed_unknown", "restart"]]
    assert decisions[0].startswith("2026-09-21T15:1")
    steps = [int(line.split("\t")[1]) for line in pace]
    assert saved is not None
    assert saved.step is not None
    assert (steps[:3], steps[-3:]) == ([1, 139, 277], [saved.step + number for number in (1, 139, 277)])
