"""`supervise alerts test` and `replay`: whether alerts reach people, and sending the refused ones again."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, setting_options
from supervisor.cli.jobs.job_files import find_job, state_root
from supervisor.cli.progress import progress
from supervisor.core.values import replace
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.alerts.endpoint import HttpEndpoint
    from supervisor.alerts.model import AlertEvent, OutgoingAlert
    from supervisor.alerts.sinks import Outcome
    from supervisor.config.settings import Settings
    from supervisor.run.alerting import ConfiguredSink


@dataclass(frozen=True, slots=True)
class SinkAnswer:
    """A service's answer to one alert, in words. title: of an alert that came again."""

    sink: str
    host: str
    text: str
    is_delivered: bool = False
    is_refused: bool = False
    title: str = ""


@click.command()
@setting_options(*JOB)
@click.argument("sink", metavar="[SINK]", required=False)
def test_command(invocation: Invocation, *, sink: str | None) -> int:
    """No job need exist. Without SINK the dead man's switch is pinged too. The exit code is 1 if a service refused it or did not answer."""
    settings = invocation.settings()
    return send_test(settings, invocation.job(settings) or "test", sink)


@click.command()
@setting_options(*JOB)
@click.argument("sink", metavar="[SINK]", required=False)
def replay_command(invocation: Invocation, *, sink: str | None) -> int:
    """Alerts go in their order, with their ids. Correct the address or the kind first. Exit code 1: one was refused or cannot be read."""
    settings = invocation.settings()
    return replay(settings, invocation.job(settings), sink)


def send_test(settings: Settings, job: str, name: str | None) -> int:
    """Send one test alert to each sink, or to the one named so. Returns 0 if all took it, else 1."""
    from supervisor.alerts.model import AlertEvent  # noqa: PLC0415  not for --help
    from supervisor.run import alerting  # noqa: PLC0415  loads ssl: not for --help

    heartbeat = alerting.heartbeat(settings) if name is None else None
    sinks = _sinks(settings, name) if settings.alerts.sinks or heartbeat is None else ()
    return _show(_send(_alert(settings, job, AlertEvent.TEST), sinks, heartbeat))


def send_unit_failed(settings: Settings, job: str, unit: str, message: str) -> int:
    """Alert each sink that a systemd unit failed. what: for sinks that want lines. Returns 0 if all took it or there is none, else 1."""
    from supervisor.alerts.model import AlertAction, AlertEvent  # noqa: PLC0415  not for --help
    from supervisor.run import alerting  # noqa: PLC0415  loads ssl: not for --help

    alert = replace(_alert(settings, job, AlertEvent.UNIT_FAILED), action=AlertAction.STOP, about=message, subject=unit, lines=(message,))
    sinks = alerting.configured(settings, os.environ)
    if not sinks:
        stdio.say(f"warning: {message}, and no alert sink is configured")
    return _show(_send(alert, [sink for sink in sinks if sink.wanted.wants(alert)]))


def replay(settings: Settings, job: str | None, name: str | None) -> int:
    """Send a job's refused alerts again. Returns 0 if all were taken, 1 if not, or if some cannot be read."""
    from supervisor.alerts import spool  # noqa: PLC0415  not for --help

    place = find_job(state_root(settings), job)
    sinks = {sink.name: sink for sink in _sinks(settings, name)}
    refused = [alert for alert in spool.kept(place.directory) if alert.state is spool.AlertState.REFUSED and alert.sink in sinks]
    if problem := spool.problem(place.directory):
        stdio.say(f"warning: {problem}; alerts that it held are not sent again")
    answers: list[SinkAnswer] = []
    try:
        with spool.replaying(place.directory) as record, progress("sending alerts again", len(refused), unit="alerts") as bar:
            for alert in refused:
                sink = sinks[alert.sink]
                answer = _answer(sink.name, sink.sink.host, sink.deliver(alert.event_id, alert.body.encode("ascii")), alert.title)
                answers.append(answer)
                bar.advance()
                if answer.is_delivered and (reason := record(alert)):
                    stdio.say(f"warning: delivered, and still listed as refused: {reason}")
    except BlockingIOError:
        raise SuperviseError("another `supervise alerts replay` of this job is running", hint="Wait until it has ended.") from None
    return int(bool(problem)) | _show(answers, empty="" if problem else f"job {place.job}: no refused alert")


