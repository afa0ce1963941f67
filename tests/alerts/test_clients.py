"""What each service gets, against the service's own client where a package index has one (tests/support/frameworks.py has the versions).

Discord's and Alertmanager's clients are in none: test_sinks.py has their fields.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.alerts import sinks
from supervisor.alerts.model import AlertAction, AlertEvent, AlertSeverity, OutgoingAlert
from supervisor.alerts.sinks import Delivered, SinkOptions
from supervisor.alerts.text import AlertDetail
from supervisor.alerts.threads import Notification, NotificationState
from supervisor.core.values import replace
from tests.support import frameworks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Endpoint

pytestmark = [pytest.mark.slow, pytest.mark.process]

SLACK = """
import json, sys
from slack_sdk.models.blocks import Block
from slack_sdk.webhook import WebhookClient
url, *bodies = json.load(sys.stdin)
for body in bodies:
    for attached in body["attachments"]:
        for written in attached["blocks"]:
            block = Block.parse(written)
            block.validate_json()
            assert block.to_dict() == written, (block.to_dict(), written)
    WebhookClient(url).send_dict(body)
"""
PAGERDUTY = """
import json, sys
from pagerduty import EventsApiV2Client
url, trusted, key, *bodies = json.load(sys.stdin)
client = EventsApiV2Client(key, base_url=url, verify=trusted)
for body in bodies:
    client.send_event(body.pop("event_action"), body.pop("dedup_key"), **body)
"""
TEAMS = """
const { AdaptiveCard, SerializationContext } = require(process.argv[1]);
for (const body of JSON.parse(require("fs").readFileSync(0, "utf8"))) {
  const written = body.attachments[0].content, context = new SerializationContext(), card = new AdaptiveCard();
  card.parse(written, context);
  for (let i = 0; i < context.eventCount; i++) throw new Error(context.getEventAt(i).message);
  for (const found of card.validateProperties().validationEvents) throw Error(found.message);
  const read = JSON.stringify(card.toJSON().body), given = JSON.stringify(written.body);
  const texts = (value) => value.toLowerCase().match(/"(text|title|value|color|fonttype|size|weight)":"[^"]*"/g).sort().join();
  if (texts(read) !== texts(given)) throw new Error(texts(read) + " is not " + texts(given));
}
"""


@pytest.fixture
def notifications(alert: Callable[..., OutgoingAlert]) -> list[Notification]:
    """Return one notification of each event and state, with the longest texts."""
    examples = []
    for event in AlertEvent:
        lines = ("Traceback (most recent call last):", *("x" * 5000 for _ in range(50)))
        variant = replace(alert(event=event), severity=event.row.severity, node="gpu-7", confidence=0.9, lines=lines, state_dir="/x")
        if event is AlertEvent.GIVEN_UP:
            variant = replace(variant, action=AlertAction.STOP)
        for state in NotificationState:
            severity = AlertSeverity.CRITICAL if event is AlertEvent.GIVEN_UP else variant.severity
            examples.append(Notification("ab" * 16, state, variant, severity, failures=3, since_t=variant.ts - 90))
    return examples


def bodies(kind: str, url: str, sent: list[Notification], detail: AlertDetail) -> list[Any]:
    sink = sinks.make(SinkOptions(kind, url, b"R0UTING", detail=detail))
    return [json.loads(request.body) for notification in sent for request in sink.requests(notification)]


def checked(*words: str, given: object, **variables: str) -> None:
    environ = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()} | variables
    done = subprocess.run(  # noqa: S603  our own words
        words, input=json.dumps(given), env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("detail", AlertDetail)
def test_slacks_own_models_take_each_block_and_its_client_sends_what_we_send(
    detail: AlertDetail, notifications: list[Notification], endpoint: Endpoint
) -> None:
    written = bodies("slack", endpoint.url, notifications, detail)
    checked(sys.executable, "-c", SLACK, given=[endpoint.url, *written], **frameworks.variables("alerts"))
    assert [json.loads(request.body) for request in endpoint.received] == written


@pytest.mark.parametrize("detail", AlertDetail)
def test_pagerdutys_own_client_sends_what_we_send(
    detail: AlertDetail,
    notifications: list[Notification],
    serve: Callable[..., Endpoint],
    certificate: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint, trusted = serve(certificate("IP:127.0.0.1")), f"{certificate('IP:127.0.0.1')}.crt"
    monkeypatch.setenv("SSL_CERT_FILE", trusted)
    endpoint.script, endpoint.answer_body = [(202, {})], b'{"status":"success","dedup_key":"ab"}'
    sink = sinks.make(SinkOptions("pagerduty", endpoint.url, b"R0UTING", detail=detail))
    written = [request for notification in notifications for request in sink.requests(notification)]
    assert {sink.deliver(request.event_id, request.body, 20.0) for request in written} == {Delivered()}
    our_bodies = [json.loads(request.body) for request in endpoint.received]
    endpoint.received.clear()
    given = [f"https://127.0.0.1:{endpoint.port}", trusted, "R0UTING", *(json.loads(request.body) for request in written)]
    checked(sys.executable, "-c", PAGERDUTY, given=given, **frameworks.variables("alerts"))
    assert [json.loads(request.body) for request in endpoint.received] == our_bodies


@pytest.mark.parametrize("detail", AlertDetail)
def test_microsofts_own_renderer_reads_each_card_without_a_complaint(detail: AlertDetail, notifications: list[Notification]) -> None:
    package = frameworks.node_package("adaptivecards@3.0.6") / "dist" / "adaptivecards.js"
    node = shutil.which("node") or pytest.skip("node is not installed (Debian: apt-get install nodejs)")
    checked(node, "-e", TEAMS, str(package), given=bodies("teams", "http://127.0.0.1:9/x", notifications, detail))
