"""A port for a test's own server."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port of the loopback that nothing is bound to."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
