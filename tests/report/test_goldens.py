"""The card, `why`, the incident in `status` and the alert of the commonest failures, as they look at 60, 100 and 160 columns.

The journals in recorded/ are of real runs (recorded/record.py). Each is decided anew here, so that the pages have the texts of today. They
are in the folder goldens/. `UPDATE_PAGES=1 pytest tests/report/test_goldens.py` writes them anew; then read them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from supervisor.cli.jobs.job_files import JobFiles, view_of
from supervisor.cli.jobs.why import next_start, standing_still
from supervisor.core import actions as act
from supervisor.core.machine import decide, initial
from supervisor.core.model import PlanKind
from supervisor.core.values import replace
from supervisor.job import identity
from supervisor.journal.records import EventTaken, Header, Record, RunBegan, RunEnded, event_of, scan
from supervisor.report.card import card, why_page
from supervisor.report.command_line import CommandLine, NextStart
from supervisor.report.incident_status import incident_status
from supervisor.report.layout import Fact, FactPage, Surface, render
from supervisor.view.opening import open_journal

pytestmark = pytest.mark.usefixtures("in_utc")

RECORDED, GOLDENS = Path(__file__).with_name("recorded"), Path(__file__).with_name("goldens")
NAMES = sorted(path.stem for path in RECORDED.glob("*.jsonl"))
WIDTHS = 60, 100, 160
ADDRESS = "--job bert"
#: Names that the code uses and a person on call need not know.
INTERNAL = re.compile(
    r"restart_within_budget|step_back|halve_batch|own_code|error_file|exit_code|family '|same_place|heartbeat of|\barmed\b"
)
#: The labels of the card, in their order; those that a card may lack are optional.
ORDER = re.compile(r"(what)(where)(done)(do)(evidence)(core)?(stacks)?(when)?(again)?(from)?(result)?(look)(files)?")


class Listener:
    """Of a journal that is written once."""

    def journal_synced(self, seq: int) -> None:
        """Do nothing."""

    def journal_degraded(self, text: str) -> None:
        """Do nothing."""

    def journal_recovered(self) -> None:
        """Do nothing."""


class Replayed:
    """A recorded job, decided anew and written as its supervisor writes it. failed_t: when the last failure was."""

    def __init__(self, name: str, directory: Path) -> None:
        self.directory = directory
        self.decision: act.ReportDecision | None = None
        journal, _ = open_journal(directory / "journal.jsonl", job="bert", node="gpu-7", listener=Listener())
        me, records = identity.this_process(), [*scan(RECORDED / f"{name}.jsonl")]
        is_over = any(isinstance(record, Record) and isinstance(record.body, RunEnded) for record in records)
        state, events = initial(), 0
        for record in records:
            assert isinstance(record, Record), record
            if isinstance(record.body, RunBegan) and not is_over:  # its supervisor lives
                began = replace(record.body, pid=me.pid, start_ticks=me.start_ticks, boot_id=me.boot_id)
                journal.append(began, t=record.t)
            elif isinstance(record.body, EventTaken):
                event = event_of(record.body)
                state, taken = decide(state, event)
                journal.record(event, taken, state, durable=False)
                events += 1
                self.decision = next((a for a in reversed(taken) if isinstance(a, act.ReportDecision)), self.decision)
            elif not isinstance(record.body, Header):
                journal.append(record.body, t=record.t)
        assert events > 5
        assert journal.close(10)
        self.view, _ = view_of(JobFiles("bert", "gpu-7", directory))


def pages_of(job: Replayed) -> dict[str, FactPage]:
    """Return the pages of the last incident, or of a hang that is none."""
    place, view = JobFiles("bert", "gpu-7", job.directory), job.view
    still = standing_still(place, view, ADDRESS)
    if still:
        return {"why": still[0]}
    last, decision = view.incidents[-1], job.decision
    assert decision is not None
    start = next_start(view, last)
    failed_t = last.failures[-1].failed_t or last.opened_t
    shown = card("bert", decision, last.resumed, address=ADDRESS, failed_t=failed_t, node="gpu-7", state_dir="FILES", next_start=start)
    run_id = view.run.run_id if view.run else ""
    words = incident_status(last, "gpu-7")
    status = FactPage("status", tuple(Fact(label, getattr(words, label)) for label in ("what", "where", "done", "do")))
    return {"card": shown, "why": why_page("bert", "gpu-7", last, ADDRESS, last_run=run_id, next_start=start), "status": status}


@pytest.mark.parametrize("name", NAMES)
def test_the_pages_of_a_recorded_failure(name: str, tmp_path: Path) -> None:
    job = Replayed(name, tmp_path)
    pages = pages_of(job)
    parts = [f"##### {page}, {width} columns\n{render(pages[page], Surface(width))}\n" for page in pages for width in WIDTHS]
    text = "\n".join(parts).replace(str(tmp_path), "FILES")
    path = GOLDENS / f"{name}.txt"
    if os.environ.get("UPDATE_PAGES"):
        path.write_text(text, encoding="utf-8")
    assert not INTERNAL.search(text), INTERNAL.search(text)
    assert text == path.read_text(encoding="utf-8"), f"look at {path}, or write it anew"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "hang"])
def test_a_card_has_its_facts_in_one_order_and_a_line_each_for_what_and_do(name: str, tmp_path: Path) -> None:
    job = Replayed(name, tmp_path)
    shown = pages_of(job)["card"]
    assert ORDER.fullmatch("".join(fact.label for fact in shown.facts)), [fact.label for fact in shown.facts]
    texts = {fact.label: fact.text for fact in shown.facts if fact.label}
    is_over = job.decision is not None and job.decision.plan.kind is PlanKind.STOP
    assert ("from" in texts) == ("again" in texts) == is_over, "only who has to start it again is told how"
    assert "; " not in texts["do"]
    assert len(texts["what"]) <= 200
    assert "%" not in texts["what"]


def test_the_card_of_a_run_that_a_person_stopped_before_it_got_over_the_failure_promises_no_attempt(tmp_path: Path) -> None:
    job = Replayed("killed", tmp_path)
    decision, resumed = job.decision, job.view.incidents[-1].resumed
    assert decision is not None
    start = NextStart(CommandLine("supervise -- python train.py", ()), "step 40")
    assert card("bert", decision, None, address=ADDRESS, node="gpu-7").title.endswith("restarted as attempt 2")
    assert card("bert", decision, None, address=ADDRESS, node="gpu-7", next_start=start).title.endswith(": stopped")
    assert resumed is not None
    assert card("bert", decision, resumed, address=ADDRESS, node="gpu-7", next_start=start).title.endswith("restarted as attempt 2")
