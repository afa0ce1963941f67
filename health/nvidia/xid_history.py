"""The history of Xids: whether a code came once, again on the same GPU, or on several GPUs.

An Xid without a time belongs to the burst of the Xid before it.

Rules, with their sources (NVIDIA's WORKFLOW_XID_13 and _31 in the Xid catalogue; the rules of NVIDIA/NVSentinel; read 2026-11-21):

    burst     lines of one code on one GPU within its window are one event: 15 s for 13, 3 min for 31
    echo      43, 45, 106, 107, 137, 154 follow another event; 171 and 172 give the place of the error of 48
    repeated  of a code that program or hardware can cause: twice within 24 h on one GPU (of 13, in the same GPC and TPC) and on no other
              GPU: the hardware is suspected; on several GPUs: the application
    five      any code that needs a repair five times within 24 h on one GPU: replace it
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from health.nvidia import xids

if TYPE_CHECKING:
    from collections.abc import Iterable

DAY_S: Final = 86400.0
#: Within how many seconds lines of one code on one GPU are one event.
BURST_S: Final = {13: 15.0, 31: 180.0}
BURST_ELSE_S: Final = 60.0
#: Twice is a pattern (WORKFLOW_XID_31); five fatal ones are one for the vendor (NVSentinel).
REPEATED: Final = 2
FIVE: Final = 5
MOST_EVENTS: Final = 4096
#: Codes that give the place of another code's error, with that other code.
DETAIL_OF: Final = {171: 48, 172: 48}
ECHO_S: Final = 60.0
#: Codes that only follow another event, on this GPU or on a peer's.
ECHOES: Final = frozenset(code for code, entry in xids.TABLE.items() if entry.echo)


@dataclass(slots=True)
class XidEvent:
    """One event of one code on one GPU. place: GPC and TPC, where the lines name them."""

    code: int
    gpu: str
    t: float | None
    place: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Events of one code within 24 h, this one included. same: on this GPU. gpus: how many GPUs. place: in the same GPC and TPC."""

    same: int
    gpus: int
    place: int


@dataclass(slots=True)
class Memory:
    """The events of the last 24 h of one node."""

    _events: deque[XidEvent] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))

    def add(self, event: XidEvent) -> None:
        """Remember an event."""
        self._events.append(event)

    def add_once(self, event: XidEvent) -> None:
        """Remember an event; if it belongs to the burst of an earlier one, that one lasts until now."""
        for known in reversed(self._events):
            if (known.code, known.gpu) == (event.code, event.gpu) and same_burst(event.code, known.t, event.t):
                known.t = event.t
                return
        self._events.append(event)

    def past(self, event: XidEvent) -> Recurrence:
        """Return the place of an event among those of its code, within 24 h before and after it."""
        return self.index().past(event)

    def index(self) -> EventIndex:
        """Return the events so far, sorted for many queries."""
        return EventIndex(self._events)


class EventIndex:
    """Events by code, GPU, place and time: each query is a binary search."""

    def __init__(self, events: Iterable[XidEvent]) -> None:
        """Sort them. Later changes of an event have no effect."""
        self._events = tuple(events)
        known = [event.t for event in self._events if event.t is not None]
        # the times if they are in order; else `before` compares every event
        self._times = known if len(known) == len(self._events) and known == sorted(known) else None
        self._by_code: dict[int, dict[str, dict[frozenset[str], _Times]]] = {}
        for event in self._events:
            self._by_code.setdefault(event.code, {}).setdefault(event.gpu, {}).setdefault(event.place, _Times()).add(event.t)
        for gpus in self._by_code.values():
            for places in gpus.values():
                for times in places.values():
                    times.known.sort()

    def past(self, event: XidEvent) -> Recurrence:
        """Return the place of an event among those of its code, within 24 h before and after it."""
        gpus = self._by_code.get(event.code, {})
        same = {place: times.near(event.t, DAY_S) for place, times in gpus.get(event.gpu, {}).items()}
        where = sum(1 for places in gpus.values() if any(times.near(event.t, DAY_S) for times in places.values()))
        alike = sum(count for place, count in same.items() if not event.place or not place or place & event.place)
        return Recurrence(sum(same.values()), where, alike)

    def before(self, event: XidEvent, codes: frozenset[int] | None, within_s: float = ECHO_S) -> XidEvent | None:
        """Return the first other event shortly before this one, on whatever GPU: of these codes (None: of any that is not an echo)."""
        begin = 0 if self._times is None or event.t is None else bisect_left(self._times, event.t - within_s)
        for earlier in islice(self._events, begin, None):
            if earlier is event:
                break
            if self._times is not None and event.t is not None and earlier.t is not None and earlier.t > event.t + within_s:
                break
            wanted = earlier.code in codes if codes is not None else earlier.code not in ECHOES
            if wanted and earlier.code != event.code and _near(earlier.t, event.t, within_s):
                return earlier
        return None


@dataclass(slots=True)
class _Times:
    """When events were. unknown: how many have no time, which are near to all."""

    known: list[float] = field(default_factory=list)
    unknown: int = 0

    def add(self, t: float | None) -> None:
        if t is None:
            self.unknown += 1
        else:
            self.known.append(t)

    def near(self, t: float | None, within_s: float) -> int:
        """Return how many are within so many seconds."""
        if t is None:
            return len(self.known) + self.unknown
        return bisect_right(self.known, t + within_s) - bisect_left(self.known, t - within_s) + self.unknown


def _near(t: float | None, other: float | None, within_s: float) -> bool:
    return t is None or other is None or abs(t - other) <= within_s


def same_burst(code: int, before: float | None, now: float | None) -> bool:
    """Return whether a line belongs to the burst whose last line was at `before`."""
    return before is None or now is None or 0 <= now - before <= BURST_S.get(code, BURST_ELSE_S)
