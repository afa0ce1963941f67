"""`supervise ls`: every job of a state directory, and where it stands."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from supervisor.cli.jobs.job_status import status_of
from supervisor.cli.jobs.ls import ls
from supervisor.cli.stdio import json_text
from supervisor.config.settings import JobSection, Settings
from supervisor.job import identity

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.recorded_job import RecordedJob


def test_each_job_has_a_line_and_the_last_changed_is_first(
    make_job: type[RecordedJob], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = make_job(root, "done")
    done.begin()
    done.start(1)
    done.progress(5, 40, step=40)
    done.succeed(10)
    died = make_job(root, "died")
    died.begin()
    died.start(1)
    died.close()
    runs = make_job(root, "runs")
    me = identity.this_process()
    runs.begin(pid=me.pid, start_ticks=me.start_ticks)
    runs.start(1)
    runs.close()
    for at, job in enumerate((done, died, runs)):
        os.utime(job.directory / "journal.jsonl", (1_790_000_000 + at, 1_790_000_000 + at))
    assert ls(done.settings, as_json=False) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["job", "state", "step", "attempt", "incidents", "changed"]
    assert [row.split("  ")[0] for row in rows] == ["runs", "died", "done"]
    for row, states in zip(rows, ("running", "supervise died", "done"), strict=True):
        assert f" {states} " in row
    assert rows[2].split()[2] == "40"
    assert ls(done.settings, as_json=True) == 0
    assert [row["job"] for row in json.loads(capsys.readouterr().out)] == ["runs", "died", "done"]


def test_its_json_is_that_of_status(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    from supervisor.cli.jobs.job_files import find_job, state_root  # noqa: PLC0415  for this test only

    written.begin()
    written.start(1)
    written.succeed(10)
    ls(written.settings, as_json=True)
    (document,) = json.loads(capsys.readouterr().out)
    status = json.loads(json_text(status_of(find_job(state_root(written.settings), "train"))))
    assert document == status | {"now": document["now"]}


def test_the_node_is_named_where_there_are_several(make_job: type[RecordedJob], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for node in ("gpu-1", "gpu-2"):
        job = make_job(root, "train", node)
        job.begin()
        job.close()
    ls(job.settings, as_json=False)
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "node"
    assert {row.split()[-1] for row in rows} == {"gpu-1", "gpu-2"}


@pytest.mark.parametrize(("columns", "names"), [(80, 6), (200, 6)])
def test_the_table_fits_the_terminal(written: RecordedJob, monkeypatch: pytest.MonkeyPatch, columns: int, names: int) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    written.begin()
    written.start(1)
    written.progress(5, 40, step=123_456)
    written.close()
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert ls(written.settings, as_json=False) == 0
    head, *rows = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert len(head.split()) == names
    assert all(len(line) <= columns for line in (head, *rows))
    assert rows[0].split()[:4] == ["train", "supervise", "died", "123456"]


def test_where_the_table_does_not_fit_each_job_has_all_its_facts_below_each_other(
    written: RecordedJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written.begin()
    written.start(1)
    written.progress(5, 40, step=123_456)
    written.close()
    monkeypatch.setenv("COLUMNS", "40")
    assert ls(written.settings, as_json=False) == 0
    name, *facts = capsys.readouterr().out.splitlines()
    assert name == "job  train"
    assert [fact.split()[0] for fact in facts] == ["state", "step", "attempt", "incidents", "changed"]
    assert facts[0].endswith("supervise died")
    assert all(len(line) <= 40 for line in facts)


def test_no_job_is_no_error(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = replace(Settings(), job=JobSection(state_dir=str(root)))
    assert ls(settings, as_json=False) == 0
    assert capsys.readouterr() == ("", f"supervise: no job in {root}; --state-dir names another place\n")
    assert ls(settings, as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == []
