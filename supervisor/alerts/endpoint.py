"""One request to one address under one deadline, and what its answer means. delivery.py retries it.

A request runs in its own thread, because a resolver cannot be interrupted, and a peer that sends one byte a second never trips a socket's
timeout. At the deadline its socket is shut; a thread that still hangs (in the resolver) is left behind, and while `MAX_HANGING` of them
hang no other is started. URL and secret stay here: messages name the host alone.

Redirects are not followed: the signed body would go to a place that nobody configured, such as a cloud's metadata address. Of an answer
the status decides; a piece of the body is read for people, and whatever in it stands in the URL or is a secret is replaced.
Imported only where a sink is configured: http.client and ssl cost memory (docs/guides/alerts.md).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import re
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from supervisor.alerts.sinks import Delivered, DeliveryDeferred, DeliveryRefused, Outcome
from supervisor.classify import redact
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Answers that ask for another try; every other 4xx, and every 3xx, will not get better by itself.
RETRY_STATUS = frozenset({408, 425, 429})
SERVER_ERRORS = range(500, 600)
MAX_HANGING = 4
#: Of the answer's body: what is read, what is shown, and how long it may take after the status.
_ANSWER_BYTES = 2048
_ANSWER_SHOWN = 200
_ANSWER_S = 0.5
#: Parts of a URL that are this long may be its secret.
_SECRET_PART = 6


@dataclass(slots=True)
class _Request:
    """One try, shared by its thread and the one that waits for it."""

    judged: threading.Event = field(default_factory=threading.Event)  # the status is there, or will never be
    done: threading.Event = field(default_factory=threading.Event)
    sock: socket.socket | None = None  # http.client forgets it where the connection ends with the answer
    abandoned: bool = False
    outcome: Outcome | None = None


class HttpEndpoint:
    """The address. Raises SuperviseError (exit 78) for a URL that cannot be one."""

    def __init__(self, url: str, secret: bytes | None, *, hide: Sequence[str] = (), method: str = "POST") -> None:
        """Take the URL apart and load the certificates that TLS needs: nothing is read from a disk later.

        secret: signs each body, if there is one. hide: other secrets that no report of an answer may show. method: GET for a ping.
        """
        parts = _split(url)
        self.host = str(parts.hostname)
        # always explicit: http.client would look for a port inside an IPv6 address
        self._port = parts.port or (http.client.HTTPS_PORT if parts.scheme == "https" else http.client.HTTP_PORT)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {"Content-Type": "application/json", "User-Agent": "torch-supervise", "Connection": "close"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = "Basic " + base64.b64encode(login).decode("ascii")
        self._secret, self._method = secret, method
        given = (parts.username, parts.password, self._target, None if secret is None else secret.decode("utf-8", "replace"), *hide)
        pieces = [piece for piece in re.split(r"[/?&=;]", self._target) if len(piece) >= _SECRET_PART]
        self._hide = sorted(
            {text for one in (*given, *pieces) if one and one != "/" for text in (one, unquote(one))}, key=len, reverse=True
        )
        self._hanging: list[threading.Thread] = []

    def send(self, event_id: str, body: bytes, deadline_s: float) -> Outcome:
        """Try once. From the name look-up to the status line it takes `deadline_s` at most, and for the body `_ANSWER_S` more."""
        self._hanging = [thread for thread in self._hanging if thread.is_alive()]
        if len(self._hanging) >= MAX_HANGING:
            return DeliveryDeferred(f"{len(self._hanging)} earlier requests still hang")
        request = _Request()
        thread = threading.Thread(target=self._run, args=(request, event_id, body, deadline_s), name="alert-request", daemon=True)
        thread.start()
        if request.judged.wait(deadline_s) and request.done.wait(_ANSWER_S) and request.outcome is not None:
            return request.outcome
        # of the status, if it was there and the rest of the answer had no end; read before the thread reports that its socket was shut
        outcome = request.outcome or DeliveryDeferred(f"no answer within {deadline_s:g} s")
        request.abandoned = True
        _abort(request.sock)
        self._hanging.append(thread)
        return outcome

    def _run(self, request: _Request, event_id: str, body: bytes, deadline_s: float) -> None:
        try:
            self._exchange(request, event_id, body, deadline_s)
        except TimeoutError as error:  # the socket's own, a moment before or after ours; or the system's for a connection
            request.outcome = DeliveryDeferred(error.strerror or f"no answer within {deadline_s:g} s")
        except (OSError, http.client.HTTPException) as error:
            # the text of an exception may quote what the peer sent; its type and the system's own words do not
            cause = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            request.outcome = DeliveryDeferred(str(cause))
        except Exception as error:  # noqa: BLE001 - a bug here must not lose the alert: it is retried and reported
            request.outcome = DeliveryDeferred(f"unexpected {type(error).__name__}")
        finally:
            request.judged.set()
            request.done.set()

    def _exchange(self, request: _Request, event_id: str, body: bytes, deadline_s: float) -> None:
        if self._tls is None:
            connection = http.client.HTTPConnection(self.host, self._port, timeout=deadline_s)
        else:
            connection = http.client.HTTPSConnection(self.host, self._port, timeout=deadline_s, context=self._tls)
        try:
            connection.connect()
            request.sock = connection.sock
            if request.abandoned:  # the resolver came back too late: another try has taken over
                return
            connection.request(self._method, self._target, body, self._headers | self._signed(event_id, body, int(time.time())))
            response = connection.getresponse()
            request.outcome = _judge(response, time.time, "")
            request.judged.set()
            request.outcome = _judge(response, time.time, self._answer(request.sock, response))
        finally:
            connection.close()

    def _answer(self, sock: socket.socket, response: http.client.HTTPResponse) -> str:
        """Return what the receiver wrote beside its status, in one line and without our secrets."""
        try:
            sock.settimeout(_ANSWER_S)
            text = response.read1(_ANSWER_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError, http.client.HTTPException):
            return ""
        for hidden in self._hide:
            text = text.replace(hidden, "...")
        return " ".join("".join(char if char.isprintable() else " " for char in redact.text(text)).split())[:_ANSWER_SHOWN]

    def _signed(self, event_id: str, body: bytes, now: int) -> dict[str, str]:
        headers = {"Idempotency-Key": event_id}
        if self._secret is not None:
            headers["X-Supervise-Signature"] = f"t={now},v1={sign(self._secret, now, body)}"
        return headers


def sign(secret: bytes, now: int, body: bytes) -> str:
    """Give the hex HMAC-SHA256 of `now` (Unix seconds) + "." + body."""
    return hmac.new(secret, b"%d." % now + body, hashlib.sha256).hexdigest()


def _split(url: str) -> SplitResult:
    """Take the URL apart. Its error names the host at most, and never the text of urllib's error, which quotes the URL."""
    try:
        parts = urlsplit(url)
        fault = _fault(url, parts.scheme, parts.hostname, parts.port)
    except ValueError:
        fault = "it cannot be read as a url"
    if fault is not None:
        message = f"alerts: wrong address: {fault}"
        keys = "url below [[alerts.sink]], or alerts.heartbeat_url"
        hint = f"Set it ({keys}) to https://HOST/PATH or http://HOST/PATH, in a file that only you can read."
        raise SuperviseError(message, hint=hint)
    return parts


