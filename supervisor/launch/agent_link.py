"""Our end of the link to an agent. The loop waits for no process: what the agent does not take at once is sent by a thread."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable

OnLost = Callable[[OSError], None]


class AgentLink:
    """Sends lines in order.

    An agent that is stopped takes some 200 KB before its buffer is full; an order with a large environment may be longer.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._lock = threading.Lock()
        self._backlog: deque[tuple[bytes, OnLost]] = deque()
        self._drains = False

    def send(self, line: bytes, on_lost: OnLost) -> None:
        """Send a line, now as far as the agent's buffer takes it. `on_lost` gets the error where it cannot be sent, in any thread."""
        with self._lock:
            rest = line
            if not self._backlog:
                try:
                    rest = line[self.sock.send(line, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    rest = line
                except OSError as error:
                    on_lost(error)
                    return
            if not rest:
                return
            self._backlog.append((rest, on_lost))
            if not self._drains:
                with contextlib.suppress(RuntimeError):  # no thread can be started: the next line tries again
                    threading.Thread(target=self._drain, name="agent-orders", daemon=True).start()
                    self._drains = True

    def close(self) -> None:
        """Close the link; unsent messages are lost. Wakes its readers and writers, which close alone would not."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._backlog:
                    self._drains = False
                    return
                rest, _ = self._backlog[0]
            try:
                self.sock.sendall(rest)
            except OSError as error:
                with self._lock:
                    lost, self._drains = [on_lost for _, on_lost in self._backlog], False
                    self._backlog.clear()
                for on_lost in lost:
                    on_lost(error)
                return
            with self._lock:
                self._backlog.popleft()
