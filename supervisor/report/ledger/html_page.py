"""A report as one HTML file: shares, timeline of the attempts, curves of step time and loss, and the incidents with their cards. Pure.

What it is made of, and why nothing of a job can do harm in it: html_parts.py. A drawing has a bounded number of shapes.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from supervisor.core.time_text import span_text
from supervisor.job.local_time import zoned_text
from supervisor.report.layout import Fact, FactPage
from supervisor.report.ledger import page as terminal
from supervisor.report.ledger.html_parts import COLUMNS, POLICY, document, drawing, escaped, fact_list, stretch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.report.ledger.figures import IncidentCost, JobReport
    from supervisor.report.ledger.spans import PaceSample, TimeSpan, TimeState

#: Rows of the timeline; attempts share a row where there are more. Shapes in a row; points of a curve; cards.
MOST_ROWS, MOST_POINTS, MOST_CARDS = 40, 600, 50


def html_page(report: JobReport, cards: Mapping[int, FactPage], address: str, now: float) -> str:
    """Return the file's text. cards: by the number of the incident. now: Unix seconds, when it is made."""
    title = terminal.report_title(report)
    head = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="faint">Made {escaped(zoned_text(now))}, from the journal of {escaped(report.node)}.</p>',
        fact_list(terminal.report_facts(report, address)),
    ]
    return document(title, [*head, *report_sections(report, cards)], policy=POLICY)


def report_sections(report: JobReport, cards: Mapping[int, FactPage]) -> list[str]:
    """Return what the page has below the figures: the wall clock, the attempts, the curves, the incidents, and how the figures are made."""
    samples = [sample for run in report.runs for sample in run.samples]
    found = [
        _shares(report),
        _timeline(report),
        _curve(report, "Seconds for a step", "step-time", [(sample, sample.step_s) for sample in samples]),
        _curve(report, "Loss", "loss", [(sample, sample.loss) for sample in samples]),
        _incidents(report, cards),
        f'<section aria-labelledby="made"><h2 id="made">How the figures are made</h2>{fact_list(terminal.FORMULAS)}</section>',
    ]
    return [section for section in found if section]


def _shares(report: JobReport) -> str:
    """Return the states as one bar and as a table."""
    figures = report.figures
    rows = [(state, took_s) for state, took_s in figures.seconds.items() if took_s > 0]
    if not rows or figures.wall_s <= 0:
        return ""
    at, shapes, lines = 0.0, [], []
    for state, took_s in rows:
        name, share = terminal.STATE_TEXTS[state][0], took_s / figures.wall_s
        shapes.append(stretch(at, share * COLUMNS, state))
        at += share * COLUMNS
        swatch = f'<span class="swatch {state.value}" aria-hidden="true"></span>'
        lines.append(
            f'<tr><th scope="row">{swatch}{escaped(name)}</th><td class="number">{100 * share:.1f} %</td>'
            f'<td class="number">{escaped(span_text(took_s))}</td></tr>'
        )
    spoken = ", ".join(f"{terminal.STATE_TEXTS[state][0]} {100 * took_s / figures.wall_s:.1f} %" for state, took_s in rows)
    return (
        '<section aria-labelledby="shares"><h2 id="shares">The wall clock</h2>'
        f'<div class="bar">{drawing(shapes, spoken)}</div>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Time by state"><table><thead><tr><th scope="col">state</th>'
        f'<th scope="col">share</th><th scope="col">time</th></tr></thead><tbody>{"".join(lines)}</tbody></table></div></section>'
    )


