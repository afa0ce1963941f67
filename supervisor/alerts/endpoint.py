"""One request to one address under one deadline, and what its answer means. sender.py retries it.

A request runs in its own thread, because a resolver cannot be interrupted, and a peer that sends one byte a second never trips a socket's
timeout. At the deadline its socket is shut; a thread that still hangs (in the resolver) is left behind, and while `MAX_HANGING` of them
hang no other is started. URL and secret stay here: messages name the host alone.

The way there is that of the environment: HTTP_PROXY, HTTPS_PROXY and NO_PROXY count. Redirects are not followed: the signed body would go
to a place that nobody configured, such as a cloud's metadata address. Of an answer the status decides; a piece of the body is read for
people, and whatever in it is in the URL or is a secret is replaced. Imported only where a sink is configured: urllib3 and ssl cost
memory (docs/guides/alerts.md).
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
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, LocationParseError

from supervisor.alerts.sinks import Delivered, DeliveryDeferred, DeliveryRefused, Outcome
from supervisor.alerts.tries import MAX_HANGING
from supervisor.classify import redact
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Answers that ask for another try; every other 4xx, and every 3xx, will not get better by itself.
RETRY_STATUS = frozenset({408, 425, 429})
SERVER_ERRORS = range(500, 600)
#: The answer's body: bytes to read, bytes to show, and how long it may take after the status.
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
    sock: socket.socket | None = None
    is_abandoned: bool = False
    outcome: Outcome | None = None

    def connected(self, sock: socket.socket) -> None:
        """Note the socket. Raises OSError if the try was given up meanwhile: the resolver came back too late, and another one took over."""
        self.sock = sock
        if self.is_abandoned:
            abort(sock)
            raise ConnectionAbortedError


class HttpEndpoint:
    """The address. Raises SuperviseError (exit 78) for a URL that cannot be one, or a proxy of the environment that cannot be used."""

    def __init__(self, url: str, secret: bytes | None, *, hide: Sequence[str] = (), method: str = "POST") -> None:
        """Take the URL apart, and load the certificates that TLS needs: nothing is read from a disk later.

        secret: signs each body, if there is one. hide: other secrets that no report of an answer may show. method: GET for a ping.
        """
        parts = _split(url)
        self.host = str(parts.hostname)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{target}"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {"Content-Type": "application/json", "User-Agent": "torch-supervise", "Connection": "close"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = "Basic " + base64.b64encode(login).decode("ascii")
        self._secret, self._method = secret, method
        self._proxy, proxy_login = _proxy(parts)
        given = (parts.username, parts.password, target, None if secret is None else secret.decode("utf-8", "replace"), proxy_login, *hide)
        pieces = [piece for piece in re.split(r"[/?&=;]", target) if len(piece) >= _SECRET_PART]
        self._hide = sorted(
            {text for word in (*given, *pieces) if word and word != "/" for text in (word, unquote(word))}, key=len, reverse=True
        )
        self._proxy_headers = urllib3.make_headers(proxy_basic_auth=unquote(proxy_login)) if proxy_login else {}
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
        request.is_abandoned = True
        abort(request.sock)
        self._hanging.append(thread)
        return outcome

    def _run(self, request: _Request, event_id: str, body: bytes, deadline_s: float) -> None:
        try:
            self._exchange(request, event_id, body, deadline_s)
        except Exception as error:  # noqa: BLE001 - a bug here must not lose the alert: it is retried and reported
            request.outcome = DeliveryDeferred(self._reason(error, deadline_s))
        finally:
            request.judged.set()
            request.done.set()

    def _exchange(self, request: _Request, event_id: str, body: bytes, deadline_s: float) -> None:
        with self._manager(request) as manager:
            response = manager.request(
                self._method,
                self._url,
                body=body or None,
                headers=self._headers | self._signed(event_id, body, int(time.time())),
                redirect=False,
                retries=False,
                timeout=deadline_s,
                preload_content=False,
                decode_content=False,
            )
            request.outcome = _judge(response, time.time, "")
            request.judged.set()
            request.outcome = _judge(response, time.time, self._answer(request.sock, response))

    def _manager(self, request: _Request) -> urllib3.PoolManager:
        """Return what makes one connection, directly or by the proxy, and notes its socket."""
        options: dict[str, Any] = {} if self._tls is None else {"ssl_context": self._tls}
        manager: urllib3.PoolManager
        if self._proxy:
            manager = urllib3.ProxyManager(self._proxy, proxy_headers=self._proxy_headers, **options)
        else:
            manager = urllib3.PoolManager(**options)

        class PlainConnection(HTTPConnection):
            def connect(self) -> None:
                super().connect()
                request.connected(self.sock)

        class EncryptedConnection(HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                request.connected(self.sock)

        class PlainPool(urllib3.HTTPConnectionPool):
            ConnectionCls = PlainConnection

        class EncryptedPool(urllib3.HTTPSConnectionPool):
            ConnectionCls = EncryptedConnection

        manager.pool_classes_by_scheme = {"http": PlainPool, "https": EncryptedPool}
        return manager

    def _reason(self, error: Exception, deadline_s: float) -> str:
        """Say why there is no answer. The text of an exception may quote what the peer sent; its type and the system's words do not."""
        root = _root_of(error)
        if isinstance(root, TimeoutError) or isinstance(error, urllib3.exceptions.TimeoutError):
            reason = getattr(root, "strerror", None) or f"no answer within {deadline_s:g} s"
        elif isinstance(root, OSError) and root.strerror:
            reason = root.strerror
        elif isinstance(root, http.client.RemoteDisconnected):
            reason = "the connection was closed without an answer"
        elif isinstance(root, http.client.HTTPException):
            reason = f"the answer is not HTTP ({type(root).__name__})"
        elif isinstance(root, (OSError, HTTPError)):
            reason = type(root).__name__
        else:
            reason = f"unexpected {type(root).__name__}"
        return f"by the proxy {urlsplit(self._proxy).hostname}: {reason}" if self._proxy else reason

    def _answer(self, sock: socket.socket | None, response: urllib3.BaseHTTPResponse) -> str:
        """Return what the receiver wrote beside its status, in one line and without our secrets."""
        try:
            if sock is not None:
                sock.settimeout(_ANSWER_S)
            source: Any = response if hasattr(response, "read1") else vars(response)["_fp"]  # urllib3 1.26 has no read that returns early
            text = source.read1(_ANSWER_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError, HTTPError, http.client.HTTPException):
            return ""
        for hidden in self._hide:
            text = text.replace(hidden, "...")
        return " ".join("".join(char if char.isprintable() else " " for char in redact.text(text)).split())[:_ANSWER_SHOWN]

    def _signed(self, event_id: str, body: bytes, now: int) -> dict[str, str]:
        headers = {"Idempotency-Key": event_id}
        if self._secret is not None:
            headers["X-Supervise-Signature"] = f"t={now},v1={sign(self._secret, now, body)}"
        return headers


