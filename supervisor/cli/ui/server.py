"""Serves the page with uvicorn until INT or TERM, and ends then at once: a reader who waits for a change waits no longer."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    import socket
    from types import FrameType

    from supervisor.cli.ui.app import JobsApplication

#: Connections at a time; more are refused (503).
_MOST_CONNECTIONS = 200
#: How long an answer that is being sent may take after INT or TERM.
_FINISH_S = 2
#: Headers are shorter.
_MOST_HEADER_BYTES = 16 << 10


class PageServer(uvicorn.Server):
    """A server of one application."""

    def __init__(self, app: JobsApplication) -> None:
        super().__init__(
            uvicorn.Config(
                app.application,
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,  # a client could set them
                server_header=False,
                limit_concurrency=_MOST_CONNECTIONS,
                timeout_graceful_shutdown=_FINISH_S,
                h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
            )
        )
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop: on a signal."""
        super().handle_exit(sig, frame)
        self._app.pages.stop()

    async def serve_pages(self, listening: socket.socket) -> None:
        """Serve until a signal."""
        keeping = asyncio.create_task(self._app.pages.keep())
        try:
            await self.serve(sockets=[listening])
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping


def serve(app: JobsApplication, listening: socket.socket) -> None:
    """Serve until INT or TERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn raises what it caught again at its end
    asyncio.run(PageServer(app).serve_pages(listening))
