"""PagerDuty Events API v2: trigger, acknowledge and resolve by `dedup_key`.

Fields: developer.pagerduty.com/docs/events-api-v2 (November 2026): summary at most 1024 characters, dedup_key 255, 202 if accepted.

While supervise restarts the job, the PagerDuty incident is acknowledged: it does not escalate. An event for an acknowledged incident
pages nobody, so what becomes critical triggers a key of its own, and the first one is resolved. A message without a thread is resolved at
once, because no later one would do it; if it is critical, it stays open until a person resolves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from supervisor.alerts import text
from supervisor.alerts.model import INCIDENT, AlertAction, AlertSeverity, plain_name
from supervisor.alerts.sinks.chat import HttpSink, cut
from supervisor.alerts.threads import NotificationState
from supervisor.core.units import timestamp
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from supervisor.alerts.sinks import SinkOptions
    from supervisor.alerts.text import AlertDetail
    from supervisor.alerts.threads import Notification

URL: Final = "https://events.pagerduty.com/v2/enqueue"


def bodies(sent: Notification, detail: AlertDetail) -> list[dict[str, Any]]:
    """Return the events of a notification, in their order: one, or two."""
    critical = sent.severity is AlertSeverity.CRITICAL
    key = sent.thread + ("-critical" if critical else "")

    def event(action: str, dedup_key: str) -> dict[str, Any]:
        return {"event_action": action, "dedup_key": dedup_key}

    if sent.state is NotificationState.RESOLVED:
        return [event("resolve", key)]
    trigger = event("trigger", key) | {"client": "supervise", "payload": _payload(sent, detail)}
    if critical:
        return [trigger, event("resolve", sent.thread)] if sent.raised else [trigger]
    if sent.state is NotificationState.MESSAGE:
        return [trigger, event("resolve", key)]
    restarts = sent.alert.event.row.thread == INCIDENT and sent.alert.action is AlertAction.RESTART
    return [trigger, event("acknowledge", key)] if restarts else [trigger]


def make(options: SinkOptions) -> HttpSink:
    """Make the sink; raises SuperviseError without a routing key, or for a URL that cannot be one."""
    if not options.secret:
        raise SuperviseError("alerts: pagerduty: no routing key", hint="Name a file that holds the integration key with secret_file.")
    routing_key = options.secret.decode("ascii", "replace")
    return HttpSink(options.url or URL, bodies, options.detail, key=("routing_key", routing_key))


def _payload(sent: Notification, detail: AlertDetail) -> dict[str, Any]:
    alert, facts = sent.alert, dict(text.facts(sent, detail))
    lines = text.lines(sent, detail)
    return {
        "summary": cut(f"{text.title(sent, detail)}. {text.sentences(sent, detail)}", 1024),
        "source": facts.get("node") or plain_name(alert.job),
        "severity": sent.severity.value,
        "timestamp": timestamp(alert.ts),
        "component": plain_name(alert.job),
        "class": alert.event.value if "cause" not in facts else alert.cause.value,
        "custom_details": facts | {"command": text.command(sent, detail)} | ({"lines": lines} if lines else {}),
    }
