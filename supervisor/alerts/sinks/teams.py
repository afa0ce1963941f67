"""Microsoft Teams: an Adaptive Card for the workflow "when a Teams webhook request is received".

Fields: learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors (November 2026). Workflows take Adaptive Cards only, not the
older message cards; a message is at most 28 KiB. The answer to what the workflow accepted is 202.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from supervisor.alerts import text
from supervisor.alerts.model import AlertSeverity
from supervisor.alerts.sinks.chat import HttpSink, cut
from supervisor.alerts.threads import NotificationState

if TYPE_CHECKING:
    from supervisor.alerts.sinks import SinkOptions
    from supervisor.alerts.text import AlertDetail
    from supervisor.alerts.threads import Notification

_COLOURS: Final = {AlertSeverity.INFO: "accent", AlertSeverity.WARNING: "warning", AlertSeverity.CRITICAL: "attention"}


def bodies(sent: Notification, detail: AlertDetail) -> list[dict[str, Any]]:
    """Return one message with one card."""
    tone = "good" if sent.state is NotificationState.RESOLVED else _COLOURS[sent.severity]
    facts = [{"title": name, "value": cut(value, 200)} for name, value in text.facts(sent, detail)]
    body: list[dict[str, Any]] = [
        _text(text.title(sent, detail), weight="bolder", size="medium", color=tone),
        _text(text.sentences(sent, detail)),
        {"type": "FactSet", "facts": facts},
        *(_text(line, fontType="monospace", size="small") for line in text.lines(sent, detail)),
        _text(text.command(sent, detail), fontType="monospace"),
    ]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": body,
    }
    return [{"type": "message", "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}]}]


def make(options: SinkOptions) -> HttpSink:
    """Make the sink; raises SuperviseError for a URL that cannot be one."""
    return HttpSink(options.url, bodies, options.detail)


def _text(written: str, **form: str) -> dict[str, Any]:
    return {"type": "TextBlock", "text": cut(written, 2000), "wrap": True, **form}
