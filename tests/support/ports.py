"""A port for a test's own server."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

#: Below the ports that a kernel as it comes gives to outgoing connections and to who binds to any, and below torchrun's own.
FIRST, LAST = 20_000, 29_000


def free_port() -> int:
    """Return a port of the loopback that nothing is bound to.

    It is free a moment later, too: no other program on the machine is given it, and no other test chooses the same but by chance.
    """
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    for port in random.SystemRandom().sample(range(FIRST, LAST), 100) if int(given[0]) >= LAST else ():
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            return port
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
        with contextlib.ExitStack() as exit_stack, contextlib.suppress(OSError, OverflowError):
            for port in range(first, first + count):
                exit_stack.enter_context(socket.socket()).bind(("", port))
            return first
