"""The pages as HTML: the list of the jobs, a job, the question for the token, and what went wrong. Pure but for the clock's form.

All addresses are relative, so that a proxy may serve the page below a path of its own.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from supervisor.core.time_text import span_text
from supervisor.core.values import Struct, replace
from supervisor.job.local_time import zoned_text
from supervisor.report.layout import Tone
from supervisor.report.ledger.html_page import report_sections
from supervisor.report.ledger.html_parts import POLICY, document, escaped, fact_list
from supervisor.report.ledger.page import report_facts
from supervisor.report.ledger.spans import TimeState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.cli.ui.watched_jobs import JobRow, JobView

#: What a page may load, run and ask for: its style, our script, ourselves. Nothing may frame it.
SERVED_POLICY: Final = (
    POLICY.replace("form-action 'none'", "form-action 'self'")
    + "; script-src 'self'; connect-src 'self'; img-src data:; frame-ancestors 'none'"
)
_DOTS: Final = {Tone.GOOD: TimeState.PRODUCTIVE, Tone.WARNING: TimeState.TEAR_DOWN, Tone.BAD: TimeState.DETECTION}
_MINUTE_S: Final = 60
_COLUMNS: Final = {
    "job": "",
    "state": "state",
    "step": "number",
    "pace": "number",
    "ETTR": "number",
    "last incident": "text",
    "changed": "number",
}


class PageAddress(Struct, frozen=True):
    """Which page: that of a job on a node, or with "" the list. all_runs: of all that are kept, not of the last one only."""

    job: str = ""
    node: str = ""
    all_runs: bool = False

    @property
    def up(self) -> str:
        """From the page to the list, as a relative address."""
        return "../../" if self.job else ""

    @property
    def changes(self) -> str:
        """From the page to where its changes are reported, as a relative address."""
        return f"{_segment(self.node)}/changes{'?runs=all' if self.all_runs else ''}" if self.job else "changes"


class LivePage(Struct, frozen=True):
    """A page at a moment. version: another one where anything but the time differs. is_whole: False where more is still to be read."""

    html: str
    version: str
    is_whole: bool = True
    status: int = 200


def list_page(root: str, rows: Sequence[JobRow], count: int, now: float) -> LivePage:
    """Return the list. count: of all jobs, where not all are in it. now: Unix seconds."""
    words = [
        (sum(row.runs for row in rows), "run"),
        (sum(row.tone is Tone.BAD and not row.runs for row in rows), "failed"),
        (sum(not row.is_read for row in rows), "not read yet"),
    ]
    of_them = "".join(f", {number} {word}" for number, word in words if number)
    jobs = f"{count} {'job' if count == 1 else 'jobs'}"
    title = f"{jobs}{of_them}"
    sections = [f"<h1>{escaped(title)}</h1>", f'<p class="faint">In {escaped(root)}.</p>']
    if rows:
        sections.append(_table(rows, now))
    else:
        sections.append("<p>No job was supervised here yet. A job that starts is shown at once.</p>")
    if count > len(rows):
        sections.append(f'<p class="faint">The {len(rows)} that changed last; <code>supervise ls</code> lists all.</p>')
    made_from = repr((rows, count, int(now / _MINUTE_S)))  # how long ago a job changed is renewed once a minute
    page = _live(PageAddress(), title, sections, now, made_from=made_from)
    return replace(page, is_whole=all(row.is_read for row in rows))


def _table(rows: Sequence[JobRow], now: float) -> str:
    has_nodes = len({row.node for row in rows}) > 1
    head = "".join(f'<th scope="col" role="columnheader" class="{kind}">{escaped(name)}</th>' for name, kind in _COLUMNS.items())
    body = "".join(_row(row, now, has_nodes=has_nodes) for row in rows)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Jobs"><table class="jobs" role="table">'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead><tbody role="rowgroup">{body}</tbody></table></div>'
    )


def _row(row: JobRow, now: float, *, has_nodes: bool) -> str:
    place = f'<a href="jobs/{_segment(row.job)}/{_segment(row.node)}">{escaped(row.job)}</a>'
    place += f' <span class="faint">on {escaped(row.node)}</span>' if has_nodes else ""
    dot = f'<span class="dot {_DOTS.get(row.tone, TimeState.WAITING).value}" aria-hidden="true"></span>'
    changed = f"{span_text(max(0.0, now - row.changed_t))} ago" if row.changed_t else ""
    texts = ["", row.state, row.step, row.pace, row.ettr, row.incident, changed]
    shown = "".join(
        f'<td role="cell" class="{kind}" data-label="{escaped(name)}">{_value(text, dot if name == "state" else "")}</td>'
        for (name, kind), text in zip(_COLUMNS.items(), texts, strict=True)
        if name != "job"
    )
    return f'<tr role="row"><th scope="row" role="rowheader">{place}</th>{shown}</tr>'


def _value(text: str, dot: str) -> str:
    return f"<span>{dot}{escaped(text)}</span>" if text else ""


def job_page(at: PageAddress, view: JobView, now: float) -> LivePage:
    """Return the page of a job: where it stands, and its report."""
    sections = [f"<h1>{escaped(view.status.title)}</h1>", fact_list(view.status.facts)]
    sections += [f'<p class="lost">The journal: {escaped(problem)}</p>' for problem in view.problems[:3]]
    report = view.report
    if report is None:
        sections.append("<p>No run is recorded yet.</p>")
    else:
        facts = report_facts(report, view.address, all_runs=at.all_runs)
        sections += ['<h2 id="went">Where the time went</h2>', _runs_choice(at, report.kept_runs), fact_list(facts)]
        sections += report_sections(report, view.cards)
    return _live(at, view.status.title, [section for section in sections if section], now)


def _runs_choice(at: PageAddress, kept: int) -> str:
    """Return the links between the last run and all that are kept."""
    if kept <= 1:
        return ""
    here = _segment(at.node)
    if at.all_runs:
        return f'<p>All {kept} runs that are kept. <a href="{here}">The last run only</a></p>'
    return f'<p>The last run. <a href="{here}?runs=all">All {kept} runs that are kept</a></p>'


def _live(at: PageAddress, title: str, sections: Sequence[str], now: float, *, made_from: str = "") -> LivePage:
    """Return a page that a script keeps up to date. made_from: what its version is of; "": its text."""
    version = hashlib.sha256((made_from or "\n".join(sections)).encode("utf-8", "replace")).hexdigest()[:16]
    nav = f'<nav><a href="{at.up}./">All jobs</a></nav>' if at.job else ""
    header = (
        f'<header>{nav}<p class="faint">As of <span id="as-of">{escaped(zoned_text(now))}</span>'
        '<noscript>; reload for what is new</noscript></p><p id="connection" class="lost" role="status"></p></header>'
    )
    head = f'<link rel="icon" href="data:,"/><script src="{at.up}live.js" defer="defer"></script>'
    data = f' data-version="{version}" data-changes="{escaped(at.changes)}"'
    return LivePage(document(title, sections, head=head, header=header, data=data), version)


def message_page(title: str, text: str, *, up: str, status: int) -> LivePage:
    """Return a page that says what is wrong, with a link to the list."""
    sections = [f"<h1>{escaped(title)}</h1>", f"<p>{escaped(text)}</p>", f'<p><a href="{up}./">All jobs</a></p>']
    return LivePage(document(title, sections, head='<link rel="icon" href="data:,"/>'), f"{status} {text}", status=status)


def token_page(*, up: str, then: str, was_wrong: bool) -> LivePage:
    """Return the question for the token. then: the relative address that the reader wanted, from the list."""
    wrong = '<p role="alert" class="lost">That is not the token.</p>' if was_wrong else ""
    form = (
        f'<form method="post" action="{up}login">{wrong}<input type="hidden" name="then" value="{escaped(then)}"/>'
        '<input name="user" value="supervise" autocomplete="username" hidden="hidden"/><label for="token">Token</label>'
        '<input id="token" name="token" type="password" required="required" autocomplete="current-password"/>'
        "<button>Show the jobs</button></form>"
    )
    places = "in the address that it printed, or in the file that ui.token_file names"
    text = f"<p>Whoever started <code>supervise ui</code> has it: {places}.</p>"
    page = document("Token", ["<h1>This page needs a token</h1>", form, text], head='<link rel="icon" href="data:,"/>')
    return LivePage(page, "", status=401)


def _segment(name: str) -> str:
    """Return a name as one part of a path."""
    return quote(name, safe="", errors="replace")
