"""The charts of a job's page: goodput over time, the time line, the step rate and the loss. Pure."""

from __future__ import annotations

from bisect import bisect_right
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from supervisor.core.units import span_text
from supervisor.job.local_time import second_text
from supervisor.report import wording
from supervisor.report.html.charts import Band, Chart, LegendEntry, Mark, Tick, TimeAxis, ValueAxis
from supervisor.report.ledger.page import LEAST_S, STATE_TEXTS, incident_text, percent_text
from supervisor.view.spans import TimeState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.report.ledger.figures import JobReport
    from supervisor.view.spans import PaceSample, SaveMark, TimeSpan
    from supervisor.view.status import LossCurve

#: Bars of the goodput; rows of attempts in the time line; points of a curve; columns in which a row is drawn, and a lane of marks.
BARS, MOST_ROWS, MOST_POINTS, COLUMNS, MARK_COLUMNS = 100, 40, 600, 400, 150
#: The height of a row, and of one where there are many.
_ROW_PX, _LOW_ROW_PX, _MANY_ROWS = 22, 15, 12
#: With more incidents a curve has short marks at its foot. A note names so many steps.
_MOST_TALL_MARKS, _MOST_STEPS = 30, 5
#: The share of the values by which a curve is scaled: a rare outlier must not flatten the rest.
_USUAL = 0.98


def axis_of(report: JobReport) -> TimeAxis:
    """Return the axis of time that the charts share."""
    return TimeAxis([(run.begin_t, run.end_t) for run in report.runs])


def shares_text(seconds: dict[TimeState, float]) -> str:
    """Return what a time was spent with, in words."""
    whole_s = sum(seconds.values())
    return ", ".join(f"{STATE_TEXTS[state][0]} {percent_text(took_s / whole_s)}" for state, took_s in seconds.items() if took_s > 0)


def goodput_chart(report: JobReport, axis: TimeAxis) -> Chart | None:
    """Return what the time was spent with, over time: each bar is a hundredth of it. None where no time is recorded."""
    if axis.whole_s <= 0:
        return None
    bar_s = axis.whole_s / BARS
    bars: list[dict[TimeState, float]] = [{} for _ in range(BARS)]
    for number, run in enumerate(report.runs):
        for span in run.spans:
            begin_s, end_s = axis.seconds(span.begin_t, number), axis.seconds(span.end_t, number)
            for place in range(int(begin_s / bar_s), min(BARS - 1, int(end_s / bar_s)) + 1):
                took_s = min(end_s, (place + 1) * bar_s) - max(begin_s, place * bar_s)
                if took_s > 0:
                    bars[place][span.state] = bars[place].get(span.state, 0.0) + took_s
    bands: list[Band] = []
    done = 0
    for bar, alike in groupby(bars):  # neighbours that are alike are one
        wide = len(list(alike))
        top, whole_s = 100.0, sum(bar.values())
        for state in TimeState:
            if share := bar.get(state, 0.0) / whole_s if whole_s else 0.0:
                top -= 100 * share
                text = f"{STATE_TEXTS[state][0]} {100 * share:.0f} %"
                bands.append(Band(state.value, 100 * done / BARS, 100 * wide / BARS, top, 100 * share, text))
        done += wide
    there = [state for state in TimeState if report.figures.seconds.get(state, 0.0) >= LEAST_S]
    return Chart(
        caption="What the time was spent with",
        spoken=f"Share of each state over {span_text(axis.whole_s)}. In all: {shares_text(report.figures.seconds)}",
        height=180,
        x_title=axis.title,
        y_title="share of the time (%)",
        x_ticks=axis.ticks(),
        y_ticks=tuple(Tick(100 - share, f"{share}") for share in (0, 50, 100)),
        bands=tuple(bands),
        legend=tuple(LegendEntry(state.value, STATE_TEXTS[state][0]) for state in there),
        note=f"Each bar is {span_text(bar_s)}.",
        is_wide=True,
    )


