"""The messages to systemd, over real sockets; they never delay or fail the run."""

from __future__ import annotations

import os
import select
import socket
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.job.sd_notify import STATUS_LIMIT, Notifier, strip
from tests.support.figures import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    NotifierFor = Callable[[Mapping[str, str]], Notifier]


@pytest.fixture
def notifier_for() -> Iterator[Callable[[Mapping[str, str]], Notifier]]:
    notifiers: list[Notifier] = []

    def make(env: Mapping[str, str]) -> Notifier:
        notifiers.append(Notifier(env))
        return notifiers[-1]

    yield make
    for notifier in notifiers:
        notifier.close()
        notifier.status("to nobody")


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket as systemd opens it, and what NOTIFY_SOCKET would say."""
    abstract = request.param == "abstract"
    name = f"@supervise-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name[1:] if abstract else name)
        sock.settimeout(5)
        yield sock, name


def test_each_message_is_what_sd_notify_says(notifier_for: NotifierFor, manager: tuple[socket.socket, str]) -> None:
    sock, name = manager
    notifier = notifier_for({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())})
    assert notifier.enabled
    assert notifier.watchdog_interval_s() == 1.5
    notifier.ready("attempt 1 is starting")
    notifier.status("step 1200")
    notifier.ping()
    notifier.extend_timeout(2.5)
    notifier.ready("attempt 2 is starting")
    notifier.stopping("saving")
    assert [sock.recv(4096) for _ in range(6)] == [
        b"READY=1\nSTATUS=attempt 1 is starting",
        b"STATUS=step 1200",
        b"WATCHDOG=1",
        b"EXTEND_TIMEOUT_USEC=2500000",
        b"STATUS=attempt 2 is starting",
        b"STOPPING=1\nSTATUS=saving",
    ]


def test_a_status_cannot_be_a_second_assignment(notifier_for: NotifierFor, manager: tuple[socket.socket, str]) -> None:
    sock, name = manager
    notifier_for({"NOTIFY_SOCKET": name}).status("x\nMAINPID=1\r\0" + "\udcff" + "y" * 1000)
    packet = sock.recv(4096)
    assert packet.startswith(b"STATUS=x MAINPID=1  ")
    assert b"\n" not in packet
    assert len(packet) <= len("STATUS=") + STATUS_LIMIT


@pytest.mark.parametrize(
    ("env", "interval_s"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "many"}, None),
    ],
)
def test_the_watchdog_is_ours_only_where_it_says_so(
    notifier_for: NotifierFor, tmp_path: Path, env: dict[str, str], interval_s: float | None
) -> None:
    assert notifier_for({"NOTIFY_SOCKET": str(tmp_path / "gone"), **env}).watchdog_interval_s() == interval_s


def test_without_a_watchdog_ping_says_nothing(notifier_for: NotifierFor, manager: tuple[socket.socket, str]) -> None:
    sock, name = manager
    notifier = notifier_for({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"})
    notifier.ping()
    notifier.status("after it")
    assert sock.recv(4096) == b"STATUS=after it"


@pytest.mark.parametrize("name", ["", "@", "relative", "vsock:2:1", "/no/such/socket", "/" + "x" * 200])
def test_an_address_that_leads_nowhere_is_no_error(notifier_for: NotifierFor, name: str) -> None:
    notifier = notifier_for({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000000"})
    notifier.ready("x")
    notifier.ping()
    notifier.stopping("x")


@pytest.mark.bench
def test_a_manager_that_does_not_read_is_not_waited_for(notifier_for: NotifierFor, manager: tuple[socket.socket, str]) -> None:
    sock, name = manager
    notifier = notifier_for({"NOTIFY_SOCKET": name})
    started = time.monotonic()
    for _ in range(5000):
        notifier.status("x" * STATUS_LIMIT)
    assert within(5, since=started)
    received = 0
    while select.select([sock], [], [], 0)[0]:
        received += bool(sock.recv(4096))
    assert 0 < received < 5000, "the socket was never full: this proved nothing"


def test_the_job_is_not_given_our_socket() -> None:
    env = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "2", "INVOCATION_ID": "kept", "PATH": "/bin"}
    assert strip(env) == {"INVOCATION_ID": "kept", "PATH": "/bin"}
    assert "NOTIFY_SOCKET" in env, "the caller's own mapping was changed"
