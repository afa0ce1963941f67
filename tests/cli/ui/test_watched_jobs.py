# ruff: noqa: ANN401  values as a command takes and prints them
"""What the page reads: new jobs a few at a time, those that run again and again, the others once."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli.ui import watched_jobs
from supervisor.cli.ui.job_rows import RowGroup
from supervisor.cli.ui.watched_jobs import WatchedJobs
from supervisor.core.events import HangConfirmed
from supervisor.core.model import Hang, HangKind
from supervisor.job import identity
from supervisor.view import reading
from tests.support.long_journal import LongJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.recorded_job import RecordedJob

PID, TICKS = os.getpid(), identity.this_process().start_ticks


@pytest.fixture
def jobs(root: Path) -> tuple[WatchedJobs, list[str]]:
    """Give the jobs of the state directory, and what is reported of them."""
    reported: list[str] = []
    return WatchedJobs(root, lambda job: f"--job {job}", reported.append), reported


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the names of the jobs whose row was made, in their order."""
    names: list[str] = []
    real: Callable[..., Any] = watched_jobs.WatchedJob.row

    def row(job: watched_jobs.WatchedJob) -> Any:
        names.append(job.place.job)
        return real(job)

    monkeypatch.setattr(watched_jobs.WatchedJob, "row", row)
    return names


def ended(make_job: type[RecordedJob], root: Path, name: str, code: int = 0) -> None:
    written = make_job(root, name)
    written.begin()
    written.start(5)
    written.progress(10, 1, step=1)
    written.end(code)


