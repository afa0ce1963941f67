"""This node's network interfaces at the moment of a failure: which are up, which the ranks used, and from which the other nodes answer.

A connection is made to each known node from each interface, all at once; one that is refused proves that the host is there. The interface
in use is the one that a variable names, or that NCCL's log names, or by which the kernel reached the other node when the attempt began:
when an interface goes down, its routes go with it.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING

from health.checks.network.ethernet import names_chosen
from health.model import Ask
from health.probes.network import ethernet
from health.probes.network.names import split
from supervisor.core.model import Evidence
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
#: Connections get so long. The whole must answer within attempt_watch.ANSWER_S.
CONNECT_S = 1.0
MOST_INTERFACES, MOST_PEERS = 8, 16
#: NCCL does not use these unless nothing else is there, or they are named.
_LAST_CHOICE = ("lo", "docker", "virbr", "veth")

#: The port for a host without a known one: the discard service's. A host that refuses it is reached too.
_ANY_PORT = 9

_Address = tuple[str, int]


class Interface(Struct, frozen=True):
    """One interface: whether it is up and has a carrier, and its first IPv4 address, "" for none."""

    name: str
    is_up: bool
    ipv4: str


class InterfaceWatch:
    """Remembers which interfaces there were, and which led to the other nodes, as long as one did."""

    def __init__(self, peers: Sequence[str], environ: Mapping[str, str]) -> None:
        """Take the other nodes, as `host:port`, and the user's environment."""
        self._peers = tuple(peers)[:MOST_PEERS]
        self._matters = bool(peers) or any(environ.get(name) for name in VARIABLES)
        self._there: frozenset[str] = frozenset()
        self._addresses: tuple[_Address, ...] = ()
        self._route = ""  # the interface by which the first of them was reached when the attempt began

    def begin(self) -> None:
        """An attempt begins. A resolver may take long, so a thread asks it."""
        if self._matters:
            with contextlib.suppress(RuntimeError):  # no thread can be started: the older answer is kept
                threading.Thread(target=self._look, name="interfaces", daemon=True).start()

    def _look(self) -> None:
        interfaces = listed()
        self._there = frozenset(interface.name for interface in interfaces)
        self._addresses = tuple(address for peer in self._peers if (address := _resolved(peer)))
        local = next((ip for address in self._addresses if (ip := _local_address(address))), "")
        self._route = next((interface.name for interface in interfaces if interface.ipv4 == local), self._route) if local else self._route

    def evidence(self, environ: Mapping[str, str], logged: str = "", named_peers: Iterable[str] = ()) -> tuple[Evidence, ...]:
        """Return the interfaces that the ranks can use. environ: of the attempt; logged: the interface in NCCL's log, "" for none.

        named_peers: IPv4 addresses of other nodes in NCCL's warnings; the node of rank 0 knows the others by nothing else.
        Nothing where the job has no other node and no interface is named: then no interface matters.
        """
        named = next((value for name in VARIABLES if (value := environ.get(name, ""))), "")
        if not self._addresses and not named and not logged:
            return ()
        interfaces = listed()
        own = {interface.ipv4 for interface in interfaces}
        more = ((ip, _ANY_PORT) for ip in named_peers if _is_ipv4(ip) and ip not in own)
        peers = tuple(dict.fromkeys((*self._addresses, *more)))[:MOST_PEERS]
        used = _used(interfaces, named) if named else logged or self._route
        reached = _reached([interface for interface in interfaces if interface.is_up and interface.ipv4][:MOST_INTERFACES], peers)
        shown = [interface for interface in interfaces if interface.name == used or not interface.name.startswith(_LAST_CHOICE)]
        if used and not any(interface.name == used for interface in shown):
            shown.append(Interface(used, is_up=False, ipv4=""))  # it is gone
        there = self._there | {interface.name for interface in interfaces}
        return tuple(_fact(nic, used, reached.get(nic.name, 0), len(peers), is_known=nic.name in there) for nic in shown)


