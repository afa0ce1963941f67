"""The page of a job: `report --html` writes it into a file, `ui` serves it. Pure.

In this order: the job's state, its incidents, its last error, where the time went, how fast it goes, its checkpoints, ranks and nodes,
the end of its log, and how the figures are made. Its size is bounded, also for a job of months.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.core.units import span_text
from supervisor.core.values import Struct, replace
from supervisor.job.local_time import second_text, zoned_text
from supervisor.report import wording
from supervisor.report.html.job_charts import axis_of, goodput_chart, loss_chart, newest_losses_chart, rate_chart, time_line
from supervisor.report.html.render import Page, page
from supervisor.report.layout import Fact, FactPage, Tone
from supervisor.report.ledger.figures import JobReport
from supervisor.report.ledger.page import FORMULAS, STATE_TEXTS, incident_text, node_table, percent_text, report_facts, time_shares
from supervisor.report.status_page import gpu_table, rank_table, status_page
from supervisor.report.table import Column, Table
from supervisor.view.status import StateWord, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.report.html.charts import Chart
    from supervisor.report.html.render import Live
    from supervisor.report.ledger.figures import IncidentCost
    from supervisor.view.spans import RunLedger, SaveMark
    from supervisor.view.status import WaitedNodes

#: Incidents that the page has: those that cost most; and those that stand there unfolded into lines, the newest.
MOST_CARDS, MOST_LINES = 50, 5
#: Checkpoints in the table, the newest.
MOST_CHECKPOINTS = 12
_TONES: Final = {Tone.GOOD: "good", Tone.WARNING: "warning", Tone.BAD: "bad"}
#: How good each state of a job is; a state that is not here needs attention.
_STATE_TONES: Final = {
    StateWord.NO_RUN: "faint",
    StateWord.STARTING: "good",
    StateWord.TRAINING: "good",
    StateWord.RUNNING: "good",
    StateWord.DONE: "good",
    StateWord.HUNG: "bad",
    StateWord.FAILED: "bad",
    StateWord.DIED: "bad",
}


class LogPart(Struct, frozen=True):
    """The end of what a rank printed. title: whose it is."""

    title: str
    lines: tuple[str, ...]


class JobPage(Struct, frozen=True):
    """The data of a job's page.

    report: None where no run is recorded yet. cards: what `why` shows, by the number of the incident. address: the options by which our
    other commands find the job. error: of the rank that failed last. log: of the attempt that is the newest. all_runs: the report is of all
    runs that are kept.
    """

    status: Status
    report: JobReport | None
    cards: dict[int, FactPage]
    address: str
    problems: tuple[str, ...] = ()
    error: LogPart | None = None
    log: LogPart | None = None
    all_runs: bool = False


class Tile(Struct, frozen=True):
    """A large figure."""

    name: str
    value: str
    note: str = ""


class IncidentRow(Struct, frozen=True):
    """An incident as the page shows it. tone: of how it ended. is_first: it holds the job up, or ended its run."""

    number: int
    line: str
    outcome: str
    tone: str
    facts: tuple[Fact, ...]
    is_first: bool = False


def job_page(job: JobPage, now: float, live: Live | None = None, *, other_runs: str = "") -> Page:
    """Return the page. now: Unix seconds, when it is made. other_runs: the address of the page with all runs, or with the last one."""
    status, report = job.status, job.report
    word, tone = state_of(status)
    charts: list[Chart | None] = []
    if report is not None:
        axis = axis_of(report)
        losses = loss_chart(report, axis) or newest_losses_chart(status.loss)
        charts = [goodput_chart(report, axis), time_line(report, axis), rate_chart(report, axis), losses]
    incidents = _incidents(job)
    return page(
        "job.html.j2",
        f"{status.job}: {word}",
        live=live,
        job=job,
        status=status,
        report=report,
        made=f"As of {zoned_text(now)}, from the journal of {status.node}.",
        word=word,
        tone=tone,
        sentences=_sentences(status, job.address),
        tiles=_tiles(status, report),
        first_incident=next((row for row in incidents if row.is_first), None),
        incidents=[row for row in incidents if not row.is_first],
        more_incidents=len(report.incidents) - len(incidents) if report is not None else 0,
        most_lines=MOST_LINES,
        shares=[(state.value, STATE_TEXTS[state][0], *row) for state, *row in time_shares(report.figures)] if report is not None else [],
        charts=[chart for chart in charts if chart is not None],
        tables=_tables(status, report),
        is_bad=tone == "bad" or any(row.is_first for row in incidents),
        facts=status_page(replace(status, last_incident=None), job.address, width=0).facts,
        figures=[] if report is None else report_facts(report, job.address, all_runs=job.all_runs),
        formulas=FORMULAS,
        other_runs=other_runs,
    )


def state_of(status: Status) -> tuple[str, str]:
    """Return where a job is in words, and how good that is: good, warning, bad or faint."""
    tone = _STATE_TONES.get(status.state, "warning")
    if tone == "good" and status.runs:
        is_bad = status.incident is not None or status.warnings or status.forecasts
        tone = "faint" if status.supervisor.alive is None else "warning" if is_bad else "good"
    return status.state_text, tone


def _sentences(status: Status, address: str) -> list[tuple[str, str]]:
    """Return the first facts that a person needs of the job's state: sentences, and the command that helps, if one does."""
    rows: list[tuple[str, str]] = []
    if status.ended:
        at = "" if status.until is None else f" at {second_text(status.until)}"
        rows.append((f"The run ended{at}.", f"supervise why {address}" if status.state is StateWord.FAILED else ""))
    elif status.died:
        rows.append(("The supervisor is gone, and nobody restarts the job. Start it again with the same command.", ""))
    if status.hang is not None and status.runs:
        rows.append((f"No progress for {span_text(status.hang.still_s)}: {status.hang.text}.", f"supervise status --stacks {address}"))
    if status.waits is not None:
        rows.append((wait_text(status.waits), f"supervise status --all-nodes {address}"))
    rows += [(wording.capital(forecast.text), "") for forecast in status.forecasts if status.runs]
    rows += [(text, "") for text in status.warnings if status.runs]
    return [*rows, *([(f"Alerts: {status.alerts}", f"supervise status -v {address}")] if status.alerts else [])]


