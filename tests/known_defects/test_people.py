"""What people see: see the table of this package."""

from __future__ import annotations

import shlex
import socket
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from supervisor.alerts import sinks
from supervisor.alerts.endpoint import HttpEndpoint
from supervisor.alerts.sinks import SinkOptions
from supervisor.alerts.text import AlertDetail
from supervisor.report.alert_watch import AlertWatch
from supervisor.run.alerting import start_program
from tests.alerts.conftest import served
from tests.known_defects import FOR_PEOPLE, later, prepared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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


@later(FOR_PEOPLE)
def test_a_webhook_goes_by_the_proxy_of_the_environment(proxy: list[bytes]) -> None:
    HttpEndpoint("https://hooks.example.invalid/x", None).send("id", b"{}", 2.0)
    assert any(text.startswith(b"CONNECT hooks.example.invalid:443 ") for text in proxy)


@later(FOR_PEOPLE)
def test_a_program_of_alerts_gets_the_proxy_and_the_session_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "localhost", "XDG_RUNTIME_DIR": "/run/user/1000"}
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    argv = ("/bin/sh", "-c", f"env > {shlex.quote(str(tmp_path / 'env'))}")
    sink = sinks.make(SinkOptions("exec", "", b"", argv, AlertDetail.LINES, start_program))
    sink.deliver("id", b"{}", 10.0)
    given = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    assert given.items() >= wanted.items()


@later(FOR_PEOPLE)
def test_a_heartbeat_that_is_refused_is_reported_once() -> None:
    with served() as endpoint:
        endpoint.script = [(404, {})]
        reporter = MagicMock()
        reporter.vitals.without_checkpoint_s.return_value = 0.0
        alerts = SimpleNamespace(no_checkpoint_s=0.0)
        job: Any = SimpleNamespace(settings=SimpleNamespace(alerts=alerts))
        watch = AlertWatch(job, reporter, lambda: 0.0)
        watch.heartbeat = HttpEndpoint(endpoint.url, None)
        state: Any = SimpleNamespace(attempt=SimpleNamespace(number=1))
        for now in (100.0, 200.0, 300.0):
            ping = watch.tick(state, now)
            ping() if ping is not None else pytest.fail("no ping was due")
    prepared(len(endpoint.received) == 3, "a ping did not arrive")
    assert len([call for call in map(str, reporter.mock_calls) if "404" in call]) == 1
