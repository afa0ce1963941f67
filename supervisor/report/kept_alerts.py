"""The alerts in the spool of a job, for `status`: a line for the page, and each alert for its list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.alerts import spool
from supervisor.alerts.spool import AlertState
from supervisor.job import identity
from supervisor.job.local_time import clock_text
from supervisor.report.text import clean
from supervisor.view.status import ListedAlert

if TYPE_CHECKING:
    from pathlib import Path


def summary(state: Path, run_id: str) -> str:
    """Return what `status` shows: per sink how many alerts of this run were refused, with the last answer, wait, or were dropped.

    A note before them explains why some may be missing.
    """
    since = identity.run_began_t(run_id)
    alerts = spool.kept(state)
    dropped = {row.sink: row for row in spool.dropped(state)}
    problem = spool.problem(state)
    parts = [clean(problem)] if problem else []
    for name in sorted({*(alert.sink for alert in alerts), *dropped}):
        own = [alert for alert in alerts if alert.sink == name]
        refused = [alert for alert in own if alert.state is AlertState.REFUSED and alert.t >= since]
        if refused:
            last = refused[-1]
            parts.append(f"{name} refused {len(refused)}, the last at {clock_text(last.t)}: {clean(last.reason)}")
        if waiting := sum(alert.state is AlertState.WAITING for alert in own):
            parts.append(f"{waiting} wait for {name}")
        if (row := dropped.get(name)) is not None and row.t >= since:
            parts.append(f"{row.count} for {name} were dropped, the last at {clock_text(row.t)}: too many waited")
    return "; ".join(parts)


def listed(state: Path) -> tuple[tuple[ListedAlert, ...], dict[str, int]]:
    """Return every alert that is kept of a job, the oldest first, and how many each sink lost because too many waited."""
    rows = [
        ListedAlert(alert.t, alert.sink, alert.state.value, alert.title, alert.reason or None, alert.event_id)
        for alert in sorted(spool.kept(state), key=lambda alert: alert.t)
    ]
    return tuple(rows), {row.sink: row.count for row in spool.dropped(state)}
