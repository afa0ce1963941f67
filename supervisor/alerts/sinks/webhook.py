"""The generic webhook: one POST of the payload of version 1 for each event, signed. Its receivers group by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.alerts.endpoint import HttpEndpoint
from supervisor.alerts.model import encode
from supervisor.alerts.sinks import AlertRequest
from supervisor.alerts.threads import Notification

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.alerts.model import OutgoingAlert
    from supervisor.alerts.sinks import Outcome, SinkOptions


class WebhookSink:
    """The endpoint. Raises SuperviseError (exit 78) for a URL that cannot be one."""

    def __init__(self, url: str, secret: bytes | None) -> None:
        self._endpoint = HttpEndpoint(url, secret)
        self.host = self._endpoint.host

    def requests(self, sent: OutgoingAlert | Notification) -> Sequence[AlertRequest]:
        """Write the payload of version 1."""
        alert = sent.alert if isinstance(sent, Notification) else sent
        what = f"incident {alert.incident}, {alert.cause.value}" if alert.incident else alert.cause.value
        return [AlertRequest(alert.event_id, encode(alert), f"{alert.severity.value.upper()} {alert.event.value}: {what}")]

    def deliver(self, event_id: str, body: bytes, deadline_s: float) -> Outcome:
        """Try once, in at most `deadline_s` from name look-up to status line."""
        return self._endpoint.send(event_id, body, deadline_s)


def make(options: SinkOptions) -> WebhookSink:
    """Make the sink; raises SuperviseError for a URL that cannot be one."""
    return WebhookSink(options.url, options.secret)
