"""The generic webhook: one POST of the document (text.py) for each notification, signed where the sink has a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.alerts import text
from supervisor.alerts.sinks.chat import HttpSink

if TYPE_CHECKING:
    from supervisor.alerts.sinks import SinkOptions
    from supervisor.alerts.text import AlertDetail
    from supervisor.alerts.threads import Notification


def bodies(sent: Notification, detail: AlertDetail) -> list[dict[str, Any]]:
    """Return the document."""
    return [text.document(sent, detail)]


def make(options: SinkOptions) -> HttpSink:
    """Make the sink; raises SuperviseError for a URL that cannot be one."""
    return HttpSink(options.url, bodies, options.detail, secret=options.secret)
