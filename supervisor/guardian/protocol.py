"""Packets on the guardian's links (messages.py): one JSON object each, with its file descriptors, over AF_UNIX SOCK_SEQPACKET.

A packet that would exceed PACKET_BYTES (a spawn with a large environment) travels in a memfd, sent as the packet's first descriptor. A
malformed packet raises ValueError, and its descriptors are closed.
"""

from __future__ import annotations

import json
import os
import socket
import sys

TYPE_CHECKING = False  # typing itself is not imported: it would cost the guardian half a MiB
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

PACKET_BYTES = 96 * 1024  # below the kernel's default send buffer of 208 KiB, with room for its own bookkeeping
MAX_FDS = 16
_FD_BYTES = 4
_IN_MEMFD = b"\0memfd"


def pair() -> tuple[socket.socket, socket.socket]:
    """Make a link: two ends, close-on-exec."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Mapping[str, object], fds: Sequence[int] = (), *, wait: bool = True) -> None:
    """Send one message. Raises BlockingIOError where it would have to wait and may not, OSError where the peer is gone."""
    flags = 0 if wait else socket.MSG_DONTWAIT
    payload = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")
    if len(payload) <= PACKET_BYTES:
        _send(sock, payload, fds, flags)
        return
    body = os.memfd_create("message", os.MFD_CLOEXEC)
    try:
        rest = memoryview(payload)
        while rest:
            rest = rest[os.write(body, rest) :]
        _send(sock, _IN_MEMFD, [body, *fds], flags)
    finally:
        os.close(body)


def receive(sock: socket.socket) -> tuple[Any, list[int]] | None:
    """Receive one message, a dict of unchecked fields, and its descriptors (close-on-exec), or None at the end of the link.

    Raises BlockingIOError where nothing is there, ValueError for a packet that is not a JSON object.
    """
    payload, ancillary, flags, _ = sock.recvmsg(PACKET_BYTES, socket.CMSG_LEN(MAX_FDS * _FD_BYTES), socket.MSG_CMSG_CLOEXEC)
    fds = [
        int.from_bytes(data[at : at + _FD_BYTES], sys.byteorder)
        for level, kind, data in ancillary
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        for at in range(0, len(data) - _FD_BYTES + 1, _FD_BYTES)
    ]
    if not payload:
        close(fds)
        return None
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError(flags)  # noqa: TRY301 - cut short; one place closes the descriptors
        if payload == _IN_MEMFD and fds:
            payload = _read_body(fds.pop(0))
        message = json.loads(payload.decode("utf-8", "surrogateescape"))
        if not isinstance(message, dict):
            raise ValueError(message)  # noqa: TRY301, TRY004 - as above; malformed is one kind of error
    except ValueError:
        close(fds)
        raise
    return message, fds


def close(fds: Sequence[int]) -> None:
    """Close descriptors that nobody took."""
    for fd in fds:
        os.close(fd)


def _send(sock: socket.socket, payload: bytes, fds: Sequence[int], flags: int) -> None:
    rights = b"".join(fd.to_bytes(_FD_BYTES, sys.byteorder) for fd in fds)
    sock.sendmsg([payload], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fds else [], flags)


def _read_body(body: int) -> bytes:
    try:
        return os.pread(body, os.fstat(body).st_size, 0)
    finally:
        os.close(body)
