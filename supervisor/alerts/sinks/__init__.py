"""The interface of a sink of alerts: one file for each kind of supervisor/config/sink_kinds.py, with its name.

A sink writes a notification as requests, and reports the outcome of one try. sender.py decides when to try again, in which order, and
the log. A sink's file is imported only when it is configured.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from supervisor.alerts.text import AlertDetail, title

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.alerts.threads import Notification


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver took the alert. `answer`: its text, for `supervise alerts test`."""

    answer: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class DeliveryDeferred:
    """The receiver cannot take the alert now. `reason`: in words that hold no secret. `after_s`: the wait that it asked for, 0: none."""

    reason: str
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DeliveryRefused:
    """The receiver refused the alert: it would refuse the same alert again. `reason` has its answer."""

    reason: str


Outcome = Delivered | DeliveryDeferred | DeliveryRefused


@dataclass(frozen=True, slots=True)
class AlertRequest:
    """One request that is kept until it is delivered. event_id: 32 hex digits. title: one line about it, for people on this machine."""

    event_id: str
    body: bytes
    title: str = ""


class AlertSink(Protocol):
    """A place that alerts go to. `host` may be logged; nothing else of its address may."""

    host: str

    def requests(self, sent: Notification) -> Sequence[AlertRequest]:
        """Write a notification as the requests that bring it there, in their order; pure."""

    def deliver(self, event_id: str, body: bytes, deadline_s: float) -> Outcome:
        """Try once, idempotent by `event_id`, and be back within `deadline_s`; never raises."""


#: Starts a program with these arguments and this environment, with pipes for its input and its errors, in a session of its own.
StartProgram = Callable[[tuple[str, ...], dict[str, str]], subprocess.Popen[bytes]]


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a sink. `secret`: the key that signs, of the integration, or the password. `start` starts the program of `exec`."""

    kind: str
    url: str = ""
    secret: bytes | None = field(default=None, repr=False)
    argv: tuple[str, ...] = ()
    detail: AlertDetail = AlertDetail.SUMMARY
    start: StartProgram | None = None
    to: tuple[str, ...] = ()


class _SinkModule(Protocol):
    def make(self, options: SinkOptions) -> AlertSink: ...


def make(options: SinkOptions) -> AlertSink:
    """Import and make a sink; raises SuperviseError for options that it cannot use."""
    return cast("_SinkModule", import_module(f"{__name__}.{options.kind}")).make(options)


def request(sent: Notification, body: dict[str, Any] | list[Any], number: int = 0) -> AlertRequest:
    """Return the request of one notification. part: its number if the notification is several requests."""
    event_id = sent.event_id if not number else f"{int(sent.event_id, 16) ^ number:032x}"
    return AlertRequest(event_id, dump(body), title(sent, AlertDetail.SUMMARY))


def dump(body: dict[str, Any] | list[Any]) -> bytes:
    """Return a body as JSON in ASCII."""
    return json.dumps(body, separators=(",", ":")).encode("ascii")
