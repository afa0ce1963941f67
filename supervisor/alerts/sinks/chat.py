"""The common part of all sinks over HTTP: bodies made of a notification, posted to one address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from supervisor.alerts.endpoint import HttpEndpoint
from supervisor.alerts.model import AlertSeverity
from supervisor.alerts.sinks import dump, request
from supervisor.alerts.text import AlertDetail
from supervisor.alerts.threads import NotificationState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisor.alerts.sinks import AlertRequest, Outcome
    from supervisor.alerts.threads import Notification

    Bodies = Callable[[Notification, AlertDetail], Sequence[dict[str, Any] | list[Any]]]

_COLOURS: Final = {AlertSeverity.INFO: 0x3B82F6, AlertSeverity.WARNING: 0xF59E0B, AlertSeverity.CRITICAL: 0xDC2626}
_RESOLVED: Final = 0x16A34A


class HttpSink:
    """Posts the bodies that `bodies` writes, one request each. Raises SuperviseError (exit 78) for a URL that cannot be one."""

    def __init__(
        self,
        url: str,
        bodies: Bodies,
        detail: AlertDetail = AlertDetail.SUMMARY,
        *,
        secret: bytes | None = None,
        key: tuple[str, str] | None = None,
    ) -> None:
        """`secret`: signs each body. `key`: name and value of a secret field, added when a body is sent: the spool never holds it."""
        self._endpoint = HttpEndpoint(url, secret, hide=[key[1]] if key else [])
        self._key = dump(dict([key]))[:-1] + b"," if key else b""
        self.host = self._endpoint.host
        self._bodies, self._detail = bodies, detail

    def requests(self, sent: Notification) -> Sequence[AlertRequest]:
        """Write the notification as this service takes it."""
        return [request(sent, body, number) for number, body in enumerate(self._bodies(sent, self._detail))]

    def deliver(self, event_id: str, body: bytes, deadline_s: float) -> Outcome:
        """Try once, in at most `deadline_s` from name look-up to status line."""
        return self._endpoint.send(event_id, self._key + body[1:] if self._key else body, deadline_s)


def colour(sent: Notification) -> int:
    """Return a colour (RGB) for the bar beside a message."""
    return _RESOLVED if sent.state is NotificationState.RESOLVED else _COLOURS[sent.severity]


def cut(text: str, most: int) -> str:
    """Shorten a text that a service would refuse."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
