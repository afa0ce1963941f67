"""The report as one file: well-formed, with nothing from outside, safe against what a job may print, and readable by everybody."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from supervisor.report.layout import Fact, FactPage
from supervisor.report.ledger.figures import IncidentCost, JobReport, figures_of
from supervisor.report.ledger.html_page import MOST_CARDS, MOST_ROWS, html_page
from supervisor.report.ledger.html_parts import COLOURS, GROUND
from supervisor.report.ledger.page import STATE_TEXTS, report_page
from supervisor.report.ledger.spans import PaceSample, RunLedger, TimeSpan, TimeState

T0 = 1_790_000_000.0
HOSTILE = (
    "</summary><script>alert('1')</script><img src=x onerror=\"y\"> & ]]> \x1b[31m\udcff\ufffe {{7*7}} \u202egnp.exe http://evil.example/"
)
INCIDENT = IncidentCost(
    number=1, run_id="run", opened_t=T0 + 40, attempt=1, cause="", summary=HOSTILE, rank=1, outcome="resolved", action=HOSTILE,
    planned=False, mttd_s=0.1, mttr_s=9.0, parts={}, lost_steps=5, lost_s=9.0, rank_hours=0.01,
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


def made(attempts: int = 3, incidents: int = 1, job: str = "bert", cards: dict[int, FactPage] | None = None) -> str:
    run, costs = run_of(attempts), [replace(INCIDENT, number=n + 1, opened_t=T0 + n) for n in range(incidents)]
    report = JobReport(job, "gpu-7", [run], costs, figures_of([run], costs), 1)
    return html_page(report, cards or {}, f"--job {job}", T0 + 1000)


def tree_of(text: str) -> ET.Element:
    head, _, rest = text.partition("\n")
    assert head == "<!DOCTYPE html>"
    return ET.fromstring(rest)  # noqa: S314  our own text


class Outside(HTMLParser):
    """Collects what would run, or be fetched, as a browser reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take one element."""
        if tag in {"script", "link", "iframe", "object", "embed", "img", "image", "use", "form", "a", "base", "foreignobject", "animate"}:
            self.found.append(tag)
        names = {"style", "src", "href", "xlink:href", "srcset", "action"}
        self.found += [f"{tag} {name}" for name, _ in attrs if name.startswith("on") or name in names]


@pytest.mark.parametrize(
    "cards", [{}, {1: FactPage(HOSTILE, (Fact(HOSTILE, HOSTILE), Fact("", HOSTILE), Fact("look", HOSTILE, copied=True)))}]
)
def test_what_a_job_printed_is_text_and_nothing_else(cards: dict[int, FactPage]) -> None:
    text = made(job=HOSTILE, cards=cards)
    text.encode("utf-8")
    root = tree_of(text)
    outside = Outside()
    outside.feed(text)
    assert outside.found == []
    (details,) = root.iter("details")
    assert "<script>alert('1')</script>" in "".join(details.itertext())
    assert not {"\x1b", "\u202e"} & set(text)


def test_every_fact_of_the_terminals_page_but_the_states_is_on_the_page() -> None:
    run = replace(run_of(10), saves_t=[(1, T0 + 5), (1, T0 + 25)])
    costs = [replace(INCIDENT, number=n, opened_t=T0 + n) for n in range(1, 5)]
    report = JobReport("bert", "gpu-7", [run], costs, figures_of([run], costs), 1)
    labels = [element.text for element in tree_of(html_page(report, {}, "--job bert", T0)).iter("dt")]
    shown = report_page(report, "--job bert")
    states = {label for label, _ in STATE_TEXTS.values()}
    assert {fact.label for fact in shown.facts if fact.label} - states <= set(labels)
    assert "advice" in labels
    assert "save every" in "".join(fact.text for fact in shown.facts)


def test_nothing_comes_from_outside_and_nothing_may() -> None:
    text = made()
    style = "".join(element.text or "" for element in tree_of(text).iter("style"))
    assert not re.search(r"url\(|@import|expression|//", style)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src &#x27;none&#x27;; style-src &#x27;sha256-{digest}&#x27;;" in text, "no other style than the page's own"
    assert "http" not in made(incidents=0).replace("http-equiv", "")


def test_every_drawing_and_table_has_words_and_every_id_is_there_once() -> None:
    root = tree_of(made())
    assert root.get("lang") == "en"
    assert all(drawing.get("role") == "img" and drawing.get("aria-label") for drawing in root.iter("svg"))
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert sorted(ids) == sorted(set(ids))
    assert {element.get("aria-labelledby") for element in root.iter("section")} <= set(ids)
    assert all(cell.get("scope") in {"row", "col"} for cell in root.iter("th"))
    assert [element.tag for element in root.iter() if element.tag in {"h1", "h2"}] == ["h1", "h2", "h2", "h2", "h2", "h2", "h2"]
    names = {name for row in root.iter("tr") for name in row.itertext()}
    assert {"new steps", "steps made again", "unaccounted"} <= names
    assert "prefers-color-scheme:dark" in made()
    assert "width=device-width" in made()


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("which", [0, 1], ids=["light", "dark"])
def test_every_colour_stands_out(which: int) -> None:
    ground = GROUND["ground"][which]
    assert {state.value for state in TimeState if contrast(COLOURS[state][which], ground) < 3} == set()
    assert contrast(GROUND["line"][which], ground) >= 3
    assert min(contrast(GROUND[name][which], ground) for name in ("text", "faint")) >= 4.5
    assert contrast("#ffffff", "#000000") == pytest.approx(21)


def test_five_thousand_attempts_are_one_page_that_a_browser_can_show() -> None:
    text = made(attempts=5000, incidents=5000)
    root = tree_of(text)
    assert len([row for row in root.iter("div") if row.get("class") == "row"]) == MOST_ROWS
    assert len(list(root.iter("details"))) == MOST_CARDS
    assert len(list(root.iter("rect"))) < 2500
    assert len(text) < 400_000
    assert "Each row stands for up to 125 attempts." in text


def test_the_rectangles_of_the_timeline_cover_the_wall_clock() -> None:
    rows = [row for row in tree_of(made(attempts=3)).iter("div") if row.get("class") == "row"]
    widths = [float(rect.get("width", "0")) for row in rows for rect in row.iter("rect")]
    assert sum(widths) == pytest.approx(1000, abs=0.5)
    assert [next(row.itertext()) for row in rows] == ["attempt 1", "attempt 2"], "what is before the first attempt belongs to it"


def test_a_curve_breaks_between_attempts_and_without_samples_there_is_none() -> None:
    root = tree_of(made(attempts=3))
    curves = [section for section in root.iter("section") if section.get("class") == "curve"]
    assert [len(list(curve.iter("polyline"))) for curve in curves] == [3, 3]
    alone = [PaceSample(T0, 1, 1, 1.0), PaceSample(T0 + 1, 2, 2, 3.0), PaceSample(T0 + 2, 2, 3, 2.0)]
    run = replace(run_of(2), samples=alone)
    shown = tree_of(html_page(JobReport("bert", "gpu-7", [run], [], figures_of([run], []), 1), {}, "--job bert", T0))
    assert [(one.get("class"), len((one.get("points") or "").split())) for one in shown.iter("polyline")] == [
        ("line point", 2),
        ("line", 2),
    ]
    empty = RunLedger("run", T0, T0 + 1, spans=[TimeSpan(T0, T0 + 1, TimeState.START_AND_LOAD)])
    text = html_page(JobReport("bert", "gpu-7", [empty], [], figures_of([empty], []), 1), {}, "--job bert", T0)
    assert not list(tree_of(text).iter("polyline"))
    assert "None." in text