def _fault(url: str, scheme: str, host: str | None, port: int | None) -> str | None:
    if scheme not in ("http", "https"):
        return "it begins with neither http:// nor https://"
    if not host or port == 0:
        return "it names no host"
    if not url.isascii() or any(ord(char) <= ord(" ") for char in url):
        return f"behind the host {host!a} is a blank or a character outside ascii"
    return None


def _judge(response: http.client.HTTPResponse, clock: Callable[[], float], answer: str) -> Outcome:
    status = f"status {response.status}" + (f": {answer}" if answer else "")
    if http.HTTPStatus.OK <= response.status < http.HTTPStatus.MULTIPLE_CHOICES:
        return Delivered(status)
    if response.status in RETRY_STATUS or response.status in SERVER_ERRORS:
        return DeliveryDeferred(status, _retry_after_s(response.getheader("Retry-After"), clock()))
    if http.HTTPStatus.MULTIPLE_CHOICES <= response.status < http.HTTPStatus.BAD_REQUEST:
        return DeliveryRefused(f"status {response.status}: redirects are not followed")
    return DeliveryRefused(status)


def _retry_after_s(header: str | None, now: float) -> float:
    """Read both forms of RFC 9110 10.2.3: seconds, or a date; anything else counts as none."""
    if header is None:
        return 0.0
    if header.strip().isdecimal():
        return float(header.strip()[:9])
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - now)
    except ValueError:
        return 0.0


def _abort(sock: socket.socket | None) -> None:
    if sock is not None:
        with contextlib.suppress(OSError):  # it may just have ended by itself
            sock.shutdown(socket.SHUT_RDWR)
