"""The register by majority, as a node reads and writes it; and the connections to the hosts of its list.

Each host has a thread of its own, which may hang in a look-up of its name or in a connection: nobody waits for it longer than for the poll.
"""

from __future__ import annotations

import contextlib
import queue
import random
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from supervisor.cluster.quorum import wire
from supervisor.cluster.quorum.proposer import Pause, RegisterCall
from supervisor.cluster.register import RegisterUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisor.cluster.quorum.acceptor import AcceptorAnswer, AcceptorRequest
    from supervisor.cluster.quorum.proposer import Steps
    from supervisor.cluster.quorum.wire import RegisterHosts
    from supervisor.cluster.register import Registered

POLL_S = 0.4
CALL_S = 1.0
_PAUSE_S = 0.05

_Kind = TypeVar("_Kind")
_Answers = queue.SimpleQueue[tuple[int, "AcceptorAnswer | None"]]


class HostLink:
    """The connection to one host of the list, and the thread that uses it. why: its last failure, "" where there was none."""

    def __init__(self, hosts: RegisterHosts, index: int) -> None:
        self.why = "no answer in time"
        self._hosts, self._index = hosts, index
        self._asked: queue.SimpleQueue[tuple[float, bytes, _Answers] | None] = queue.SimpleQueue()
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name=f"register-{index}", daemon=True)
        self._thread.start()

    def ask(self, line: bytes, by_t: float, answers: _Answers) -> None:
        """Have the host's answer, or None where none comes by then, put into `answers`."""
        self._asked.put((by_t, line, answers))

    def close(self) -> None:
        """End the thread once its host has answered."""
        self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            by_t, line, answers = asked
            answers.put((self._index, self._answer(line, by_t)))
        self._drop()

    def _answer(self, line: bytes, by_t: float) -> AcceptorAnswer | None:
        for is_new in (False, True):  # an old connection may have ended meanwhile; who gets a request twice answers the same
            if is_new or self._connection is not None:
                try:
                    answer = self._exchanged(line, by_t)
                except (OSError, ValueError, RecursionError) as error:
                    self.why = str(error) or type(error).__name__
                    self._drop()
                else:
                    self.why = ""
                    return answer
        return None

    def _exchanged(self, line: bytes, by_t: float) -> AcceptorAnswer:
        if time.monotonic() >= by_t:
            raise TimeoutError("no answer in time")
        if self._connection is None:
            self._connection = socket.create_connection(self._hosts.hosts[self._index], timeout=_left(by_t))
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = self._hosts.greeting() + line
        self._connection.settimeout(_left(by_t))
        self._connection.sendall(line)
        found = bytearray()
        while not found.endswith(b"\n"):
            self._connection.settimeout(_left(by_t))
            chunk = self._connection.recv(65536)
            if not chunk:
                raise ConnectionResetError("it closed the connection")
            found += chunk
            if len(found) > wire.LONGEST_LINE:
                raise ConnectionAbortedError("an answer of more than 16 MiB")
        if found == wire.REFUSED:
            raise ConnectionRefusedError("it serves the register of another job, or has another list of hosts")
        return wire.answer_of(bytes(found), len(self._hosts.hosts))

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _left(by_t: float) -> float:
    return max(0.001, by_t - time.monotonic())


def polled(
    links: Mapping[int, HostLink], request: AcceptorRequest, by_t: float, enough: Callable[[Mapping[int, AcceptorAnswer]], bool]
) -> dict[int, AcceptorAnswer]:
    """Return the answers of hosts to a request, by their index, once they are enough, all there or it is `by_t`."""
    answers: _Answers = queue.SimpleQueue()
    line = wire.encode_request(request)
    for link in links.values():
        link.ask(line, by_t, answers)
    found: dict[int, AcceptorAnswer] = {}
    for _ in links:
        try:
            index, answer = answers.get(timeout=_left(by_t))
        except queue.Empty:
            break
        if answer is not None:
            found[index] = answer
            if enough(found):
                break
    return found


class QuorumRegister:
    """The register of a list of hosts (register.Register). Its methods may be called from several threads."""

    def __init__(self, hosts: RegisterHosts) -> None:
        self._hosts = hosts
        self._links = {index: HostLink(hosts, index) for index in range(len(hosts.hosts))}
        self._number = 0  # of the newest ballot that was seen: a hint

    def read(self) -> Registered:
        """Return the newest value. Raises RegisterUnreachable."""
        return self._called(lambda call: call.read())

    def write(self, value: str, version: int) -> int:
        """Replace the value of this version; return the new one's. Raises RegisterChanged, RegisterUnreachable."""
        return self._called(lambda call: call.write(value, version))

    def close(self) -> None:
        """End its threads."""
        for link in self._links.values():
            link.close()

    def _called(self, begin: Callable[[RegisterCall], Steps[_Kind]]) -> _Kind:
        by_t = time.monotonic() + CALL_S
        call = RegisterCall(secrets.token_hex(8), len(self._links), self._number)
        steps = begin(call)
        with contextlib.closing(steps):
            asked = next(steps)
            while True:
                now = time.monotonic()
                if now >= by_t:
                    raise RegisterUnreachable(self._why())
                answers: dict[int, AcceptorAnswer] = {}
                if isinstance(asked, Pause):
                    time.sleep(random.uniform(0.0, _PAUSE_S))  # noqa: S311  so that two proposers part
                else:
                    answers = polled(self._links, asked.request, min(by_t, now + POLL_S), asked.enough)
                try:
                    asked = steps.send(answers)
                except StopIteration as end:
                    result: _Kind = end.value
                    return result
                finally:
                    self._number = max(self._number, call.number)

    def _why(self) -> str:
        hosts = zip(self._hosts.hosts, self._links.values(), strict=True)
        silent = [f"{host}:{port}: {link.why}" for (host, port), link in hosts if link.why]
        others = "; ".join(silent) or "other nodes write, too"
        return f"no majority of {len(self._links)} hosts in {CALL_S:g} s ({others})"
