"""What each service gets, against the fields and limits that its own documentation lists (each sink's file names the page and the month).

FIELDS is those pages as data: the path of a field, its kind, and its longest text. A field that is not listed fails.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from supervisor.alerts import sinks
from supervisor.alerts.model import AlertAction, AlertEvent, AlertSeverity, OutgoingAlert
from supervisor.alerts.sinks import SinkOptions
from supervisor.alerts.text import AlertDetail, sentences
from supervisor.alerts.threads import Notification, NotificationState
from supervisor.config.sink_kinds import SinkKind, kind_of
from supervisor.core.model import Cause
from supervisor.core.units import timestamp
from supervisor.core.values import replace
from supervisor.errors import SuperviseError
from supervisor.run.alerting import start_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

URL = "http://127.0.0.1:9/T0P-SECRET"
KEY = "R0UTING-KEY-SECRET-0123456789abc"
ANY, RFC3339 = r"[\s\S]+", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
#: Path -> (pattern of the value, most characters). [] is any item of a list.
FIELDS: dict[str, dict[str, tuple[str, int]]] = {
    "slack": {
        "text": (ANY, 40000),
        "attachments[].color": (r"#[0-9a-f]{6}", 7),
        "attachments[].blocks[].type": (r"section", 10),
        "attachments[].blocks[].text.type": (r"mrkdwn", 10),
        "attachments[].blocks[].text.text": (ANY, 3000),
        "attachments[].blocks[].fields[].type": (r"mrkdwn", 10),
        "attachments[].blocks[].fields[].text": (ANY, 2000),
    },
    "pagerduty": {
        "event_action": (r"trigger|acknowledge|resolve", 11),
        "dedup_key": (r"[0-9a-f]{32}(-critical)?", 255),
        "client": (ANY, 255),
        "payload.summary": (ANY, 1024),
        "payload.source": (ANY, 255),
        "payload.severity": (r"critical|error|warning|info", 8),
        "payload.timestamp": (RFC3339, 30),
        "payload.component": (ANY, 255),
        "payload.class": (ANY, 255),
        "payload.custom_details.*": (ANY, 4000),
    },
    "discord": {
        "content": (ANY, 2000),
        "embeds[].description": (ANY, 4096),
        "embeds[].color": (r"\d+", 8),
        "embeds[].timestamp": (RFC3339, 30),
        "embeds[].fields[].name": (ANY, 256),
        "embeds[].fields[].value": (ANY, 1024),
        "embeds[].fields[].inline": (r"True|False", 5),
        "allowed_mentions.parse": (r"", 0),
    },
    "teams": {
        "type": (r"message", 7),
        "attachments[].contentType": (r"application/vnd\.microsoft\.card\.adaptive", 60),
        "attachments[].content.$schema": (r"http://adaptivecards\.io/schemas/adaptive-card\.json", 60),
        "attachments[].content.type": (r"AdaptiveCard", 12),
        "attachments[].content.version": (r"1\.[0-5]", 3),
        "attachments[].content.msteams.width": (r"Full", 4),
        "attachments[].content.body[].type": (r"TextBlock|FactSet", 9),
        "attachments[].content.body[].text": (ANY, 5000),
        "attachments[].content.body[].wrap": (r"True", 4),
        "attachments[].content.body[].weight": (r"bolder|default|lighter", 8),
        "attachments[].content.body[].size": (r"small|default|medium|large", 8),
        "attachments[].content.body[].color": (r"default|accent|good|warning|attention", 10),
        "attachments[].content.body[].fontType": (r"default|monospace", 10),
        "attachments[].content.body[].facts[].title": (ANY, 200),
        "attachments[].content.body[].facts[].value": (ANY, 1000),
    },
    "alertmanager": {
        "version": (r"4", 1),
        "groupKey": (ANY, 200),
        "truncatedAlerts": (r"0", 1),
        "status": (r"firing|resolved", 8),
        "receiver": (ANY, 100),
        "groupLabels.*": (ANY, 200),
        "commonLabels.*": (ANY, 200),
        "commonAnnotations.*": (ANY, 8000),
        "externalURL": (r"", 0),
        "alerts[].status": (r"firing|resolved", 8),
        "alerts[].labels.*": (ANY, 200),
        "alerts[].annotations.*": (ANY, 8000),
        "alerts[].startsAt": (RFC3339, 30),
        "alerts[].endsAt": (RFC3339, 30),
        "alerts[].generatorURL": (r"", 0),
        "alerts[].fingerprint": (r"[0-9a-f]{16}", 16),
    },
}
REQUIRED = {
    "slack": {"text"},
    "pagerduty": {"event_action", "dedup_key"},
    "discord": {"content", "embeds[].description"},
    "teams": {"type", "attachments[].contentType", "attachments[].content.type"},
    "alertmanager": {
        "version",
        "groupKey",
        "status",
        "receiver",
        "alerts[].status",
        "alerts[].labels.*",
        "alerts[].startsAt",
        "alerts[].endsAt",
    },
}
RECORDED = json.loads((Path(__file__).parent / "alertmanager-0.25.0.json").read_text())
CANARY = "/home/alice/secret-project token=CANARY-0123456789 Traceback (most recent call last)"


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401  any JSON
    if isinstance(value, dict):
        for name, child in value.items():
            yield from leaves(child, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for child in value:
            yield from leaves(child, f"{path}[]")
    else:
        yield path, "" if value == [] else str(value)


def sink(kind: str, detail: AlertDetail = AlertDetail.SUMMARY) -> sinks.AlertSink:
    if kind == "apprise":
        pytest.importorskip("apprise", reason="the extra `apprise` is not installed: pip install -e .[apprise]")
    url = {"email": "smtps://mail.example.org", "apprise": URL.replace("http", "json")}.get(kind, URL)
    return sinks.make(SinkOptions(kind, url, KEY.encode(), ("/bin/true",), detail, start_program, ("oncall@example.org",)))


@pytest.fixture
def notification(alert: Callable[..., OutgoingAlert]) -> Callable[..., Notification]:
    def make(event: AlertEvent = AlertEvent.OPENED, state: str = "firing", **changes: Any) -> Notification:  # noqa: ANN401  of either
        action = AlertAction.STOP if event is AlertEvent.GIVEN_UP else AlertAction.RESUMED if state == "resolved" else AlertAction.RESTART
        variant = replace(
            alert(event=event), severity=AlertEvent(event).row.severity, action=action, node="gpu-7", confidence=0.9,
            place="train.py:112",
            sentence=f"Native code accessed invalid memory: {CANARY}",
            lines=(CANARY, *("x" * 5000 for _ in range(50))), state_dir="/home/alice/secret-project/.supervise",
        )  # fmt: skip
        severity = changes.pop("severity", variant.severity)
        return Notification("ab" * 16, NotificationState(state), variant, severity, failures=3, since_t=variant.ts - 90, **changes)

    return make


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("detail", AlertDetail)
def test_each_body_has_the_fields_of_the_services_own_page_and_no_other(
    kind: str, detail: AlertDetail, notification: Callable[..., Notification]
) -> None:
    for event in AlertEvent:
        for state in ("message",) if event.row.effect == "once" else ("firing", "updated", "resolved"):
            for request in sink(kind, detail).requests(notification(event, state)):
                body = json.loads(request.body)
                rows = list(leaves(body))
                for path, text in rows:
                    known = FIELDS[kind].get(path) or FIELDS[kind][re.sub(r"\.[^.]+$", ".*", path.removesuffix("[]"))]
                    assert re.fullmatch(known[0], text), (path, text)
                    assert len(text) <= known[1], (path, len(text))
                names = {path for path, _ in rows} | {re.sub(r"\.[^.]+$", ".*", path) for path, _ in rows}
                assert names >= REQUIRED[kind]
                assert len(request.body) < 28 << 10, "the least limit: a message in Teams"
                assert re.fullmatch(r"[0-9a-f]{32}", request.event_id)


def test_limits_that_are_of_whole_messages(notification: Callable[..., Notification]) -> None:
    (request,) = sink("discord", AlertDetail.LINES).requests(notification())
    (embed,) = json.loads(request.body)["embeds"]
    texts = [embed["description"], *(text for field in embed["fields"] for text in (field["name"], field["value"]))]
    assert sum(map(len, texts)) <= 6000
    assert len(embed["fields"]) <= 25
    (request,) = sink("slack", AlertDetail.LINES).requests(notification())
    (attached,) = json.loads(request.body)["attachments"]
    sections = attached["blocks"]
    assert len(attached["blocks"]) <= 50
    assert all(len(section.get("fields", [])) <= 10 for section in sections)
    (lines,) = (text for section in sections if (text := section.get("text", {}).get("text", "")).startswith("```"))
    assert lines.endswith("```"), "what stands behind the lines is not of them"


@pytest.mark.parametrize("kind", [*FIELDS, "exec", "webhook", "email", "apprise"])
def test_paths_and_lines_leave_the_machine_only_where_that_was_asked_for(kind: str, notification: Callable[..., Notification]) -> None:
    for detail in AlertDetail:
        bodies = b"".join(request.body for request in sink(kind, detail).requests(notification())).decode()
        leaks = [word for word in ("alice", "CANARY", "Traceback", "secret-project") if word in bodies]
        assert bool(leaks) is (detail is AlertDetail.LINES), (detail, leaks)
        assert ("gpu-7" in bodies) is (detail is not AlertDetail.NONE)
        assert ("ative code accessed" in bodies) is (detail is not AlertDetail.NONE)
        assert "supervise why 1 --job bert" in bodies
    assert f"invalid memory: {CANARY} (rank 5" in sentences(notification(), AlertDetail.LINES), "the sentence of the card"


def test_the_command_of_lines_works_in_any_directory(notification: Callable[..., Notification]) -> None:
    (request,) = sink("exec", AlertDetail.LINES).requests(notification())
    assert json.loads(request.body)["command"] == "supervise why 1 --job bert --state-dir /home/alice/secret-project/.supervise"


def test_an_alert_without_an_incident_names_the_status_command(notification: Callable[..., Notification]) -> None:
    for event, command in (
        (AlertEvent.DISK_FILLING, "supervise status --job bert"),
        (AlertEvent.HANG, "supervise status --stacks --job bert"),
        (AlertEvent.HEARTBEAT_FAILING, "supervise alerts test --job bert"),
        (AlertEvent.RECURRING_FAILURE, "supervise why 1 --job bert"),
    ):
        (request,) = sink("exec").requests(notification(event))
        document = json.loads(request.body)
        assert (document["command"], document["incident"]) == (command, int("why" in command)), event
        assert (document["rank"] is None) == (document["cause"] == "none" and event is not AlertEvent.HANG)


def actions(requests: Any) -> list[tuple[str, str]]:  # noqa: ANN401
    return [(body["event_action"], body["dedup_key"][32:]) for request in requests for body in [json.loads(request.body)]]


def test_pagerduty_is_acknowledged_while_we_restart_and_pages_anew_when_we_give_up(notification: Callable[..., Notification]) -> None:
    pager = sink("pagerduty")
    critical = AlertSeverity.CRITICAL
    assert actions(pager.requests(notification())) == [("trigger", ""), ("acknowledge", "")]
    raised = notification(AlertEvent.GIVEN_UP, "updated", severity=critical, raised=True)
    assert actions(pager.requests(raised)) == [("trigger", "-critical"), ("resolve", "")]
    assert actions(pager.requests(notification(AlertEvent.GIVEN_UP, severity=critical))) == [("trigger", "-critical")]
    assert actions(pager.requests(notification(AlertEvent.RESOLVED, "resolved", severity=critical))) == [("resolve", "-critical")]
    assert actions(pager.requests(notification(AlertEvent.RESOLVED, "resolved", severity=AlertSeverity.WARNING))) == [("resolve", "")]
    assert actions(pager.requests(notification(AlertEvent.RUN_STARTED, "message"))) == [("trigger", ""), ("resolve", "")]
    failed = notification(AlertEvent.UNIT_FAILED, "message", severity=critical)
    assert actions(pager.requests(failed)) == [("trigger", "-critical")], "it stays open until a person resolves it"
    ids = [request.event_id for request in pager.requests(notification())]
    assert len(set(ids)) == 2


def test_the_routing_key_is_in_no_body_that_is_kept(notification: Callable[..., Notification]) -> None:
    assert not [request for request in sink("pagerduty").requests(notification()) if KEY.encode() in request.body]
    with pytest.raises(SuperviseError, match="no routing key"):
        sinks.make(SinkOptions("pagerduty"))


def test_alertmanagers_own_api_gets_a_list_and_equal_labels_until_it_is_resolved(notification: Callable[..., Notification]) -> None:
    manager = sinks.make(SinkOptions("alertmanager", "http://127.0.0.1:9093/api/v2/alerts"))
    (fires,), (over,) = (
        json.loads(request.body)
        for state, event in (("firing", AlertEvent.OPENED), ("resolved", AlertEvent.RESOLVED))
        for request in manager.requests(notification(event, state, severity=AlertSeverity.WARNING))
    )
    assert set(fires) == {"labels", "annotations", "startsAt", "endsAt", "generatorURL"}
    assert fires["labels"] == over["labels"]
    assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) for name in {*fires["labels"], *fires["annotations"]})
    assert fires["endsAt"] > over["endsAt"] >= over["startsAt"]


@pytest.mark.parametrize(("event", "days"), [(AlertEvent.TEST, 0), (AlertEvent.RUN_STARTED, 0), (AlertEvent.UNIT_FAILED, 7)])
def test_alertmanager_ends_a_message_that_has_no_thread_soon_unless_it_is_critical(
    event: AlertEvent, days: int, notification: Callable[..., Notification]
) -> None:
    manager = sinks.make(SinkOptions("alertmanager", "http://127.0.0.1:9093/api/v2/alerts"))
    (request,) = manager.requests(notification(event, "message", severity=event.row.severity))
    (body,) = json.loads(request.body)
    lasts = datetime.fromisoformat(body["endsAt"]) - datetime.fromisoformat(body["startsAt"])
    assert lasts.days == days
    assert lasts.total_seconds() > 0


def test_a_thread_that_becomes_critical_is_another_alert_there_and_the_first_one_ends(notification: Callable[..., Notification]) -> None:
    raised = notification(AlertEvent.GIVEN_UP, "updated", severity=AlertSeverity.CRITICAL, raised=True)
    (before,), (critical, ended) = (
        json.loads(sinks.make(SinkOptions("alertmanager", "http://127.0.0.1:9093/api/v2/alerts")).requests(state)[0].body)
        for state in (notification(), raised)
    )
    assert ended["labels"] == before["labels"]
    assert critical["labels"] == before["labels"] | {"severity": "critical"}
    assert critical["endsAt"] > timestamp(raised.alert.ts) == ended["endsAt"]
    body = json.loads(sink("alertmanager").requests(raised)[0].body)
    assert [(entry["labels"]["severity"], entry["status"]) for entry in body["alerts"]] == [("critical", "firing"), ("warning", "resolved")]
    assert body["status"] == "firing"
    assert "severity" not in body["commonLabels"]
    assert body["commonLabels"].items() <= body["alerts"][1]["labels"].items()
    assert len({entry["fingerprint"] for entry in body["alerts"]}) == 2


def shape(value: Any) -> Any:  # noqa: ANN401  any JSON
    """Return the names and types in it; labels and annotations have names of their own."""
    if isinstance(value, dict):
        return {name: "texts" if re.search(r"(?i)labels|annotations", name) else shape(child) for name, child in value.items()}
    return [shape(child) for child in value] if isinstance(value, list) else type(value).__name__


def test_a_receiver_of_alertmanager_gets_what_alertmanager_itself_writes(notification: Callable[..., Notification]) -> None:
    """The file names its source and date."""
    for sent, state, event in zip(RECORDED["sent"], ("firing", "resolved"), (AlertEvent.OPENED, AlertEvent.RESOLVED), strict=True):
        body = json.loads(sink("alertmanager").requests(notification(event, state, severity=AlertSeverity.WARNING))[0].body)
        assert shape(body) == shape(sent)
        alert, original = body["alerts"][0], sent["alerts"][0]
        assert (body["status"], alert["status"], alert["labels"].keys()) == (sent["status"], original["status"], original["labels"].keys())
        assert (alert["endsAt"] == "0001-01-01T00:00:00Z") is (original["endsAt"] == "0001-01-01T00:00:00Z") is (state == "firing")


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://hooks.slack.com/services/T/B/x", "slack"),
        ("https://discord.com/api/webhooks/1/x", "discord"),
        ("https://ptb.discord.com/api/webhooks/1/x", "discord"),
        ("https://prod-1.westeurope.logic.azure.com:443/workflows/x/triggers/manual/paths/invoke", "teams"),
        ("https://x.aa.environment.api.powerplatform.com:443/powerautomate/automations/direct/workflows/x", "teams"),
        ("https://acme.webhook.office.com/webhookb2/x", "teams"),
        ("https://events.eu.pagerduty.com/v2/enqueue", "pagerduty"),
        ("http://am:9093/api/v2/alerts", "alertmanager"),
        ("https://hooks.example.org/services/x", ""),
        ("https://evil.example/hooks.slack.com/", ""),
        ("http://[::1/", ""),
    ],
)
def test_whose_an_address_is(url: str, kind: str) -> None:
    assert kind_of(url) == kind


def test_a_slack_message_tells_the_event_and_the_next_action(notification: Callable[..., Notification]) -> None:
    def text(sent: Notification) -> str:
        return str(json.loads(sink("slack").requests(sent)[0].body)["text"])

    assert text(notification()) == (
        "RESTARTS BY ITSELF: bert on gpu-7: native code accessed invalid memory (train.py:112)\n"
        "3 failures in 90 s, the last: Native code accessed invalid memory (rank 5, train.py:112, step 1200). "
        "supervise restarts it as attempt 4. Nothing to do: it continues by itself."
    )
    assert text(notification(AlertEvent.RESOLVED, "resolved")) == (
        "OVER: bert on gpu-7: it trains again\nThe training runs again after 90 s, resumed from a checkpoint. "
        "It failed 3 times. Nothing to do."
    )
    full = notification()
    full = replace(full, alert=replace(full.alert, cause=Cause.DISK_FULL))
    assert "supervise restarts it as attempt 4. To do: make room" in text(full), "each restart waits until somebody has made room"
    assert text(full).startswith("NEEDS YOU: bert on gpu-7: the disk is full")
    given_up = text(notification(AlertEvent.GIVEN_UP, severity=AlertSeverity.CRITICAL))
    assert given_up.startswith("NEEDS YOU: bert on gpu-7 stopped: native code accessed invalid memory (train.py:112)\n")
    assert "no permitted change would help. To do: " in given_up
    hang = text(notification(AlertEvent.HANG))
    assert hang.startswith("NEEDS YOU: bert on gpu-7: the ranks hang (train.py:112)\n")
    assert "(rank 5, train.py:112, step 1200). To do: see where each rank waits" in hang
    stopped = notification(AlertEvent.STOPPED, "resolved")
    assert text(stopped).startswith("OVER: bert on gpu-7: it was stopped\n"), "a person stopped it while an incident was open"
    finished = notification(AlertEvent.RUN_FINISHED, "message")
    requeued = replace(finished, alert=replace(finished.alert, exit_code=75))
    assert text(requeued).endswith("The run ended with exit code 75: the next start continues it.")
    scratch = text(notification(AlertEvent.STARTED_FROM_SCRATCH))
    assert "STARTED FROM SCRATCH" in scratch
    assert "resumed" not in scratch


@pytest.mark.parametrize("kind", get_args(SinkKind))
def test_an_odd_job_name_fits_every_service(kind: str, notification: Callable[..., Notification]) -> None:
    sent = notification()
    odd = replace(sent, alert=replace(sent.alert, job="<!channel> @everyone `x`\n/home/bob" + "y" * 5000, cause=Cause.NONE))
    bodies = b"".join(request.body for request in sink(kind).requests(odd))
    assert b"<!channel>" not in bodies
    assert len(bodies) < 28 << 10


@pytest.mark.parametrize("state", ["firing", "resolved"])
def test_a_process_that_survives_kill_is_named(notification: Callable[..., Notification], state: str) -> None:
    sent = notification(AlertEvent.UNKILLED, state)
    sent = replace(sent, alert=replace(sent.alert, subject="4242"))
    assert "Process 4242 of the job survives KILL" in sentences(sent, AlertDetail.SUMMARY)
    assert "4242" not in sentences(sent, AlertDetail.NONE)


@pytest.mark.parametrize(
    ("rank", "failed_on", "sentence"),
    [
        (43, "gpu-5:5", "Rank 43 on gpu-5:5 delays all others."),
        (None, "gpu-5:5", "Node gpu-5:5 delays all others."),
        (3, "", "Rank 3 delays all others."),
    ],
)
def test_a_straggler_is_named(notification: Callable[..., Notification], rank: int | None, failed_on: str, sentence: str) -> None:
    sent = notification(AlertEvent.STRAGGLER)
    sent = replace(sent, alert=replace(sent.alert, rank=rank, failed_on=failed_on))
    assert sentence in sentences(sent, AlertDetail.SUMMARY)
    assert "delays" not in sentences(sent, AlertDetail.NONE)
