"""Serves one page to scrapers, over HTTP, in threads of its own.

Nobody who connects can cost the supervisor more than a bound: MOST_CONNECTIONS at a time, each ended after DEADLINE_S whatever it does,
one accepted in PACE_S. The rest wait in the kernel's queue. A request reads nothing and changes nothing.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_CONNECTIONS: Final = 8
#: As long as Prometheus waits by default.
DEADLINE_S: Final = 10.0
PACE_S: Final = 0.01
#: How often overdue connections are ended.
_SWEEP_S: Final = 1.0
PATH: Final = "/metrics"


class MetricsServer(ThreadingMixIn, HTTPServer):
    """A server on a socket that listens already. page: returns the page, None where there is none; it may be called by many threads."""

    daemon_threads = True
    block_on_close = False
    timeout = _SWEEP_S

    def __init__(self, listener: socket.socket, content_type: str, page: Callable[[], bytes | None]) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.content_type, self.page = content_type, page
        self._changed = threading.Condition()
        self._open: dict[socket.socket, float] = {}  # each connection, and until when it may last
        self._stop = threading.Event()

    def run(self) -> None:
        """Serve until `stop`."""
        while not self._stop.wait(PACE_S):
            self._end_overdue()
            with self._changed:
                if len(self._open) >= MOST_CONNECTIONS:
                    self._changed.wait(_SWEEP_S)
                    continue
            self.handle_request()

    def stop(self) -> None:
        """Stop soon. An answer under way may end with the process."""
        self._stop.set()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  socketserver's own
        """Answer in a thread."""
        with self._changed:
            self._open[request] = time.monotonic() + DEADLINE_S
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401  as above
        """Close a connection."""
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  as above
        """Take no notice: a scraper went away, or was cut off. The maker of the page reports its faults."""

    def _end_overdue(self) -> None:
        now = time.monotonic()
        with self._changed:
            overdue = [request for request, until in self._open.items() if until < now]
        for request in overdue:
            with contextlib.suppress(OSError):  # closed meanwhile
                request.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it or writes to it


class _Handler(BaseHTTPRequestHandler):
    """Answers one request: GET or HEAD of PATH."""

    server: MetricsServer

    def do_GET(self) -> None:
        """Send the page."""
        if self.path.partition("?")[0] != PATH:
            self._answer(HTTPStatus.NOT_FOUND, b"the metrics are at /metrics\n", "text/plain; charset=utf-8")
            return
        page = self.server.page()
        if page is None:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"not made yet, or it could not be made\n", "text/plain; charset=utf-8")
        else:
            self._answer(HTTPStatus.OK, page, self.server.content_type)

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Log nothing: a scrape is not an event."""
