"""What metrics cost: nothing where they are off, and a page of a long run little more than that of a short one."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor.journal import records
from supervisor.journal.records import EventTaken, Header, RunBegan
from supervisor.report.metrics.exposition import Samples, exposition
from supervisor.report.metrics.samples import samples_of
from supervisor.view.reading import ViewFollower
from tests.report.metrics.facts import T0, live
from tests.support.figures import costs_at_most

if TYPE_CHECKING:
    from pathlib import Path

#: As many as a run of six weeks makes.
REPORTS = 60_480


def test_a_start_without_metrics_imports_none_of_their_modules() -> None:
    code = (
        "import sys, supervisor.run.start, supervisor.run.main\n"
        "modules = {name.partition('.')[0] for name in sys.modules} & {'prometheus_client', 'wsgiref', 'opentelemetry', 'apprise'}\n"
        "ours = ('supervisor.report.metrics', 'supervisor.run.metrics', 'supervisor.run.traces', 'http.server')\n"
        "modules |= {name for name in sys.modules if name.startswith(ours)}\n"
        "sys.exit(f'imported: {sorted(modules)}' if modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)  # noqa: S603  ours
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_page_of_a_run_of_six_weeks_reads_what_is_new_and_no_more(tmp_path: Path) -> None:
    journal, facts = tmp_path / "journal.jsonl", live()
    begin = {"attempt": 1, "reason": "start", "resume": None}
    bodies = [
        Header("bert", "gpu-7"),
        RunBegan("run-1"),
        EventTaken("CheckpointSelected", {"attempt": 1}, 1, "starting", actions=(("BeginAttempt", begin),)),
        EventTaken("AttemptStarted", {"attempt": 1, "ranks": [], "world_size": 4}, 1, "running"),
    ]

    def progress(number: int) -> bytes:
        data = {"t": T0 + 10 * number, "attempt": 1, "step": 20 * number, "steps_seen": 20 * number, "phase": "train", "loss": 2.0}
        return records.encode(number + 4, T0 + 10 * number, 0.0, EventTaken("ProgressObserved", data, 1, "running"))

    with journal.open("wb") as file:
        for seq, body in enumerate(bodies, 1):
            file.write(records.encode(seq, T0, 0.0, body))
        for number in range(1, REPORTS):
            file.write(progress(number))
    follower = ViewFollower(journal)

    def page(now: float) -> bytes:
        follower.advance()
        return exposition(Samples(samples_of(dataclasses.replace(facts, now=now), follower.view), "bert"))

    with costs_at_most(6.0, "the first page of a run of six weeks"):
        page(T0 + 10 * REPORTS)
    with costs_at_most(5.0, "100 pages more"):
        for number in range(REPORTS, REPORTS + 100):
            with journal.open("ab") as file:
                file.write(progress(number))
            content = page(T0 + 10 * number + 1)
    assert f'supervise_time_seconds{{job_name="bert",state="productive"}} {float(10 * (REPORTS + 99) + 1 - 10)}'.encode() in content
