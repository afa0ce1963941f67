"""Serves the page with uvicorn until INT or TERM."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, NoReturn, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    import socket
    from types import FrameType

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    from supervisor.cli.ui.app import JobsApplication

#: Connections at a time; more are refused (503).
_MOST_CONNECTIONS = 200
#: Headers are shorter.
_MOST_HEADER_BYTES = 16 << 10
#: How long a connection may hold its place until its next request is there, as a whole.
REQUEST_S = 10.0


class TimedProtocol(H11Protocol):
    """A connection; it is closed where no request comes. uvicorn itself waits for ever for the first one, and for the rest of one."""

    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request. Where it began one and did not end it, the time that one may take runs."""
        super().data_received(data)
        self._wait()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        if self._closing is not None:
            self._closing.cancel()

    def _wait(self) -> None:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            if self._closing is not None:
                self._closing.cancel()
                self._closing = None
        elif self._closing is None:  # one that comes byte by byte gets no more time
            self._closing = self.loop.call_later(REQUEST_S, self.transport.close)


class PageServer(uvicorn.Server):
    """A server that INT and TERM end at once: it only reads, and a disk that hangs may hold its thread for ever."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG002  as uvicorn has it
        """End the process."""
        os._exit(0)


def page_server(app: JobsApplication) -> PageServer:
    """Return a server of the page."""
    return PageServer(
        uvicorn.Config(
            app.application,
            loop="asyncio",
            http=TimedProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # a client could set them
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        )
    )


def serve(app: JobsApplication, listening: socket.socket) -> None:
    """Serve until INT or TERM."""
    page = page_server(app)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, page.handle_exit)  # also before uvicorn does so
    page.run(sockets=[listening])
