"""The pages that are served: the list of the jobs, a job, the question for the token, and what went wrong. Pure.

All addresses are relative, so that a proxy may serve the page below a path of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from supervisor.cli.ui.job_rows import RowGroup
from supervisor.core.units import span_text
from supervisor.core.values import Struct, replace
from supervisor.job.local_time import zoned_text
from supervisor.report.html import job_page as report_page
from supervisor.report.html.render import POLICY, Live, page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.cli.ui.job_rows import JobRow
    from supervisor.report.html.job_page import JobPage
    from supervisor.report.html.render import Page

#: The sources that a page may load, run and ask for: its style, our script, ourselves. Nothing may frame it.
SERVED_POLICY: Final = (
    POLICY.replace("form-action 'none'", "form-action 'self'")
    + "; script-src 'self'; connect-src 'self'; img-src data:; frame-ancestors 'none'"
)
_MINUTE_S: Final = 60
#: More jobs that ended are folded.
_MOST_OPEN: Final = 20
#: The filters of the list: the value of `state`, its words, and the groups that it has.
_STATES: Final = (
    ("", "All", tuple(RowGroup)),
    (RowGroup.NEEDS.value, "Need somebody", (RowGroup.NEEDS,)),
    (RowGroup.RUNS.value, "Running", (RowGroup.RUNS, RowGroup.UNREAD)),
    (RowGroup.ENDED.value, "Ended", (RowGroup.ENDED,)),
)
_RUNNING: Final = ("job", "state", "progress", "rate", "time left", "checkpoint", "last incident", "changed")
_OVER: Final = ("job", "state", "step", "checkpoint", "last incident", "changed")
_NUMBERS: Final = frozenset({"progress", "step", "rate", "time left", "changed"})


class JobFilter(Struct, frozen=True):
    """The choice of jobs in the list. name: a part of it; state: "" or the value of a RowGroup."""

    name: str = ""
    state: str = ""

    def address(self, state: str) -> str:
        """Return the address of the list with another state, relative to the list."""
        chosen = {key: value for key, value in (("name", self.name), ("state", state)) if value}
        return "./" + (f"?{urlencode(chosen, errors='replace')}" if chosen else "")


class PageAddress(Struct, frozen=True):
    """The address of a page: that of a job on a node, or with "" the list. all_runs: of all that are kept, not of the last one only."""

    job: str = ""
    node: str = ""
    all_runs: bool = False
    jobs: JobFilter = JobFilter()

    @property
    def up(self) -> str:
        """From the page to the list, as a relative address."""
        return "../../" if self.job else ""


class LivePage(Struct, frozen=True):
    """A page at a moment. version: another one where anything but the time differs. is_whole: False where more is still to be read."""

    html: str
    version: str = ""
    as_of: str = ""
    is_whole: bool = True
    status: int = 200


def list_page(root: str, rows: Sequence[JobRow], count: int, now: float, jobs: JobFilter = JobFilter()) -> LivePage:  # noqa: B008  a frozen value
    """Return the list. rows: in their order; count: of all jobs, where not all are in it. now: Unix seconds."""
    named = [row for row in rows if jobs.name.lower() in row.job.lower()]
    groups = next((groups for state, _, groups in _STATES if state == jobs.state), ())
    by_group = {group: [row for row in named if row.group is group and group in groups] for group in RowGroup}
    heading = _heading(rows, count)
    html_page = page(
        "jobs.html.j2",
        heading,
        live=Live(script="live.js", now=now),
        root=root,
        count=count,
        left_out=count > len(rows),
        most=len(rows),
        filter=jobs,
        filtered=jobs.address,
        states=[(state, word, sum(row.group in groups for row in named)) for state, word, groups in _STATES],
        needs=by_group[RowGroup.NEEDS],
        runs=[*by_group[RowGroup.RUNS], *by_group[RowGroup.UNREAD]],
        ended=by_group[RowGroup.ENDED],
        most_open=_MOST_OPEN,
        running=_RUNNING,
        over=_OVER,
        numbers=_NUMBERS,
        has_nodes=len({row.node for row in rows}) > 1,
        address_of=_job_address,
        age_text=_age_text,
        now=now,
    )
    return replace(_live(html_page, now), is_whole=all(row.is_read for row in rows))


def _heading(rows: Sequence[JobRow], count: int) -> str:
    words = [
        (sum(row.group is RowGroup.NEEDS for row in rows), "needs somebody", "need somebody"),
        (sum(row.group is RowGroup.RUNS for row in rows), "runs", "run"),
        (sum(not row.is_read for row in rows), "is not read yet", "are not read yet"),
    ]
    of_them = "".join(f", {number} {singular if number == 1 else plural}" for number, singular, plural in words if number)
    return f"{count} {'job' if count == 1 else 'jobs'}{of_them}"


def _age_text(seconds: float) -> str:
    """Return how long something takes or took, in a text that changes once a minute."""
    return "under 1 min" if seconds < _MINUTE_S else span_text(seconds // _MINUTE_S * _MINUTE_S)


def _job_address(job: str, node: str) -> str:
    """Return the address of a job's page, relative to the list."""
    return f"jobs/{_segment(job)}/{_segment(node)}"


def job_page(at: PageAddress, job: JobPage, now: float) -> LivePage:
    """Return the page of a job."""
    live = Live(script=f"{at.up}live.js", home=f"{at.up}./", now=now)
    other_runs = ""
    if job.report is not None and job.report.kept_runs > 1:
        other_runs = _segment(at.node) + ("" if at.all_runs else "?runs=all")
    return _live(report_page.job_page(job, now, live, other_runs=other_runs), now)


def _live(html_page: Page, now: float) -> LivePage:
    return LivePage(html_page.html, html_page.version, zoned_text(now))


def message_page(title: str, text: str, *, up: str, status: int) -> LivePage:
    """Return a page that names the problem, with a link to the list."""
    return LivePage(page("message.html.j2", title, live=Live(home=f"{up}./"), text=text).html, status=status)


def token_page(*, up: str, then: str, was_wrong: bool) -> LivePage:
    """Return the question for the token. then: the relative address that the reader wanted, from the list."""
    title = "This page needs a token"
    return LivePage(page("token.html.j2", title, live=Live(), up=up, then=then, was_wrong=was_wrong).html, status=401)


def _segment(name: str) -> str:
    """Return a name as one part of a path."""
    return quote(name, safe="", errors="replace")
