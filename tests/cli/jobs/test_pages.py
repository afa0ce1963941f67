"""`status` and `report` of five failures, as they look at 40, 80 and 140 columns. tests/report/test_goldens.py has the card and `why`.

The pages are in the folder pages/. `UPDATE_PAGES=1 pytest tests/cli/jobs/test_pages.py` writes them anew; then read them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.cli.jobs.job_files import JobFiles
from supervisor.cli.jobs.job_ledgers import earlier_journals, job_report, newest_journal
from supervisor.cli.jobs.job_status import status_of
from supervisor.report.layout import FactPage, Surface, render
from supervisor.report.ledger.page import report_pages
from supervisor.report.status_page import rendered
from supervisor.report.table import render_table
from supervisor.view.reading import ViewFollower
from supervisor.view.status import Status
from tests.cli.jobs.statuses import STATUSES
from tests.cli.jobs.stories import STORIES, Story

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.report.table import Table
    from tests.support.recorded_job import RecordedJob

pytestmark = pytest.mark.usefixtures("in_utc")

PAGES = Path(__file__).with_name("pages")
WIDTHS = 40, 80, 140
ADDRESS = "--job bert"
#: Names that the code uses and a person on call need not know.
INTERNAL = re.compile(
    r"restart_within_budget|step_back|halve_batch|own_code|error_file|exit_code|family '|same_place|heartbeat of|\barmed\b"
)


def laid_out(pages: Mapping[str, FactPage | Status | Sequence[FactPage | Table]], node_directory: str = "") -> str:
    """Return all pages at all widths, as one text."""
    parts = [f"##### {name}, {width} columns\n{drawn(page, Surface(width))}\n" for name, page in pages.items() for width in WIDTHS]
    return "\n".join(parts).replace(node_directory or "\0", "/jobs/bert/nodes/gpu-7")


def drawn(page: FactPage | Status | Sequence[FactPage | Table], surface: Surface) -> str:
    if isinstance(page, Status):
        return rendered(page, ADDRESS, surface)
    several = [page] if isinstance(page, FactPage) else page
    return "\n".join(render(each, surface) if isinstance(each, FactPage) else render_table(each, surface) for each in several)


def compare(name: str, text: str) -> None:
    path = PAGES / f"{name}.txt"
    if os.environ.get("UPDATE_PAGES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"look at {path}, or write it anew"


@pytest.mark.parametrize("name", STORIES)
def test_the_pages_of_a_failure(name: str, root: Path, make_job: type[RecordedJob], monkeypatch: pytest.MonkeyPatch) -> None:
    written = make_job(root, "bert", "gpu-7")
    STORIES[name](lambda policy: Story(written, policy=policy))
    place = JobFiles("bert", "gpu-7", written.directory)
    newest, _, ledgers = newest_journal(place, ViewFollower(place.journal))
    monkeypatch.setattr("supervisor.cli.jobs.job_status.time.time", lambda: written.T0 + 3600)
    text = laid_out(
        {
            "status": status_of(place),
            "report": report_pages(job_report(place, [*earlier_journals(place), (newest, ledgers)]), ADDRESS),
        },
        str(written.directory),
    )
    assert not INTERNAL.search(text), INTERNAL.search(text)
    assert " ... " not in text, "nothing is cut"
    compare(name, text)


@pytest.mark.parametrize("name", STATUSES)
def test_the_status_of_a_job(name: str) -> None:
    compare(f"status-{name}", laid_out({"status": STATUSES[name]()}))
