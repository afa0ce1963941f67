"""Reads the TCP connections of this network namespace from the kernel: the other end of each, and its bytes.

/proc/net/tcp has no bytes, and `recv` counts in no file of /proc/PID. The kernel's answer to `ss -i` (sock_diag(7), inet_diag) has both.
"""

from __future__ import annotations

import socket
import struct
import threading

from health.probes.network.names import joined
from supervisor.core.values import Struct

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _DUMP = 4, 20, 0x301
_INET_DIAG_INFO = 2
_HEADER, _ID_BYTES, _MESSAGE_BYTES = 16, 48, 72
#: tcp_info: tcpi_bytes_acked and tcpi_bytes_received, since Linux 4.1.
_BYTES_AT = 120
_DONE, _ERROR = 3, 2
_ANSWER_S = 1.0


class Connection(Struct, frozen=True):
    """One TCP connection. peer: `host:port`; port: its own. moved_bytes: those that came and those that arrived at the peer."""

    peer: str
    port: int
    moved_bytes: int


class Connections:
    """All of them by inode, read once, when they are first asked for. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_inode: dict[int, Connection] | None = None

    def of(self, inode: int) -> Connection | None:
        """Return the connection of a socket; None for another kind of socket, one that only listens, and where the kernel does not say."""
        return self._all().get(inode)

    def other_end(self, connection: Connection) -> int:
        """Return the inode of the socket at the other end, where that is on this machine; 0 where it is not, or is not known."""
        ports = (connection.port, int(connection.peer.rpartition(":")[2]))
        ends = (inode for inode, end in self._all().items() if (int(end.peer.rpartition(":")[2]), end.port) == ports)
        return next((inode for inode in ends if self._all()[inode] is not connection), 0)

    def _all(self) -> dict[int, Connection]:
        with self._lock:
            if self._by_inode is None:
                self._by_inode = read()
            return self._by_inode


def read() -> dict[int, Connection]:
    """Return the connections by inode, as far as the kernel says."""
    connections: dict[int, Connection] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            connections |= _dumped(family)
        except (OSError, struct.error):  # a kernel without it, or a sandbox that forbids it
            continue
    return connections


def _dumped(family: int) -> dict[int, Connection]:
    request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, 0xFFFFFFFF) + b"\0" * _ID_BYTES
    connections: dict[int, Connection] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(_ANSWER_S)
        link.send(struct.pack("=IHHII", _HEADER + len(request), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + request)
        while True:
            answer, at = link.recv(1 << 20), 0
            while at < len(answer):
                length, kind = struct.unpack_from("=IH", answer, at)
                if kind in {_DONE, _ERROR} or length < _HEADER:
                    return connections
                connections |= _connection(answer[at + _HEADER : at + length], family)
                at += (length + 3) & ~3


def _connection(message: bytes, family: int) -> dict[int, Connection]:
    """Return the connection of one inet_diag_msg by its inode; nothing for a socket that has no peer."""
    port, peer_port = struct.unpack_from("!HH", message, 4)
    size = 4 if family == socket.AF_INET else 16
    (inode,) = struct.unpack_from("=I", message, _MESSAGE_BYTES - 4)
    if not peer_port or not inode:
        return {}
    host = socket.inet_ntop(family, message[24 : 24 + size]).removeprefix("::ffff:")
    at, moved = _MESSAGE_BYTES, 0
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == _INET_DIAG_INFO and length >= 4 + _BYTES_AT + 16:
            moved = sum(struct.unpack_from("=QQ", message, at + 4 + _BYTES_AT))
        at += max(4, (length + 3) & ~3)
    return {inode: Connection(joined(host, peer_port), port, moved)}
