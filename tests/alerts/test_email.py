"""E-mail to a real SMTP server on loopback: what arrives, what its answers mean, and no password without TLS."""

from __future__ import annotations

import base64
import contextlib
import email
import email.policy
import json
import socket
import socketserver
import ssl
import threading
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import TYPE_CHECKING

import pytest

from supervisor.alerts import sinks
from supervisor.alerts.sinks import Delivered, DeliveryDeferred, DeliveryRefused, SinkOptions
from supervisor.alerts.text import AlertDetail
from supervisor.alerts.threads import Notification, NotificationState, single
from supervisor.core.values import replace
from supervisor.errors import SuperviseError
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from supervisor.alerts.model import OutgoingAlert


@dataclass(slots=True)
class MailServer:
    """Answers what the script says to a command (its first word), and takes the messages down."""

    port: int = 0
    answers: dict[str, str] = field(default_factory=dict)
    messages: list[EmailMessage] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    tls: ssl.SSLContext | None = None  # for STARTTLS
    stop: threading.Event = field(default_factory=threading.Event)

    def talk(self, sock: socket.socket, *, greets: bool = True) -> None:
        """Serve one connection."""
        file = sock.makefile("rwb", buffering=0)
        if greets:
            file.write(b"220 ready\r\n")
        while line := file.readline().decode().strip():
            word = line.split(maxsplit=1)[0].upper()
            self.commands.append(line)
            answer = self.answers.get(word, "250 ok")
            if answer == "hang":
                self.stop.wait(60)
                return
            if word == "EHLO":
                more = "250-STARTTLS\r\n" if self.tls is not None and not isinstance(sock, ssl.SSLSocket) else ""
                answer = f"250-here\r\n{more}250 AUTH PLAIN"
            elif word == "STARTTLS" and self.tls is not None:
                file.write(b"220 go\r\n")
                file.close()
                with self.tls.wrap_socket(sock, server_side=True) as encrypted:
                    self.talk(encrypted, greets=False)
                return
            elif word == "AUTH" and "AUTH" not in self.answers:
                answer = "235 welcome"
            elif word == "QUIT":
                answer = "500 whatever"  # what comes after the message does not count
            elif word == "DATA" and "DATA" not in self.answers:
                file.write(b"354 continue\r\n")
                lines = iter(file.readline, b".\r\n")
                self.messages.append(email.message_from_bytes(b"".join(lines), policy=email.policy.default))  # type: ignore[arg-type]
            file.write(f"{answer}\r\n".encode())
            if word == "QUIT":
                return


@pytest.fixture
def serve_mail() -> Iterator[Callable[..., MailServer]]:
    with contextlib.ExitStack() as stack:

        def serve(certificate: Path | None = None, *, implicit: bool = False) -> MailServer:
            mail = MailServer()
            context = None
            if certificate is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(certificate)
                mail.tls = None if implicit else context

            class Handler(socketserver.BaseRequestHandler):
                def handle(self) -> None:
                    with contextlib.suppress(OSError):
                        if not implicit or context is None:
                            mail.talk(self.request)
                            return
                        with context.wrap_socket(self.request, server_side=True) as encrypted:
                            mail.talk(encrypted)

            server = stack.enter_context(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler))
            mail.port = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            stack.callback(mail.stop.set)
            return mail

        yield serve


def sink(
    mail: MailServer, scheme: str = "smtp", login: str = "", secret: bytes | None = None, detail: AlertDetail = AlertDetail.SUMMARY
) -> sinks.AlertSink:
    url = f"{scheme}://{login}127.0.0.1:{mail.port}"
    return sinks.make(SinkOptions("email", url, secret, detail=detail, to=("oncall@example.org", "ml@example.org")))


def test_a_message_says_what_happened_and_belongs_to_its_thread(
    serve_mail: Callable[..., MailServer], alert: Callable[..., OutgoingAlert]
) -> None:
    mail = serve_mail()
    target = sink(mail)
    firing = Notification("ab" * 16, NotificationState.FIRING, alert(), alert().severity, failures=1, since_t=alert().ts)
    for notification in (firing, single(alert())):
        (request,) = target.requests(notification)
        assert target.deliver(request.event_id, request.body, 20) == Delivered()
    first, second = mail.messages
    assert first["Subject"] == "RESTARTS BY ITSELF: bert: native code accessed invalid memory"
    assert first["To"] == "oncall@example.org, ml@example.org"
    assert first["References"] == f"<{'ab' * 16}@supervise.invalid>"
    assert second["References"] is None
    assert first["Auto-Submitted"] == "auto-generated"
    assert "supervise why 1 --job bert" in first.get_content()
    assert "rank: 5" in first.get_content()
    assert "MAIL FROM:<supervise@" in " ".join(mail.commands).replace("mail", "MAIL").replace("from", "FROM")


