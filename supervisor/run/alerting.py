"""Makes the job's alert sinks from the settings: for a run, and for `supervise alerts`.

Imported only where a sink is configured: urllib3 and ssl cost memory that other jobs need not pay.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from supervisor.alerts import sinks
from supervisor.alerts.endpoint import HttpEndpoint
from supervisor.alerts.model import AlertSeverity
from supervisor.alerts.router import AlertFilter, AlertRouter
from supervisor.alerts.sender import MOST_TRY_S, AlertSender, RetryPace
from supervisor.alerts.sinks import AlertSink, Outcome, SinkOptions
from supervisor.alerts.text import AlertDetail
from supervisor.config import secret_files
from supervisor.config.alert_settings import SINKS_KEY
from supervisor.config.sink_kinds import kind_of
from supervisor.core.values import Struct
from supervisor.errors import SuperviseError
from supervisor.guardian import ownership
from supervisor.report.log_events import LogEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from supervisor.alerts.sender import Log
    from supervisor.config.settings import Settings
    from supervisor.report.event_log import EventLog

#: How long the first try of an alert may take: most services answer within a second.
DELIVERY_S = 5.0
#: An alert is resolved after it was calm for this long: a restart that fails again at once belongs to the same alert.
RESOLVE_AFTER_S = 60.0


class ConfiguredSink(Struct, frozen=True):
    """One sink of the settings."""

    name: str
    sink: AlertSink
    wanted: AlertFilter

    def deliver(self, event_id: str, body: bytes) -> Outcome:
        """Try once to deliver, for as long as the longest try of a run."""
        return self.sink.deliver(event_id, body, MOST_TRY_S)


def configured(settings: Settings, environ: Mapping[str, str]) -> list[ConfiguredSink]:
    """Return every sink of the settings. Raises SuperviseError for one that cannot be used."""
    configured_sinks: list[ConfiguredSink] = []
    for section in settings.alerts.sinks:
        url = secret_files.sink_address(section, environ)
        secret = secret_files.sink_key(section, environ).encode() or None
        options = SinkOptions(section.kind, url, secret, section.command, AlertDetail(section.detail), start_program, section.to)
        wanted = AlertFilter(AlertSeverity(section.severity), section.runs)
        sink, looks_like = sinks.make(options), kind_of(url)
        if looks_like and looks_like != section.kind:
            looks = f"{sink.host} looks like {looks_like}, which refuses what a {section.kind} gets"
            raise SuperviseError(
                f"wrong kind of alert sink: {section.called}: {looks}",
                hint=f'Write kind = "{looks_like}" below [[{SINKS_KEY}]], or change the address.',
            )
        configured_sinks.append(ConfiguredSink(section.called, sink, wanted))
    return configured_sinks


def start_program(argv: tuple[str, ...], environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the program of an `exec` sink (alerts/sinks/exec.py). Raises OSError."""
    return ownership.started(
        lambda: subprocess.Popen(  # noqa: S603 -- the user's own program, without a shell
            argv, env=environ, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
    )


def run_log(events: EventLog, warn: Callable[[str], object]) -> Log:
    """Return what logs the sender's events, from any thread. `warn` gets a line for the first alert that each sink refuses."""
    names = {name.value: name for name in LogEvent}
    refused: set[object] = set()

    def log(event: str, fields: dict[str, object]) -> None:
        if event in names:
            events.write(names[event], **fields)
        if fields.get("outcome") == "refused" and fields["sink"] not in refused:
            refused.add(fields["sink"])
            warn(f"alert refused by {fields['sink']} ({fields['host']}): {fields['reason']}; `supervise status -v` lists all")

    return log


def start(settings: Settings, environ: Mapping[str, str], state: Path, log: Log) -> AlertRouter:
    """Return the router of a run, whose sinks send at once what an earlier run left. Raises SuperviseError for a sink that cannot be used.

    state: the directory of the job's files on this node. log: takes the name and the fields of a log event, from any thread.
    """
    router = AlertRouter(RESOLVE_AFTER_S, AlertSender(state, DELIVERY_S, log, RetryPace()))
    for configured_sink in configured(settings, environ):
        router.add(configured_sink.name, configured_sink.sink, configured_sink.wanted)
    router.sender.start()
    return router


def heartbeat(settings: Settings) -> HttpEndpoint | None:
    """Return the address that is pinged while the training is healthy; None if there is none. Raises SuperviseError for a wrong one."""
    url = settings.alerts.heartbeat_url
    return HttpEndpoint(url, None, method="GET") if url else None
