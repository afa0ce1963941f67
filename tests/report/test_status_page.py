"""The page of `status`: at every width, in words, and as long as it must be for 512 ranks."""

from __future__ import annotations

import re
import time

import pytest

from supervisor.core.values import replace
from supervisor.report.layout import Surface
from supervisor.report.status_page import MOST_GROUPS, rank_table, rendered, status_page
from supervisor.view.status import RankStatus, StateWord, SupervisorStatus, rank_groups
from tests.cli.jobs.statuses import STATUSES, hung, many, running

ADDRESS = "--job bert"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: Labels of what is there to be copied, which no layout folds.
COPIED = re.compile(r"^  (files|look|do|stacks) ")


@pytest.mark.parametrize("width", [40, 60, 100, 160, 200])
@pytest.mark.parametrize("name", STATUSES)
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    lines = rendered(STATUSES[name](), ADDRESS, Surface(width)).splitlines()
    copied = {number for number, line in enumerate(lines) if COPIED.match(line) or line.strip() in {"files", "look", "do", "stacks"}}
    wide = [line for number, line in enumerate(lines) if len(line) > width and not {number, number - 1} & copied]
    assert wide == []


@pytest.mark.parametrize("name", STATUSES)
def test_colour_adds_nothing_to_the_words(name: str) -> None:
    status = STATUSES[name]()
    coloured = rendered(status, ADDRESS, Surface(100, colour=True))
    assert COLOUR.search(coloured)
    assert COLOUR.sub("", coloured) == rendered(status, ADDRESS, Surface(100))


def test_a_drawn_figure_stands_in_words_too() -> None:
    page = " ".join(rendered(running(), ADDRESS, Surface(100)).split())
    assert "14 %, step 1400 of 10000, 2.13 steps/s, about 1 h 7 min left" in page
    assert "falls from 2.9 to 1.623 in steps 1340 to 1400" in page
    assert "rank 1 4712 1400 3 train 3.0 GiB" in page


def test_a_hang_stands_first_and_has_no_pace() -> None:
    page = status_page(hung(), ADDRESS)
    assert page.title.endswith(": hung")
    assert page.facts[0].label == "what"
    assert page.facts[0].text.startswith("no progress for 95 s: rank 0 waits in all_reduce")
    progress = next(fact.text for fact in page.facts if fact.label == "progress")
    assert "0 steps/s" in progress
    assert "left" not in progress
    assert [fact.label for fact in page.facts[:6]] == ["what", "where", "done", "do", "", "stacks"]
    assert next(fact.text for fact in page.facts if fact.label == "do") == f"supervise stop {ADDRESS}"


def test_a_hang_that_a_person_ended_is_not_forgotten() -> None:
    page = status_page(replace(hung(), state=StateWord.STOPPED, exit_code=143, supervisor=SupervisorStatus(4700, alive=False)), ADDRESS)
    assert page.facts[0].text.startswith("no progress for 95 s when the run ended: rank 0 waits in all_reduce")
    assert "do" not in {fact.label for fact in page.facts}


def test_a_drill_is_called_one() -> None:
    assert status_page(running(drill=True), ADDRESS).title == "drill of job bert on gpu-7: training"


def test_512_ranks_are_a_few_lines_and_the_differing_one_is_named() -> None:
    began = time.process_time()
    rows = rank_table(many()).rows
    assert time.process_time() - began < 0.5
    texts = [tuple(cell if isinstance(cell, str) else cell.text for cell in row) for row in rows]
    assert texts == [
        ("ranks 0-6, 8-299, 302-511", "", "1399-1400", "", "train", "20.0-22.0 GiB", ""),
        ("ranks 300-301", "", "1397", "3", "data, 9.0 s", "20.0-21.0 GiB", ""),
        ("rank 7", "5007", "1390", "10", "checkpoint, 71 s", "21.0 GiB", "write of step_01390.pt (nfs4)"),
    ]
    assert re.search(r"(?m)^rank 7 +5007 +1390 +10 ", rendered(many(), ADDRESS, Surface(80))), "a table at 80 columns"


def test_ranks_that_all_differ_are_no_endless_list() -> None:
    ranks = tuple(RankStatus(n, n, 5000 + n, 1400 - 5 * n, "train", 5 * n, 1 << 30) for n in range(64))
    rows = rank_table(running(ranks=ranks)).rows
    assert len(rows) == MOST_GROUPS + 1
    assert rows[-1][0] == f"{64 - MOST_GROUPS} more"


def test_a_step_apart_is_no_difference() -> None:
    ranks = tuple(RankStatus(n, n, 5000 + n, 1400 - n % 2, "train", n % 2) for n in range(16))
    assert [len(group) for group in rank_groups(ranks, 8)] == [16]
    assert [len(group) for group in rank_groups(ranks[:8], 8)] == [1] * 8


def test_an_incident_that_was_resolved_stands_behind_what_the_job_does_now() -> None:
    over = replace(STATUSES["restarting"](), state=StateWord.TRAINING, incident=None)
    assert over.last_incident is not None
    page = status_page(replace(over, last_incident=replace(over.last_incident, outcome="resolved")), ADDRESS)
    assert page.facts[0].label == "progress"
    assert "3, the last is incident 3" in next(fact.text for fact in page.facts if fact.label == "incidents")
    assert [fact.label for fact in status_page(STATUSES["restarting"](), ADDRESS).facts[:4]] == ["what", "where", "done", "do"]


def test_incidents_of_earlier_runs_are_none_of_this_one() -> None:
    page = status_page(replace(STATUSES["restarting"](), incident=None, last_incident=None), ADDRESS)
    assert [fact.text for fact in page.facts if fact.label == "incidents"] == ["none in this run, 3 before"]


def test_a_loss_that_only_one_step_showed_has_no_direction() -> None:
    status = running()
    assert status.loss is not None
    repeated = replace(status.loss, values=(0.8764, 0.8764), first_step=25, last_step=25)
    page = " ".join(rendered(replace(status, loss=repeated), ADDRESS, Surface(100)).split())
    assert "loss 0.8764 at step 25 " in page