def _timeline(report: JobReport) -> str:
    """Return a row for each attempt, or for several, on one axis of time; what lies between two runs is left out."""
    spans = _laid_out(report)
    whole_s = report.figures.wall_s
    if not spans or whole_s <= 0:
        return ""
    keys = list(dict.fromkeys(_key(one) for one in spans))
    size = -(-len(keys) // MOST_ROWS)
    row_of = {key: number // size for number, key in enumerate(keys)}
    rows = []
    for row, members in groupby(spans, key=lambda one: row_of[_key(one)]):
        found = list(members)
        rows.append(
            f'<div class="row"><span>{escaped(_row_name(report, keys[row * size : (row + 1) * size]))}</span>{_row(found, whole_s)}</div>'
        )
    first, last = report.runs[0], report.runs[-1]
    shared = f" Each row stands for up to {size} attempts." if size > 1 else ""
    gaps = " The time between two runs is left out." if len(report.runs) > 1 else ""
    return (
        '<section aria-labelledby="timeline"><h2 id="timeline">The attempts</h2>'
        f'<p class="faint">A row for each attempt, on one axis of time; colours as in the table.{shared}{gaps}</p>{"".join(rows)}'
        f'<div class="ends"><span>{escaped(zoned_text(first.begin_t))}</span><span>{escaped(zoned_text(last.end_t))}</span></div></section>'
    )


def _key(one: tuple[int, float, TimeSpan]) -> tuple[int, int]:
    """Return the run and the attempt of a span; what is before the first attempt belongs to it."""
    number, _, span = one
    return number, max(span.attempt, 1)


def _laid_out(report: JobReport) -> list[tuple[int, float, TimeSpan]]:
    """Return each span with the number of its run, and with where it begins, in seconds from the left."""
    found, left_s = [], 0.0
    for number, run in enumerate(report.runs):
        found += [(number, left_s + span.begin_t - run.begin_t, span) for span in run.spans]
        left_s += run.wall_s
    return found


def _row_name(report: JobReport, keys: Sequence[tuple[int, int]]) -> str:
    (run, first), (_, last) = keys[0], keys[-1]
    which = f"run {run + 1}, " if len(report.runs) > 1 else ""
    return f"{which}attempt {first}" if first == last else f"{which}{first} to {last}"


def _row(spans: Sequence[tuple[int, float, TimeSpan]], whole_s: float) -> str:
    """Return one row: neighbours that are narrower than a column are drawn as the one of them that took longest."""
    scale = COLUMNS / whole_s
    columns: dict[int, dict[TimeState, float]] = {}
    shapes: list[str] = []
    states: dict[TimeState, float] = {}
    for _, at_s, span in spans:
        states[span.state] = states.get(span.state, 0.0) + span.took_s
        if span.took_s * scale >= 1:
            shapes.append(stretch(at_s * scale, span.took_s * scale, span.state))
        else:
            column = columns.setdefault(int(at_s * scale), {})
            column[span.state] = column.get(span.state, 0.0) + span.took_s
    shapes = [stretch(column, 1, max(found, key=lambda state: found[state])) for column, found in sorted(columns.items())] + shapes
    spoken = ", ".join(f"{terminal.STATE_TEXTS[state][0]} {span_text(took_s)}" for state, took_s in states.items())
    return drawing(shapes, spoken)


def _curve(report: JobReport, name: str, key: str, samples: Sequence[tuple[PaceSample, float | None]]) -> str:
    """Return a curve over time, with a break between attempts; "" where too little is recorded."""
    known = [(sample, value) for sample, value in samples if value is not None]
    if len(known) < 2:  # noqa: PLR2004  one point is no curve
        return ""
    known = known[:: -(-len(known) // MOST_POINTS)]
    begin_t, end_t = min(one.t for one, _ in known), max(one.t for one, _ in known)
    values = sorted(value for _, value in known)
    # a rare outlier, such as the first step, must not flatten the rest
    low, high = values[0], values[min(len(values) - 1, int(0.98 * len(values)))]
    low = min(low, 0.0) if key == "step-time" else low
    wide, tall = end_t - begin_t or 1.0, high - low or abs(high) or 1.0

    def point(sample: PaceSample, value: float) -> str:
        y = 100 * (1 - (min(max(value, low), high) - low) / tall)
        return f"{COLUMNS * (sample.t - begin_t) / wide:.1f},{2 + 0.96 * y:.1f}"

    parts = [[point(sample, value) for sample, value in part] for _, part in groupby(known, key=lambda one: one[0].attempt)]
    lines = [  # a point alone is a line of no length, whose ends are round
        f'<polyline class="line{"" if part[1:] else " point"}" points="{" ".join(part if part[1:] else part * 2)}"/>' for part in parts
    ]
    marks = [
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="94" y2="100"/>'
        for x in sorted({round(COLUMNS * (incident.opened_t - begin_t) / wide, 1) for incident in report.incidents[:MOST_POINTS]})
        if 0 <= x <= COLUMNS
    ]
    first, last = known[0][1], known[-1][1]
    spoken = f"{name}: {first:.4g} at first, {last:.4g} at last, between {values[0]:.4g} and {values[-1]:.4g}"
    clipped = f"; highest {values[-1]:.4g}" if values[-1] > high else ""
    return (
        f'<section class="curve" aria-labelledby="{key}"><h2 id="{key}">{escaped(name)}</h2>'
        f'<div class="ends"><span>{escaped(f"{high:.4g}{clipped}")}</span><span>{escaped(f"at last {last:.4g}")}</span></div>'
        f"{drawing([*lines, *marks], spoken, height=100)}"
        f'<div class="ends"><span>{escaped(f"{low:.4g}, {zoned_text(begin_t)}")}</span><span>{escaped(zoned_text(end_t))}</span></div>'
        '<p class="faint">Marks at the bottom are incidents.</p></section>'
    )


def shown_incidents(report: JobReport) -> list[IncidentCost]:
    """Return the incidents that the page shows: those that cost most, the newest first."""
    costly = sorted(report.incidents, key=lambda one: one.lost_s)[-MOST_CARDS:]
    return sorted(costly, key=lambda one: one.opened_t, reverse=True)


def _incidents(report: JobReport, cards: Mapping[int, FactPage]) -> str:
    """Return the incidents, each with its card."""
    if not report.incidents:
        return '<section aria-labelledby="incidents"><h2 id="incidents">Incidents</h2><p>None.</p></section>'
    shown = shown_incidents(report)
    more = len(report.incidents) - len(shown)
    rest = f'<p class="faint">{more} more, which cost less, are left out.</p>' if more else ""
    rows = "".join(_card(incident_cost, cards) for incident_cost in shown)
    return f'<section aria-labelledby="incidents"><h2 id="incidents">Incidents</h2>{rows}{rest}</section>'


def _card(one: IncidentCost, cards: Mapping[int, FactPage]) -> str:
    page = cards.get(one.number)
    facts = page.facts if page is not None else (Fact("cause", one.summary), Fact("decision", one.action))
    head = f"{zoned_text(one.opened_t)}: {terminal.incident_text(one)}"
    return (
        f'<details id="incident-{one.number}"><summary>{escaped(head)}</summary>{fact_list(fact for fact in facts if fact.text)}</details>'
    )