def wait_text(waits: WaitedNodes) -> str:
    """Return what an attempt waits for, and until when."""
    return f"It waits for {waits.nodes} more {'node' if waits.nodes == 1 else 'nodes'} until {second_text(waits.until)}, and then stops."


def _tiles(status: Status, report: JobReport | None) -> list[Tile]:
    if not status.run:
        return []
    figures = report.figures if report is not None else None
    total = f" of {status.total_steps:,}" if status.total_steps and status.step is not None and not status.step_relative else ""
    step = "unknown" if status.step is None else f"{status.step:,}{total}"
    pace = wording.pace_text(status.steps_per_s) if status.runs and status.steps_per_s else ""
    if not pace and figures is not None and figures.step_s:
        pace = f"{wording.pace_text(1 / figures.step_s)} (median)"
    left = f"about {span_text(status.eta_s)} left" if status.eta_s is not None else ""
    saved = status.verified
    ages = [f"verified {span_text(saved.age_s)} ago"] if saved is not None else []
    ages += [f"mirrored {span_text(status.mirrored.age_s)} ago"] if status.mirrored is not None else []
    shown = "none" if saved is None else "step unknown" if saved.step is None else f"step {saved.step:,}"
    restarts = f"{status.restarts} {'restart' if status.restarts == 1 else 'restarts'}"
    left_over = f", {status.restarts_left} more without progress" if status.restarts_left is not None and status.runs else ""
    tiles = [
        Tile("step", step, ", ".join(filter(None, (pace, left)))),
        Tile("newest checkpoint", shown, ", ".join(ages) or "none was verified in this run"),
        Tile("attempt", str(status.attempt or "none"), restarts + left_over),
    ]
    if figures is not None:
        lost = f"cost {span_text(figures.lost_s)}" if figures.lost_s else ""
        tiles = [
            Tile("time in new steps (ETTR)", percent_text(figures.ettr), f"of {span_text(figures.wall_s)}"),
            *tiles,
            Tile("incidents", str(figures.failures + figures.planned), lost),
        ]
    return tiles


def shown_incidents(report: JobReport) -> list[IncidentCost]:
    """Return the incidents that the page shows: those that cost most and the last one, the newest first."""
    last = report.incidents[-1:]
    costly = sorted(report.incidents, key=lambda incident: (incident in last, incident.lost_s))[-MOST_CARDS:]
    return sorted(costly, key=lambda incident: incident.opened_t, reverse=True)


def _incidents(job: JobPage) -> list[IncidentRow]:
    rows: list[IncidentRow] = []
    for incident in shown_incidents(job.report) if job.report is not None else ():
        card = job.cards.get(incident.number)
        facts = card.facts if card is not None else (Fact("what", incident.what), Fact("done", incident.action))
        tone = _TONES.get(card.tone if card is not None else Tone.WARNING, "warning")
        is_first = not rows and incident.outcome != "resolved" and job.status.state is not StateWord.DONE
        line = f"{second_text(incident.opened_t)}: {incident_text(incident)}"
        shown = tuple(fact for fact in facts if fact.text)
        rows.append(IncidentRow(incident.number, line, incident.outcome.replace("_", " "), tone, shown, is_first=is_first))
    return rows


def _tables(status: Status, report: JobReport | None) -> list[tuple[str, str, Table]]:
    """Return the tables that have rows: the key of its section, its head, and the table."""
    tables = [
        ("checkpoints", "Checkpoints", _checkpoint_table(report.runs if report is not None else ())),
        ("ranks", "Ranks", replace(rank_table(status), title=f"ranks that live on {status.node}")),
        ("gpus", "GPUs", gpu_table(status)),
        *([("nodes", "Nodes", node_table(report))] if report is not None else []),
    ]
    return [(key, head, table) for key, head, table in tables if table.rows]


def _checkpoint_table(runs: Sequence[RunLedger]) -> Table:
    """Return the newest checkpoints."""
    rows: dict[tuple[int, int | None], dict[bool, SaveMark]] = {}
    for number, run in enumerate(runs):
        for save in run.saves:
            rows.setdefault((number, save.step), {})[save.is_mirrored] = save
    newest = sorted(rows.items(), key=lambda row: max(save.t for save in row[1].values()), reverse=True)[:MOST_CHECKPOINTS]
    columns = (Column("step", right=True), Column("verified"), Column("in attempt", right=True), Column("in the mirror"))
    return Table(columns, tuple(_checkpoint_row(step, saves) for (_, step), saves in newest), "the newest checkpoints")


def _checkpoint_row(step: int | None, saves: dict[bool, SaveMark]) -> tuple[str, ...]:
    verified, mirrored = saves.get(False), saves.get(True)
    attempt = next(save.attempt for save in saves.values())
    times = ["" if save is None else second_text(save.t) for save in (verified, mirrored)]
    return "unknown" if step is None else f"{step:,}", times[0], str(attempt), times[1]
