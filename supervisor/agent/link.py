"""The agent's end of the link to the supervisor.

Any thread may send, one thread reads. Sending never raises: without a supervisor the reader sees the end of the stream, and the guardian
ends the agent. A line that is not a command raises ValueError; that is an internal error and never the job's fault.
"""

from __future__ import annotations

import select
import threading
from typing import TYPE_CHECKING

from supervisor.agent.messages import decode_command, encode

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from supervisor.agent.messages import AgentMessage, Command


class SupervisorLink:
    """Events out, commands in, over one stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        """Own `sock`."""
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, message: AgentMessage) -> None:
        """Write one message. A broken link is not an error here."""
        line = encode(message)
        with self._lock:
            try:
                self._sock.sendall(line)
            except OSError:  # the supervisor is gone: commands() ends, and its reader decides what to do
                return

    def lost(self) -> bool:
        """Return whether the other end is closed, as the kernel reports it; unread commands may still be buffered."""
        poller = select.poll()
        poller.register(self._sock, select.POLLRDHUP)
        return bool(poller.poll(0))

    def commands(self) -> Iterator[Command]:
        """Yield every command until the other end closes."""
        with self._sock.makefile("rb") as lines:
            try:
                for line in lines:
                    yield decode_command(line)
            except OSError:
                return
