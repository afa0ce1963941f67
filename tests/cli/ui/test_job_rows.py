"""The list: which job comes first, nodes that are one job, and which jobs a filter shows."""

from __future__ import annotations

import re

import pytest

from supervisor.cli.ui.job_rows import JobRow, RowGroup, in_order, joined
from supervisor.cli.ui.pages import JobFilter, list_page
from supervisor.core.values import replace

NOW = 1_790_000_000.0


def row(job: str, node: str = "gpu-1", group: RowGroup = RowGroup.RUNS, *, ago_s: float = 0.0, members: tuple[str, ...] = ()) -> JobRow:
    return JobRow(job, node, NOW - ago_s, group, "training", "good", members=members, nodes=(node,))


def names(rows: list[JobRow]) -> list[str]:
    return [f"{row.job} on {', '.join(row.nodes)}" for row in rows]


def test_jobs_that_need_somebody_come_first_and_running_ones_keep_their_order() -> None:
    rows = [
        row("b", ago_s=1),
        row("done", group=RowGroup.ENDED, ago_s=50),
        row("a", ago_s=30),
        row("new", group=RowGroup.UNREAD),
        row("failed-long-ago", group=RowGroup.NEEDS, ago_s=900),
        row("failed", group=RowGroup.NEEDS, ago_s=9),
        row("done-before", group=RowGroup.ENDED, ago_s=70),
    ]
    assert [entry.job for entry in in_order(rows)] == ["failed", "failed-long-ago", "a", "b", "new", "done", "done-before"]


def test_nodes_that_met_are_one_row_and_the_most_urgent_of_them_stands_for_all() -> None:
    met = ("gpu-1", "gpu-2")
    rows = [row("train", "gpu-1", members=met), replace(row("train", "gpu-2", RowGroup.NEEDS, ago_s=60, members=met), what="it is gone")]
    (whole,) = joined(rows)
    assert (whole.node, whole.nodes, whole.what, whole.changed_t) == ("gpu-2", ("gpu-2", "gpu-1"), "it is gone", NOW)


def test_a_node_that_left_is_shown_with_the_others_and_makes_their_job_no_failed_one() -> None:
    rows = [
        row("train", "gpu-1", members=("gpu-1", "gpu-3")),
        row("train", "gpu-3", members=("gpu-1", "gpu-3")),
        row("train", "gpu-2", RowGroup.NEEDS, ago_s=900, members=("gpu-1", "gpu-2")),
    ]
    (whole,) = joined(rows)
    assert (whole.group, whole.nodes) == (RowGroup.RUNS, ("gpu-1", "gpu-3", "gpu-2"))


def test_nodes_that_never_met_are_jobs_of_their_own() -> None:
    rows = [row("train", "gpu-1"), row("other", "gpu-9"), row("train", "gpu-2", RowGroup.ENDED)]
    assert names(joined(rows)) == ["train on gpu-1", "train on gpu-2", "other on gpu-9"]


LOOK = "supervise why --job bert-bug"
ROWS = in_order([
    *(row(f"llama-{number}") for number in range(3)),
    replace(row("bert-bug", group=RowGroup.NEEDS), state="failed", what="The script <failed>", do="mend it", look=LOOK),
    row("bert-done", group=RowGroup.ENDED, ago_s=7300),
])  # fmt: skip


def listed(name: str = "", state: str = "") -> list[str]:
    """Return the jobs on the list under a filter."""
    return re.findall(r'data-job="([^"]+)"', list_page("/state", ROWS, len(ROWS), NOW, JobFilter(name, state)).html)


@pytest.mark.parametrize(
    ("name", "state", "jobs"),
    [
        ("", "", ["bert-bug", "llama-0", "llama-1", "llama-2", "bert-done"]),
        ("BERT", "", ["bert-bug", "bert-done"]),
        ("", "needs", ["bert-bug"]),
        ("", "runs", ["llama-0", "llama-1", "llama-2"]),
        ("bert", "ended", ["bert-done"]),
        ("nothing", "", []),
        ("", "no such state", []),
    ],
)
def test_a_filter_by_name_and_state_needs_no_script(name: str, state: str, jobs: list[str]) -> None:
    assert listed(name, state) == jobs


def test_a_filter_that_shows_nothing_says_so_and_a_hostile_one_is_text() -> None:
    page = list_page("/state", ROWS, len(ROWS), NOW, JobFilter('"><script>alert(1)</script>', "runs"))
    assert "No job is like that" in page.html
    assert "<script>alert" not in page.html
    assert "state=ended" in page.html, "another state keeps the name"
    assert "name=%22%3E%3Cscript%3E" in page.html


def test_the_heading_counts_the_jobs_that_need_somebody_and_each_row_tells_why() -> None:
    page = list_page("/state", ROWS, len(ROWS), NOW)
    assert "<h1>5 jobs, 1 needs somebody, 3 run</h1>" in page.html
    assert "The script &lt;failed&gt;" in page.html
    assert "Do: mend it" in page.html
    assert f"<code>{LOOK}</code>" in page.html
    assert page.html.index("Needs somebody") < page.html.index(">llama-0<")
    assert "2 h 1 min ago" in page.html


def test_the_version_is_the_same_while_nothing_but_seconds_change() -> None:
    first, later = (list_page("/state", ROWS, len(ROWS), NOW + s) for s in (2, 15))
    assert first.version == later.version
    assert first.as_of != later.as_of
    assert list_page("/state", ROWS, len(ROWS), NOW + 70).version != first.version


def test_how_far_a_job_is_and_how_old_its_checkpoint_is_stand_in_its_row() -> None:
    far = replace(
        row("far"), step="1200 of 5000", done=0.24, pace="3.2 steps/s", left_s=1190.0, checkpoint="step 1000", checkpoint_t=NOW - 130
    )
    page = list_page("/state", [far], 1, NOW).html
    assert '<progress max="1" value="0.240"' in page
    for text in ("1200 of 5000", "3.2 steps/s", "19 min", "step 1000, 2 min ago"):
        assert text in page


def test_more_jobs_than_the_list_has_are_named() -> None:
    assert "The 5 jobs that changed last" in list_page("/state", ROWS, 300, NOW).html
    assert "No job was supervised here yet" in list_page("/state", [], 0, NOW).html


def test_many_ended_jobs_are_folded_until_a_filter_asks_for_them() -> None:
    ended = [row(f"done-{number}", group=RowGroup.ENDED) for number in range(30)]
    assert '<details id="ended-jobs"><summary>30 jobs</summary>' in list_page("/state", ended, 30, NOW).html
    for jobs in (JobFilter("done"), JobFilter("", "ended")):
        assert '<details id="ended-jobs" open="open">' in list_page("/state", ended, 30, NOW, jobs).html
    assert "<details" not in list_page("/state", ended[:20], 20, NOW).html
