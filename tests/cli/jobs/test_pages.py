# ruff: noqa: ANN401  `Written` is made in conftest
"""The card, `why`, `status` and `report` of five failures, as they look at 40, 80 and 140 columns.

The pages are in the folder pages/. `UPDATE_PAGES=1 pytest tests/cli/jobs/test_pages.py` writes them anew; then read them.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli.jobs.job_files import JobFiles, history_of
from supervisor.cli.jobs.job_status import status_of
from supervisor.cli.jobs.report import job_report, read_journals
from supervisor.core.model import Finding, Gpu
from supervisor.core.values import replace
from supervisor.report.card import card, why_page
from supervisor.report.layout import FactPage, Surface, render
from supervisor.report.ledger.page import report_page
from supervisor.report.status_page import RankStatus, Status, StoredCheckpoint, status_page
from tests.cli.jobs.stories import STORIES, Story

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = Path(__file__).with_name("pages")
WIDTHS = 40, 80, 140
ADDRESS = "--job bert"
#: Names that the code uses and a person on call need not know.
INTERNAL = re.compile(
    r"restart_within_budget|step_back|halve_batch|own_code|error_file|exit_code|family '|same_place|heartbeat of|\barmed\b"
)


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def laid_out(pages: dict[str, FactPage], node_directory: str = "") -> str:
    """Return all pages at all widths, as one text."""
    parts = [f"##### {name}, {width} columns\n{render(page, Surface(width))}\n" for name, page in pages.items() for width in WIDTHS]
    return "\n".join(parts).replace(node_directory or "\0", "/jobs/bert/nodes/gpu-7")


def compare(name: str, text: str) -> None:
    path = PAGES / f"{name}.txt"
    if os.environ.get("UPDATE_PAGES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"look at {path}, or write it anew"


@pytest.mark.parametrize("name", STORIES)
def test_the_pages_of_a_failure(name: str, root: Path, make_job: Any) -> None:
    written = make_job(root, "bert", "gpu-7")
    decision = STORIES[name](lambda policy: Story(written, policy=policy))
    place = JobFiles("bert", "gpu-7", written.directory)
    history, _ = history_of(place)
    last = history.incidents[-1]
    seen = replace(status_of(place), now=written.T0 + 3600)
    text = laid_out(
        {
            "card": card("bert", decision, last.resumed, address=ADDRESS, node="gpu-7", state_dir="/jobs/bert/nodes/gpu-7"),
            "why": why_page("bert", "gpu-7", last, ADDRESS, last_run=history.run.run_id if history.run else ""),
            "status": status_page(seen, ADDRESS),
            "report": report_page(job_report(place, read_journals(place)), ADDRESS),
        },
        str(written.directory),
    )
    assert not INTERNAL.search(text), INTERNAL.search(text)
    assert " ... " not in text, "nothing is cut"
    compare(name, text)


def test_the_page_of_a_job_that_runs() -> None:
    now = 1_790_000_000.0 + 7265
    seen = Status(
        job="bert",
        node="gpu-7",
        run="20260921T141320-4ba6",
        stage="running",
        attempt=2,
        step=1400,
        step_relative=False,
        phase="train",
        ranks=tuple(RankStatus(n, n, 4711 + n, 1403 - 3 * (n == 1), "train", 3 * (n == 1), (2 + n) << 30) for n in range(2)),
        incident=None,
        incidents=0,
        last_decision="",
        supervisor_pid=4700,
        supervisor_alive=True,
        state_dir="/jobs/bert/nodes/gpu-7",
        exit_code=None,
        ended=False,
        world_size=4,
        now=now,
        since_t=now - 7265,
        attempt_t=now - 3700,
        steps_per_s=2.134,
        total_steps=10_000,
        step_t=now - 0.4,
        verified=StoredCheckpoint("/data/ckpt/step_01380.pt", 1380, now - 35),
        mirrored=StoredCheckpoint("/data/ckpt/step_01300.pt", 1300, now - 250, "s3://backup/bert"),
        restarts_left=2,
        gpus=(Gpu(0, "GPU-0"), Gpu(1, "GPU-1"), Gpu(2, "GPU-2", quarantined="xid 79")),
        findings=(
            Finding("clock", "host", "degraded", "the clock is not synchronised"),
            Finding("disk", "path:/data", "degraded", "/data has 2 GiB free"),
        ),
        examined_t=now - 3705,
        alerts="slack refused 1, the last at 15:01:02: status 400: no_text",
    )
    compare("running", laid_out({"status": status_page(seen, ADDRESS)}))
