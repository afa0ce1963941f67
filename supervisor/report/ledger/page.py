"""The page of `supervise report` at a terminal: the figures of a job, the use of each second, and the cost of its incidents. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.core.numeric import rank_list
from supervisor.core.units import span_text, step_time_text
from supervisor.job.local_time import second_text, zoned_text
from supervisor.report import wording
from supervisor.report.layout import Fact, FactPage, Tone
from supervisor.report.ledger.reliability import CONFIDENCE, LEAST_FAILURES
from supervisor.report.memory_section import forecast_facts, rank_facts
from supervisor.report.step_section import step_facts
from supervisor.report.table import Cell, Column, Table
from supervisor.report.text import cut
from supervisor.view.spans import NEW_STEPS, TimeState
from supervisor.view.status import end_word

if TYPE_CHECKING:
    from supervisor.report.ledger.figures import Figures, IncidentCost, JobReport, NodeShare

#: The most rows: incidents, by their cost; ranks and nodes that made the others wait, by that time; nodes.
MOST_INCIDENTS, MOST_SLOW, MOST_NODES = 5, 5, 16
NOT_RECORDED = "not recorded"
#: The name of each state for people, and its tone.
STATE_TEXTS: Final = {
    TimeState.PRODUCTIVE: ("new steps", Tone.GOOD),
    TimeState.DEGRADED: ("slow steps", Tone.WARNING),
    TimeState.REWORK: ("steps made again", Tone.WARNING),
    TimeState.CHECKPOINT_STALL: ("saving", Tone.PLAIN),
    TimeState.UNMEASURED: ("steps unknown", Tone.WARNING),
    TimeState.START_AND_LOAD: ("start and load", Tone.PLAIN),
    TimeState.DETECTION: ("standing still", Tone.WARNING),
    TimeState.TEAR_DOWN: ("tear-down", Tone.PLAIN),
    TimeState.DECISION: ("decision", Tone.PLAIN),
    TimeState.HEALTH: ("node's health", Tone.PLAIN),
    TimeState.WAITING: ("waiting", Tone.PLAIN),
    TimeState.PREEMPTED: ("preempted", Tone.PLAIN),
    TimeState.UNACCOUNTED: ("unaccounted", Tone.WARNING),
}
#: The formula of each figure, and its source; docs/reference/time-ledger.md has more.
FORMULAS: Final = (
    Fact("ETTR", "(new steps + slow steps) / wall clock: effective training time ratio (Kokolis et al. 2024, arXiv 2410.21680)"),
    Fact("goodput", "(new steps - those that no checkpoint kept) / wall clock: the runtime part of Google's ML Productivity Goodput"),
    Fact("noticed after", "from the failure, or from the last progress before a hang, until supervise knew it (MTTD)"),
    Fact("training again", "from the failure to the first step after it (MTTR)"),
    Fact("MTBF", "time in which ranks ran / failures that nobody planned; the interval is exact for a Poisson process (Garwood 1936)"),
    Fact("advice", "Daly's higher-order estimate of the best interval (FGCS 22, 2006), from three failures on"),
)
#: The longest text of an incident in a line; its card has all of it.
_LONGEST_WHAT = 140
#: From this share of the wall clock on, the page shows the time without known steps.
_NOTABLE = 0.01
#: A shorter time to notice is shown as at once; a smaller cost as nothing.
LEAST_S = 0.05


def report_pages(report: JobReport, address: str, *, all_runs: bool = False) -> list[FactPage | Table]:
    """Return the page. address: the options by which our other commands find the job."""
    page = FactPage(report_title(report), tuple(report_facts(report, address, all_runs=all_runs)), Tone.STRONG)
    tables = (state_table(report.figures), incident_table(report), node_table(report))
    return [page, tables[0], *(table for table in tables[1:] if table.rows)]


def report_title(report: JobReport) -> str:
    """Return the report's subject, and how its last run ended."""
    return f"where the time of job {report.job} went: {_end_text(report)}"


def report_facts(report: JobReport, address: str, *, all_runs: bool = False) -> list[Fact]:
    """Return the figures, as facts."""
    return [
        *_run_facts(report, address, all_runs=all_runs),
        *_share_facts(report),
        *step_facts(report.step_shares, report.scaling),
        *_slow_facts(report),
        *(forecast_facts(report.forecasts, report.runs[-1].end_t) or rank_facts(report.memory)),
        *_failure_facts(report),
        *_advice_facts(report.figures),
        *([Fact("look", f"supervise why --all {address}".rstrip(), copied=True)] if report.incidents else []),
    ]


