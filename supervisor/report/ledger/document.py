"""A report as JSON. docs/guides/report.md has the fields. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.report.ledger.figures import Figures, JobReport
    from supervisor.report.ledger.spans import RunLedger

#: Raised where a field is removed or means something else.
VERSION = 1


def document(report: JobReport) -> dict[str, Any]:
    """Return a report as JSON values: times in Unix seconds, durations in seconds; null: not recorded."""
    return {
        "version": VERSION,
        "job": report.job,
        "node": report.node,
        "kept_runs": report.kept_runs,
        **_figures(report.figures),
        "runs": [_run(run) for run in report.runs],
        "incidents": [asdict(one) for one in report.incidents],
        "problems": report.problems,
    }


def _figures(found: Figures) -> dict[str, Any]:
    mtbf_range_s = None if found.mtbf_range_s is None else list(found.mtbf_range_s)
    return {
        "wall_s": found.wall_s,
        "seconds": {state.value: took_s for state, took_s in found.seconds.items()},
        "ettr": found.ettr,
        "goodput": found.goodput,
        "attempts": found.attempts,
        "failures": found.failures,
        "planned": found.planned,
        "ran_s": found.ran_s,
        "mtbf_s": found.mtbf_s,
        "mtbf_range_s": mtbf_range_s,
        "mttd_s": found.mttd_s,
        "mttr_s": found.mttr_s,
        "mttr_p95_s": found.mttr_p95_s,
        "lost_s": found.lost_s,
        "lost_steps": found.lost_steps,
        "rank_hours": found.rank_hours,
        "step_s": found.step_s,
        "advice": None if found.advice is None else asdict(found.advice),
    }


def _run(run: RunLedger) -> dict[str, Any]:
    return {
        "run": run.run_id,
        "begin_t": run.begin_t,
        "end_t": run.end_t,
        "is_over": run.is_over,
        "goes_on": run.goes_on,
        "exit_code": run.exit_code,
        "attempts": run.attempts,
        "world_size": run.ranks,
        "gpus": run.gpus,
        "reached_step": run.reached,
        "kept_step": run.kept,
        "counts_rework": run.counts_rework,
        "seconds": {state.value: took_s for state, took_s in run.seconds().items()},
        "spans": [
            [span.begin_t, span.end_t, span.state.value, span.attempt, span.incident, span.first_step, span.last_step] for span in run.spans
        ],
        "samples": [[one.t, one.attempt, one.step, one.step_s, one.loss] for one in run.samples],
    }
