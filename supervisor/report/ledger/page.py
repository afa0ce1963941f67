"""The page of `supervise report` at a terminal. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.core.numeric import rank_list
from supervisor.core.time_text import span_text
from supervisor.job.local_time import zoned_text
from supervisor.report import wording
from supervisor.report.layout import Fact, FactPage, Tone
from supervisor.report.ledger.reliability import CONFIDENCE, LEAST_FAILURES
from supervisor.report.ledger.spans import NEW_STEPS, TimeState

if TYPE_CHECKING:
    from supervisor.report.ledger.figures import Figures, IncidentCost, JobReport, NodeShare
    from supervisor.report.ledger.spans import RunLedger

#: Incidents that the page lists: those that cost most.
MOST_INCIDENTS = 5
#: Ranks and nodes that made the others wait and that the page lists: those that did so for longest.
MOST_SLOW = 5
#: Nodes that the page lists.
MOST_NODES = 16
NOT_RECORDED = "not recorded"
#: What each state is called for people, and how it reads.
STATE_TEXTS: Final = {
    TimeState.PRODUCTIVE: ("new steps", Tone.GOOD),
    TimeState.DEGRADED: ("slow steps", Tone.WARNING),
    TimeState.REWORK: ("steps made again", Tone.WARNING),
    TimeState.CHECKPOINT_STALL: ("saving", Tone.PLAIN),
    TimeState.UNMEASURED: ("steps not seen", Tone.WARNING),
    TimeState.START_AND_LOAD: ("start and load", Tone.PLAIN),
    TimeState.DETECTION: ("until noticed", Tone.PLAIN),
    TimeState.TEAR_DOWN: ("tear-down", Tone.PLAIN),
    TimeState.DECISION: ("decision", Tone.PLAIN),
    TimeState.HEALTH: ("node's health", Tone.PLAIN),
    TimeState.WAITING: ("waiting", Tone.PLAIN),
    TimeState.PREEMPTED: ("preempted", Tone.PLAIN),
    TimeState.UNACCOUNTED: ("unaccounted", Tone.WARNING),
}
#: How the figures are made, and by whom they are defined; docs/guides/report.md has more.
FORMULAS: Final = (
    Fact("ETTR", "(new steps + slow steps) / wall clock: effective training time ratio (Kokolis et al. 2024, arXiv 2410.21680)"),
    Fact("goodput", "(new steps - those that no checkpoint kept) / wall clock: the runtime part of Google's ML Productivity Goodput"),
    Fact("until noticed", "from the failure, or from the last progress before a hang, until supervise knew it (MTTD)"),
    Fact("training again", "from the failure to the first step after it (MTTR)"),
    Fact("MTBF", "time in which ranks ran / failures that nobody planned; the interval is exact for a Poisson process (Garwood 1936)"),
    Fact("advice", "Daly's higher-order estimate of the best interval (FGCS 22, 2006), from three failures on"),
)
#: Of the wall clock: from here on it is shown that steps were not seen.
_NOTABLE = 0.01


def report_page(report: JobReport, address: str, *, all_runs: bool = False) -> FactPage:
    """Return the page. address: the options by which our other commands find the job."""
    facts = report_facts(report, address, all_runs=all_runs, has_states=True)
    return FactPage(report_title(report), tuple(facts), Tone.STRONG)


def report_title(report: JobReport) -> str:
    """Return what the report is about, and how its last run ended."""
    return f"where the time of job {report.job} went: {_end_text(report.runs[-1])}"


def report_facts(report: JobReport, address: str, *, all_runs: bool = False, has_states: bool = False) -> list[Fact]:
    """Return the facts of the page. has_states: with a line for each state that took time."""
    figures = report.figures
    return [
        *_run_facts(report, address, all_runs=all_runs),
        *_node_facts(report),
        *_share_facts(report),
        *_slow_facts(report),
        *(_state_facts(figures) if has_states else []),
        *_failure_facts(figures),
        *_cost_facts(report),
        *_advice_facts(figures),
        *([Fact("look", f"supervise why --all {address}".rstrip(), copied=True)] if report.incidents else []),
    ]


def _end_text(run: RunLedger) -> str:
    if run.goes_on:
        return "it goes on"
    return f"ended with {run.exit_code}" if run.is_over else "supervise died"


def _run_facts(report: JobReport, address: str, *, all_runs: bool) -> list[Fact]:
    first, last, found = report.runs[0], report.runs[-1], report.figures
    since = zoned_text(first.begin_t)
    attempts = f"{found.attempts} {'attempt' if found.attempts == 1 else 'attempts'}"
    name = f"{len(report.runs)} runs" if len(report.runs) > 1 else last.run_id
    step = "" if last.reached is None else f", {wording.step_text(last.reached)}"
    kept = "" if last.kept is None else f", verified up to step {last.kept}"
    pace = "" if found.step_s is None else f", {_short(found.step_s)} a step"
    facts = [Fact("run", f"{name}, since {since}, {span_text(found.wall_s)} on {report.node}: {attempts}{step}{kept}{pace}")]
    if report.kept_runs > len(report.runs) and not all_runs:
        facts.append(Fact("", f"{report.kept_runs} runs are kept; this adds them up:"))
        facts.append(Fact("", f"supervise report --all {address}".rstrip(), copied=True))
    return facts


def _node_facts(report: JobReport) -> list[Fact]:
    """Return the attempts of each node; of many nodes, of those that took no part in all."""
    every = max((len(node.attempts) for node in report.nodes), default=0)
    listed = [node for node in report.nodes if len(report.nodes) <= MOST_NODES or len(node.attempts) < every or node.alone]
    texts = [_node_text(node_share) for node_share in listed[:MOST_NODES]]
    texts += [f"and {len(report.nodes) - len(texts)} more: --json has all of them"] if len(texts) < len(report.nodes) else []
    return [Fact("" if at else "nodes", text) for at, text in enumerate(texts)]


def _node_text(one: NodeShare) -> str:
    attempts = rank_list(one.attempts).replace("rank", "attempt")
    alone = f"; {len(one.alone)} of its own: incident {', '.join(map(str, one.alone))}" if one.alone else ""
    return f"{one.node}: {attempts}{alone}" + ("; its journal is not here" if one.alone is None else "")


def _share_facts(report: JobReport) -> list[Fact]:
    figures = report.figures
    new_s, unmeasured_s = sum(figures.seconds[state] for state in NEW_STEPS), figures.seconds[TimeState.UNMEASURED]
    ettr = _percent(figures.ettr)
    ettr += f": {span_text(new_s)} of steps made for the first time, of {span_text(figures.wall_s)}" if figures.ettr is not None else ""
    if unmeasured_s > _NOTABLE * figures.wall_s:
        ettr += "; at least that: of some of the time no step was seen"
    goodput = _percent(figures.goodput)
    goodput += ": without slow steps, and without those that no checkpoint kept" if figures.goodput is not None else ""
    facts = [Fact("ETTR", ettr, Tone.STRONG), Fact("goodput", goodput, Tone.STRONG)]
    if not all(run.counts_rework for run in report.runs):
        text = "steps made again may be among the new ones: from which step an attempt went on is not recorded"
        facts.append(Fact("note", text, Tone.WARNING))
    return facts


def _slow_facts(report: JobReport) -> list[Fact]:
    """Return which ranks or nodes made the others wait."""
    longest = sorted(report.slow, key=lambda span: span.took_s, reverse=True)[:MOST_SLOW]
    texts = [f"for {span_text(span.took_s)} in attempt {span.attempt}: {span.text}" for span in longest]
    texts += [f"and {len(report.slow) - len(texts)} for a shorter time: --json has all of them"] if len(texts) < len(report.slow) else []
    return [Fact("" if at else "slow", text, Tone.WARNING) for at, text in enumerate(texts)]


def _state_facts(found: Figures) -> list[Fact]:
    """Return a line for each state that took time."""
    rows = [(state, took_s) for state, took_s in found.seconds.items() if took_s > 0]
    return [
        Fact(
            STATE_TEXTS[state][0],
            f"{_percent(took_s / found.wall_s if found.wall_s else None)}: {_short(took_s)}",
            STATE_TEXTS[state][1],
        )
        for state, took_s in rows
    ]


def _failure_facts(found: Figures) -> list[Fact]:
    count = f"{found.failures} {'failure' if found.failures == 1 else 'failures'}"
    planned = f", and {found.planned} planned {'end' if found.planned == 1 else 'ends'}" if found.planned else ""
    text = f"{count}{planned}"
    if found.failures and found.mttr_s is not None:
        known = "" if found.mttd_s is None else f", noticed after {_short(found.mttd_s)}"
        text += f"{known}, training again after {_short(found.mttr_s)}" + (" (medians)" if found.failures > 1 else "")
    facts = [Fact("failures", text, Tone.BAD if found.failures else Tone.GOOD)]
    if found.mtbf_range_s is not None:
        least_s, most_s = found.mtbf_range_s
        share = f"{100 * CONFIDENCE:.0f} % interval"
        between = f"more than {span_text(least_s)}" if most_s is None else f"{span_text(least_s)} to {span_text(most_s)}"
        mean = "" if found.mtbf_s is None else f"{span_text(found.mtbf_s)}, "
        facts.append(Fact("MTBF", f"{mean}{share} {between}"))
    return facts


def _cost_facts(report: JobReport) -> list[Fact]:
    """Return what the incidents cost together, and a line for those that cost most."""
    found, costly = report.figures, sorted(report.incidents, key=lambda one: one.lost_s, reverse=True)[:MOST_INCIDENTS]
    if not costly:
        return []
    hours = "GPU-hours" if any(run.gpus for run in report.runs) else "rank-hours"
    steps = f", {found.lost_steps} steps" if found.lost_steps else ""
    facts = [Fact("cost", f"{span_text(found.lost_s)}{steps}, {found.rank_hours:.2f} {hours}")]
    if len(report.incidents) > 1:
        facts += [Fact("", incident_text(incident_cost)) for incident_cost in costly]
        more = len(report.incidents) - len(costly)
        facts += [Fact("", f"and {more} that cost less: --json has all of them", Tone.FAINT)] if more else []
    else:
        facts.append(Fact("", incident_text(costly[0])))
    return facts


def incident_text(one: IncidentCost) -> str:
    """Return an incident in one line: its cause, and what it cost."""
    whose = f" of rank {one.rank}" if one.cause and one.rank is not None else ""
    steps = "" if one.lost_steps is None else f", {one.lost_steps} steps"
    noticed = "" if one.mttd_s is None else f", noticed after {_short(one.mttd_s)}"
    return f"incident {one.number}: {one.cause or one.summary}{whose}: {_short(one.lost_s)}{steps}{noticed}"


def _advice_facts(found: Figures) -> list[Fact]:
    """Return the advice on saving, in one sentence; why there is none, where that is worth a line."""
    advice = found.advice
    if advice is None or found.mtbf_s is None:
        if not found.failures:
            return []
        why = f"it takes {LEAST_FAILURES} failures" if found.mtbf_s is None else "no save was seen to hold the ranks for 1 s"
        return [Fact("advice", f"how often to save is not advised: {why}", Tone.FAINT)]
    now = ""
    if advice.now_s:
        held, risk = advice.save_s / (advice.now_s + advice.save_s), advice.now_s / 2
        now = f"; every {span_text(advice.now_s)} as now takes {_percent(held)} and risks {span_text(risk)} a failure"
    mean = span_text(found.mtbf_s)
    text = f"save every {span_text(advice.best_s)} (Daly 2006: a save holds the ranks {_short(advice.save_s)}, MTBF {mean}){now}"
    return [Fact("advice", text)]


def _percent(share: float | None) -> str:
    return NOT_RECORDED if share is None else f"{100 * share:.1f} %"


def _short(seconds: float) -> str:
    """Return a time that may be far below a second."""
    milliseconds = 1000 * seconds
    if milliseconds >= 100:  # noqa: PLR2004  a tenth of a second
        return span_text(seconds)
    return f"{milliseconds:.0f} ms" if milliseconds >= 1 else "less than 1 ms"
