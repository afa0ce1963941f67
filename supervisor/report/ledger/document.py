"""A report as JSON. docs/guides/report.md has the fields. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.report.ledger.figures import JobReport
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
        **asdict(report.figures),
        "runs": [_run(run) for run in report.runs],
        "incidents": [asdict(incident) for incident in report.incidents],
        "problems": report.problems,
        "nodes": [asdict(node) for node in report.nodes],
        "slow": [asdict(span) for span in report.slow],
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
        "samples": [[sample.t, sample.attempt, sample.step, sample.step_s, sample.loss] for sample in run.samples],
    }
