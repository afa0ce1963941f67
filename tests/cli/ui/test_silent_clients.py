"""Connections on which no request comes: they hold their place for a bounded time, so that nobody is kept from the page by them."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.cli.ui import server
from supervisor.cli.ui.access import page_access
from supervisor.cli.ui.app import JobsApplication
from supervisor.cli.ui.server import page_server
from supervisor.cli.ui.watched_jobs import WatchedJobs
from supervisor.config.listening import ListenAddress
from tests.cli.ui.conftest import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

TOKEN = "correct-horse-battery-staple"  # noqa: S105
REQUEST = b"GET /live.js HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
LOGIN = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\ntoken="


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: local", id="a part of a request"),
        pytest.param(LOGIN, id="a part of the form with the token"),
        pytest.param(REQUEST + b"GET / HT", id="a part of the next request"),
    ],
)
def test_a_connection_on_which_no_request_comes_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.5)

    async def connect(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        got = await asyncio.wait_for(reader.read(-1), PATIENCE_S)  # until the other end closes it
        writer.close()
        return got

    assert served(tmp_path, connect).startswith(b"HTTP/1.1 200" if sent.startswith(REQUEST) else b"")


def test_a_client_that_waits_for_an_answer_is_not_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.2)
    monkeypatch.setattr(WatchedJobs, "rows", lambda _: (time.sleep(1.0), ([], 0))[1])  # a journal may take so long to be read

    async def ask(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST.replace(b"/live.js", b"/"))
        answer = await asyncio.wait_for(reader.readuntil(b"</html>"), PATIENCE_S)
        writer.close()
        return answer

    assert served(tmp_path, ask).startswith(b"HTTP/1.1 200")


def served(root: Path, ask: Callable[[int], Awaitable[bytes]]) -> bytes:
    """Return what `ask` gave, called with the port of a page."""
    access = page_access(ListenAddress("127.0.0.1", 0), TOKEN, (), fresh="")
    app = JobsApplication(WatchedJobs(root, lambda job: f"--job {job}", print), access, print)

    async def serve() -> bytes:
        listening = socket.create_server(("127.0.0.1", 0))
        page = page_server(app)
        serving = asyncio.create_task(page.serve(sockets=[listening]))
        try:
            return await ask(listening.getsockname()[1])
        finally:
            page.should_exit = True
            await serving
            listening.close()

    return asyncio.run(serve())