def test_new_jobs_are_read_a_few_at_a_time_however_many_run(
    root: Path, make_job: type[RecordedJob], jobs: tuple[WatchedJobs, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_jobs, "_READING_S", 0.0)
    for number in range(4):
        ended(make_job, root, f"ended-{number}")
    for number in range(3):
        written = make_job(root, f"runs-{number}")
        written.begin(pid=PID, start_ticks=TICKS)
        written.close()
    counts = [sum(row.is_read for row in jobs[0].rows()[0]) for _ in range(7)]
    assert counts == [1, 2, 3, 4, 5, 6, 7]


def test_an_ended_job_is_read_once_and_a_running_one_repeatedly(
    root: Path, make_job: type[RecordedJob], jobs: tuple[WatchedJobs, list[str]], reads: list[str]
) -> None:
    ended(make_job, root, "ended")
    runs = make_job(root, "runs")
    runs.begin(pid=PID, start_ticks=TICKS)
    runs.close()
    for _ in range(3):
        jobs[0].rows()
    assert (reads.count("ended"), reads.count("runs")) == (1, 3)
    again = make_job(root, "ended", anew=True)
    again.begin(run_id="run-2")
    again.close()
    jobs[0].rows()
    assert reads.count("ended") == 2, "its journal is another one"


def test_the_states_of_jobs_and_how_they_are_marked(root: Path, make_job: type[RecordedJob], jobs: tuple[WatchedJobs, list[str]]) -> None:
    for name, code in (("good", 0), ("failed", 65), ("preempted", 75), ("interrupted", 130)):
        ended(make_job, root, name, code)
    make_job(root, "empty").close()
    for name in ("runs", "recovers", "hangs", "dead"):
        written = make_job(root, name)
        written.begin(**({} if name == "dead" else {"pid": PID, "start_ticks": TICKS}))
        written.start(5)
        written.progress(10, 1, step=1)
        if name == "recovers":
            written.fail(20)
        if name == "hangs":
            written.feed(HangConfirmed(written.T0 + 100, 1, Hang(HangKind.LATE, "rank 1 is late", (1,))))
        written.close()
    rows = {row.job: row for row in jobs[0].rows()[0]}
    assert {job: (row.group.value, row.state, row.tone) for job, row in rows.items()} == {
        "good": ("ended", "done", "good"),
        "failed": ("needs", "failed, exit code 65", "bad"),
        "preempted": ("ended", "stopped, exit code 75", "warning"),
        "interrupted": ("ended", "stopped, exit code 130", "warning"),
        "empty": ("ended", "no run yet", "faint"),
        "runs": ("runs", "training", "good"),
        "recovers": ("runs", "restarting", "warning"),
        "hangs": ("needs", "hung", "bad"),
        "dead": ("needs", "supervise died", "bad"),
    }
    assert (rows["runs"].step, rows["runs"].incident, rows["runs"].what) == ("step 1", "", "")
    assert rows["recovers"].incident.startswith("A process was killed")
    assert re.fullmatch(r"No progress for .*: rank 1 is late", rows["hangs"].what)
    assert rows["hangs"].look == "supervise status --stacks --job hangs"
    assert "nobody restarts them" in rows["dead"].what
    assert rows["dead"].do == "start the job again with the same command"
    assert (rows["failed"].what, rows["failed"].look) == ("It ended with exit code 65.", "supervise why --job failed")


def test_a_job_on_a_node_that_cannot_be_seen_from_here_is_not_marked_as_good(
    root: Path, make_job: type[RecordedJob], jobs: tuple[WatchedJobs, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = make_job(root, "far", "gpu-99")
    written.begin(pid=PID, start_ticks=TICKS)
    written.start(5)
    written.progress(10, 1, step=1)
    written.close()
    monkeypatch.setattr(identity, "boot_id", lambda: "of this machine")
    ((row,), _) = jobs[0].rows()
    assert (row.node, row.state, row.tone, row.runs) == ("gpu-99", "training, not visible from here", "faint", True)


def test_a_job_that_cannot_be_shown_is_a_row_and_is_reported_once(
    root: Path, make_job: type[RecordedJob], jobs: tuple[WatchedJobs, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(make_job, root, "good")
    ended(make_job, root, "strange")
    real = watched_jobs.WatchedJob.row

    def row(job: watched_jobs.WatchedJob) -> Any:
        if job.place.job == "strange":
            raise ValueError("what nobody expected")
        return real(job)

    monkeypatch.setattr(watched_jobs.WatchedJob, "row", row)
    for _ in range(3):
        rows = {row.job: row for row in jobs[0].rows()[0]}
    assert (rows["strange"].state, rows["strange"].group, rows["good"].state) == ("cannot be shown", RowGroup.NEEDS, "done")
    assert jobs[1] == ["strange: it cannot be shown: ValueError: what nobody expected"]


def test_jobs_that_are_gone_are_forgotten_and_of_many_the_newest_are_listed(
    root: Path, make_job: type[RecordedJob], jobs: tuple[WatchedJobs, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_jobs, "MOST_JOBS", 2)
    for number in range(4):
        ended(make_job, root, f"job-{number}")
        journal = next(root.glob(f"job-{number}/nodes/*/journal.jsonl"))
        os.utime(journal, (1000 + number, 1000 + number))
    rows, count = jobs[0].rows()
    assert ([row.job for row in rows], count) == (["job-3", "job-2"], 4)
    next(root.glob("job-3/nodes/*/journal.jsonl")).unlink()
    rows, count = jobs[0].rows()
    assert ([row.job for row in rows], count) == (["job-2", "job-1"], 3)


def test_the_page_of_a_job_adds_up_its_earlier_runs_and_reads_each_once(
    root: Path, make_job: type[RecordedJob], jobs: tuple[WatchedJobs, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = watched_jobs.earlier_journal
    monkeypatch.setattr(watched_jobs, "earlier_journal", lambda path: (read.append(path.name), real(path))[1])
    for number in range(3):
        written = make_job(root, "train", anew=number > 0)
        written.begin(run_id=f"run-{number}", **({"pid": PID, "start_ticks": TICKS} if number == 2 else {}))
        written.start(5)
        written.progress(10, 1, step=1)
        written.close()
    node = identity.node_name()
    for _ in range(3):
        page = jobs[0].page("train", node, all_runs=True)
        assert page is not None
        assert page.report is not None
        assert [run.run_id for run in page.report.runs] == ["run-0", "run-1", "run-2"]
    last = jobs[0].page("train", node, all_runs=False)
    assert last is not None
    assert last.report is not None
    assert [run.run_id for run in last.report.runs] == ["run-2"]
    assert sorted(read) == ["journal-0001.jsonl", "journal-0002.jsonl"]
    assert jobs[0].page("train", "elsewhere", all_runs=False) is None
    assert jobs[0].page("..", "..", all_runs=False) is None


def test_the_list_reads_only_the_end_of_a_journal_and_the_page_all_of_it(
    root: Path, jobs: tuple[WatchedJobs, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = reading.base_of
    monkeypatch.setattr(reading, "base_of", lambda path, *more: (read.append(path.parts[-4]), real(path, *more))[1])
    written = LongJob(root / "months" / "nodes" / identity.node_name() / "journal.jsonl", identity.node_name(), monkeypatch)
    written.train(180)
    written.close()
    ((row,), _) = jobs[0].rows()
    assert (row.step, read) == (f"step {180 * 138 + 1:,}", [])
    page = jobs[0].page("months", identity.node_name(), all_runs=False)
    assert page is not None
    assert (page.status.step, read) == (180 * 138 + 1, ["months"])


def test_rows_are_kept_for_all_filters_as_long_as_reading_them_is_worth(
    root: Path, make_job: type[RecordedJob], jobs: tuple[WatchedJobs, list[str]], reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(watched_jobs.time, "monotonic", lambda: now)
    written = make_job(root, "runs")
    written.begin(pid=PID, start_ticks=TICKS)
    written.close()
    real = watched_jobs.WatchedJobs.rows

    def slow(watched: WatchedJobs) -> Any:
        nonlocal now
        now += 1.0
        return real(watched)

    monkeypatch.setattr(watched_jobs.WatchedJobs, "rows", slow)
    for _ in range(3):
        jobs[0].kept_rows()
    assert len(reads) == 1
    now += 10.0
    jobs[0].kept_rows()
    assert len(reads) == 2
