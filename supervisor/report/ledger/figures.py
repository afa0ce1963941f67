"""The figures of a report: shares of time, what each incident cost, MTTD, MTTR, MTBF and the advice on saving. Pure.

Times and steps come from the ledgers, causes, decisions and the parts of a restart from the incidents that `supervise why` shows too. A
figure that the journal has no facts for is None.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from supervisor.core.model import FROM_OUTSIDE, Beginning, RankMemory
from supervisor.core.step_shares import StepShares
from supervisor.core.training_events import MemoryForecast
from supervisor.core.values import Struct, field
from supervisor.report import wording
from supervisor.report.ledger.reliability import LEAST_FAILURES, mtbf_interval_s, save_interval_s
from supervisor.report.step_section import Scaling, scaling_of
from supervisor.report.text import clean
from supervisor.view.joint import attempts_of, joint_incidents
from supervisor.view.spans import NEW_STEPS, RANKS_RAN, RunLedger, TimeSpan, TimeState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from supervisor.core.model import FailureVerdict
    from supervisor.view.incidents import RecordedIncident
    from supervisor.view.job_view import JobView

_HOUR_S = 3600.0


class IncidentCost(Struct, frozen=True):
    """One incident and its cost. None: not recorded."""

    number: int  # its number
    run_id: str  # the run that it belongs to
    opened_t: float  # when it opened
    attempt: int  # in which attempt
    cause: str  # one of the causes
    summary: str  # the observation
    rank: int | None  # the culprit
    outcome: str  # how it ended
    action: str  # the action of supervise
    planned: bool  # it came from outside, and is not a failure
    mttd_s: float | None  # from the failure, or the last progress, until supervise knew it
    mttr_s: float | None  # from the failure to the first step after it
    parts: dict[str, float]  # of the newest restart, by name
    lost_steps: int | None  # made before, and not in the checkpoint that was resumed from
    lost_s: float  # its time that was not a new step
    rank_hours: float  # the same for each rank
    resumed_step: int | None = None  # the step of that checkpoint
    what: str = ""  # the sentence of its card


class SavingAdvice(Struct, frozen=True):
    """How often to save, in seconds."""

    save_s: float  # what a save costs
    best_s: float  # the interval that is advised
    now_s: float | None  # the median interval of this job


class Figures(Struct, frozen=True):
    """The totals of one or more runs. Seconds; None: not recorded."""

    wall_s: float  # the wall clock of the runs
    seconds: dict[TimeState, float]  # its states by name, all of them
    ettr: float | None  # a share of the wall clock
    goodput: float | None  # likewise
    attempts: int  # how many
    failures: int  # how many that were not planned
    planned: int  # incidents that came from outside
    ran_s: float  # in which ranks could fail
    mtbf_s: float | None  # the mean; null below three failures
    mtbf_range_s: tuple[float, float | None] | None  # the ends of the 90 % interval, the upper one null where nothing failed
    mttd_s: float | None  # the median over the failures
    mttr_s: float | None  # likewise
    mttr_p95_s: float | None  # the 95th percentile
    lost_s: float  # what all incidents cost
    lost_steps: int  # likewise
    rank_hours: float  # likewise
    step_s: float | None  # the median time of a step
    advice: SavingAdvice | None  # how often to save; null below three failures


class NodeShare(Struct, frozen=True):
    """One node of a job of several."""

    node: str  # host name
    attempts: list[int]  # of the last run, in which it took part
    # the numbers of its incidents in which the node of the report had no part; null: its journal is not here
    alone: list[int] | None = None


class SlowSpan(Struct, frozen=True):
    """How long a rank or a node made the others wait, in Unix seconds."""

    begin_t: float  # from when
    end_t: float  # until when; until now where it still does
    attempt: int  # in which attempt
    text: str  # who, and why

    @property
    def took_s(self) -> float:
        """Seconds."""
        return self.end_t - self.begin_t


class JobReport(Struct):
    """A report: the runs that it is about, their incidents and figures."""

    job: str  # its name
    node: str  # whose journal it is
    runs: list[RunLedger]  # the oldest first
    incidents: list[IncidentCost]  # the oldest first
    figures: Figures
    kept_runs: int  # how many runs the journals hold
    problems: list[str] = field(default_factory=list)  # the faults of the last journal, as text
    nodes: list[NodeShare] = field(default_factory=list)  # those that took part in the last run; empty for a job of one node
    slow: list[SlowSpan] = field(default_factory=list)  # which ranks or nodes made the others wait
    # what the ranks held that held most, as the last run recorded it last, four at most
    memory: list[RankMemory] = field(default_factory=list)
    forecasts: list[MemoryForecast] = field(default_factory=list)  # of the memory that will be used up
    step_shares: StepShares | None = None  # where a step of the last attempt goes, on this node
    scaling: Scaling | None = None  # null where no attempt of the journals ran on one node for a minute


def node_shares(own: str, views: Mapping[str, JobView]) -> list[NodeShare]:
    """Return what each node took part in. views: of the nodes that share the state directory, by host; own: the report's."""
    joint = joint_incidents(own, {host: view.incidents for host, view in views.items()})
    alone = {host: [joint_incident.incident.number for joint_incident in joint if joint_incident.node == host != own] for host in views}
    return [NodeShare(host, attempts, alone.get(host)) for host, attempts in attempts_of(views).items()]


