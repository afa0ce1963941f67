"""Asks after a failed rendezvous whether the name of the place where the ranks meet can be resolved, and what answers at its port.

torch's own words are a time-out or a lost connection whatever the reason is: its warnings of a name that cannot be resolved come in healthy
jobs too, for each host without an IPv6 address.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Final

from health.model import Ask
from health.probes.network import names
from supervisor.core.model import Cause, Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The whole must answer within attempt_watch.ANSWER_S, after the logs.
RESOLVE_S: Final = 0.9
CONNECT_S: Final = 0.2
#: A process that ends closes its connections, too, but takes no second one.
LOOKS, APART_S = 2, 0.1
MOST: Final = 2
#: In front of an IPv4 address, as a socket for both kinds shows it.
V4_IN_V6: Final = "::ffff:"

Place = tuple[str, int]


def evidence(node: str, logged: Iterable[Evidence], configured: Place | None) -> Iterator[Evidence]:
    """Yield a sentence on each place that leads nowhere. logged: what the logs claim; nothing is asked unless they show a rendezvous.

    configured: where the command and its environment have it.
    """
    claims = [fact for fact in logged if fact.claim is not None and fact.claim.cause is Cause.RENDEZVOUS]
    if not claims:
        return
    fields = [dict(fact.fields) for fact in claims]
    seen = [(row["host"].removeprefix(V4_IN_V6), int(row["port"])) for row in fields if row.get("host") and row.get("port", "").isdecimal()]
    places = list(dict.fromkeys([*seen, *([configured] if configured else [])]))[:MOST]
    asked = Ask(deadline_s=RESOLVE_S, hosts=tuple(host for host, _ in places))
    problems = {reading.subject.removeprefix("name:"): reading.problem for reading in names.read(asked) if reading.problem}
    for host, port in places:
        place = names.joined(host, port)
        if host in problems:
            text = (
                f"{node} cannot resolve the host name {host!r}, where the ranks are to meet ({problems[host]}): make it known by DNS or"
                " /etc/hosts on each node, or give an address (MASTER_ADDR, --rdzv-endpoint; on the node of that name --local-addr)"
            )
        elif _closes(host, port):
            text = (
                f"something answers at {place}, where the ranks are to meet, but it is not a store: it closes each connection"
                " (a proxy, a mesh's sidecar or another service has that port): give another port, or take this one out of the mesh"
            )
        else:
            continue
        yield Evidence("network", "meeting", text, fields=(("host", host), ("port", str(port))))


def _closes(host: str, port: int) -> bool:
    """Whether each connection is taken, and closed without a word. A store waits for its client's first word."""
    for look in range(LOOKS):
        if look:
            time.sleep(APART_S)
        try:
            with socket.create_connection((host, port), CONNECT_S) as connection:
                if connection.recv(1):
                    return False
        except ConnectionResetError:
            continue
        except OSError:  # refused, or no word in time
            return False
    return True
