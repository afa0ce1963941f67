"""The memory of Xids: what the same code means once, again on the same GPU, and on several.

In: each Xid, with GPU, code, time and its place in the GPU (GPC/TPC). Out: how often and where it was before. The state is the owner's:
one Memory for each node. Nothing fails. An Xid without a time is of the same burst as the one before.

Rules, with their sources (NVIDIA's WORKFLOW_XID_13 and _31 in the Xid catalogue; the rules of NVIDIA/NVSentinel; read 2026-11-21):

    burst     lines of one code on one GPU within its window are one event: 15 s for 13, 3 min for 31
    echo      43, 45, 106, 107, 137, 154 are no event of their own; 171 and 172 tell where the error of 48 was
    repeated  of a code that program or hardware can cause: twice within 24 h on one GPU (of 13, in the same GPC and TPC) and on no other
              GPU: the hardware is suspected; on several GPUs: the application
    five      any code that needs a repair five times within 24 h on one GPU: replace it
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from health import xids

DAY_S: Final = 86400.0
#: Within how many seconds lines of one code on one GPU are one event.
BURST_S: Final = {13: 15.0, 31: 180.0}
BURST_ELSE_S: Final = 60.0
#: Twice is a pattern (WORKFLOW_XID_31); five fatal ones are one for the vendor (NVSentinel).
REPEATED: Final = 2
FIVE: Final = 5
MOST_EVENTS: Final = 4096
#: Codes that say where another one's error was, or announce a repair for it: by what may stand before them.
DETAIL_OF: Final = {171: 48, 172: 48}
ECHO_S: Final = 60.0
#: Codes that follow another event, on this GPU or on a peer's, and are the beginning of nothing.
ECHOES: Final = frozenset(code for code, entry in xids.TABLE.items() if entry.echo)


@dataclass(slots=True)
class Event:
    """One event of one code on one GPU. place: GPC and TPC, where the lines name them."""

    code: int
    gpu: str
    t: float | None
    place: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Past:
    """What was before an event within 24 h, itself included. same: on this GPU; gpus: on how many; place: in the same GPC and TPC."""

    same: int
    gpus: int
    place: int


@dataclass(slots=True)
class Memory:
    """The events of the last 24 h of one node."""

    _events: deque[Event] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))

    def add(self, event: Event) -> None:
        """Remember an event."""
        self._events.append(event)

    def add_once(self, event: Event) -> None:
        """Remember an event; one that is of the burst of an earlier one is that, and lasts until now."""
        for one in reversed(self._events):
            if (one.code, one.gpu) == (event.code, event.gpu) and same_burst(event.code, one.t, event.t):
                one.t = event.t
                return
        self._events.append(event)

    def past(self, event: Event) -> Past:
        """Return how an event stands among those of its code, within 24 h before and after it."""
        alike = [one for one in self._events if one.code == event.code and _near(one.t, event.t, DAY_S)]
        same = [one for one in alike if one.gpu == event.gpu]
        place = [one for one in same if not event.place or not one.place or one.place & event.place]
        return Past(len(same), len({one.gpu for one in alike}), len(place))

    def before(self, event: Event, codes: frozenset[int] | None, within_s: float = ECHO_S) -> Event | None:
        """Return the first other event shortly before this one, on whatever GPU: of these codes (None: of any that is no echo)."""
        for one in self._events:
            if one is event:
                break
            wanted = one.code in codes if codes is not None else one.code not in ECHOES
            if wanted and one.code != event.code and _near(one.t, event.t, within_s):
                return one
        return None


def _near(one: float | None, other: float | None, within_s: float) -> bool:
    return one is None or other is None or abs(one - other) <= within_s


def same_burst(code: int, before: float | None, now: float | None) -> bool:
    """Tell whether a line is of the burst whose last line was at `before`."""
    return before is None or now is None or 0 <= now - before <= BURST_S.get(code, BURST_ELSE_S)