def listed() -> list[Interface]:
    """Return this node's interfaces, by name."""
    interfaces = []
    for reading in ethernet.read(Ask(deadline_s=CONNECT_S)):
        if reading.name == "nic.state" and isinstance(reading.value, dict):
            row, name = reading.value, reading.subject.removeprefix("nic:")
            is_up = row.get("up") is True and (row.get("carrier") is not False or row.get("loopback") is True)
            interfaces.append(Interface(name, is_up, str(row.get("ipv4") or "")))
    return interfaces


def _fact(interface: Interface, used: str, count: int, peers: int, *, is_known: bool) -> Evidence:
    """Return the evidence on an interface. One that was never there is missing: to wait for it makes no sense."""
    state = "up" if interface.is_up else "down" if is_known else "missing"
    reaches = "" if not peers or state == "missing" else "all" if count == peers else "some" if count else "none"
    text = f"interface {interface.name} is {state}" + (f", {count} of {peers} other nodes answer" if reaches else "")
    fields = {"name": interface.name, "state": state, "reaches": reaches, "ipv4": interface.ipv4}
    return Evidence("network", "interface", text, fields=tuple((fields | ({"used": "yes"} if interface.name == used else {})).items()))


def _used(interfaces: Sequence[Interface], named: str) -> str:
    """Return the first interface that a variable names; the name itself where there is no such interface."""
    names = names_chosen(named, [interface.name for interface in interfaces], exact=False)
    up = [interface.name for interface in interfaces if interface.name in names and interface.is_up]
    return next(iter(up or names), named.lstrip("=").partition(",")[0] if not named.startswith("^") else "")


def _is_ipv4(text: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET, text)
    except (OSError, ValueError):
        return False
    return True


def _resolved(peer: str) -> _Address | None:
    host, port = split(peer)
    try:
        rows = socket.getaddrinfo(host, port or 0, family=socket.AF_INET, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    return (str(rows[0][4][0]), int(rows[0][4][1])) if rows else None


def _local_address(address: _Address) -> str:
    """Return this node's address on the way to another, "" where there is no way. A datagram socket sends nothing on connect."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
            datagram.connect((address[0], address[1] or _ANY_PORT))
            return str(datagram.getsockname()[0])
    except OSError:
        return ""


def _reached(interfaces: Iterable[Interface], addresses: Sequence[_Address]) -> dict[str, int]:
    """Return how many of the addresses answer from each interface."""
    counts: dict[str, int] = {}
    waiting: dict[socket.socket, str] = {}
    with selectors.DefaultSelector() as selector:
        for interface in interfaces:
            for address in addresses:
                connection, code = _connecting(interface, address)
                if connection is not None and code == errno.EINPROGRESS:
                    waiting[connection] = interface.name
                    selector.register(connection, selectors.EVENT_WRITE)
                    continue
                counts[interface.name] = counts.get(interface.name, 0) + (code in {0, errno.ECONNREFUSED})
                if connection is not None:
                    connection.close()
        deadline = time.monotonic() + CONNECT_S
        while waiting and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                answered = key.fileobj
                assert isinstance(answered, socket.socket)  # noqa: S101 -- nothing else was registered
                name = waiting.pop(answered)
                code = answered.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                counts[name] = counts.get(name, 0) + (code in {0, errno.ECONNREFUSED})
                selector.unregister(answered)
                answered.close()
    for left_over in waiting:
        left_over.close()
    return counts


def _connecting(interface: Interface, address: _Address) -> tuple[socket.socket | None, int]:
    """Begin to connect from an interface. Since Linux 5.7 any user may bind to one; elsewhere its address has to do."""
    try:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        return None, error.errno or errno.EIO
    connection.setblocking(False)  # noqa: FBT003 -- its only form
    try:
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.name.encode())
        except PermissionError:
            connection.bind((interface.ipv4, 0))
        return connection, connection.connect_ex(address)
    except OSError as error:
        return connection, error.errno or errno.EIO
