"""Makes the job's alert sinks from the settings: for a run, and for `supervise alerts`.

Imported only where a sink is configured: tenacity and ssl cost memory that other jobs need not pay.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from supervisor.alerts import sinks
from supervisor.alerts.delivery import RetryPace
from supervisor.alerts.endpoint import HttpEndpoint
from supervisor.alerts.model import AlertSeverity
from supervisor.alerts.router import AlertFilter, AlertRouter
from supervisor.alerts.sinks import AlertSink, SinkOptions
from supervisor.alerts.text import AlertDetail
from supervisor.config import secret_files
from supervisor.config.sink_kinds import kind_of
from supervisor.core.model import Cause
from supervisor.core.values import Struct
from supervisor.errors import SuperviseError
from supervisor.guardian import ownership

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisor.alerts.delivery import Log
    from supervisor.config.settings import Settings

#: The name of [alerts.webhook], whose outbox stands where it always stood.
WEBHOOK = "webhook"


class ConfiguredSink(Struct, frozen=True):
    """One sink of the settings. outbox: where it is below the job's directory. kind_seen: what its address looks like instead."""

    name: str
    kind: str
    sink: AlertSink
    wanted: AlertFilter
    deadline_s: float
    outbox: str
    kind_seen: str = ""

    @property
    def grouped(self) -> bool:
        """Whether it gets notifications instead of events."""
        return self.kind != WEBHOOK

    @property
    def warning(self) -> str:
        """What to print at start, "" for nothing."""
        if not self.kind_seen:
            return ""
        remedy = f'write [[alerts.sink]] with kind = "{self.kind_seen}"'
        return f"alerts: {self.sink.host} looks like {self.kind_seen}, which refuses what a {self.kind} gets: {remedy}"


def configured(settings: Settings, environ: Mapping[str, str]) -> list[ConfiguredSink]:
    """Return every sink of the settings, [alerts.webhook] first. Raises SuperviseError for one that cannot be used."""
    found: list[ConfiguredSink] = []
    webhook = settings.alerts.webhook
    if webhook.url:
        options = SinkOptions(WEBHOOK, webhook.url, secret_files.webhook_secret(settings).encode() or None)
        seen = kind_of(webhook.url)
        found.append(ConfiguredSink(WEBHOOK, WEBHOOK, sinks.make(options), AlertFilter(), webhook.deadline_s, "outbox", seen))
    for section in settings.alerts.sinks:
        if section.called == WEBHOOK and webhook.url:
            raise SuperviseError("two alert sinks are called webhook", hint="Give that of [[alerts.sink]] a name of its own with name =.")
        url = secret_files.sink_address(section, environ)
        secret = secret_files.sink_key(section, environ).encode() or None
        options = SinkOptions(section.kind, url, secret, section.command, AlertDetail(section.detail), start_program)
        wanted = AlertFilter(AlertSeverity(section.severity), frozenset(map(Cause, section.causes)), section.runs)
        seen = kind_of(url)
        one = ConfiguredSink(
            section.called, section.kind, sinks.make(options), wanted, section.deadline_s, f"alerts/{section.called}",
            seen if seen != section.kind else "",
        )  # fmt: skip
        if one.kind_seen:
            raise SuperviseError(f"wrong kind of alert sink: {section.called}: {one.warning}", hint="Change its kind, or its address.")
        found.append(one)
    return found


def start_program(argv: tuple[str, ...], environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the program of an `exec` sink (alerts/sinks/exec.py). Raises OSError."""
    return ownership.started(
        lambda: subprocess.Popen(  # noqa: S603 -- the user's own program, without a shell
            argv, env=environ, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
    )


def start(settings: Settings, environ: Mapping[str, str], state: Path, log: Log) -> AlertRouter:
    """Return the router of a run, whose sinks send at once what an earlier run left. Raises SuperviseError for a sink that cannot be used.

    state: the directory of the job's files on this node. log: takes the name and the fields of a log event, from any thread.
    """
    router = AlertRouter(settings.alerts.resolve_after_s)
    for one in configured(settings, environ):
        router.add(
            one.name, one.sink, state / one.outbox, wanted=one.wanted, grouped=one.grouped,
            deadline_s=one.deadline_s, log=log, pace=RetryPace(),
        )  # fmt: skip
    return router


def heartbeat(settings: Settings) -> HttpEndpoint | None:
    """Return the address that is pinged while the training is healthy; None if there is none. Raises SuperviseError for a wrong one."""
    url = settings.alerts.heartbeat_url
    return HttpEndpoint(url, None, method="GET") if url else None
