"""A guardian's message to the coordinator of the job's nodes, once its supervisor has died and all processes have ended.

The others then wait for nothing that runs no more. The supervisor prepares the message: nothing here knows its form.
"""

from __future__ import annotations

import socket
import threading

#: For the whole of it: looking up the name of the host, connecting, and the coordinator's end of the connection.
WITHIN_S = 2.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .messages import LastWordRequest


class LastWord:
    """The message of the newest request, and where it goes; without a request it sends nothing."""

    __slots__ = ("_address", "_message", "_thread")

    def __init__(self) -> None:
        self._address: tuple[str, int] | None = None
        self._message = b""
        self._thread: threading.Thread | None = None

    def prepare(self, request: LastWordRequest) -> None:
        """Take over a request. Raises KeyError, TypeError or ValueError where it is malformed."""
        self._address, self._message = (str(request["host"]), int(request["port"])), str(request["message"]).encode()

    def say(self) -> None:
        """Begin to send it, in a thread of its own: nobody may answer there."""
        if self._address is None:
            return
        thread = threading.Thread(target=self._send, args=(self._address,), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be started: the others notice the silence of this node
            return
        self._thread = thread

    def wait(self) -> None:
        """Return when it is sent, at the latest after WITHIN_S."""
        if self._thread is not None:
            self._thread.join(WITHIN_S)

    def _send(self, address: tuple[str, int]) -> None:
        try:
            with socket.create_connection(address, WITHIN_S) as connection:
                connection.sendall(self._message)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):  # until the coordinator has read it, and closes
                    pass
        except (OSError, ValueError, OverflowError):  # no one listens, or the name is wrong
            return
