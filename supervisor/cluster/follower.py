"""Follows the record of the control store for one node, and serves the store here where the record asks for that (takeover.py).

A thread of its own: a register that does not answer holds up nothing else.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from supervisor.cluster.client import StoreAddress
from supervisor.cluster.register import Register, RegisterChanged, RegisterUnreachable, StoreRecord
from supervisor.cluster.server import StoreServer, listen
from supervisor.cluster.store import new_store
from supervisor.cluster.takeover import FollowStore, ServeStoreHere, StoreFinder, StoreHold

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.cluster.client import NodeClient
    from supervisor.cluster.model import ClusterRules
    from supervisor.cluster.register import Registered

#: Calls without an answer in a row that are reported; and with one, after which the next that are not answered are another outage.
MOST_UNANSWERED = 4
LEAST_ANSWERED = 60
_Answer = TypeVar("_Answer")


class ServingHosts(Protocol):
    """The hosts of a list, of which one serves torch's rendezvous and the control store (supervisor/run/store_hosts.py)."""

    def start(self, rules: ClusterRules, followed: str) -> None:
        """Begin. followed: the key of the store of whose job this node has not seen the end, "" for none."""
        ...

    def close(self) -> None:
        """End it. Not from the loop's thread."""
        ...

    def options(self) -> tuple[str, ...] | None:
        """Return torchrun's options for the rendezvous as it is served now; None where nobody serves it yet."""
        ...


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where the nodes find the control store beside the agents: `register` names it, and the others reach this node at `host`.

    hosts: of a list in --rdzv-endpoint, whose register it is.
    """

    register: Register
    host: str
    hosts: ServingHosts | None = None


class WatchedRegister:
    """A register that reports an outage once, also where it answers now and then meanwhile. Its methods are called from several threads."""

    def __init__(self, register: Register, warn: Callable[[str], None]) -> None:
        self._register, self._warn = register, warn
        self._lock = threading.Lock()  # of what follows
        self._unanswered = self._answered = 0  # in a row
        self._is_reported = False
        self._since = ""  # when the first of those that are not answered was

    def read(self) -> Registered:
        """See Register."""
        return self._asked(self._register.read)

    def write(self, value: str, version: int) -> int:
        """See Register."""
        return self._asked(lambda: self._register.write(value, version))

    def _asked(self, ask: Callable[[], _Answer]) -> _Answer:
        try:
            answer = ask()
        except RegisterUnreachable as problem:
            with self._lock:
                self._not_answered(problem)
            raise
        with self._lock:
            self._unanswered, self._answered = 0, self._answered + 1
            self._is_reported = self._is_reported and self._answered < LEAST_ANSWERED
        return answer

    def _not_answered(self, problem: RegisterUnreachable) -> None:
        if not self._unanswered:
            self._since = time.strftime("%H:%M:%S")
        self._unanswered, self._answered = self._unanswered + 1, 0
        if self._unanswered >= MOST_UNANSWERED and not self._is_reported:
            self._is_reported = True
            self._warn(f"the register that names the control store of the nodes has not answered since {self._since}: {problem}")


class StoreFollower:
    """One node of the job, from `start` to `close`.

    host: where the others reach it. followed: see ServingHosts. warn: prints a line, from any thread.
    """

    def __init__(  # noqa: PLR0913, PLR0917  what it follows, for whom
        self, register: Register, client: NodeClient, rules: ClusterRules, host: str, followed: str, warn: Callable[[str], None]
    ) -> None:
        self.server: StoreServer | None = None
        self._warn = warn
        self._register, self._client, self._rules, self._host = register, client, rules, host
        self._finder = StoreFinder(register, rules, client.name, followed, host)
        self._since_t = time.monotonic()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-follower", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self, linger_s: float) -> None:
        """Serve a store on until the others know how the job ended, `linger_s` at most, and return then. Not from the loop's thread."""
        end_t = time.monotonic() + linger_s
        self._closing.set()
        self._thread.join(linger_s)  # it may wait for the register
        if self.server is not None:
            self.server.close(max(0.0, end_t - time.monotonic()))

    def _run(self) -> None:
        rules = self._rules
        while not self._closing.wait(rules.renew_s / (4 if self._client.silent_s > rules.hold_s else 1)):
            if self.server is not None and not self.server.serves:
                self.server = None
            if self.server is None:
                self._look()

    def _look(self) -> None:
        asked = self._finder.look(time.monotonic(), self._client.silent_s, self._client.meeting)
        if isinstance(asked, FollowStore):
            record = asked.record
            self._client.find_at(StoreAddress(record.host, record.port, record.key))
        elif asked is not None:
            self._serve(asked)

    def _serve(self, asked: ServeStoreHere) -> None:
        """Serve the store here, unless another node was first. A write without an answer is found out about by the next look."""
        began_t = time.monotonic()
        try:
            listener = listen()
        except OSError as error:  # no descriptor, no port: it is tried again
            self._warn(f"this node cannot serve the control store of the nodes: {error.strerror}")
            return
        name, key = secrets.token_hex(8), asked.key or secrets.token_hex(16)
        port: int = listener.getsockname()[1]
        record = StoreRecord(name, self._client.name, self._host, port, key, asked.rows)
        try:
            version = self._register.write(record.value(), asked.version)
        except (RegisterUnreachable, RegisterChanged):
            listener.close()
            return
        self._finder.serves(key)
        hold = StoreHold(self._register, record, version, self._rules, began_t, time.monotonic)
        state = new_store(name, self._client.name, self._rules, time.monotonic(), asked.rows, since_t=self._since_t, lost=asked.lost)
        server = StoreServer(listener, key, state, hold)
        try:
            server.start()
        except RuntimeError as error:  # the next look finds this node in the record
            self._warn(f"this node cannot serve the control store of the nodes: {error}")
            return
        self.server = server
        self._client.find_at(StoreAddress("127.0.0.1", port, key))
