"""Every service that apprise knows (kind `apprise`), such as Telegram, ntfy, Pushover or Matrix: github.com/caronc/apprise.

apprise tells whether a service took a message, and writes to its log why it did not. So every failure is another time, and its last line
in the log is the reason. A service cannot know a repeat: a message that was taken too late comes twice.
"""

from __future__ import annotations

import json
import logging
import warnings
from typing import TYPE_CHECKING, Any, Final, Self

from supervisor.alerts import text
from supervisor.alerts.model import AlertSeverity
from supervisor.alerts.sinks import Delivered, DeliveryDeferred, request
from supervisor.alerts.threads import NotificationState
from supervisor.alerts.tries import TryThreads
from supervisor.classify import redact
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.alerts.sinks import AlertRequest, Outcome, SinkOptions
    from supervisor.alerts.threads import Notification

#: How a message is marked, where the service has colours or icons for that.
_TYPES: Final = {AlertSeverity.INFO: "info", AlertSeverity.WARNING: "warning", AlertSeverity.CRITICAL: "failure"}
_ANSWER: Final = 200


class AppriseSink:
    """One service. Raises SuperviseError (exit 78) where apprise is not installed, or does not know the address."""

    def __init__(self, options: SinkOptions) -> None:
        try:
            import apprise  # noqa: PLC0415 - an extra
        except ImportError:
            raise SuperviseError(
                "alerts: apprise is not installed",
                hint="Install it where supervise is (`pip install apprise`), or use another kind of sink.",
            ) from None
        self._services = apprise.Apprise()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first address imports all services, and some of them warn
            is_known = bool(options.url) and bool(self._services.add(options.url))
        if not is_known:
            raise SuperviseError(
                "alerts: apprise: it does not know this address",
                hint="Write url = as github.com/caronc/apprise has it for the service, such as ntfys://TOPIC, below [[alerts.sink]].",
            )
        self.host = f"apprise ({self._services[0].service_name})"
        self._hide = [word for word in options.url.replace("?", "/").replace("@", "/").replace(":", "/").split("/") if len(word) > 5]  # noqa: PLR2004
        self._detail = options.detail
        self._threads = TryThreads("alert-apprise")

    def requests(self, sent: Notification) -> Sequence[AlertRequest]:
        """Write the notification: title, sentences and command."""
        lines = "\n".join(text.lines(sent, self._detail))
        parts = [text.sentences(sent, self._detail), text.command(sent, self._detail), lines]
        body: dict[str, Any] = {
            "title": text.title(sent, self._detail),
            "body": "\n\n".join(paragraph for paragraph in parts if paragraph),
            "type": "success" if sent.state is NotificationState.RESOLVED else _TYPES[sent.severity],
        }
        return [request(sent, body)]

    def deliver(self, event_id: str, body: bytes, deadline_s: float) -> Outcome:
        """Try once; no service knows `event_id`."""
        del event_id
        return self._threads.run(lambda: self._exchange(body), deadline_s)

    def _exchange(self, body: bytes) -> Outcome:
        message = json.loads(body)
        with _LastLine() as log:
            is_taken = bool(self._services.notify(title=message["title"], body=message["body"], notify_type=message["type"]))
        if is_taken:
            return Delivered("accepted")
        reason = redact.text(log.last or "the service did not take it")
        for hidden in self._hide:
            reason = reason.replace(hidden, "...")
        return DeliveryDeferred(" ".join(reason.split())[:_ANSWER])


class _LastLine(logging.Handler):
    """The last line that apprise logs. It logs in threads of its own, so that of another sink may be among them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.last = record.getMessage()

    def __enter__(self) -> Self:
        logging.getLogger("apprise").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("apprise").removeHandler(self)


def make(options: SinkOptions) -> AppriseSink:
    """Make the sink; raises SuperviseError where apprise is not installed, or does not know the address."""
    return AppriseSink(options)
