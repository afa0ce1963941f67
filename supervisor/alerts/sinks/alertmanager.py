"""Prometheus Alertmanager: to a receiver of its webhooks (version 4), or to Alertmanager itself (/api/v2/alerts).

Fields: prometheus.io/docs/alerting/latest/configuration/#webhook_config and api/v2/openapi.yaml of Alertmanager 0.28 (November 2026).
Tried with Alertmanager 0.25.
Labels name the alert, so they are equal from firing to resolved; all that changes is in the annotations. The severity is a label, because
people route by it: a thread that becomes critical is another alert, and the one of before is resolved with it. Alertmanager itself ends an
alert at its `endsAt`: one of a thread gets a late one, because nothing is sent while it fires; a message without a thread an early one,
unless it is critical.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from supervisor.alerts import text
from supervisor.alerts.model import AlertSeverity, plain_name
from supervisor.alerts.sinks.chat import HttpSink
from supervisor.alerts.threads import NotificationState
from supervisor.core.units import timestamp

if TYPE_CHECKING:
    from supervisor.alerts.sinks import SinkOptions
    from supervisor.alerts.text import AlertDetail
    from supervisor.alerts.threads import Notification

#: Alertmanager's way to write that an alert has no end yet.
_NO_END: Final = "0001-01-01T00:00:00Z"
#: How long Alertmanager itself shows an alert at most: one that fires, and a message without a thread.
_THREAD_S: Final = 7 * 86400.0
_MESSAGE_S: Final = 300.0


def webhook(sent: Notification, detail: AlertDetail) -> list[dict[str, Any]]:
    """Return what Alertmanager sends to its webhook receivers."""
    alerts = [
        {"status": "resolved" if ends else "firing", **alert, "fingerprint": _fingerprint(alert)}
        for alert, ends in _alerts(sent, detail, _NO_END)
    ]
    first = alerts[0]
    labels = {name: value for name, value in first["labels"].items() if all(alert["labels"][name] == value for alert in alerts)}
    return [
        {
            "version": "4",
            "groupKey": f'{{}}:{{thread="{sent.thread}"}}',
            "truncatedAlerts": 0,
            "status": first["status"],
            "receiver": "supervise",
            "groupLabels": {name: labels[name] for name in ("alertname", "job")},
            "commonLabels": labels,
            "commonAnnotations": first["annotations"],
            "externalURL": "",
            "alerts": alerts,
        }
    ]


def api(sent: Notification, detail: AlertDetail) -> list[list[dict[str, Any]]]:
    """Return what Alertmanager's own API takes: a list of alerts."""
    is_brief = sent.state is NotificationState.MESSAGE and sent.severity is not AlertSeverity.CRITICAL
    return [[alert for alert, _ in _alerts(sent, detail, timestamp(sent.alert.ts + (_MESSAGE_S if is_brief else _THREAD_S)))]]


def make(options: SinkOptions) -> HttpSink:
    """Make the sink; raises SuperviseError for a URL that cannot be one."""
    return HttpSink(options.url, api if options.url.rstrip("/").endswith("/api/v2/alerts") else webhook, options.detail)


def _alerts(sent: Notification, detail: AlertDetail, no_end: str) -> list[tuple[dict[str, Any], bool]]:
    """Return the alert, and the one that it replaces; of each whether it is over."""
    over = sent.state is NotificationState.RESOLVED
    alert = _alert(sent, detail, timestamp(sent.alert.ts) if over else no_end)
    if not sent.raised:
        return [(alert, over)]
    before = {**alert, "labels": {**alert["labels"], "severity": AlertSeverity.WARNING.value}, "endsAt": timestamp(sent.alert.ts)}
    return [(alert, over), (before, True)]


def _fingerprint(alert: dict[str, Any]) -> str:
    return hashlib.sha256(repr(sorted(alert["labels"].items())).encode()).hexdigest()[:16]


def _alert(sent: Notification, detail: AlertDetail, ends_at: str) -> dict[str, Any]:
    alert, facts = sent.alert, dict(text.facts(sent, detail))
    labels = {
        "alertname": f"Supervise{alert.event.row.thread.title().replace('_', '')}",
        "job": plain_name(alert.job),
        "severity": sent.severity.value,
        **({"instance": facts["node"]} if "node" in facts else {}),
        "thread": sent.thread,
    }
    annotations = {
        "summary": text.title(sent, detail),
        "description": text.sentences(sent, detail),
        "command": text.command(sent, detail),
        **{name: value for name, value in facts.items() if name not in {"job", "node", "severity"}},
        **({"lines": "\n".join(lines)} if (lines := text.lines(sent, detail)) else {}),
    }
    return {
        "labels": labels,
        "annotations": annotations,
        "startsAt": timestamp(sent.since_t or alert.ts),
        "endsAt": ends_at,
        "generatorURL": "",
    }
