"""A real HTTP endpoint on loopback whose answers a test scripts, and the alerts that it is sent."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.alerts import spool
from supervisor.alerts.model import AlertAction, AlertEvent, AlertSeverity, OutgoingAlert
from supervisor.alerts.sender import AlertSender, RetryPace, Undelivered
from supervisor.alerts.spool import AlertState
from supervisor.alerts.threads import single
from supervisor.core.model import Cause
from tests.support.http_serving import QuietHandler, served

if TYPE_CHECKING:
    import http.server
    from collections.abc import Callable, Iterator

    from supervisor.alerts.sender import Log as LogCall
    from supervisor.alerts.sinks import AlertSink

FAST = RetryPace(base_s=0.02, cap_s=0.1, retry_after_cap_s=1.0)


class OneSink:
    """A sender with one sink, whose alerts are messages that stand alone."""

    def __init__(self, directory: Path, sink: AlertSink, deadline_s: float, log: LogCall, name: str = "webhook") -> None:
        """Start it."""
        directory.mkdir(parents=True, exist_ok=True)
        self.sender = AlertSender(directory, deadline_s, log, FAST)
        self.queue, _ = self.sender.add(name, sink)
        self.sender.start()

    def enqueue(self, alert: OutgoingAlert) -> None:
        """Send an alert."""
        self.sender.enqueue(self.queue, single(alert))

    def close(self, deadline_s: float) -> int:
        """Return how many are left."""
        return self.sender.close(deadline_s)

    def undelivered(self) -> Undelivered | None:
        """Return what did not get out."""
        return next(iter(self.sender.undelivered()), None)


def ident(alert: OutgoingAlert) -> str:
    """Return the id under which an alert that stands alone is sent."""
    return single(alert).event_id


def kept(directory: Path, state: str = "waiting", sink: str = "webhook") -> list[str]:
    """Return the ids of the alerts that the spool has of a sink, oldest first."""
    return [row.event_id for row in spool.kept(directory) if row.sink == sink and row.state is AlertState(state)]


def count_dropped(directory: Path, sink: str = "webhook") -> int:
    """Return how many alerts of a sink were ever dropped."""
    return next((row.count for row in spool.dropped(directory) if row.sink == sink), 0)


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came in."""

    at: float
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def event_id(self) -> str:
        """The id in the body."""
        return str(json.loads(self.body)["event_id"])


#: Status -> what is written at first, what is written again and again, and how often.
ENDLESS = {
    1: (b"HTTP/1.1 200 OK\r\nX-Drip: ", b".", 0.05),
    2: (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536, 0.0),
    4: (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n", b"0", 0.05),
    5: (b"HTTP/1.1 200 OK\r\n", b"X-More: y\r\n" * 1000, 0.0),
    6: (b"\x00\xff this is no HTTP\r\n\r\n", b"", 0.0),
}


@dataclass(slots=True)
class Endpoint:
    """`script` answers request after request as (status, headers), the last for ever; what it writes beside is `answer_body`.

    A status of 0 takes a minute, 1 drips its headers, 2 is a 200 whose body has no end, 3 resets the connection, 4 is a 200 whose body
    drips, 5 has headers without end, 6 is no HTTP.
    """

    script: list[tuple[int, dict[str, str]]] = field(default_factory=lambda: [(200, {})])
    received: list[Received] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    answer_body: bytes = b"no_service"
    scheme: str = "http"
    answer_after_s: float = 0.0

    @property
    def url(self) -> str:
        """An address with two secrets in it."""
        return f"{self.scheme}://127.0.0.1:{self.port}/services/T0P-SECRET?token=s3cret"

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        """Take the request down and play the next line of the script."""
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        self.received.append(Received(time.monotonic(), handler.path, dict(handler.headers), body))
        self.stop.wait(self.answer_after_s)
        status, headers = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if status == 0:
            self.stop.wait(60)
        elif status in ENDLESS:
            begin, more, pause_s = ENDLESS[status]
            handler.wfile.write(begin)
            while more and not self.stop.wait(pause_s):
                handler.wfile.write(more)
        elif status == 3:
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
        else:
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(self.answer_body)


@contextlib.contextmanager
def served_endpoint(certificate: Path | None = None) -> Iterator[Endpoint]:
    """Serve an endpoint; with `certificate` by https."""
    scripted = Endpoint(scheme="http" if certificate is None else "https")

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            try:
                scripted.answer(self)
            except OSError:  # the sender went away, as it should at its deadline
                self.close_connection = True

        def do_GET(self) -> None:
            scripted.stop.wait(scripted.answer_after_s)
            scripted.received.append(Received(time.monotonic(), "GET " + self.path, dict(self.headers), b"{}"))
            self.send_response(200)
            self.end_headers()

    with served(Handler, certificate) as scripted.port:
        try:
            yield scripted
        finally:
            scripted.stop.set()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what makes a certificate of its own for a subject: a file with its key, and one beside it without (`.crt`)."""
    place = tmp_path_factory.mktemp("tls")

    def make(subject: str) -> Path:
        file = place / f"{subject.replace(':', '-')}.pem"
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=x",
        ]
        if not file.exists():
            out = ["-keyout", str(file), "-out", f"{file}.crt", "-addext", f"subjectAltName={subject}"]
            subprocess.run([*command, *out], check=True, capture_output=True)  # noqa: S603  our own words
            file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
        return file

    return make


@pytest.fixture
def serve() -> Iterator[Callable[..., Endpoint]]:
    """Return what makes one more endpoint."""
    with contextlib.ExitStack() as stack:
        yield lambda certificate=None: stack.enter_context(served_endpoint(certificate))


@pytest.fixture
def endpoint(serve: Callable[..., Endpoint]) -> Endpoint:
    return serve()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses: bound by us, so that nobody else listens there, and not listening."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield int(sock.getsockname()[1])


@dataclass(slots=True)
class Log:
    """The log callback, and its calls."""

    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def __call__(self, event: str, fields: dict[str, object]) -> None:
        """Take it down."""
        outcome = fields.pop("outcome", "")
        self.events.append((f"{event} {outcome}".rstrip(), fields))

    def count(self, event: str) -> int:
        """How often this event was logged."""
        return Counter(name for name, _ in list(self.events))[event]

    def last(self, event: str) -> dict[str, object]:
        """The fields of the latest of these events."""
        return [fields for name, fields in list(self.events) if name == event][-1]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def alert() -> Callable[..., OutgoingAlert]:
    def make(incident: int = 1, event: AlertEvent = AlertEvent.OPENED, job: str = "bert") -> OutgoingAlert:
        return OutgoingAlert(
            run_id="20260102-abcd",
            job=job,
            event=event,
            severity=AlertSeverity.WARNING,
            incident=incident,
            attempt=3,
            ts=1767312000.25,
            cause=Cause.SEGFAULT,
            action=AlertAction.RESTART,
            rank=5,
            step=1200,
        )

    return make
