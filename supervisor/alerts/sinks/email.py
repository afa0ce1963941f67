"""E-mail by SMTP: one message for each notification; those of one thread are one conversation.

`smtps://` is TLS from the first byte (port 465). `smtp://` (port 587) asks for STARTTLS and takes it where the server has it; a password is
never sent without TLS, but to this machine itself. An answer 4xx is another time, 5xx is refused (RFC 5321).
"""

from __future__ import annotations

import contextlib
import json
import smtplib
import socket
import ssl
from email.message import EmailMessage
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from supervisor.alerts import text
from supervisor.alerts.endpoint import abort
from supervisor.alerts.sinks import Delivered, DeliveryDeferred, DeliveryRefused, request
from supervisor.alerts.threads import NotificationState
from supervisor.alerts.tries import TryThreads
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.alerts.sinks import AlertRequest, Outcome, SinkOptions
    from supervisor.alerts.threads import Notification

_PORTS: Final = {"smtp": 587, "smtps": 465}
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_ANSWER: Final = 200
#: smtplib reports an answer without a status as one below it.
_LEAST_STATUS: Final = 200
_TEMPORARY: Final = range(400, 500)


class EmailSink:
    """The mail server and the receivers. Raises SuperviseError (exit 78) for an address that cannot be one."""

    def __init__(self, options: SinkOptions) -> None:
        server = _server(options.url)
        if not options.to or any("@" not in address or any(char.isspace() for char in address) for address in options.to):
            raise SuperviseError(
                "alerts: email: no receiver, or one that is not an address", hint='Write to = ["oncall@example.org"] below [[alerts.sink]].'
            )
        self.host = str(server.hostname)
        self._port = server.port or _PORTS[server.scheme]
        self._is_encrypted = server.scheme == "smtps"
        self._login = unquote(server.username or "")
        self._password = unquote(server.password or "") or (options.secret or b"").decode("utf-8", "replace")
        self._sender = self._login if "@" in self._login else f"supervise@{socket.getfqdn()}"
        self._to, self._detail = options.to, options.detail
        self._tls = ssl.create_default_context()
        self._threads = TryThreads("alert-email")

    def requests(self, sent: Notification) -> Sequence[AlertRequest]:
        """Write the notification: subject, text, and what ties messages of one thread together."""
        facts = "\n".join(f"{name}: {value}" for name, value in text.facts(sent, self._detail))
        lines = "\n".join(text.lines(sent, self._detail))
        parts = [text.sentences(sent, self._detail), text.command(sent, self._detail), facts, lines]
        body: dict[str, Any] = {
            "subject": text.title(sent, self._detail),
            "text": "\n\n".join(paragraph for paragraph in parts if paragraph),
            "at": sent.alert.ts,
            "thread": "" if sent.state is NotificationState.MESSAGE else sent.thread,
        }
        return [request(sent, body)]

    def deliver(self, event_id: str, body: bytes, deadline_s: float) -> Outcome:
        """Try once."""
        connections: list[smtplib.SMTP] = []

        def give_up() -> None:
            for connection in connections:
                abort(connection.sock)  # a reader of it would keep a socket open that is merely closed

        return self._threads.run(lambda: self._exchange(self._message(event_id, body), deadline_s, connections), deadline_s, give_up)

    def _message(self, event_id: str, body: bytes) -> EmailMessage:
        fields = json.loads(body)
        message = EmailMessage()
        message["From"], message["To"], message["Subject"] = self._sender, ", ".join(self._to), _sendable(fields["subject"])
        message["Date"] = formatdate(fields["at"], localtime=False)
        message["Message-ID"] = f"<{event_id}@supervise.invalid>"  # the same at every try: a server may drop the repeat
        if fields["thread"]:
            message["References"] = f"<{fields['thread']}@supervise.invalid>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(_sendable(fields["text"]))
        return message

    def _exchange(self, message: EmailMessage, deadline_s: float, connections: list[smtplib.SMTP]) -> Outcome:
        try:
            with contextlib.closing(self._connected(deadline_s, connections)) as server:
                server.ehlo_or_helo_if_needed()
                if not self._is_encrypted and server.has_extn("starttls"):
                    server.starttls(context=self._tls)
                elif not self._is_encrypted and self._password and self.host not in _LOCAL:
                    return DeliveryRefused("the server offers no STARTTLS, and a password is not sent without TLS: write smtps://")
                if self._login and self._password:
                    server.login(self._login, self._password)
                refused = server.send_message(message)
                with contextlib.suppress(OSError):  # the server has it, whatever it answers to that
                    server.quit()
        except OSError as error:  # those of smtplib too
            return _outcome_of(error, deadline_s)
        return Delivered(f"not to {', '.join(sorted(refused))}, which the server refused" if refused else "accepted")

    def _connected(self, deadline_s: float, connections: list[smtplib.SMTP]) -> smtplib.SMTP:
        """Connect. `connections` gets the connection first: a server may drip its greeting, and the deadline has to end that too."""

        class PlainMail(smtplib.SMTP):
            def connect(self, host: str = "", port: int = 0, source_address: Any = None) -> tuple[int, bytes]:  # noqa: ANN401 - its type has no public name
                connections.append(self)
                return super().connect(host, port, source_address)

        class EncryptedMail(smtplib.SMTP_SSL):
            def connect(self, host: str = "", port: int = 0, source_address: Any = None) -> tuple[int, bytes]:  # noqa: ANN401 - its type has no public name
                connections.append(self)
                return super().connect(host, port, source_address)

        if self._is_encrypted:
            return EncryptedMail(self.host, self._port, timeout=deadline_s, context=self._tls)
        return PlainMail(self.host, self._port, timeout=deadline_s)


def _server(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise SuperviseError(
            "alerts: email: wrong address of the mail server",
            hint="Write url = smtps://USER@HOST or smtp://HOST:PORT below [[alerts.sink]], and the password into a file (secret_file).",
        )
    return parts


def _outcome_of(error: OSError, deadline_s: float) -> Outcome:
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return _judged(*next(iter(error.recipients.values())))
    if isinstance(error, smtplib.SMTPServerDisconnected):
        return DeliveryDeferred("the connection was closed without an answer")
    if isinstance(error, smtplib.SMTPResponseException):
        return _judged(error.smtp_code, error.smtp_error)
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return DeliveryRefused(_answer_text(str(error)))
    if isinstance(error, TimeoutError):
        return DeliveryDeferred(f"no answer within {deadline_s:g} s")
    return DeliveryDeferred(error.strerror or type(error).__name__)


def _judged(code: int, answer: bytes | str) -> Outcome:
    if code < _LEAST_STATUS:
        return DeliveryDeferred("the answer is not SMTP")
    reason = f"status {code}: {_answer_text(answer.decode('utf-8', 'replace') if isinstance(answer, bytes) else answer)}"
    return DeliveryDeferred(reason) if code in _TEMPORARY else DeliveryRefused(reason)


def _answer_text(answer: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in answer).split())[:_ANSWER]


def _sendable(words: str) -> str:
    """Return a text without what no message can hold: the bytes of a path that is not UTF-8."""
    return words.encode("utf-8", "replace").decode()


def make(options: SinkOptions) -> EmailSink:
    """Make the sink; raises SuperviseError for an address that cannot be one."""
    return EmailSink(options)
