"""The page of a job: well-formed, with nothing from outside, safe against what a job may print, bounded, and readable by everybody."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from supervisor.core.values import replace
from supervisor.report.html.charts import TimeAxis, ValueAxis
from supervisor.report.html.job_charts import MOST_ROWS, axis_of, goodput_chart, loss_chart, rate_chart, time_line
from supervisor.report.html.job_page import MOST_CARDS, MOST_CHECKPOINTS, MOST_LINES, JobPage, LogPart, job_page, state_of
from supervisor.report.html.render import STYLE, Live
from supervisor.report.layout import Fact, FactPage
from supervisor.report.ledger.figures import IncidentCost, JobReport, NodeShare, figures_of
from supervisor.report.ledger.page import report_facts
from supervisor.view.spans import PaceSample, RunLedger, SaveMark, TimeSpan, TimeState
from supervisor.view.status import HangStatus, LossCurve, RankStatus, StateWord, Status, SupervisorStatus

if TYPE_CHECKING:
    from supervisor.report.html.charts import Chart

T0 = 1_790_000_000.0
HOSTILE = (
    "</summary><script>alert('1')</script><img src=x onerror=\"y\"> & ]]> \x1b[31m\udcff\ufffe {{7*7}} \u202egnp.exe http://evil.example/"
)
INCIDENT = IncidentCost(
    number=1, run_id="run", opened_t=T0 + 40, attempt=1, cause="", summary=HOSTILE, rank=1, outcome="resolved", action=HOSTILE,
    planned=False, mttd_s=0.1, mttr_s=9.0, parts={}, lost_steps=5, lost_s=9.0, rank_hours=0.01, what=HOSTILE,
)  # fmt: skip
STATUS = Status(
    job="bert", node="gpu-7", run="run", state=StateWord.TRAINING, stage="running", attempt=3, step=10, step_relative=False, phase="train",
    ranks=(), incident=None, incidents=1, supervisor=SupervisorStatus(100, alive=True), state_dir="/state", now=T0 + 1000,
    steps_per_s=2.0, total_steps=110, eta_s=50.0,
)  # fmt: skip


def run_of(attempts: int) -> RunLedger:
    """Return a run in which each attempt takes 10 s and all states come up."""
    states = list(TimeState)
    spans, t = [], T0
    for number in range(attempts * 5):
        spans.append(TimeSpan(t, t + 2, states[number % len(states)], number // 5, 1, 8, number, number + 1))
        t += 2
    samples = [PaceSample(T0 + 2 * n, 1 + n // 5, n, 2.0 + n % 7, 1 / (n + 1)) for n in range(min(attempts * 5, 2000))]
    return RunLedger("run", T0, t, is_over=True, exit_code=0, attempts=attempts, spans=spans, samples=samples, reached=attempts, ranks=8)


def report_of(attempts: int = 3, incidents: int = 1, **more: object) -> JobReport:
    """Return a report on one run. more: other fields of its ledger."""
    run, costs = run_of(attempts), [replace(INCIDENT, number=n + 1, opened_t=T0 + n) for n in range(incidents)]
    for name, value in more.items():
        setattr(run, name, value)
    return JobReport("bert", "gpu-7", [run], costs, figures_of([run], costs), 1)


def text_of(report: JobReport | None, status: Status = STATUS, cards: dict[int, FactPage] | None = None, **more: object) -> str:
    return job_page(replace(JobPage(status, report, cards or {}, "--job bert"), **more), T0 + 1000).html


def tree_of(text: str) -> ET.Element:
    head, _, rest = text.partition("\n")
    assert head == "<!DOCTYPE html>"
    return ET.fromstring(rest)  # noqa: S314  our own text


def section(root: ET.Element, name: str) -> ET.Element:
    return next(element for element in root.iter("section") if element.get("id") == name)


def words_of(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


class Outside(HTMLParser):
    """Collects what would run, or be fetched, as a browser reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take one element."""
        if tag in {"script", "link", "iframe", "object", "embed", "img", "image", "use", "form", "a", "base", "foreignobject", "animate"}:
            self.elements.append(tag)
        names = {"style", "src", "href", "xlink:href", "srcset", "action"}
        self.elements += [f"{tag} {name}" for name, _ in attrs if name.startswith("on") or name in names]


@pytest.mark.parametrize(
    "cards", [{}, {1: FactPage(HOSTILE, (Fact(HOSTILE, HOSTILE), Fact("", HOSTILE), Fact("look", HOSTILE, copied=True)))}]
)
def test_the_output_of_a_job_is_shown_as_plain_text(cards: dict[int, FactPage]) -> None:
    status = replace(STATUS, job=HOSTILE, node=HOSTILE, warnings=(HOSTILE,), state_dir=HOSTILE, hang=HangStatus("late", HOSTILE, (), 9.0))
    part = LogPart(HOSTILE, (HOSTILE, "\x00\x1b]0;x\x07"))
    text = text_of(report_of(), status, cards, problems=(HOSTILE,), error=part, log=part)
    text.encode("utf-8")
    root = tree_of(text)
    outside = Outside()
    outside.feed(text)
    assert outside.elements == []
    details = {element.get("id"): "".join(element.itertext()) for element in root.iter("details")}
    assert details.keys() == {"incident-1", "error-lines", "log-lines"}
    assert all("<script>alert('1')</script>" in detail for detail in details.values())
    assert not {"\x1b", "\u202e", "\x00"} & set(text)


def test_the_state_and_the_incidents_come_before_all_figures() -> None:
    root = tree_of(text_of(report_of(), log=LogPart("rank 0", ("step 9", "step 10"))))
    names = [element.get("id") for element in root.iter("section")]
    assert names == ["state", "tiles", "incidents", "time", "figures", "details", "log", "made"]
    assert words_of(section(root, "state")).startswith("training As of 2026-")
    assert "10 of 110" in words_of(section(root, "tiles"))
    assert "about 50 s left" in words_of(section(root, "tiles"))
    assert "step 9 step 10" in words_of(section(root, "log"))


def test_the_last_output_of_a_failed_rank_is_unfolded() -> None:
    part = LogPart("rank 1", ("KeyError: 'label_ids'",))
    for status, is_open in ((STATUS, None), (replace(STATUS, state=StateWord.FAILED, exit_code=65), "open")):
        shown = section(tree_of(text_of(report_of(), status, error=part)), "error")
        assert [element.get("open") for element in shown.iter("details")] == [is_open]
        assert "KeyError: 'label_ids'" in words_of(shown)


@pytest.mark.parametrize(("outcome", "state"), [("open", StateWord.RESTARTING), ("given_up", StateWord.FAILED)])
def test_the_incident_that_holds_the_job_up_or_ended_it_is_the_first_and_its_card_is_there(outcome: str, state: StateWord) -> None:
    report = report_of(incidents=60)
    report.incidents[-1] = replace(report.incidents[-1], outcome=outcome, lost_s=0.0, what="A process was killed")
    cards = {60: FactPage("incident 60", (Fact("what", "A process was killed"), Fact("do", "nothing: it continues")))}
    element = section(tree_of(text_of(report, replace(STATUS, state=state), cards)), "incidents")
    first = element[1]
    assert (first.tag, first.get("id")) == ("div", "incident-60")
    assert words_of(first).startswith(outcome.replace("_", " "))
    assert "rank 1: A process was killed" in words_of(first)
    assert "nothing: it continues" in words_of(first)
    assert len(list(element.iter("details"))) == MOST_CARDS, "the others, and what holds those that are older"


def test_the_state_of_a_job_is_described_with_a_helpful_command() -> None:
    supervisor_status = SupervisorStatus(100, alive=None)
    hung = replace(STATUS, state=StateWord.HUNG, hang=HangStatus("late", "rank 1 is in main (train.py:65)", (1,), 1000.0))
    cases = {
        STATUS: ("training", "good"),
        replace(STATUS, run="", state=StateWord.NO_RUN): ("no run yet", "faint"),
        replace(STATUS, warnings=("loss is nan",)): ("training", "warning"),
        replace(STATUS, incident=1, state=StateWord.RESTARTING): ("restarting", "warning"),
        hung: ("hung", "bad"),
        replace(STATUS, state=StateWord.DIED, supervisor=SupervisorStatus(100, alive=False)): ("supervise died", "bad"),
        replace(STATUS, supervisor=supervisor_status): ("training, not visible from here", "faint"),
        replace(STATUS, state=StateWord.DONE, exit_code=0): ("done", "good"),
        replace(STATUS, state=StateWord.FAILED, exit_code=1): ("failed, exit code 1", "bad"),
        replace(STATUS, state=StateWord.STOPPED, exit_code=143): ("stopped, exit code 143", "warning"),
    }
    assert {status: state_of(status) for status in cases} == cases
    for status, (word, _) in cases.items():
        assert words_of(section(tree_of(text_of(report_of(), status)), "state")).startswith(word)
    banner = words_of(section(tree_of(text_of(report_of(), hung)), "state"))
    assert "No progress for 17 min: rank 1 is in main (train.py:65). supervise status --stacks --job bert" in banner
    failed = next(status for status in cases if status.exit_code == 1)
    assert "supervise why --job bert" in words_of(section(tree_of(text_of(report_of(), failed)), "state"))


def test_every_fact_of_the_terminals_page_is_on_the_page() -> None:
    report = report_of(10, 4, saves=[SaveMark(T0 + 5, 1), SaveMark(T0 + 25, 1)])
    labels = [element.text for element in tree_of(text_of(report)).iter("dt")]
    facts = report_facts(report, "--job bert")
    assert {fact.label for fact in facts if fact.label} <= set(labels)
    assert "advice" in labels
    assert "save every" in "".join(fact.text for fact in facts)


def test_every_chart_and_table_has_words_and_every_id_is_there_once() -> None:
    ranks = (RankStatus(0, 0, 100, 10, "train", 0, 1 << 30), RankStatus(1, 1, 101, 8, "unknown", 2, None))
    saves = [SaveMark(T0 + 5, 1, 10), SaveMark(T0 + 6, 1, 10, is_mirrored=True)]
    text = text_of(report_of(saves=saves), replace(STATUS, ranks=ranks))
    root = tree_of(text)
    assert root.get("lang") == "en"
    drawings = [element for element in root.iter("svg") if element.get("aria-hidden") != "true"]
    assert len(drawings) == len(list(root.iter("figure"))) == 4
    assert all(drawing.get("role") == "img" and drawing.get("aria-label") for drawing in drawings)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert sorted(ids) == sorted(set(ids))
    assert {element.get("aria-labelledby") for element in root.iter("section") if not element.get("aria-label")} <= set(ids)
    assert all(cell.get("scope") in {"row", "col"} for cell in root.iter("th"))
    assert [len(list(table.iter("caption"))) for table in root.iter("table")] == [1, 1, 1]
    assert [element.tag for element in root.iter() if re.fullmatch("h[1-6]", element.tag)][:2] == ["h1", "h2"]
    names = {name for row in root.iter("tr") for name in row.itertext()}
    assert {"new steps", "steps made again", "unaccounted"} <= names
    assert "1.0 GiB" in words_of(section(root, "ranks"))
    heads = [cell.text for cell in section(root, "ranks").iter("th") if cell.get("scope") == "col"]
    assert "memory" in heads
    assert "waits for" not in heads, "no rank does"
    assert "prefers-color-scheme:dark" in text
    assert "width=device-width" in text
    visible = " ".join(words_of(element) for element in section(root, "time").iter("svg"))
    assert not {state.value for state in TimeState if "_" in state.value} & set(visible.split()), "no names of the code"


def test_a_page_loads_no_outside_resources_but_those_of_a_served_page() -> None:
    assert "http" not in text_of(report_of(incidents=0)).replace("http-equiv", "")
    served = job_page(
        JobPage(STATUS, report_of(), {}, "--job bert"), T0, Live("../../live.js", "../.././", T0), other_runs="gpu-7?runs=all"
    )
    outside = Outside()
    outside.feed(served.html)
    assert outside.elements == ["link", "link href", "script", "script src", "a", "a href", "a", "a href"]
    assert "As of" not in words_of(section(tree_of(served.html), "state")), "its head says it, so that its version stays"
    again = job_page(
        JobPage(STATUS, report_of(), {}, "--job bert"), T0 + 5, Live("../../live.js", "../.././", T0 + 5), other_runs="gpu-7?runs=all"
    )
    assert again.version == served.version


def colours(which: str) -> dict[str, str]:
    """Return the colours of the style: of light, or of dark, by their names."""
    light, dark = re.findall(r":root\{([^}]*)\}", STYLE)
    return dict(re.findall(r"--([\w-]+):(#[0-9a-f]{6})", light if which == "light" else dark))


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(text: str, other: str) -> float:
    low, high = sorted((luminance(text), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("which", ["light", "dark"])
def test_every_colour_stands_out(which: str) -> None:
    known = colours(which)
    assert known.keys() >= {state.value for state in TimeState}
    assert colours("light").keys() == colours("dark").keys()
    for ground in (known["ground"], known["panel"]):
        assert {state.value for state in TimeState if contrast(known[state.value], ground) < 3} == set()
        assert contrast(known["line"], ground) >= 3
        texts = ("text", "faint", "good", "warning", "bad", "link")
        assert [name for name in texts if contrast(known[name], ground) < 4.5] == []
    assert contrast("#ffffff", "#000000") == pytest.approx(21)


def test_five_thousand_attempts_are_one_page_that_a_browser_can_show() -> None:
    saves = [SaveMark(T0 + 10 * n, n, n, is_mirrored=n % 2 == 1) for n in range(5000)]
    text = text_of(report_of(5000, 5000, saves=saves))
    root = tree_of(text)
    assert len(list(root.iter("details"))) == MOST_CARDS + 1
    assert len([element for element in section(root, "incidents") if element.tag == "details"]) == MOST_LINES + 1
    assert len(list(section(root, "checkpoints").iter("tr"))) == MOST_CHECKPOINTS + 1
    assert len(list(root.iter("rect"))) < 2500
    assert len(list(root.iter("g"))) < 600
    assert len(list(root.iter())) < 12_000
    assert len(text) < 400_000
    assert "Each row is up to 125 attempts" in text


def drawn(chart: Chart | None) -> Chart:
    assert chart is not None
    return chart


def test_the_time_line_covers_the_wall_clock_with_a_row_for_each_attempt_between_incidents_and_saves() -> None:
    report = report_of(3, saves=[SaveMark(T0 + 5, 1, 7), SaveMark(T0 + 15, 2, 14), SaveMark(T0 + 16, 2, 14, is_mirrored=True)])
    chart = drawn(time_line(report, axis_of(report)))
    assert sum(band.width for band in chart.bands) == pytest.approx(100, abs=0.1)
    names = [tick.text for tick in chart.y_ticks]
    assert names == ["incidents", "attempt 1", "attempt 2", "verified", "mirrored"], "what is before the first attempt belongs to it"
    assert [(mark.kind, round(mark.x, 1)) for mark in chart.marks] == [
        ("incident", 0.0),
        ("verified", 16.7),
        ("verified", 50.0),
        ("mirrored", 53.3),
    ]
    assert "step 7, verified at" in chart.marks[1].text
    many = report_of(5000)
    assert len(drawn(time_line(many, axis_of(many))).y_ticks) == MOST_ROWS + 1


def test_the_goodput_over_time_fills_each_bar_with_the_states_of_its_time() -> None:
    spans = [
        TimeSpan(T0, T0 + 50, TimeState.PRODUCTIVE),
        TimeSpan(T0 + 50, T0 + 75.5, TimeState.REWORK),
        TimeSpan(T0 + 75.5, T0 + 100, TimeState.WAITING),
    ]
    run = RunLedger("run", T0, T0 + 100, spans=spans)
    report = JobReport("bert", "gpu-7", [run], [], figures_of([run], []), 1)
    chart = drawn(goodput_chart(report, axis_of(report)))
    rows = [(band.kind, round(band.x), round(band.width), round(band.y), round(band.height)) for band in chart.bands]
    assert rows == [
        ("productive", 0, 50, 0, 100),
        ("rework", 50, 25, 0, 100),
        ("rework", 75, 1, 50, 50),
        ("waiting", 75, 1, 0, 50),
        ("waiting", 76, 24, 0, 100),
    ]
    assert [entry.text for entry in chart.legend] == ["new steps", "steps made again", "waiting"]
    assert "new steps 50.0 %" in chart.spoken


def test_a_curve_breaks_between_attempts_and_without_samples_there_is_none() -> None:
    report = report_of(3)
    axis = axis_of(report)
    assert [len(drawn(chart).lines) for chart in (rate_chart(report, axis), loss_chart(report, axis))] == [3, 3]
    alone = [PaceSample(T0, 1, 1, 1.0), PaceSample(T0 + 1, 2, 2, 3.0), PaceSample(T0 + 2, 2, 3, 2.0)]
    text = text_of(report_of(2, samples=alone))
    shown = [(line.get("class"), len((line.get("points") or "").split())) for line in tree_of(text).iter("polyline")]
    assert shown == [("line point", 2), ("line", 2)]
    empty = report_of(1, samples=[], spans=[TimeSpan(T0, T0 + 1, TimeState.START_AND_LOAD)])
    assert not list(tree_of(text_of(empty)).iter("polyline"))


def test_a_loss_that_is_no_number_is_shown_and_an_outlier_does_not_flatten_the_rest() -> None:
    samples = [PaceSample(T0 + n, 1, n, None, 1e6 if n == 0 else 2.0 + n / 100) for n in range(100)]
    report = report_of(20, 0, samples=[*samples, PaceSample(T0 + 50.5, 1, 50, is_finite=False)])
    chart = drawn(loss_chart(report, axis_of(report)))
    assert [mark.kind for mark in chart.marks] == ["nan"]
    assert [len(line) for line in chart.lines] == [51, 49], "with a gap there"
    assert "not a number, or infinite (step 50)" in chart.note
    assert "not a number, or infinite, at step 50" in chart.spoken
    assert "The highest was 1e+06." in chart.note
    assert [tick.text for tick in chart.y_ticks] == ["2", "2.5", "3"]


@pytest.mark.parametrize(
    ("low", "high", "first", "last"),
    [
        (10.8231, 10.8239, "10.823", "10.824"),
        (2.30258, 2.30259, "2.30258", "2.30259"),
        (123456.1, 123456.4, "123456.1", "123456.4"),
        (1e16, 1e16 + 2, "1e+16", "1.0000000005e+16"),
        (-5.0, -5.0, "-6", "-4"),
        (0.0, 5e-324, "0", "0.5"),
        (-1.7e308, 1.7e308, "-1e+300", "1e+300"),
        (1.7e308, 1.7e308, "1e+300", "1.5e+300"),
        (0.0001, 12345678.0, "0", "1.5e+07"),
    ],
)
def test_the_ticks_of_an_axis_differ_and_all_values_lie_on_it(low: float, high: float, first: str, last: str) -> None:
    axis = ValueAxis(low, high)
    texts = [tick.text for tick in axis.ticks()]
    assert (texts[0], texts[-1]) == (first, last)
    assert 2 <= len(set(texts)) == len(texts) <= 8
    assert all(0 <= axis.at(value) <= 100 for value in (low, high))


def test_a_run_that_is_too_young_for_a_curve_shows_the_losses_of_its_log() -> None:
    young = replace(STATUS, loss=LossCurve((4.0, 2.0, 1.0), 1, 3, "log"))
    text = text_of(report_of(samples=[]), young)
    (line,) = tree_of(text).iter("polyline")
    assert line.get("points") == "0.0,0.0 500.0,666.7 1000.0,1000.0"
    assert "Loss: 4 at first, 1 at last" in text


@pytest.mark.parametrize(("wall_s", "first"), [(40, "%H:%M:%S"), (7000, "%H:%M"), (200_000, "%d %b %H:%M"), (90 * 86400, "%d %b")])
def test_the_axis_of_time_has_round_ticks_and_a_zone(wall_s: float, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    report = report_of(1, end_t=T0 + wall_s)
    axis = axis_of(report)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 6
    forms = {"%H:%M:%S": r"\d\d:\d\d:\d\d", "%H:%M": r"\d\d:\d\d", "%d %b %H:%M": r"\d\d \w+ \d\d:\d\d", "%d %b": r"\d\d \w+"}
    assert all(re.fullmatch(forms[first], tick.text) for tick in ticks)
    assert "(+0000)" in axis.title


def test_a_day_begins_at_midnight_in_summer_and_in_winter_and_a_run_over_new_year_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        for begin in (
            datetime(2026, 10, 23, 12, tzinfo=UTC),
            datetime(2026, 3, 27, 12, tzinfo=UTC),
            datetime(2026, 12, 30, 12, tzinfo=UTC),
        ):
            begin_t = begin.timestamp()
            axis = TimeAxis([(begin_t, begin_t + 5 * 86400)])
            days = [(begin + timedelta(days)).strftime("%d %b") for days in range(1, 6)]
            assert [tick.text for tick in axis.ticks()] == days
            hours = [datetime.fromtimestamp(begin_t + tick.at / 100 * axis.whole_s + 1, UTC).astimezone().hour for tick in axis.ticks()]
            assert hours == [0] * 5
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_clock_that_was_wrong_by_decades_fills_no_axis_with_ticks() -> None:
    ticks = TimeAxis([(1000.0, T0)]).ticks()
    assert 3 <= len(ticks) <= 6
    assert [int(tick.text) for tick in ticks] == sorted({int(tick.text) for tick in ticks})


def test_several_runs_share_an_axis_without_the_time_between_them() -> None:
    first, second = run_of(2), replace_run(run_of(2), 5000.0)
    report = JobReport("bert", "gpu-7", [first, second], [], figures_of([first, second], []), 2)
    axis = axis_of(report)
    assert (axis.whole_s, axis.at(second.begin_t)) == (40.0, 50.0)
    assert [tick.at for tick in axis.ticks()] == [0.0, 50.0]
    assert "left out" in axis.title
    assert sum(band.width for band in drawn(time_line(report, axis)).bands) == pytest.approx(100, abs=0.1)


def replace_run(run: RunLedger, later_s: float) -> RunLedger:
    """Return the same run, later."""
    spans = [replace(span, begin_t=span.begin_t + later_s, end_t=span.end_t + later_s) for span in run.spans]
    return replace(run, run_id="later", begin_t=run.begin_t + later_s, end_t=run.end_t + later_s, spans=spans)


def test_a_job_of_several_nodes_has_the_attempts_of_each() -> None:
    report = report_of()
    report.nodes = [NodeShare("gpu-7", [1, 2, 3], []), NodeShare("gpu-8", [2, 3], [4]), NodeShare("gpu-9", [1])]
    rows = [words_of(row) for row in section(tree_of(text_of(report)), "nodes").iter("tr")]
    assert rows[1:] == ["gpu-7 1-3", "gpu-8 2, 3 4", "gpu-9 1 its journal is not here"]
    report.nodes = [NodeShare(f"gpu-{number:04d}", [1, 2] if number == 500 else [1, 2, 3]) for number in range(1000)]
    assert [row.text for row in section(tree_of(text_of(report)), "nodes").iter("caption")] == [
        "1 of the 1000 nodes; --json has all of them"
    ]


def test_a_job_without_a_run_says_so() -> None:
    text = text_of(None, replace(STATUS, run="", attempt=0, state=StateWord.NO_RUN))
    assert "No run is recorded yet" in text
    assert not list(tree_of(text).iter("figure"))