def state_table(figures: Figures) -> Table:
    """Return each state that took time, with its share."""
    return Table(
        (Column("state"), Column("share", right=True), Column("time", right=True)),
        tuple((Cell(*STATE_TEXTS[state]), share, took) for state, share, took in time_shares(figures)),
        "where each second went",
        "no time is recorded yet",
    )


def time_shares(figures: Figures) -> list[tuple[TimeState, str, str]]:
    """Return each state that took time, its share and its time."""
    rows = figures.seconds.items()
    return [(state, percent_text(took_s / figures.wall_s), span_text(took_s)) for state, took_s in rows if took_s >= LEAST_S]


def incident_table(report: JobReport) -> Table:
    """Return the incidents that cost most."""
    costly = sorted(report.incidents, key=lambda incident: incident.lost_s, reverse=True)[:MOST_INCIDENTS]
    more = len(report.incidents) - len(costly)
    title = f"the {len(costly)} incidents that cost most; --json has all {len(report.incidents)}" if more else "what each incident cost"
    numbers = [Column(name, right=True) for name in ("cost", "steps lost", "noticed after")]
    columns = (Column("which"), Column("when"), *numbers, Column("what happened"))
    moments = [second_text(incident.opened_t) for incident in costly]
    is_one_day = len({moment.partition(" ")[0] for moment in moments}) == 1
    times = [moment.partition(" ")[2] if is_one_day else moment for moment in moments]
    return Table(columns, tuple(map(_incident_row, costly, times)), title)


def node_table(report: JobReport) -> Table:
    """Return the attempts of each node; of many nodes, of those that took no part in all. No row for a job of one node."""
    every = max((len(node.attempts) for node in report.nodes), default=0)
    listed = [node for node in report.nodes if len(report.nodes) <= MOST_NODES or len(node.attempts) < every or node.alone][:MOST_NODES]
    more = len(report.nodes) - len(listed)
    title = f"{len(listed)} of the {len(report.nodes)} nodes; --json has all of them" if more else "nodes"
    columns = (Column("node"), Column("attempts"), Column("incidents of its own"), Column("note"))
    return Table(columns, tuple(map(_node_row, listed)), title)


def _node_row(node: NodeShare) -> tuple[str, ...]:
    attempts, alone = (rank_list(numbers or ()).partition(" ")[2] for numbers in (node.attempts, node.alone))
    return node.node, attempts, alone, "its journal is not here" if node.alone is None else ""


def _incident_row(incident: IncidentCost, when: str) -> tuple[str, ...]:
    steps = "" if incident.lost_steps is None else str(incident.lost_steps)
    noticed = "" if incident.mttd_s is None or incident.mttd_s < LEAST_S else span_text(incident.mttd_s)
    return f"incident {incident.number}", when, span_text(incident.lost_s), steps, noticed, _happened(incident)


def incident_text(incident: IncidentCost) -> str:
    """Return an incident in one line: the event, and its cost."""
    steps = "" if not incident.lost_steps else f" and {_count(incident.lost_steps, 'step')}"
    return f"incident {incident.number}: {cut(_happened(incident), _LONGEST_WHAT)}; cost {span_text(incident.lost_s)}{steps}"


def _happened(incident: IncidentCost) -> str:
    return incident.what if incident.rank is None else f"rank {incident.rank}: {incident.what}"


def percent_text(share: float | None) -> str:
    """Return a share of 1 as a person would write it."""
    return NOT_RECORDED if share is None else f"{100 * share:.1f} %"


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _end_text(report: JobReport) -> str:
    run = report.runs[-1]
    if run.goes_on:
        return "it continues"
    if not run.is_over:
        return "supervise died"
    code = run.exit_code or 0
    gave_up = any(incident.outcome == "given_up" and incident.run_id == run.run_id for incident in report.incidents)
    return f"{end_word(code, gave_up=gave_up).value}, exit code {code}"


def _run_facts(report: JobReport, address: str, *, all_runs: bool) -> list[Fact]:
    first, last, figures = report.runs[0], report.runs[-1], report.figures
    name = _count(len(report.runs), "run") if len(report.runs) > 1 else last.run_id
    facts = [Fact("run", f"{name}, since {zoned_text(first.begin_t)}, {span_text(figures.wall_s)} on {report.node}")]
    if report.kept_runs > len(report.runs) and not all_runs:
        facts.append(Fact("", f"{report.kept_runs} runs are kept; this adds them up:"))
        facts.append(Fact("", f"supervise report --all {address}".rstrip(), copied=True))
    step = "" if last.reached is None else f", {wording.step_text(last.reached)}"
    kept = "" if last.kept is None else f", verified up to step {last.kept}"
    pace = "" if figures.step_s is None else f", {step_time_text(figures.step_s)} a step"
    return [*facts, Fact("progress", f"{_count(figures.attempts, 'attempt')}{step}{kept}{pace}")]