def _root_of(error: BaseException) -> BaseException:
    """Return the exception of the system or of http.client that urllib3's exceptions wrap."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        current = waiting.pop(0)
        if not isinstance(current, BaseException) or current in seen:
            continue
        seen.append(current)
        if isinstance(current, (OSError, http.client.HTTPException)) and not isinstance(current, HTTPError):
            return current
        waiting += [*current.args, getattr(current, "reason", None), getattr(current, "original_error", None), current.__cause__]
    return error


def _proxy(parts: SplitResult) -> tuple[str, str]:
    """Return the proxy of the environment for an address, without its login, and `user:password`; "" and "" for none."""
    proxies = getproxies()  # of the environment, on Linux
    url = "" if proxy_bypass(parts.netloc.rpartition("@")[2]) else proxies.get(parts.scheme) or proxies.get("all", "")
    if not url:
        return "", ""
    login, _, place = (url if "://" in url else f"http://{url}").partition("://")[2].rpartition("@")
    scheme = url.partition("://")[0] if "://" in url else "http"
    try:
        is_usable = scheme in ("http", "https") and bool(urllib3.util.parse_url(f"{scheme}://{place}").host)
    except LocationParseError:
        is_usable = False
    if not is_usable:
        raise SuperviseError(
            f"alerts: the proxy for {parts.scheme}:// in the environment cannot be used: it is no http:// or https:// address",
            hint=f"Correct {parts.scheme.upper()}_PROXY, or name {parts.hostname} in NO_PROXY.",
        )
    return f"{scheme}://{place}", login


def sign(secret: bytes, now: int, body: bytes) -> str:
    """Return the hex HMAC-SHA256 of `now` (Unix seconds) + "." + body."""
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
        return f"a blank or a character outside ascii comes after the host {host!a}"
    return None


def _judge(response: urllib3.BaseHTTPResponse, clock: Callable[[], float], answer: str) -> Outcome:
    status = f"status {response.status}" + (f": {answer}" if answer else "")
    if http.HTTPStatus.OK <= response.status < http.HTTPStatus.MULTIPLE_CHOICES:
        return Delivered(status)
    if response.status in RETRY_STATUS or response.status in SERVER_ERRORS:
        return DeliveryDeferred(status, _retry_after_s(response.headers.get("Retry-After"), clock()))
    if http.HTTPStatus.MULTIPLE_CHOICES <= response.status < http.HTTPStatus.BAD_REQUEST:
        return DeliveryRefused(f"status {response.status}: redirects are not followed")
    return DeliveryRefused(status)


def _retry_after_s(header: str | None, now: float) -> float:
    """Read both forms of RFC 9110 10.2.3: seconds, or a date; anything else is treated as none."""
    if header is None:
        return 0.0
    if header.strip().isdecimal():
        return float(header.strip()[:9])
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - now)
    except ValueError:
        return 0.0


def abort(sock: socket.socket | None) -> None:
    """Shut a socket, so that a thread that waits for it continues."""
    if sock is not None:
        with contextlib.suppress(OSError):  # it may just have ended by itself
            sock.shutdown(socket.SHUT_RDWR)
