"""Every client gets the page within bounds, and a slow client blocks no other."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from supervisor.report.metrics import server
from supervisor.report.metrics.server import MOST_CONNECTIONS, MetricsServer
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = b"# TYPE a gauge\na 1.0\n"


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[MetricsServer, str]]]:
    running: list[tuple[MetricsServer, threading.Thread]] = []

    def start(page: Callable[[], bytes | None] = lambda: PAGE) -> tuple[MetricsServer, str]:
        listener = socket.create_server(("127.0.0.1", 0))
        metrics_server = MetricsServer(listener, "text/plain; version=0.0.4", page)
        thread = threading.Thread(target=metrics_server.run, daemon=True)
        thread.start()
        running.append((metrics_server, thread))
        return metrics_server, f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for started_server, thread in running:
        started_server.stop()
        thread.join(60)
        assert not thread.is_alive()
        started_server.server_close()


def fetch(url: str, timeout: float = 20) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:  # noqa: S310  loopback
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def connect(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=120)


def threads_beside(before: set[threading.Thread]) -> int:
    """Return how many threads there are that were not: one that another test left may end meanwhile."""
    return len(set(threading.enumerate()) - before)


def test_the_page_is_served_at_metrics_alone(serve: Callable[..., tuple[MetricsServer, str]]) -> None:
    _, url = serve()
    assert fetch(f"{url}/metrics") == (200, PAGE)
    assert fetch(f"{url}/metrics?name=a") == (200, PAGE)
    assert fetch(f"{url}/") == (404, b"the metrics are at /metrics\n")
    assert fetch(f"{url}/metrics/../../etc/passwd")[0] == 404


def test_no_page_yet_is_503_and_a_page_that_fails_ends_one_connection(serve: Callable[..., tuple[MetricsServer, str]]) -> None:
    _, url = serve(lambda: None)
    assert fetch(f"{url}/metrics")[0] == 503

    def broken() -> bytes:
        raise RuntimeError

    _, url = serve(broken)
    for _ in range(2):
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            fetch(f"{url}/metrics")


@pytest.mark.parametrize(
    "request_line", [b"POST /metrics HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"G" * 70_000 + b"\r\n\r\n"]
)
def test_a_request_that_is_no_scrape_is_refused(serve: Callable[..., tuple[MetricsServer, str]], request_line: bytes) -> None:
    _, url = serve()
    with connect(url) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(request_line)
        answer = sock.recv(4096)
        assert b" 200 " not in answer.partition(b"\n")[0]
    assert fetch(f"{url}/metrics") == (200, PAGE)


def test_slow_and_silent_scrapers_hold_no_more_than_a_bound_and_are_cut_off(
    serve: Callable[..., tuple[MetricsServer, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "DEADLINE_S", 2.0)
    before = set(threading.enumerate())
    _, url = serve()
    hostile = [connect(url) for _ in range(3 * MOST_CONNECTIONS)]
    for sock in hostile:
        sock.sendall(b"GET /metrics HTT")  # and never the rest
    wait_for(lambda: threads_beside(before) >= MOST_CONNECTIONS, "as many as may be", 60)
    assert threads_beside(before) <= 1 + MOST_CONNECTIONS
    answer: list[tuple[int, bytes]] = []
    honest = threading.Thread(target=lambda: answer.append(fetch(f"{url}/metrics", 60)))
    honest.start()
    for sock in hostile[:MOST_CONNECTIONS]:
        assert sock.recv(1) == b"", "it was not cut off"
    honest.join(60)
    assert answer == [(200, PAGE)]
    for sock in hostile:
        sock.close()


def test_a_scraper_that_reads_nothing_is_cut_off(serve: Callable[..., tuple[MetricsServer, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "DEADLINE_S", 0.5)
    before, asked = set(threading.enumerate()), threading.Event()

    def page() -> bytes:
        asked.set()  # in the thread of this scraper
        return bytes(64 << 20)

    _, url = serve(page)
    with connect(url) as sock:
        sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert asked.wait(PATIENCE_S)
        wait_for(lambda: threads_beside(before) == 1, "its end", 30)


@pytest.mark.slow
def test_a_flood_of_connections_takes_the_deciding_thread_no_time(serve: Callable[..., tuple[MetricsServer, str]]) -> None:
    """A thread that wakes every 5 ms, as a loop would, is late by the interpreter's switch interval and not by the scrapers."""
    _, url = serve()
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError), connect(url) as sock:
                sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")

    floods = [threading.Thread(target=flood, daemon=True) for _ in range(4)]
    for thread in floods:
        thread.start()
    late = []
    for _ in range(400):
        began = time.monotonic()
        threading.Event().wait(0.005)
        late.append(time.monotonic() - began - 0.005)
    stop.set()
    for thread in floods:
        thread.join(10)
    assert sorted(late)[len(late) // 2] < 0.05, "the median wait of the loop"
