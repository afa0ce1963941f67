"""Whether the job's other nodes can be reached, and how long it takes.

Reads ask.hosts (`host` or `host:port`), ask.ports (for a host without one). Yields, of `peer:HOST:PORT`: `peer.answer` (answer: open or
refused; seconds), or the error's words as problem, `timeout` among them. A connection that is refused proves that the host is there:
before a start nobody listens yet. All are asked at once, TRIES times for the shortest time; nothing is sent.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from typing import TYPE_CHECKING, Final

from health.model import Json, Reading
from health.probes.network.names import split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "reach"
#: torchrun's own, where nothing else is known (torch.distributed.run: --master-port).
PORT: Final = 29500
TRIES: Final = 3
_RESERVE_S: Final = 1.0
_MOST: Final = 256


def read(ask: Ask) -> Iterator[Reading]:
    """Yield what each peer answers."""
    peers: dict[str, tuple[str, int]] = {}
    for word in ask.hosts:
        host, port = split(word)
        for peer_port in (port,) if port is not None else ask.ports[:1] or (PORT,):
            peers[f"{host}:{peer_port}"] = (host, peer_port)
    deadline = time.monotonic() + max(0.1, ask.deadline_s - _RESERVE_S)
    best: dict[str, Reading] = {}
    left = dict(list(peers.items())[:_MOST])
    for _ in range(TRIES):
        for name, reading in _once(left, deadline).items():
            if name not in best or (not reading.problem and _seconds(reading) < _seconds(best[name])):
                best[name] = reading
        left = {name: peer for name, peer in left.items() if not best[name].problem}
    yield from best.values()


def _seconds(reading: Reading) -> float:
    value = reading.value.get("seconds") if isinstance(reading.value, dict) else None
    return float(value) if isinstance(value, int | float) else float("inf")


def _once(peers: dict[str, tuple[str, int]], deadline: float) -> dict[str, Reading]:
    """Connect to all at once, and return what came of each."""
    readings: dict[str, Reading] = {}
    waiting: dict[socket.socket, tuple[str, float]] = {}
    with selectors.DefaultSelector() as selector:
        for name, (host, port) in peers.items():
            try:
                # the probe `names` reports the fault of a name; here the resolver's own limit holds
                family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
                connection = socket.socket(family, kind, protocol)
            except (OSError, UnicodeError) as error:
                readings[name] = _failed(name, getattr(error, "strerror", None) or str(error))
                continue
            connection.setblocking(False)  # noqa: FBT003 -- its only form
            started = time.monotonic()
            code = connection.connect_ex(address)
            if code in (0, errno.EINPROGRESS):
                waiting[connection] = (name, started)
                selector.register(connection, selectors.EVENT_WRITE)
            else:
                readings[name] = _judged(name, code, time.monotonic() - started)
                connection.close()
        while waiting and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)  # noqa: S101 -- nothing else was registered
                name, started = waiting.pop(sock)
                readings[name] = _judged(name, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), time.monotonic() - started)
                selector.unregister(sock)
                sock.close()
    for sock, (name, _) in waiting.items():
        sock.close()
        readings[name] = _failed(name, "timeout")
    return readings


def _judged(name: str, code: int, seconds: float) -> Reading:
    if code not in (0, errno.ECONNREFUSED):
        return _failed(name, os.strerror(code))
    value: dict[str, Json] = {"answer": "refused" if code else "open", "seconds": round(seconds, 6)}
    return Reading(NAME, f"peer:{name}", "peer.answer", value)


def _failed(name: str, words: str) -> Reading:
    return Reading(NAME, f"peer:{name}", "peer.answer", None, words)
