"""The main thread's link to the supervisor: requests in, events out, and the end of the supervisor.

Events that a stopped or busy supervisor does not take wait here, so the guardian never blocks on it. `on_end` is called at the link's EOF
or at the death of the process that started us, whichever comes first: a process that the supervisor forked may hold the link open longer.
"""

from __future__ import annotations

import collections
import os
import socket

from . import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .messages import GuardianEvent, GuardianRequest
    from .reactor import Reactor


class GuardianLink:
    """`on_request` gets each message and its descriptors, which it must take or close; `on_end` is called once."""

    def __init__(
        self, reactor: Reactor, fd: int, on_request: Callable[[GuardianRequest, list[int]], None], on_end: Callable[[], None]
    ) -> None:
        self._reactor = reactor
        os.set_inheritable(fd, False)  # noqa: FBT003 - no child may hold it: its end is how our death is seen
        self._sock = socket.socket(fileno=fd)
        self._sock.settimeout(0)
        self._on_request = on_request
        self._on_end = on_end
        self._outbox: collections.deque[GuardianEvent] = collections.deque()
        self._open = True
        self._parent_fd = -1

    def start(self) -> None:
        """Begin to listen."""
        self._reactor.watch(self._sock.fileno(), self.read)
        try:
            self._parent_fd = os.pidfd_open(os.getppid())
        except OSError:
            return  # no pidfds in this sandbox: the link's end has to do
        self._reactor.watch(self._parent_fd, self._close)

    def send(self, message: GuardianEvent) -> None:
        """Send an event, now or when there is room."""
        if self._open:
            self._outbox.append(message)
            self._flush()

    def read(self) -> None:
        """Carry out all requests that have arrived."""
        if self._open:
            self._flush()
        while self._open:
            try:
                received = protocol.receive(self._sock)
            except BlockingIOError:
                return
            except ValueError as error:
                self.send({"ev": "refused", "do": "", "text": str(error)})
                continue
            except OSError:
                received = None
            if received is None:
                self._close()
                return
            self._on_request(*received)

    def _flush(self) -> None:
        while self._outbox:
            try:
                protocol.send(self._sock, self._outbox[0])
            except BlockingIOError:
                self._reactor.also_writable(self._sock.fileno(), wanted=True)
                return
            except OSError:
                self._outbox.clear()  # its end is read as the end of the link
                return
            self._outbox.popleft()
        self._reactor.also_writable(self._sock.fileno(), wanted=False)

    def _close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._outbox.clear()
        self._reactor.unwatch(self._sock.fileno())
        if self._parent_fd >= 0:
            self._reactor.unwatch(self._parent_fd)
        self._on_end()
