"""The way out of a cluster: the proxy and the session of the environment, and a dead man's switch that does not take the pings."""

from __future__ import annotations

import os
import shlex
import socket
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from supervisor.alerts import sinks
from supervisor.alerts.endpoint import HttpEndpoint
from supervisor.alerts.sinks import DeliveryDeferred, SinkOptions
from supervisor.alerts.text import AlertDetail
from supervisor.errors import SuperviseError
from supervisor.report.alert_watch import AlertWatch
from supervisor.run.alerting import start_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Endpoint


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Be the only way out of a cluster, and give what was asked of it."""
    asked: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")

    threading.Thread(target=accept, daemon=True).start()
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{listener.getsockname()[1]}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield asked
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_a_webhook_goes_by_the_proxy_of_the_environment(proxy: list[bytes]) -> None:
    HttpEndpoint("https://hooks.example.invalid/x", None).send("id", b"{}", 2.0)
    assert any(text.startswith(b"CONNECT hooks.example.invalid:443 ") for text in proxy)


def test_a_program_of_alerts_gets_the_proxy_and_the_session_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "localhost", "XDG_RUNTIME_DIR": "/run/user/1000"}
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    argv = ("/bin/sh", "-c", f"env > {shlex.quote(str(tmp_path / 'env'))}")
    sink = sinks.make(SinkOptions("exec", "", b"", argv, AlertDetail.LINES, start_program))
    sink.deliver("id", b"{}", 10.0)
    given = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    assert given.items() >= wanted.items()


def pinged(endpoint: Endpoint, script: list[tuple[int, dict[str, str]]]) -> list[str]:
    """Return the calls of the reporter while pings get these answers, one after the other."""
    reporter = MagicMock()
    reporter.vitals.without_checkpoint_s.return_value = 0.0
    alerts = SimpleNamespace(no_checkpoint_s=0.0)
    job: Any = SimpleNamespace(settings=SimpleNamespace(alerts=alerts))
    watch = AlertWatch(job, reporter, lambda: 0.0)
    watch.heartbeat = HttpEndpoint(endpoint.url, None)
    state: Any = SimpleNamespace(attempt=SimpleNamespace(number=1))
    for number, answer in enumerate((*script, (200, {}))):
        endpoint.script = [answer]
        ping = watch.tick(state, 100.0 * (1 + number))
        ping() if ping is not None else pytest.fail("no ping was due")
    return [str(call) for call in reporter.mock_calls if "alerted" in str(call) or "alert_over" in str(call)]


def test_a_heartbeat_that_is_refused_is_reported_once(endpoint: Endpoint) -> None:
    calls = pinged(endpoint, [(404, {}), (404, {}), (404, {})])
    assert len(endpoint.received) == 4
    assert len(calls) == 1
    assert "status 404" in calls[0]


@pytest.mark.slow
def test_a_heartbeat_that_is_answered_late_has_arrived(endpoint: Endpoint) -> None:
    endpoint.answer_after_s = 6.0
    assert pinged(endpoint, [(200, {})] * 3) == []


def test_a_heartbeat_that_gets_no_answer_is_reported_at_the_third_ping_and_once_it_is_over(endpoint: Endpoint) -> None:
    assert pinged(endpoint, [(503, {}), (503, {})]) == []
    reported, over = pinged(endpoint, [(503, {}), (503, {}), (503, {}), (503, {}), (200, {})])
    assert "heartbeat_failing" in reported
    assert "takes the pings again" in over


def test_a_proxy_is_named_and_its_password_is_not(proxy: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", os.environ["HTTPS_PROXY"].replace("http://", "http://user:pr0xypw@"))
    monkeypatch.delenv("https_proxy")
    outcome = HttpEndpoint("https://hooks.example.invalid/x", None).send("id", b"{}", 20.0)
    assert isinstance(outcome, DeliveryDeferred)
    assert outcome.reason.startswith("by the proxy 127.0.0.1: ")
    assert "pr0xypw" not in outcome.reason
    assert b"Proxy-Authorization: Basic" in proxy[0] or b"proxy-authorization: Basic" in proxy[0]


def test_a_request_without_a_proxy_goes_directly(
    proxy: list[bytes], serve: Callable[..., Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    endpoint = serve()
    HttpEndpoint(endpoint.url, None).send("id", b"{}", 20.0)
    assert len(endpoint.received) == 1
    assert proxy == []


def test_a_proxy_that_cannot_be_used_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "socks5://127.0.0.1:1080")
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(SuperviseError, match="proxy") as caught:
        HttpEndpoint("http://hooks.example.invalid/x", None)
    assert "NO_PROXY" in caught.value.hint
