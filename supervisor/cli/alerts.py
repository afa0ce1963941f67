"""`supervise alerts test` and `replay`: whether alerts reach people, and sending the refused ones again; what `status` shows of them."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import click

from supervisor.alerts import outbox
from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, setting_options
from supervisor.cli.jobs.job_files import find_job, state_root
from supervisor.core.values import replace
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity
from supervisor.job.local_time import clock_text
from supervisor.report.status_page import AlertList, ListedAlert
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from supervisor.alerts.model import AlertEvent, OutgoingAlert
    from supervisor.alerts.sinks import Outcome
    from supervisor.config.settings import Settings
    from supervisor.run.alerting import ConfiguredSink

#: The directories of an outbox, and what is in them.
_STATES = {"sent": "sent", "dead": "refused", "": "waiting"}


@click.command()
@setting_options(*JOB)
@click.argument("sink", metavar="[SINK]", required=False)
def test_command(invocation: Invocation, *, sink: str | None) -> int:
    """No job need exist. The exit code is 1 if a service refused it or did not answer."""
    settings = invocation.settings()
    return send_test(settings, invocation.job(settings) or "test", sink)


@click.command()
@setting_options(*JOB)
@click.argument("sink", metavar="[SINK]", required=False)
def replay_command(invocation: Invocation, *, sink: str | None) -> int:
    """They go in their order, with the ids that they had. Correct the address or the kind first. 1: one was not taken."""
    settings = invocation.settings()
    return replay(settings, invocation.job(settings), sink)


def send_test(settings: Settings, job: str, name: str | None) -> int:
    """Send one test alert to each sink, or to the one named so. Returns 0 if all took it, else 1."""
    from supervisor.alerts.model import AlertEvent  # noqa: PLC0415  not for --help

    alert = _alert(settings, job, AlertEvent.TEST)
    return _send(alert, _sinks(settings, name))


def send_unit_failed(settings: Settings, job: str, unit: str, what: str) -> int:
    """Alert each sink that a systemd unit failed. what: for sinks that want lines. Returns 0 if all took it or there is none, else 1."""
    from supervisor.alerts.model import AlertAction, AlertEvent  # noqa: PLC0415  not for --help
    from supervisor.run import alerting  # noqa: PLC0415  loads ssl: not for --help

    alert = replace(_alert(settings, job, AlertEvent.UNIT_FAILED), action=AlertAction.STOP, about=what, subject=unit, lines=(what,))
    found = alerting.configured(settings, os.environ)
    if not found:
        stdio.say(f"warning: {what}, and no alert sink is configured")
    return _send(alert, [configured_sink for configured_sink in found if configured_sink.wanted.wants(alert)])


def _alert(settings: Settings, job: str, event: AlertEvent) -> OutgoingAlert:
    from supervisor.alerts.model import AlertAction, OutgoingAlert  # noqa: PLC0415  not for --help

    run, node = identity.new_run_id(), settings.alerts.alias_of(identity.node_name())
    return OutgoingAlert(run, job, event, event.row.severity, 0, 0, time.time(), AlertAction.RESTART, node=node)


def _send(alert: OutgoingAlert, sinks: Sequence[ConfiguredSink]) -> int:
    """Send one alert at once, and print what each service answered. Returns 0 if all took it, else 1."""
    code = 0
    for sink in sinks:
        outcome: Outcome | None = None
        for request in sink.sink.requests(alert):
            outcome = sink.deliver(request.event_id, request.body)
            if not _is_delivered(outcome):
                break
        code |= _print_outcome(sink, outcome)
    return code


def replay(settings: Settings, job: str | None, name: str | None) -> int:
    """Send a job's refused alerts again. Returns 0 if all were taken, else 1."""
    place = find_job(state_root(settings), job)
    code = count = 0
    for sink in _sinks(settings, name):
        directory = place.directory / sink.outbox
        for kept in outbox.read_alerts(directory, "dead"):
            count += 1
            outcome = sink.deliver(kept.event_id, kept.body)
            code |= _print_outcome(sink, outcome, clean(kept.title))
            if _is_delivered(outcome):
                _move(directory, kept.event_id)
    if not count:
        stdio.write(sys.stdout, f"job {place.job}: no refused alert")
    return code


