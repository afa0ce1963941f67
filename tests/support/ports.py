"""A port for a test's own server."""

from __future__ import annotations

import contextlib
import socket


def free_port() -> int:
    """Return a port of the loopback that nothing is bound to."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def answers(port: int) -> bool:
    """Return whether somebody listens there."""
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def free_ports(count: int) -> int:
    """Return the first of so many ports in a row that nothing is bound to, on any address."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as held, contextlib.suppress(OSError, OverflowError):
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind(("", port))
            return first