def slow_spans(view: JobView, until_t: float) -> list[SlowSpan]:
    """Return how long which ranks or nodes made the others wait, in the last run of a journal. until_t: its end, or now."""
    rows = ((straggler, until_t if straggler.until_t is None else straggler.until_t) for straggler in view.stragglers)
    return [SlowSpan(straggler.t, max(straggler.t, end_t), straggler.attempt, clean(straggler.text)) for straggler, end_t in rows]


def report_of(job: str, node: str, read: Sequence[tuple[JobView, Sequence[RunLedger]]], *, all_runs: bool = False) -> JobReport:
    """Return the report on the last run, or on all. read: the view and the ledgers of each journal, the oldest first.

    Raises ValueError where no journal has a run.
    """
    runs = [run for _, ledgers in read for run in ledgers]
    if not runs:
        raise ValueError(f"no run is recorded: {job}")
    reported = runs if all_runs else runs[-1:]
    spent = {id(run): _spans_of_incidents(run) for run in reported}
    with_runs = [(incident, _run_of(incident, ledgers)) for view, ledgers in read if ledgers for incident in view.incidents]
    incidents = [incident_cost(incident, run, spent[id(run)].get(incident.number, ())) for incident, run in with_runs if id(run) in spent]
    slow = [span for view, ledgers in (read if all_runs else read[-1:]) if ledgers for span in slow_spans(view, ledgers[-1].end_t)]
    problems = list(read[-1][0].problems)
    newest, figures = read[-1][0], figures_of(reported, incidents)
    scaling = scaling_of((ledgers[-1], view.meetings) for view, ledgers in read if ledgers)
    report = JobReport(job, node, list(reported), incidents, figures, len(runs), problems, slow=slow)
    report.step_shares, report.scaling = newest.step_shares, scaling
    report.memory, report.forecasts = list(newest.memory), list(newest.forecasts)
    return report


def _run_of(incident: RecordedIncident, ledgers: Sequence[RunLedger]) -> RunLedger:
    """Return the run of an incident; that of one which no record opened is the last."""
    return next((run for run in ledgers if incident.number in run.incidents), ledgers[-1])


def _spans_of_incidents(run: RunLedger) -> dict[int, list[TimeSpan]]:
    """Return the time that each incident cost, by its number."""
    spans: dict[int, list[TimeSpan]] = {}
    for span in run.spans:
        if span.incident and span.state not in NEW_STEPS:
            spans.setdefault(span.incident, []).append(span)
    return spans


