"""A report as one HTML file: shares, timeline of the attempts, curves of step time and loss, and the incidents with their cards. Pure.

Nothing is fetched and nothing runs: no script, no font, no address, and a policy that forbids them. Every text that comes from a job goes
through `_text`, which cleans and escapes it: a log line may hold anything. The file is well-formed XML too, so that a test can parse it.

Shapes are drawn in SVG without text, stretched to the width; their words stand beside them in HTML, so that they can be read on a phone.
A drawing has a bounded number of shapes, whatever the job did.
"""

from __future__ import annotations

import html
import re
import time
from itertools import groupby
from typing import TYPE_CHECKING, Final

from supervisor.core.time_text import span_text
from supervisor.report.layout import Fact, FactPage, Tone
from supervisor.report.ledger import page as terminal
from supervisor.report.ledger.spans import TimeSpan, TimeState
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from supervisor.report.ledger.figures import IncidentCost, JobReport
    from supervisor.report.ledger.spans import PaceSample

#: Colours on light and on dark: each stands out from the background by 3:1, as WCAG 2.2 asks of graphics (1.4.11).
COLOURS: Final[dict[TimeState, tuple[str, str]]] = {
    TimeState.PRODUCTIVE: ("#1a7f37", "#3fb950"),
    TimeState.DEGRADED: ("#6b7a00", "#b5c334"),
    TimeState.REWORK: ("#bc4c00", "#f0883e"),
    TimeState.CHECKPOINT_STALL: ("#0969da", "#58a6ff"),
    TimeState.UNMEASURED: ("#6e7781", "#8b949e"),
    TimeState.START_AND_LOAD: ("#8250df", "#bc8cff"),
    TimeState.DETECTION: ("#cf222e", "#ff7b72"),
    TimeState.TEAR_DOWN: ("#9a6700", "#d29922"),
    TimeState.DECISION: ("#953800", "#e3936b"),
    TimeState.HEALTH: ("#1b7c83", "#39c5cf"),
    TimeState.WAITING: ("#57606a", "#a1aab4"),
    TimeState.PREEMPTED: ("#bf3989", "#f778ba"),
    TimeState.UNACCOUNTED: ("#24292f", "#f0f6fc"),
}
#: Background, text, faint text and lines, on light and on dark.
GROUND: Final = {
    "ground": ("#ffffff", "#14171a"),
    "text": ("#1f2328", "#e6edf3"),
    "faint": ("#57606a", "#a1aab4"),
    "line": ("#818b98", "#6e7681"),
}
#: Rows of the timeline; attempts share a row where there are more. Shapes in a row; points of a curve; cards.
MOST_ROWS, COLUMNS, MOST_POINTS, MOST_CARDS = 40, 1000, 600, 50
#: What no document may hold: halves of characters (a path that is not UTF-8), and what Unicode sets apart for no use.
_NO_CHARACTER = re.compile("[\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
dd,summary,h1,code{unicode-bidi:isolate}
main{max-width:70rem;margin:0 auto;padding:1rem}
h1{font-size:1.4rem}h2{font-size:1.15rem;margin-top:2rem}
.faint{color:var(--faint)}
.scroll{overflow-x:auto}
table{border-collapse:collapse}th,td{text-align:left;padding:.2rem .8rem .2rem 0;vertical-align:top}
td.number{text-align:right;white-space:nowrap}
.swatch{display:inline-block;width:.9rem;height:.9rem;margin-right:.4rem;vertical-align:-.1rem}
svg{display:block;width:100%}
.bar svg{height:2rem}.row svg{height:1rem}.curve svg{height:10rem;border:1px solid var(--line)}
.row{display:grid;grid-template-columns:7.5rem 1fr;gap:.5rem;align-items:center;font-size:.85rem}
.ends{display:flex;justify-content:space-between;font-size:.85rem;color:var(--faint)}
.line{fill:none;stroke:var(--text);stroke-width:1.5;vector-effect:non-scaling-stroke}
.mark{stroke:var(--text);stroke-width:2;vector-effect:non-scaling-stroke}
dl{display:grid;grid-template-columns:minmax(6rem,max-content) 1fr;gap:.1rem 1rem;margin:.5rem 0}
dt{color:var(--faint)}dd{margin:0}
details{border-top:1px solid var(--line);padding:.4rem 0}summary{cursor:pointer}
summary:focus-visible{outline:2px solid var(--text)}
@media(max-width:40rem){dl{grid-template-columns:1fr}dt{margin-top:.4rem}.row{grid-template-columns:4.5rem 1fr}}
"""


def html_page(report: JobReport, cards: Mapping[int, FactPage], address: str, now: float) -> str:
    """Return the file's text. cards: by the number of the incident. now: Unix seconds, when it is made."""
    found = terminal.report_page(report, address)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"/>',
        f'<meta http-equiv="Content-Security-Policy" content="{_text(_POLICY)}"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/><meta name="color-scheme" content="light dark"/>',
        f"<title>{_text(found.title)}</title><style>{_variables()}{_STYLE}</style></head><body><main>",
        f"<h1>{_text(found.title)}</h1>",
        f'<p class="faint">Made {_text(_moment(now))}, from the journal of {_text(report.node)}.</p>',
        _facts(_without_states(found.facts)),
        _shares(report),
        _timeline(report),
        _curve(report, "Seconds for a step", "step-time", [(one, one.step_s) for run in report.runs for one in run.samples]),
        _curve(report, "Loss", "loss", [(one, one.loss) for run in report.runs for one in run.samples]),
        _incidents(report, cards),
        "</main></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _text(text: str) -> str:
    """Return foreign text as the content of an element or an attribute: cleaned, and nothing in it is markup."""
    return html.escape(_NO_CHARACTER.sub("?", clean(text)), quote=True)


def _variables() -> str:
    """Return the colours as CSS variables, for light and for dark."""
    rows = {**{state.value: colours for state, colours in COLOURS.items()}, **GROUND}
    light, dark = ("".join(f"--{name}:{colours[which]};" for name, colours in rows.items()) for which in (0, 1))
    return f":root{{color-scheme:light dark;{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"


def _moment(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(t))


def _without_states(facts: Iterable[Fact]) -> list[Fact]:
    """Return the facts without those that have a section of their own."""
    states = {label for label, _ in terminal.STATE_TEXTS.values()}
    return [fact for fact in facts if fact.label not in states]


def _facts(facts: Iterable[Fact]) -> str:
    """Return facts as a list of labels and texts; a label of "" goes on under the one before."""
    rows: list[tuple[str, list[str]]] = []
    for fact in facts:
        strong = f"<strong>{_text(fact.text)}</strong>" if fact.tone in {Tone.STRONG, Tone.BAD} else _text(fact.text)
        shown = f"<code>{_text(fact.text)}</code>" if fact.copied else strong
        if fact.label or not rows:
            rows.append((fact.label, [shown]))
        else:
            rows[-1][1].append(shown)
    lines = [f"<dt>{_text(label)}</dt><dd>{'<br/>'.join(texts)}</dd>" for label, texts in rows]
    return f"<dl>{''.join(lines)}</dl>"


def _shares(report: JobReport) -> str:
    """Return the states as one bar and as a table."""
    found = report.figures
    rows = [(state, took_s) for state, took_s in found.seconds.items() if took_s > 0]
    if not rows or found.wall_s <= 0:
        return ""
    at, shapes, lines = 0.0, [], []
    for state, took_s in rows:
        name, share = terminal.STATE_TEXTS[state][0], took_s / found.wall_s
        shapes.append(_rect(at, share * COLUMNS, state))
        at += share * COLUMNS
        swatch = f'<span class="swatch" style="background:var(--{state.value})" aria-hidden="true"></span>'
        lines.append(
            f'<tr><th scope="row">{swatch}{_text(name)}</th><td class="number">{100 * share:.1f} %</td>'
            f'<td class="number">{_text(span_text(took_s))}</td></tr>'
        )
    spoken = ", ".join(f"{terminal.STATE_TEXTS[state][0]} {100 * took_s / found.wall_s:.1f} %" for state, took_s in rows)
    return (
        '<section aria-labelledby="shares"><h2 id="shares">The wall clock</h2>'
        f'<div class="bar">{_drawing(shapes, spoken)}</div>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Time by state"><table><thead><tr><th scope="col">state</th>'
        f'<th scope="col">share</th><th scope="col">time</th></tr></thead><tbody>{"".join(lines)}</tbody></table></div></section>'
    )


def _rect(x: float, width: float, state: TimeState) -> str:
    return f'<rect x="{x:.2f}" y="0" width="{max(width, 0.2):.2f}" height="10" fill="var(--{state.value})"/>'


def _drawing(shapes: Iterable[str], spoken: str, *, height: int = 10) -> str:
    """Return shapes as a drawing that has a name for those who do not see it."""
    box = f"0 0 {COLUMNS} {height}"
    return f'<svg viewBox="{box}" preserveAspectRatio="none" role="img" aria-label="{_text(spoken)}">{"".join(shapes)}</svg>'


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
            f'<div class="row"><span>{_text(_row_name(report, keys[row * size : (row + 1) * size]))}</span>{_row(found, whole_s)}</div>'
        )
    first, last = report.runs[0], report.runs[-1]
    shared = f" Each row stands for up to {size} attempts." if size > 1 else ""
    gaps = " The time between two runs is left out." if len(report.runs) > 1 else ""
    return (
        '<section aria-labelledby="timeline"><h2 id="timeline">The attempts</h2>'
        f'<p class="faint">A row for each attempt, on one axis of time; colours as in the table.{shared}{gaps}</p>{"".join(rows)}'
        f'<div class="ends"><span>{_text(_moment(first.begin_t))}</span><span>{_text(_moment(last.end_t))}</span></div></section>'
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
            shapes.append(_rect(at_s * scale, span.took_s * scale, span.state))
        else:
            column = columns.setdefault(int(at_s * scale), {})
            column[span.state] = column.get(span.state, 0.0) + span.took_s
    shapes = [_rect(column, 1, max(found, key=lambda state: found[state])) for column, found in sorted(columns.items())] + shapes
    spoken = ", ".join(f"{terminal.STATE_TEXTS[state][0]} {span_text(took_s)}" for state, took_s in states.items())
    return _drawing(shapes, spoken)


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

    lines = [
        f'<polyline class="line" points="{" ".join(point(sample, value) for sample, value in part)}"/>'
        for _, part in groupby(known, key=lambda one: one[0].attempt)
    ]
    marks = [
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="94" y2="100"/>'
        for x in sorted({round(COLUMNS * (one.opened_t - begin_t) / wide, 1) for one in report.incidents[:MOST_POINTS]})
        if 0 <= x <= COLUMNS
    ]
    first, last = known[0][1], known[-1][1]
    spoken = f"{name}: {first:.4g} at first, {last:.4g} at last, between {values[0]:.4g} and {values[-1]:.4g}"
    clipped = f"; highest {values[-1]:.4g}" if values[-1] > high else ""
    return (
        f'<section class="curve" aria-labelledby="{key}"><h2 id="{key}">{_text(name)}</h2>'
        f'<div class="ends"><span>{_text(f"{high:.4g}{clipped}")}</span><span>{_text(f"at last {last:.4g}")}</span></div>'
        f"{_drawing([*lines, *marks], spoken, height=100)}"
        f'<div class="ends"><span>{_text(f"{low:.4g}, {_moment(begin_t)}")}</span><span>{_text(_moment(end_t))}</span></div>'
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
    rows = "".join(_card(one, cards) for one in shown)
    return f'<section aria-labelledby="incidents"><h2 id="incidents">Incidents</h2>{rows}{rest}</section>'


def _card(one: IncidentCost, cards: Mapping[int, FactPage]) -> str:
    page = cards.get(one.number)
    facts = page.facts if page is not None else (Fact("cause", one.summary), Fact("decision", one.action))
    head = f"{_moment(one.opened_t)}: {terminal.incident_text(one)}"
    return f"<details><summary>{_text(head)}</summary>{_facts(fact for fact in facts if fact.text)}</details>"
