"""One try: the request, the meaning of each answer, and the end at its deadline."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING

import pytest

from supervisor.alerts.sinks import Delivered, DeliveryDeferred, DeliveryRefused
from supervisor.alerts.sinks.chat import HttpSink
from supervisor.alerts.sinks.webhook import bodies
from supervisor.alerts.threads import single
from supervisor.alerts.tries import MAX_HANGING
from supervisor.errors import SuperviseError
from tests.support.figures import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Endpoint

    from supervisor.alerts.model import OutgoingAlert


def test_request_is_signed_and_idempotent(endpoint: Endpoint, alert: Callable[..., OutgoingAlert]) -> None:
    (written,) = HttpSink(endpoint.url, bodies, secret=b"key").requests(single(alert()))
    body = written.body
    assert HttpSink(endpoint.url, bodies, secret=b"key").deliver("ab" * 16, body, 5) == Delivered()
    (request,) = endpoint.received
    assert request.target == "/services/T0P-SECRET?token=s3cret"
    assert request.body == body
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Idempotency-Key"] == "ab" * 16
    # recomputed as a receiver would, from the header alone
    fields = dict(part.split("=") for part in request.headers["X-Supervise-Signature"].split(","))
    expected = hmac.digest(b"key", fields["t"].encode() + b"." + request.body, "sha256").hex()
    assert fields["v1"] == expected
    assert abs(time.time() - int(fields["t"])) < 60
    assert hashlib.sha256(request.body).digest() == hashlib.sha256(body).digest()


def test_without_a_secret_nothing_is_signed(endpoint: Endpoint) -> None:
    HttpSink(endpoint.url, bodies).deliver("x", b"{}", 60)
    assert "X-Supervise-Signature" not in endpoint.received[0].headers


@pytest.mark.parametrize(
    ("status", "headers", "outcome"),
    [
        (200, {}, Delivered()),
        (204, {}, Delivered()),
        (301, {"Location": "/elsewhere"}, DeliveryRefused("status 301: redirects are not followed")),
        (307, {"Location": "/elsewhere"}, DeliveryRefused("status 307: redirects are not followed")),
        (400, {}, DeliveryRefused("status 400: no_service")),
        (404, {}, DeliveryRefused("status 404: no_service")),
        (408, {}, DeliveryDeferred("status 408: no_service")),
        (429, {"Retry-After": "7"}, DeliveryDeferred("status 429: no_service", 7.0)),
        (429, {"Retry-After": "soon"}, DeliveryDeferred("status 429: no_service")),
        (500, {}, DeliveryDeferred("status 500: no_service")),
        (503, {"Retry-After": "-3"}, DeliveryDeferred("status 503: no_service")),
    ],
)
def test_each_answer_means_what_it_says(endpoint: Endpoint, status: int, headers: dict[str, str], outcome: object) -> None:
    endpoint.script = [(status, headers)]
    assert HttpSink(endpoint.url, bodies).deliver("x", b"{}", 60) == outcome
    assert len(endpoint.received) == 1, "a redirect was followed"


def test_retry_after_as_a_date(endpoint: Endpoint) -> None:
    endpoint.script = [(503, {"Retry-After": format_datetime(datetime.now(UTC) + timedelta(seconds=40), usegmt=True)})]
    outcome = HttpSink(endpoint.url, bodies).deliver("x", b"{}", 60)
    assert isinstance(outcome, DeliveryDeferred)
    assert 10 < outcome.after_s <= 40


def test_closed_port_is_another_time(closed_port: int) -> None:
    assert HttpSink(f"http://127.0.0.1:{closed_port}/", bodies).deliver("x", b"{}", 60) == DeliveryDeferred("Connection refused")


@pytest.mark.parametrize("status", [0, 1], ids=["never answers", "drips a byte at a time"])
@pytest.mark.bench
def test_the_deadline_holds_for_the_whole_request(endpoint: Endpoint, status: int) -> None:
    endpoint.script = [(status, {})]
    before = set(threading.enumerate())
    started = time.monotonic()
    assert HttpSink(endpoint.url, bodies).deliver("x", b"{}", 0.5) == DeliveryDeferred("no answer within 0.5 s")
    assert within(1.0, since=started)
    for thread in [thread for thread in threading.enumerate() if thread not in before and thread.name == "alert-request"]:
        thread.join(60)
        assert not thread.is_alive(), "the request continues behind our back"


@pytest.mark.bench
def test_a_resolver_that_hangs_is_left_behind_and_not_piled_up(monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint) -> None:
    resolved = threading.Event()
    real = socket.getaddrinfo

    def hang(*args: object, **kwargs: object) -> object:
        resolved.wait(60)
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    webhook = HttpSink(endpoint.url, bodies)
    started = time.monotonic()
    for _ in range(MAX_HANGING):
        assert webhook.deliver("x", b"{}", 0.1) == DeliveryDeferred("no answer within 0.1 s")
    assert webhook.deliver("x", b"{}", 0.1) == DeliveryDeferred(f"{MAX_HANGING} earlier requests still hang")
    assert within(3, since=started)
    resolved.set()
    for thread in threading.enumerate():
        if thread.name == "alert-request":
            thread.join(60)
    assert endpoint.received == [], "a try that was given up was sent all the same"
    assert webhook.deliver("x", b"{}", 60) == Delivered()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://example.org/x",
        "file:///etc/passwd",
        "https://",
        "http://[::1/",
        "http://h:99999/",
        "http://h:0/",
        "https://h/s3cret x",
        "https://h/s3cret\r\nX: y",
        "https://h/s3crét",
    ],
)
def test_an_impossible_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(SuperviseError) as caught:
        HttpSink(url, bodies)
    assert caught.value.exit_code == 78
    assert "s3cr" not in str(caught.value)
    assert "[[alerts.sink]]" in caught.value.hint


def test_login_in_the_url_becomes_a_header(endpoint: Endpoint) -> None:
    webhook = HttpSink(endpoint.url.replace("http://", "http://user:p%40ss@"), bodies)
    assert webhook.deliver("x", b"{}", 60) == Delivered()
    assert endpoint.received[0].headers["Authorization"] == "Basic dXNlcjpwQHNz"
    assert webhook.host == "127.0.0.1"
    assert json.loads(endpoint.received[0].body) == {}