def summary(state: Path, run_id: str) -> str:
    """Return what `status` shows: per sink how many alerts of this run were refused, with the last answer, wait, or were dropped."""
    since = identity.run_began_t(run_id)
    parts = []
    for name, directory in outbox.outboxes(state):
        refused = [kept for kept in outbox.read_alerts(directory, "dead") if kept.t >= since]
        if refused:
            last = refused[-1]
            parts.append(f"{name} refused {len(refused)}, the last at {clock_text(last.t)}: {clean(last.reason)}")
        if waiting := len(outbox.read_alerts(directory)):
            parts.append(f"{waiting} wait for {name}")
        number, last_t = outbox.count_dropped(directory)
        if number and last_t >= since:
            parts.append(f"{number} for {name} were dropped, the last at {clock_text(last_t)}: too many waited")
    return "; ".join(parts)


def listed(state: Path) -> AlertList:
    """Return every alert that the outboxes of a job hold, the oldest first, and how many were dropped."""
    boxes = outbox.outboxes(state)
    rows = [
        ListedAlert(kept.t, name, kind, kept.title, kept.reason, kept.event_id)
        for name, directory in boxes
        for where, kind in _STATES.items()
        for kept in outbox.read_alerts(directory, where)
    ]
    dropped = {name: number for name, directory in boxes if (number := outbox.count_dropped(directory)[0])}
    return AlertList(tuple(sorted(rows, key=lambda row: row.t)), dropped)


def _sinks(settings: Settings, name: str | None) -> Sequence[ConfiguredSink]:
    from supervisor.run import alerting  # noqa: PLC0415  loads ssl: not for --help

    found = alerting.configured(settings, os.environ)
    chosen = [configured_sink for configured_sink in found if name in {None, configured_sink.name}]
    if not found:
        hint = "Write [[alerts.sink]] with kind = and url = into supervise.toml; docs/guides/alerts.md has an example of each kind."
        raise SuperviseError("no alert sink is configured", hint=hint, exit_code=ExitCode.USAGE)
    if not chosen:
        names = ", ".join(configured_sink.name for configured_sink in found)
        raise SuperviseError(f"no such alert sink: {name}", hint=f"Name one of these: {names}.", exit_code=ExitCode.USAGE)
    return chosen


def _is_delivered(outcome: Outcome) -> bool:
    from supervisor.alerts.sinks import Delivered  # noqa: PLC0415  not for --help

    return isinstance(outcome, Delivered)


def _print_outcome(one: ConfiguredSink, outcome: Outcome | None, title: str = "") -> int:
    """Print what the service answered. title: of the alert. Returns 0 if it took the alert, else 1."""
    from supervisor.alerts.sinks import Delivered, DeliveryRefused  # noqa: PLC0415  not for --help

    what = "nothing was sent"
    if isinstance(outcome, Delivered):
        what = f"delivered{f' ({outcome.answer})' if outcome.answer else ''}"
    elif isinstance(outcome, DeliveryRefused):
        what = f"REFUSED: {outcome.reason}"
    elif outcome is not None:
        what = f"NOT DELIVERED: {outcome.reason}; a run would try again"
    stdio.write(sys.stdout, f"{one.name}  {one.sink.host}  {what}" + (f"  {title}" if title else ""))
    return int(not isinstance(outcome, Delivered))


def _move(directory: Path, event_id: str) -> None:
    try:
        outbox.move_to_sent(directory, event_id)
    except OSError as error:
        stdio.say(f"warning: delivered, and still listed as refused: {directory / 'dead'}: {error.strerror}")