def incident_cost(incident: RecordedIncident, run: RunLedger, spans: Sequence[TimeSpan]) -> IncidentCost:
    """Return what an incident cost its run; `spans`: its time that was not a new step."""
    last = incident.failures[-1]
    decision, resumed, start = last.decision, incident.resumed, incident.start
    verdict = decision.verdict if decision is not None else None
    start = start if start is not None and start.after == "failure" and resumed is not None and start.attempt == resumed.attempt else None
    detect_s = start.parts.get("detect") if start is not None and len(incident.failures) == 1 else None
    mttr_s = None if resumed is None else incident.resumed_t - incident.opened_t + (detect_s or 0.0)
    if start is not None and start.trained and len(incident.failures) == 1:
        mttr_s = start.total_s
    resumed_step = None if resumed is None else 0 if resumed.began is Beginning.FROM_SCRATCH else resumed.step
    reached = [failure.decision.step for failure in incident.failures if failure.decision is not None and failure.decision.step is not None]
    reached += [incident.progress.step] if incident.progress.step is not None else []
    return IncidentCost(
        number=incident.number,
        run_id=run.run_id,
        opened_t=incident.opened_t,
        attempt=last.attempt,
        cause=verdict.cause.value if verdict is not None else "",
        summary=clean(verdict.summary if verdict is not None else incident.summary),
        rank=verdict.rank if verdict is not None and verdict.rank is not None else incident.rank,
        outcome=incident.outcome,
        action="" if decision is None else clean(wording.done_text(decision.plan, decision.attempt)),
        planned=_is_planned(verdict),
        mttd_s=detect_s,
        mttr_s=mttr_s,
        parts=dict(start.parts) if start is not None else {},
        lost_steps=max(0, max(reached) - resumed_step) if reached and resumed_step is not None else None,
        lost_s=math.fsum(span.took_s for span in spans),
        rank_hours=math.fsum(span.took_s * span.ranks for span in spans) / _HOUR_S,
        resumed_step=resumed_step,
        what=clean(wording.what_text(verdict) if verdict is not None else wording.capital(incident.summary)),
    )


def _is_planned(verdict: FailureVerdict | None) -> bool:
    return verdict is not None and verdict.cause in FROM_OUTSIDE


def figures_of(runs: Sequence[RunLedger], incidents: Sequence[IncidentCost]) -> Figures:
    """Return what these runs and their incidents add up to."""
    seconds = {state: math.fsum(run.seconds()[state] for run in runs) for state in TimeState}
    wall_s = math.fsum(run.wall_s for run in runs)
    unkept = [run.unkept_s() for run in runs]
    new_s, ran_s = math.fsum(seconds[state] for state in NEW_STEPS), math.fsum(seconds[state] for state in RANKS_RAN)
    kept_s = None if None in unkept else seconds[TimeState.PRODUCTIVE] - math.fsum(took_s for took_s in unkept if took_s is not None)
    # a run that ended well trained, though no step of it was seen: 0 % would be false
    unseen = not any(run.reached for run in runs) and not new_s and any(run.exit_code == 0 for run in runs)
    failures = [incident for incident in incidents if not incident.planned]
    mtbf_s = ran_s / len(failures) if len(failures) >= LEAST_FAILURES else None
    repairs = sorted(failure.mttr_s for failure in failures if failure.mttr_s is not None)
    return Figures(
        wall_s=wall_s,
        seconds=seconds,
        ettr=None if unseen else _share(new_s, wall_s),
        goodput=None if unseen or kept_s is None else _share(max(0.0, kept_s), wall_s),
        attempts=sum(run.attempts for run in runs),
        failures=len(failures),
        planned=len(incidents) - len(failures),
        ran_s=ran_s,
        mtbf_s=mtbf_s,
        mtbf_range_s=mtbf_interval_s(ran_s, len(failures)) if ran_s else None,
        mttd_s=_median(failure.mttd_s for failure in failures),
        mttr_s=_median(repairs),
        mttr_p95_s=repairs[math.ceil(0.95 * len(repairs)) - 1] if repairs else None,
        lost_s=math.fsum(incident.lost_s for incident in incidents),
        lost_steps=sum(incident.lost_steps or 0 for incident in incidents),
        rank_hours=math.fsum(incident.rank_hours for incident in incidents),
        step_s=_median(sample.step_s for run in runs for sample in run.samples),
        advice=None if mtbf_s is None else _advice(runs, mtbf_s),
    )


def _advice(runs: Iterable[RunLedger], mtbf_s: float) -> SavingAdvice | None:
    """Return how often to save; None where no save was seen to hold the ranks."""
    runs = list(runs)
    save_s = _median(span.took_s for run in runs for span in run.spans if span.state is TimeState.CHECKPOINT_STALL)
    if save_s is None:
        return None
    verified = [[save for save in run.saves if not save.is_mirrored] for run in runs]
    now_s = _median(save.t - before.t for saves in verified for before, save in pairwise(saves) if before.attempt == save.attempt)
    return SavingAdvice(save_s, save_interval_s(save_s, mtbf_s), now_s)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _share(part_s: float, whole_s: float) -> float | None:
    return part_s / whole_s if whole_s > 0 else None
