"""`supervise status`: where a job stands, by its journal, its lock and, while it runs, its heartbeats."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from checkpointing.manifest.documents import Manifests
from supervisor.checkpoints.recording import numerics
from supervisor.cli import alerts
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.job_files import (
    JobFiles,
    find_job,
    history_of,
    live_progress,
    print_text,
    show_problems,
    state_root,
)
from supervisor.report import card
from supervisor.report.card import Status
from supervisor.report.text import clean

if TYPE_CHECKING:
    from supervisor.config.settings import Settings


@click.command()
@setting_options(*JOB)
@json_option
def command(invocation: Invocation, *, as_json: bool) -> int:
    """Without --job it shows the most recent job here. The exit code is 0, whatever the job does."""
    settings = invocation.settings_to_read_with()
    return status(settings, invocation.job(settings), as_json)


def status(settings: Settings, job: str | None, as_json: bool) -> int:  # noqa: FBT001 (the command's own flag)
    """Print where the job stands. Returns 0."""
    place = find_job(state_root(settings), job)
    seen = status_of(place)
    print_text(json.dumps(as_dict(seen), indent=1) if as_json else card.status_text(seen, settings.address(place.job)))
    return 0


def status_of(place: JobFiles) -> Status:
    """Return where the job stands: from its journal, its lock, and while it runs from its heartbeats."""
    history, alive = history_of(place)
    show_problems(history)
    run, end = history.run, history.end
    progress = live_progress(history) if history.end is None else history.progress
    decision = next((r.decision for i in reversed(history.incidents) for r in reversed(i.rounds) if r.decision is not None), None)
    incident = history.open_incident
    return Status(
        job=place.job,
        node=place.node,
        run=run.run_id if run else "",
        stage=history.stage,
        attempt=history.attempt,
        step=progress.step,
        step_relative=progress.relative,
        phase=progress.phase.value,
        ranks=history.ranks if alive is not False else (),
        incident=incident.number if incident else None,
        incidents=history.incidents_before + len(history.incidents),
        last_decision=f"{decision.plan.kind.value}: {clean(decision.plan.reason)}" if decision else "",
        supervisor_pid=run.pid if run else 0,
        supervisor_alive=alive,
        state_dir=str(place.directory),
        exit_code=end.exit_code if end else None,
        ended=end is not None,
        numbers=_numbers(place, run.run_id) if run else "",
        restored=clean(history.restored),
        world_size=history.world_size if history.ranks and alive is not False else 0,
        alerts=alerts.summary(place.directory, run.run_id) if run else "",
    )


def _numbers(place: JobFiles, run: str) -> str:
    newest = numerics.newest_of_run(Manifests(str(place.directory / "checkpoints")).all(), run)
    return "" if newest is None else numerics.report(newest)


def as_dict(seen: Status) -> dict[str, Any]:
    """Return the JSON of `status --json` (docs/status-why-logs.md)."""
    return {
        "job": seen.job,
        "node": seen.node,
        "run": seen.run,
        "stage": seen.stage,
        "attempt": seen.attempt,
        "step": seen.step,
        "step_relative": seen.step_relative,
        "phase": seen.phase,
        "ranks": [{"rank": r.rank, "local_rank": r.local_rank, "pid": r.pid} for r in seen.ranks],
        "world_size": seen.world_size or None,
        "incident": seen.incident,
        "incidents": seen.incidents,
        "last_decision": seen.last_decision or None,
        "supervisor": {"pid": seen.supervisor_pid, "alive": seen.supervisor_alive},
        "state_dir": seen.state_dir,
        "exit_code": seen.exit_code,
        "numbers": seen.numbers or None,
        "restored": seen.restored or None,
        "alerts": seen.alerts or None,
    }
