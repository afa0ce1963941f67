"""Name resolution: this host's own name, and those of the job's other nodes.

Reads ask.hosts (`host` or `host:port`), the host's name, ask.options["names"]["several_nodes"]: whether other nodes of the job are to find
this one. Yields, of `name:HOST`: `name.resolved` (addresses, seconds, own, several_nodes), or the resolver's words as problem; one that
does not answer in time: `no answer in N s`. Each is asked in a thread of its own: the resolver has no deadline of its own.
"""

from __future__ import annotations

import socket
import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from health.model import Json, Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "names"
#: The part of the deadline that is kept for the report of the names without an answer.
_RESERVE_S: Final = 0.5
_MOST: Final = 64


def read(ask: Ask) -> Iterator[Reading]:
    """Yield what each name is resolved to."""
    own = socket.gethostname()
    hosts = tuple(dict.fromkeys((own, *(split(host)[0] for host in ask.hosts))))[:_MOST]
    options = ask.options.get(NAME)
    several = isinstance(options, dict) and options.get("several_nodes") is True
    answers: SimpleQueue[Reading] = SimpleQueue()
    for host in hosts:
        threading.Thread(target=_resolve, args=(host, {"own": own == host, "several_nodes": several}, answers), daemon=True).start()
    deadline = time.monotonic() + max(0.1, ask.deadline_s - _RESERVE_S)
    waiting = dict.fromkeys(hosts)
    while waiting:
        try:
            reading = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            break
        waiting.pop(reading.subject.removeprefix("name:"))
        yield reading
    for host in waiting:
        yield Reading(NAME, f"name:{host}", "name.resolved", None, f"no answer in {ask.deadline_s - _RESERVE_S:.1f} s")


def split(word: str) -> tuple[str, int | None]:
    """Return host and port of `host`, `host:port`, `[::1]:port` or a bare IPv6 address."""
    host, colon, port = word.rpartition(":")
    if colon and port.isdecimal() and (":" not in host or host.startswith("[")):
        return host.strip("[]"), int(port)
    return word.strip("[]"), None


def joined(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 address in brackets: what `split` takes apart."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _resolve(host: str, more: dict[str, Json], answers: SimpleQueue[Reading]) -> None:
    started = time.monotonic()
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        words = getattr(error, "strerror", None) or str(error)
        answers.put(Reading(NAME, f"name:{host}", "name.resolved", None, words))
        return
    addresses: list[Json] = [*dict.fromkeys(str(row[4][0]) for row in rows)]
    value: dict[str, Json] = {"addresses": addresses, "seconds": round(time.monotonic() - started, 6), **more}
    answers.put(Reading(NAME, f"name:{host}", "name.resolved", value))
