"""A report as JSON. Pure."""

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
    return {"version": VERSION, **asdict(fields.pop("figures")), **fields, "runs": [run_document(run) for run in report.runs]}


def run_document(run: RunLedger) -> dict[str, Any]:
    """Return a run as it is printed."""
    return {
        "run": run.run_id,  # its id
        "begin_t": run.begin_t,  # its first record
        "end_t": run.end_t,  # its last record, or now
        "is_over": run.is_over,  # it has an end record
        "goes_on": run.goes_on,  # it ends now
        "exit_code": run.exit_code,  # of its end record
        "attempts": run.attempts,  # how many
        "world_size": run.ranks,  # ranks on all nodes, of the newest attempt
        "gpus": run.gpus,  # of this node
        "reached_step": run.reached,  # its highest step
        "kept_step": run.kept,  # the highest step of a checkpoint that was verified
        "counts_rework": run.counts_rework,  # false: the first step of an attempt is not recorded
        "seconds": run.seconds(),  # by state
        # lists that follow each other without a gap: begin, end, state, attempt, incident (0: none), first step, last step
        "spans": [
            (span.begin_t, span.end_t, span.state, span.attempt, span.incident, span.first_step, span.last_step) for span in run.spans
        ],
        # lists: time, attempt, step, seconds for a step, loss, whether that was finite. At most 2,000; of a longer run every second, fourth
        # … report of progress
        "samples": run.samples,
    }
