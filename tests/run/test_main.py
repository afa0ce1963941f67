"""Signals that reach `supervise -- CMD` in its first moments. The program under test signals itself at a given point."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.journal.records import Record, RunBegan, RunEnded, scan
from supervisor.run.upkeep import record_pause_s
from tests.support.few import few, few_rows
from tests.support.supervised import clean_environment

if TYPE_CHECKING:
    from pathlib import Path

#: Arguments: the signal, and the method of a run before which it arrives.
SIGNALLED = """
import os, sys
from supervisor.cli.main import main
from supervisor.run.main import JobRun

signum, name = int(sys.argv.pop(1)), sys.argv.pop(1)
method = getattr(JobRun, name)

def signalled(run, *given):
    os.kill(os.getpid(), signum)
    return method(run, *given)

setattr(JobRun, name, signalled)
sys.exit(main())
"""
JOB = ["--job", "j", "--state-dir", "state", "--set", "health.enabled=false", "--", sys.executable, "-c", "open('started', 'w')"]

pytestmark = pytest.mark.process


@pytest.mark.parametrize(("age_s", "pause_s"), [(0.0, 1.0), (8.0, 2.0), (3600.0, 5.0)])
def test_the_processes_of_a_young_attempt_are_recorded_sooner(age_s: float, pause_s: float) -> None:
    assert record_pause_s(age_s) == pause_s


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603  the program under test
        [sys.executable, *words, *JOB], cwd=place, env=clean_environment(), capture_output=True, text=True, check=False
    )


def bodies(place: Path) -> list[Any]:
    """What the journal holds: nothing where the process ended before the journal's own thread had made the file."""
    return [record.body for journal in place.glob("state/**/journal.jsonl") for record in scan(journal) if isinstance(record, Record)]


@pytest.mark.parametrize(("signum", "code"), few_rows([(2, 130), (15, 143)]), ids=["INT", "TERM"])
@pytest.mark.parametrize("before", few(["_begin_journal", "_tidy_up"]))
def test_a_signal_before_the_first_attempt_ends_the_run_with_a_record_and_starts_no_job(
    tmp_path: Path, before: str, signum: int, code: int
) -> None:
    ended = run(tmp_path, "-c", SIGNALLED, str(signum), before)
    assert ended.returncode == code, ended.stderr
    assert [body.exit_code for body in bodies(tmp_path) if isinstance(body, RunEnded)] == [code]
    assert ended.stderr.splitlines()[-1] == "supervise: stopped before the first attempt: the command was not started"
    assert not (tmp_path / "started").exists()


def test_a_signal_before_the_journal_names_the_run_ends_at_once_and_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    ended = run(tmp_path, "-c", SIGNALLED, "15", "go")
    assert ended.returncode == -15
    assert not [body for body in bodies(tmp_path) if isinstance(body, RunBegan)]
    again = run(tmp_path, "-m", "supervisor")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "started").exists()