def time_line(report: JobReport, axis: TimeAxis) -> Chart | None:
    """Return a row for each attempt, or for several, between the incidents and the checkpoints. None where no time is recorded."""
    spans = [(number, max(span.attempt, 1), span) for number, run in enumerate(report.runs) for span in run.spans]
    if not spans or axis.whole_s <= 0:
        return None
    keys = list(dict.fromkeys((number, attempt) for number, attempt, _ in spans))
    size = -(-len(keys) // MOST_ROWS)
    row_of = {key: place // size for place, key in enumerate(keys)}
    names = [_row_name(report, keys[place : place + size]) for place in range(0, len(keys), size)]
    marks = {
        "incident": _incident_marks(report, axis),
        "verified": _save_marks(report, axis, is_mirrored=False),
        "mirrored": _save_marks(report, axis, is_mirrored=True),
    }
    lanes = [*(["incidents"] if marks["incident"] else []), *names]
    lanes += [name for name, kind in (("verified", "verified"), ("mirrored", "mirrored")) if marks[kind]]
    first, tall = len(marks["incident"]) > 0, 100 / len(lanes)
    bands: list[Band] = []
    for row, members in groupby(spans, key=lambda member: row_of[member[:2]]):
        bands += _row(list(members), axis, (row + first + 0.15) * tall, 0.7 * tall)
    placed = {"incident": 0, "verified": len(names) + first, "mirrored": len(names) + first + bool(marks["verified"])}
    shared = f" Each row is up to {size} attempts, by their numbers." if size > 1 else ""
    dots = "; dots are incidents, and checkpoints that were verified, or that a mirror held" if any(marks.values()) else ""
    runs = " A row is named by its run and its attempts." if len(report.runs) > 1 else ""
    counts = [f"{len(report.incidents)} incidents", f"{report.figures.attempts} attempts"]
    return Chart(
        caption="Attempts, incidents and checkpoints",
        spoken=f"Time line of {' and '.join(counts)}. {'; '.join(incident_text(incident) for incident in report.incidents[-10:])}",
        height=(_LOW_ROW_PX if len(lanes) > _MANY_ROWS else _ROW_PX) * len(lanes),
        x_title=axis.title,
        x_ticks=axis.ticks(),
        y_ticks=tuple(Tick((lane + 0.5) * tall, name) for lane, name in enumerate(lanes)),
        bands=tuple(bands),
        marks=tuple(
            Mark(kind, x, text, (placed[kind] + 0.5) * tall, (placed[kind] + 0.5) * tall) for kind, row in marks.items() for x, text in row
        ),
        note=f"Colours as above{dots}.{shared}{runs}",
        is_wide=True,
    )


def _row_name(report: JobReport, keys: Sequence[tuple[int, int]]) -> str:
    (run, first), (_, last) = keys[0], keys[-1]
    if len(report.runs) > 1:
        return f"run {run + 1}: {first}" if first == last else f"{run + 1}: {first}-{last}"  # a phone has room for nine characters
    return f"attempt {first}" if first == last else f"{first}-{last}"


def _row(spans: Sequence[tuple[int, int, TimeSpan]], axis: TimeAxis, y: float, height: float) -> list[Band]:
    """Return one row: neighbours that are narrower than a column are drawn as the one of them that took longest."""
    column_s = axis.whole_s / COLUMNS
    columns: dict[int, dict[TimeState, float]] = {}
    wide: list[Band] = []
    for number, attempt, span in spans:
        left_s = axis.seconds(span.begin_t, number)
        if span.took_s >= column_s:
            text = f"attempt {attempt}: {STATE_TEXTS[span.state][0]}, {span_text(span.took_s)}"
            wide.append(Band(span.state.value, 100 * left_s / axis.whole_s, 100 * span.took_s / axis.whole_s, y, height, text))
        else:
            column = columns.setdefault(int(left_s / column_s), {})
            column[span.state] = column.get(span.state, 0.0) + span.took_s
    narrow = []
    for place, seconds in sorted(columns.items()):
        state = max(seconds, key=lambda known: seconds[known])
        narrow.append(Band(state.value, 100 * place / COLUMNS, 100 / COLUMNS, y, height, f"mostly {STATE_TEXTS[state][0]}"))
    return narrow + wide


def _incident_marks(report: JobReport, axis: TimeAxis) -> list[tuple[float, str]]:
    parts = {run.run_id: number for number, run in enumerate(report.runs)}
    return _merged(
        ((axis.at(incident.opened_t, parts.get(incident.run_id)), incident_text(incident)) for incident in report.incidents), "incidents"
    )


def _save_marks(report: JobReport, axis: TimeAxis, *, is_mirrored: bool) -> list[tuple[float, str]]:
    saves = ((number, save) for number, run in enumerate(report.runs) for save in run.saves if save.is_mirrored == is_mirrored)
    return _merged(((axis.at(save.t, number), save_text(save)) for number, save in saves), "checkpoints")


def save_text(save: SaveMark) -> str:
    """Return what a mark of a checkpoint says."""
    step = wording.step_text(save.step) if save.step is not None else "step unknown"
    return f"{step}, {'in the mirror' if save.is_mirrored else 'verified'} at {second_text(save.t)}"


def _merged(marks: Iterable[tuple[float, str]], name: str) -> list[tuple[float, str]]:
    """Return marks of which those in one column are one."""
    columns: dict[int, list[tuple[float, str]]] = {}
    for x, text in marks:
        columns.setdefault(int(x * MARK_COLUMNS / 100), []).append((x, text))
    return [(row[0][0], row[0][1] if len(row) == 1 else f"{len(row)} {name}") for row in columns.values()]


def rate_chart(report: JobReport, axis: TimeAxis) -> Chart | None:
    """Return the steps per second over time; of slow ones the steps per hour. None where too little is recorded."""
    rows = [(sample, 1 / sample.step_s) for sample in _samples(report) if sample.step_s]
    scale, unit = (3600.0, "steps per hour") if rows and median(value for _, value in rows) < 0.1 else (1.0, "steps per second")  # noqa: PLR2004
    return _curve(report, axis, "Step rate", unit, [(sample, scale * value) for sample, value in rows], from_zero=True)


def loss_chart(report: JobReport, axis: TimeAxis) -> Chart | None:
    """Return the loss over time, with a mark where it was not finite. None where too little is recorded."""
    return _curve(report, axis, "Loss", "loss", [(sample, sample.loss) for sample in _samples(report) if sample.loss is not None])


def newest_losses_chart(curve: LossCurve | None) -> Chart | None:
    """Return the newest losses of the log, of a run that is too young for a curve over time. None where there are none."""
    if curve is None or curve.first_step is None or curve.last_step is None:
        return None
    low, high = min(curve.values), max(curve.values)
    scale, last = ValueAxis(low, high), len(curve.values) - 1
    line = tuple((1000 * place / last, 10 * scale.at(value)) for place, value in enumerate(curve.values))
    return Chart(
        caption=f"Loss, {curve.values[-1]:.4g} at last",
        spoken=f"Loss: {curve.values[0]:.4g} at first, {curve.values[-1]:.4g} at last, between {low:.4g} and {high:.4g}",
        x_title="step",
        y_title="loss",
        x_ticks=(Tick(0.0, f"{curve.first_step:,}"), Tick(100.0, f"{curve.last_step:,}")),
        y_ticks=scale.ticks(),
        lines=(line,),
        note="The newest losses that the log shows.",
    )


def _samples(report: JobReport) -> list[PaceSample]:
    return [sample for run in report.runs for sample in run.samples]


def _curve(  # noqa: PLR0913  all that differs
    report: JobReport, axis: TimeAxis, name: str, unit: str, rows: Sequence[tuple[PaceSample, float]], *, from_zero: bool = False
) -> Chart | None:
    """Return a curve over time, with a gap between two attempts, and where a value was not finite."""
    bad = [] if from_zero else [sample for sample in _samples(report) if not sample.is_finite]
    if len(rows) < 2 or axis.whole_s <= 0:  # noqa: PLR2004  one point is not a curve
        return None
    bad_t = sorted(sample.t for sample in bad)
    values = sorted(value for _, value in rows)
    low, high = values[0], values[min(len(values) - 1, int(_USUAL * len(values)))]
    scale = ValueAxis(min(low, 0.0) if from_zero else low, high)
    shown = rows[:: -(-len(rows) // MOST_POINTS)]
    lines = [
        tuple((10 * axis.at(sample.t), 10 * scale.at(value)) for sample, value in stretch)
        for _, stretch in groupby(shown, key=lambda row: (row[0].attempt, axis.part(row[0].t), bisect_right(bad_t, row[0].t)))
    ]
    incidents = _incident_marks(report, axis)
    steps = ", ".join(f"step {sample.step}" for sample in bad[:_MOST_STEPS])
    steps += f" and {len(bad) - _MOST_STEPS} more" if bad[_MOST_STEPS:] else ""
    top = 0.0 if len(incidents) <= _MOST_TALL_MARKS else 94.0
    marks = [Mark("incident", x, text, top, has_head=False) for x, text in incidents]
    marks += [Mark("nan", axis.at(sample.t), f"not a number, or infinite, at step {sample.step}", 4.0, 4.0) for sample in bad]
    notes = [f"The highest was {values[-1]:.4g}." if values[-1] > scale.high else ""]
    notes += [
        "Dashed lines are incidents." if marks and top == 0 and incidents else "Marks at the foot are incidents." if incidents else ""
    ]
    notes += [f"Red dots at the top: the {name.lower()} was not a number, or infinite ({steps})." if bad else ""]
    spoken = f"{name}: {rows[0][1]:.4g} at first, {rows[-1][1]:.4g} at last, between {values[0]:.4g} and {values[-1]:.4g} {unit}"
    return Chart(
        caption=f"{name}, {rows[-1][1]:.3g} at last",
        spoken=spoken + (f"; not a number, or infinite, at {steps}" if bad else ""),
        x_title=axis.title,
        y_title=unit,
        x_ticks=axis.ticks(),
        y_ticks=scale.ticks(),
        lines=tuple(lines),
        marks=tuple(marks),
        note=" ".join(filter(None, notes)),
    )
