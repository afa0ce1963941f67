"""A report as JSON. docs/reference/json.md has the fields. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.core.values import asdict

if TYPE_CHECKING:
    from supervisor.report.ledger.figures import JobReport
    from supervisor.view.spans import RunLedger

#: Raised where a field is removed or means something else.
VERSION = 1


def document(report: JobReport) -> dict[str, Any]:
    """Return a report as it is printed: times in Unix seconds, durations in seconds; null: not recorded."""
    fields = asdict(report)
    fields["memory"] = [asdict(rank) for rank in report.memory]
    fields["forecasts"] = [asdict(forecast) for forecast in report.forecasts]
    return {"version": VERSION, **asdict(fields.pop("figures")), **fields, "runs": [_run(run) for run in report.runs]}


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
        "seconds": run.seconds(),
        "spans": [
            (span.begin_t, span.end_t, span.state, span.attempt, span.incident, span.first_step, span.last_step) for span in run.spans
        ],
        "samples": run.samples,
    }