def test_tls_and_a_login(
    serve_mail: Callable[..., MailServer],
    certificate: Callable[[str], Path],
    alert: Callable[..., OutgoingAlert],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", f"{certificate('IP:127.0.0.1')}.crt")
    for scheme in ("smtp", "smtps"):
        mail = serve_mail(certificate("IP:127.0.0.1"), implicit=scheme == "smtps")
        target = sink(mail, scheme, "ops%40example.org@", b"p4ss")
        (request,) = target.requests(single(alert()))
        assert target.deliver(request.event_id, request.body, 20) == Delivered()
        assert ("STARTTLS" in mail.commands) is (scheme == "smtp")
        (login,) = (command.split()[-1] for command in mail.commands if command.startswith("AUTH"))
        assert base64.b64decode(login) == b"\0ops@example.org\0p4ss"
        assert mail.messages[0]["From"] == "ops@example.org"


@pytest.mark.parametrize(
    ("word", "answer", "outcome"),
    [
        ("RCPT", "550 no such user", DeliveryRefused("status 550: no such user")),
        ("RCPT", "451 greylisted", DeliveryDeferred("status 451: greylisted")),
        ("MAIL", "421 too busy", DeliveryDeferred("status 421: too busy")),
        ("DATA", "554 looks like spam", DeliveryRefused("status 554: looks like spam")),
        ("AUTH", "535 wrong password", DeliveryRefused("status 535: wrong password")),
        ("DATA", "hang", DeliveryDeferred("no answer within 0.5 s")),
    ],
)
def test_each_answer_means_what_it_says(
    serve_mail: Callable[..., MailServer], alert: Callable[..., OutgoingAlert], word: str, answer: str, outcome: object
) -> None:
    mail = serve_mail()
    mail.answers = {word: answer}
    target = sink(mail, login="ops@" if word == "AUTH" else "", secret=b"p4ss")
    (request,) = target.requests(single(alert()))
    assert target.deliver(request.event_id, request.body, 0.5 if answer == "hang" else 20) == outcome
    assert mail.messages == []
    assert b"p4ss" not in request.body


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [(b"", "the connection was closed without an answer"), (b"hello there\r\n", "the answer is not SMTP")],
    ids=["closed", "no SMTP"],
)
def test_an_answer_of_another_server_defers_the_email(greeting: bytes, reason: str, alert: Callable[..., OutgoingAlert]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(greeting)

        threading.Thread(target=greet, daemon=True).start()
        target = sinks.make(SinkOptions("email", f"smtp://127.0.0.1:{listener.getsockname()[1]}", to=("a@b",)))
        (request,) = target.requests(single(alert()))
        assert target.deliver(request.event_id, request.body, 20) == DeliveryDeferred(reason)


def test_a_server_that_drips_its_greeting_leaves_no_thread_behind(alert: Callable[..., OutgoingAlert]) -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            with listener.accept()[0] as connection, contextlib.suppress(OSError):
                while not stop.wait(0.05):
                    connection.sendall(b"220-")

        dripping = threading.Thread(target=drip, daemon=True)
        dripping.start()
        target = sinks.make(SinkOptions("email", f"smtp://127.0.0.1:{listener.getsockname()[1]}", to=("a@b",)))
        (request,) = target.requests(single(alert()))
        assert target.deliver(request.event_id, request.body, 0.5) == DeliveryDeferred("no answer within 0.5 s")
        wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name == "alert-email"])
        stop.set()
        dripping.join()


def test_a_path_that_is_no_unicode_is_sent_all_the_same(serve_mail: Callable[..., MailServer], alert: Callable[..., OutgoingAlert]) -> None:
    mail = serve_mail()
    target = sink(mail, detail=AlertDetail.LINES)
    (request,) = target.requests(single(replace(alert(), job="b\udcffrt", lines=("cannot read caf\udce9.pt",))))
    assert target.deliver(request.event_id, request.body, 20) == Delivered()
    assert "cannot read caf?.pt" in mail.messages[0].get_content()


def test_no_server_and_no_tls(closed_port: int, alert: Callable[..., OutgoingAlert]) -> None:
    dead = sinks.make(SinkOptions("email", f"smtp://127.0.0.1:{closed_port}", to=("a@b",)))
    (request,) = dead.requests(single(alert()))
    assert dead.deliver(request.event_id, request.body, 20) == DeliveryDeferred("Connection refused")
    assert json.loads(request.body)["subject"]


def test_a_password_is_never_sent_without_tls(
    serve_mail: Callable[..., MailServer], alert: Callable[..., OutgoingAlert], monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = serve_mail()
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **more: real("127.0.0.1" if host == "mail.example" else host, *rest, **more)
    )
    target = sinks.make(SinkOptions("email", f"smtp://ops@mail.example:{mail.port}", b"p4ss", to=("a@b",)))
    (request,) = target.requests(single(alert()))
    outcome = target.deliver(request.event_id, request.body, 20)
    assert isinstance(outcome, DeliveryRefused)
    assert "write smtps://" in outcome.reason
    assert not [command for command in mail.commands if "AUTH" in command]


@pytest.mark.parametrize(
    ("url", "to"),
    [("", ("a@b",)), ("http://mail", ("a@b",)), ("smtps://", ("a@b",)), ("smtps://mail", ()), ("smtps://mail", ("no address",))],
)
def test_an_impossible_email_sink_is_refused_at_the_start(url: str, to: tuple[str, ...]) -> None:
    with pytest.raises(SuperviseError) as caught:
        sinks.make(SinkOptions("email", url, to=to))
    assert caught.value.exit_code == 78
    assert "[[alerts.sink]]" in caught.value.hint
