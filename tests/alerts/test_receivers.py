"""Receivers that do wrong, as real servers on loopback: what becomes of the alert, of the others beside it, and of us."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.alerts import sinks, spool
from supervisor.alerts.endpoint import HttpEndpoint
from supervisor.alerts.router import AlertFilter, AlertRouter
from supervisor.alerts.sender import AlertSender, RetryPace
from supervisor.alerts.sinks import Delivered, DeliveryDeferred, DeliveryRefused, SinkOptions
from tests.support.figures import within
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Endpoint, Log

    from supervisor.alerts.model import OutgoingAlert

#: A receiver -> its answer (conftest.py), and what is logged of the alert, with the reason.
BAD = {
    "400 with a body": (400, {}, "refused", "status 400: no_service"),
    "429": (429, {"Retry-After": "0"}, "delayed", "status 429: no_service"),
    "500": (500, {}, "delayed", "status 500: no_service"),
    "60 s slow": (0, {}, "delayed", "no answer within 0.5 s"),
    "headers drip": (1, {}, "delayed", "no answer within 0.5 s"),
    "headers without end": (5, {}, "delayed", "the answer is not HTTP (HTTPException)"),
    "endless body": (2, {}, "sent", ""),
    "body drips": (4, {}, "sent", ""),
    "reset": (3, {}, "delayed", "Connection reset by peer"),
    "no HTTP": (6, {}, "delayed", "the answer is not HTTP (BadStatusLine)"),
    "redirect to metadata": (307, {"Location": "http://169.254.169.254/latest/"}, "refused", "status 307: redirects are not followed"),
    "redirect without scheme": (302, {"Location": "//169.254.169.254/"}, "refused", "status 302: redirects are not followed"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_receiver_gets_its_alert_or_is_reported_and_costs_no_other(
    name: str,
    serve: Callable[..., Endpoint],
    alert: Callable[..., OutgoingAlert],
    log: Log,
    tmp_path: Path,
) -> None:
    status, headers, outcome, reason = BAD[name]
    deadline_s = 0.5 if "0.5 s" in reason else 20.0  # what is not slow is not called slow on a busy machine
    endpoint, good = serve(), serve()
    endpoint.script = [(status, headers)]
    router = AlertRouter(0.0, AlertSender(tmp_path, deadline_s, log, RetryPace(base_s=0.01, cap_s=0.02)))
    for kind, url in (("slack", endpoint.url), ("discord", good.url)):
        router.add(kind, sinks.make(SinkOptions(kind, url)), AlertFilter())
    router.sender.start()
    router.enqueue(alert())
    router.tick(time.time())
    event = {"sent": "alert.sent"}.get(outcome, f"alert.failed {outcome}")
    wait_for(lambda: [fields for logged, fields in log.events if logged == event and fields["sink"] == "slack"])
    wait_for(lambda: good.received)
    (first, *_) = (fields for logged, fields in log.events if logged == event and fields["sink"] == "slack")
    assert first.get("reason", "") == reason
    if outcome == "delayed":  # it comes to its senses
        wait_for(lambda: len(endpoint.received) > 1)
        endpoint.script = [(200, {})]
        wait_for(lambda: [fields for logged, fields in log.events if logged == "alert.sent" and fields["sink"] == "slack"])
    began = time.monotonic()
    router.close(time.time(), 60.0)
    assert within(2.0, since=began)
    assert [row.reason for row in spool.kept(tmp_path) if row.state == "refused"] == ([reason] if outcome == "refused" else [])
    assert [left.reason for left in router.undelivered()] == ([reason] if outcome == "refused" else [])
    assert len({request.body for request in endpoint.received}) == 1
    assert not [request for request in endpoint.received if request.target.startswith("GET")], "a redirect was followed"
    shown = repr(log.events) + (tmp_path / spool.FILE_NAME).read_text()
    assert not [secret for secret in ("T0P-SECRET", "s3cret") if secret in shown]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (2, Delivered()),
        (4, Delivered()),
        (3, DeliveryDeferred("Connection reset by peer")),
        (0, DeliveryDeferred("no answer within 0.5 s")),
    ],
    ids=["endless body", "body drips", "reset", "60 s slow"],
)
def test_a_try_leaves_no_thread_behind(endpoint: Endpoint, status: int, outcome: object) -> None:
    endpoint.script = [(status, {})]
    before = set(threading.enumerate())
    assert HttpEndpoint(endpoint.url, None).send("x", b"{}", 20.0 if status else 0.5) == outcome
    for thread in [other for other in threading.enumerate() if other not in before and other.name == "alert-request"]:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("subject", "trusted", "reason"),
    [
        ("IP:127.0.0.1", "IP:127.0.0.1", ""),
        ("IP:127.0.0.1", "DNS:elsewhere.example", "self-signed certificate"),
        ("DNS:elsewhere.example", "DNS:elsewhere.example", "IP address mismatch"),
    ],
    ids=["right", "nobody vouches for it", "of another host"],
)
def test_a_certificate_decides_who_gets_an_alert(  # noqa: PLR0913, PLR0917 - a case and fixtures
    certificate: Callable[[str], Path],
    serve: Callable[..., Endpoint],
    monkeypatch: pytest.MonkeyPatch,
    subject: str,
    trusted: str,
    reason: str,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", f"{certificate(trusted)}.crt")
    endpoint = serve(certificate(subject))
    outcome = HttpEndpoint(endpoint.url, None).send("x", b"{}", 60.0)
    assert len(endpoint.received) == (not reason)
    assert isinstance(outcome, DeliveryDeferred if reason else Delivered)
    if isinstance(outcome, DeliveryDeferred):
        assert reason in outcome.reason, "it says what to mend"
        assert "T0P-SECRET" not in outcome.reason


def test_https_to_what_speaks_none_is_another_time(endpoint: Endpoint) -> None:
    outcome = HttpEndpoint(endpoint.url.replace("http:", "https:"), None).send("x", b"{}", 60.0)
    assert isinstance(outcome, DeliveryDeferred)
    assert not isinstance(outcome, DeliveryRefused)
    assert endpoint.received == []