def _alert(settings: Settings, job: str, event: AlertEvent) -> OutgoingAlert:
    from supervisor.alerts.model import AlertAction, OutgoingAlert  # noqa: PLC0415  not for --help

    run, node = identity.new_run_id(), settings.alerts.alias_of(identity.node_name())
    return OutgoingAlert(run, job, event, event.row.severity, 0, 0, time.time(), AlertAction.NONE, node=node)


def _send(alert: OutgoingAlert, sinks: Sequence[ConfiguredSink], heartbeat: HttpEndpoint | None = None) -> list[SinkAnswer]:
    """Send one alert to all sinks at once, and ping the dead man's switch; return what each answered."""
    from supervisor.alerts.threads import single  # noqa: PLC0415  not for --help
    from supervisor.report.alert_watch import PING_DEADLINE_S  # noqa: PLC0415  as above

    def answer_of(sink: ConfiguredSink) -> SinkAnswer:
        answer = SinkAnswer(sink.name, sink.sink.host, "nothing was sent")
        for request in sink.sink.requests(single(alert)):
            answer = _answer(sink.name, sink.sink.host, sink.deliver(request.event_id, request.body))
            if not answer.is_delivered:
                break
        return answer

    with progress("waiting for the services' answers"), ThreadPoolExecutor(max(1, len(sinks))) as pool:
        answers = list(pool.map(answer_of, sinks))
        if heartbeat is not None:
            answers.append(_answer("heartbeat", heartbeat.host, heartbeat.send("", b"", PING_DEADLINE_S)))
    return answers


def _sinks(settings: Settings, name: str | None) -> Sequence[ConfiguredSink]:
    from supervisor.run import alerting  # noqa: PLC0415  loads ssl: not for --help

    sinks = alerting.configured(settings, os.environ)
    named = [sink for sink in sinks if name in {None, sink.name}]
    if not sinks:
        hint = "Write [[alerts.sink]] with kind = and url = into supervise.toml; docs/guides/alerts.md has an example of each kind."
        raise SuperviseError("no alert sink is configured", hint=hint, exit_code=ExitCode.USAGE)
    if not named:
        names = ", ".join(sink.name for sink in sinks)
        raise SuperviseError(f"no such alert sink: {name}", hint=f"Name one of these: {names}.", exit_code=ExitCode.USAGE)
    return named


def _answer(sink: str, host: str, outcome: Outcome, title: str = "") -> SinkAnswer:
    from supervisor.alerts.sinks import Delivered, DeliveryRefused  # noqa: PLC0415  not for --help

    if isinstance(outcome, Delivered):
        return SinkAnswer(sink, host, f"delivered{f' ({outcome.answer})' if outcome.answer else ''}", is_delivered=True, title=title)
    if isinstance(outcome, DeliveryRefused):
        return SinkAnswer(sink, host, f"REFUSED: {outcome.reason}", is_refused=True, title=title)
    return SinkAnswer(sink, host, f"NOT DELIVERED: {outcome.reason}; a run would try again", title=title)


def _show(answers: Sequence[SinkAnswer], empty: str = "") -> int:
    """Print what each service answered. Returns 0 if all took the alert, else 1."""
    from supervisor.report.layout import Tone  # noqa: PLC0415  for people only
    from supervisor.report.table import Cell, Column, Table  # noqa: PLC0415  as above

    def cell(answer: SinkAnswer) -> Cell:
        return Cell(answer.text, Tone.GOOD if answer.is_delivered else Tone.BAD if answer.is_refused else Tone.WARNING)

    columns = Column("sink"), Column("service"), Column("answer"), Column("alert")
    if answers or empty:
        stdio.show(Table(columns, tuple((answer.sink, answer.host, cell(answer), answer.title) for answer in answers), empty=empty))
    return int(not all(answer.is_delivered for answer in answers))