def _share_facts(report: JobReport) -> list[Fact]:
    figures = report.figures
    new_s, unmeasured_s = sum(figures.seconds[state] for state in NEW_STEPS), figures.seconds[TimeState.UNMEASURED]
    ettr = percent_text(figures.ettr)
    ettr += f": {span_text(new_s)} of steps made for the first time, of {span_text(figures.wall_s)}" if figures.ettr is not None else ""
    if unmeasured_s > _NOTABLE * figures.wall_s:
        ettr += "; at least that: of some of the time no step was seen"
    goodput = percent_text(figures.goodput)
    goodput += ": steps that are saved in a checkpoint, without slow ones" if figures.goodput is not None else ""
    if figures.ettr is None and figures.wall_s:
        ettr += ": no step of the ranks was seen"
    facts = [Fact("ETTR", ettr, Tone.STRONG), Fact("goodput", goodput, Tone.STRONG)]
    if not all(run.counts_rework for run in report.runs):
        text = "steps made again may be among the new ones: from which step an attempt continued is not recorded"
        facts.append(Fact("note", text, Tone.WARNING))
    return facts


def _slow_facts(report: JobReport) -> list[Fact]:
    """Return which ranks or nodes made the others wait."""
    longest = sorted(report.slow, key=lambda span: span.took_s, reverse=True)[:MOST_SLOW]
    texts = [f"for {span_text(span.took_s)} in attempt {span.attempt}: {span.text}" for span in longest]
    texts += [f"and {len(report.slow) - len(texts)} for a shorter time: --json has all of them"] if len(texts) < len(report.slow) else []
    return [Fact("" if at else "slow", text, Tone.WARNING) for at, text in enumerate(texts)]


def _failure_facts(report: JobReport) -> list[Fact]:
    """Return the number and the rate of failures, and the cost of all incidents together."""
    figures = report.figures
    text = _count(figures.failures, "failure")
    text += f", and {_count(figures.planned, 'planned end')}" if figures.planned else ""
    if figures.failures and figures.mttr_s is not None:
        noticed = f", noticed after {span_text(figures.mttd_s)}" if figures.mttd_s is not None and figures.mttd_s >= LEAST_S else ""
        text += f"{noticed}, training again after {span_text(figures.mttr_s)}" + (" (medians)" if figures.failures > 1 else "")
    facts = [Fact("failures", text, Tone.BAD if figures.failures else Tone.GOOD)]
    least_s, most_s = figures.mtbf_range_s or (None, None)
    if figures.mtbf_s is not None and least_s is not None and most_s is not None:
        between = f"{span_text(least_s)} to {span_text(most_s)}"
        facts.append(Fact("MTBF", f"{span_text(figures.mtbf_s)}, {100 * CONFIDENCE:.0f} % interval {between}"))
    if report.incidents:
        hours = "GPU-hours" if any(run.gpus for run in report.runs) else "rank-hours"
        steps = f", {_count(figures.lost_steps, 'step')}" if figures.lost_steps else ""
        facts.append(Fact("cost", f"{span_text(figures.lost_s)}{steps}, {figures.rank_hours:.2f} {hours}"))
    return facts


def _advice_facts(figures: Figures) -> list[Fact]:
    """Return the advice on saving, in one sentence, or why there is none, where that is worth a line."""
    advice = figures.advice
    if figures.mtbf_s is None:
        text = f"how often to save: not enough failures yet for advice ({LEAST_FAILURES} needed)"
        return [Fact("advice", text, Tone.FAINT)] if figures.failures else []
    if advice is None:
        return [Fact("advice", "how often to save is not advised: no save was seen to hold the ranks for 1 s", Tone.FAINT)]
    now = ""
    if advice.now_s:
        held, risk = advice.save_s / (advice.now_s + advice.save_s), advice.now_s / 2
        now = f"; every {span_text(advice.now_s)} as now takes {percent_text(held)} and risks {span_text(risk)} a failure"
    mean = span_text(figures.mtbf_s)
    text = f"save every {span_text(advice.best_s)} (Daly 2006: a save holds the ranks {step_time_text(advice.save_s)}, MTBF {mean}){now}"
    return [Fact("advice", text)]
