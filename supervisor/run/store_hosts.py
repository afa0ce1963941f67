"""The hosts of a list (knobs/host_list.py) that serve torch's rendezvous and the control store, and which of them does now.

That is what the record in their register says (supervisor/cluster/register.py). The agents cannot meet before it names a host. So where
there is no record, or one that nobody renews any more, a listed host writes a **bid**: a record of a host without a store, which the host
renews until its nodes have met and it serves the store. The first of the list does so at once, each next one some seconds later.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING

from supervisor.cluster.follower import WatchedRegister
from supervisor.cluster.quorum.client import QuorumRegister
from supervisor.cluster.quorum.server import AcceptorServer
from supervisor.cluster.quorum.wire import RegisterHosts
from supervisor.cluster.register import RegisterChanged, Registered, RegisterUnreachable, StoreRecord
from supervisor.cluster.server import listen
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.cluster.model import ClusterRules
    from supervisor.knobs.host_list import HostList

#: Each next host of the list waits so much longer before it bids.
TURN_S = 3.0
_CLOSE_S = 2.0


class StoreHosts:
    """The list as this node uses it, and its register. place: the directory of the acceptor's file. warn: prints a line, from any thread.

    Raises SuperviseError (64) where this node may be several hosts of the list, or where the acceptor's port is taken.
    """

    def __init__(self, listed: HostList, place: Path, warn: Callable[[str], None]) -> None:
        self._listed, self._warn = listed, warn
        self.index = own_index(listed)
        self.host = listed.hosts[self.index][0] if self.index is not None else listed.address or socket.getfqdn()
        hosts = RegisterHosts(listed.job, listed.acceptors)
        self._quorum = QuorumRegister(hosts)
        self._register = WatchedRegister(self._quorum, warn)
        self._acceptor: AcceptorServer | None = None
        if self.index is not None:
            port = listed.acceptors[self.index][1]
            try:
                listener = listen(port)
            except OSError as error:
                raise SuperviseError(
                    f"cannot serve this host's part of the list in --rdzv-endpoint: port {port}: {error.strerror or error}",
                    hint=f"It is the port after the one in the list: name a port P there for which {port - 1} and {port} are free.",
                    exit_code=ExitCode.USAGE,
                ) from error
            self._acceptor = AcceptorServer(listener, hosts, self.index, place / "acceptor.json", warn)
        else:
            names = ", ".join(host for host, _ in listed.hosts)
            warn(
                f"this node is none of {names} (--rdzv-endpoint): it can reach what they serve, and serves nothing; is --local-addr right?"
            )
        self._record: StoreRecord | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, rules: ClusterRules, followed: str) -> None:
        """Begin. followed: see ServingHosts."""
        if self._acceptor is not None:
            self._acceptor.start()
        self._thread = threading.Thread(target=self._run, args=(rules, followed), name="store-hosts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it. Not from the loop's thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        if self._acceptor is not None:
            self._acceptor.close()
        self._quorum.close()

    def options(self) -> tuple[str, ...] | None:
        """Return torchrun's options for the rendezvous as it is served now; None where nobody serves it yet."""
        record = self._record
        if record is None or record.is_final:
            return None
        return self._listed.options(record.host, is_here=record.host == self.host)

    # the register, as the follower of the control store uses it

    def read(self) -> Registered:
        """See Register."""
        found = self._register.read()
        self._record = StoreRecord.read(found.value)
        return found

    def write(self, value: str, version: int) -> int:
        """See Register."""
        written = self._register.write(value, version)
        self._record = StoreRecord.read(value)
        return written

    # the bid

    def _run(self, rules: ClusterRules, followed: str) -> None:
        seen, seen_t, over = Registered(-1, ""), time.monotonic(), None
        while not self._closing.wait(rules.renew_s):
            with contextlib.suppress(RegisterUnreachable, RegisterChanged):
                found, now = self.read(), time.monotonic()
                record = StoreRecord.read(found.value)
                if seen.version < 0 and record is not None and record.is_final and record.key != followed:
                    over = record.key  # an earlier job of this name is over; where this one is, the others still have to learn it
                if found.version != seen.version:
                    seen, seen_t = found, now
                if self.index is not None and self._may_bid(record, now - seen_t - self.index * TURN_S, rules, over):
                    self.write(StoreRecord(secrets.token_hex(8), "", self.host, 0, "").value(), found.version)

    def _may_bid(self, record: StoreRecord | None, idle_s: float, rules: ClusterRules, over: str | None) -> bool:
        """Return whether this host is to bid; idle_s: for how long the record has not changed, less this host's turn."""
        if record is None:
            return idle_s >= 0
        if record.key == over:
            return idle_s > rules.hold_s  # its nodes are gone
        if record.is_bid:
            return record.host == self.host or idle_s > rules.hold_s
        return not record.is_final and idle_s > rules.away_s + rules.return_s  # no member is left that takes over


def own_index(listed: HostList) -> int | None:
    """Return which host of the list this node is, None for none. Raises SuperviseError (64) where it may be several."""
    names = {listed.address} if listed.address else {name.lower() for name in (socket.gethostname(), socket.getfqdn())}
    named = [index for index, (host, _) in enumerate(listed.hosts) if host.lower() in names]
    if not named and not listed.address:
        short = {name.partition(".")[0] for name in names}
        named = [index for index, (host, _) in enumerate(listed.hosts) if not _is_address(host) and host.lower().partition(".")[0] in short]
    if not named:
        named = [index for index, (host, _) in enumerate(listed.hosts) if _is_own(host, listed.address)]
    if len(named) > 1:
        alike = ", ".join(listed.hosts[index][0] for index in named)
        raise SuperviseError(
            f"cannot use the list of hosts in --rdzv-endpoint: {alike} are all this node",
            hint="Give torchrun --local-addr with the one of the list that this node is, or take the other one out of the list.",
            exit_code=ExitCode.USAGE,
        )
    return named[0] if named else None


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdecimal()


def _is_own(host: str, address: str) -> bool:
    """Return whether a name leads to this node: to `address` where that is given, else to an address that can be bound here."""
    try:
        found = {str(row[4][0]) for row in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return address in found if address else any(map(_can_bind, found))


def _can_bind(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
    except OSError:
        return False
    return True
