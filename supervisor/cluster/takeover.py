"""The control store outlives its host: which node serves it is a record in a register (register.py).

`StoreHold` is the part of who serves: it commits the store's rows before they are sent, renews the record, and knows how long it may serve.
`StoreFinder` is the part of every node: it finds the store, and takes it over where its host is lost. Both are driven with a clock of the
caller's; neither waits for anything but the register.

Why two stores never decide about one epoch: a row that decides is committed by compare-and-set, so the older store commits nothing once it
was taken over. Why ranks of two epochs do not live at once: a node takes over only as a member of the newest epoch, `hold_s` after the
record last changed, and `lease_s` after the store last answered it. By then the older store serves nobody: it closes `hold_s` after it last
renewed the record, unless the register alone is away. Then it serves on for `away_s` as long as beats of every member come: each would have
to be silent for it first. Nodes that know nothing of the job begin it anew, without its rows, where the record is older than that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from supervisor.cluster.model import nodes_of
from supervisor.cluster.register import RegisterChanged, Registered, RegisterUnreachable, StoreRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.cluster.messages import NodesTogether
    from supervisor.cluster.model import ClusterRules
    from supervisor.cluster.register import Register
    from supervisor.cluster.store import StoreState


class StoreHold:
    """What lets one store serve, from its record's first write. Raises nothing."""

    def __init__(  # noqa: PLR0913, PLR0917  what was written, when, by what it is judged
        self, register: Register, record: StoreRecord, version: int, rules: ClusterRules, now: float, clock: Callable[[], float]
    ) -> None:
        """Take the record as it was written at `now` of this clock at the earliest, and its version."""
        self._register, self._record, self._version, self._rules, self._clock = register, record, version, rules, clock
        self._renewed_t = self._tried_t = self._asked_t = now
        self._hears_all = True
        self._is_taken_over = False

    def keep(self, rows: tuple[tuple[str, str], ...], now: float) -> bool:
        """Commit the rows; return whether they are. If not, nothing that follows from them may be sent."""
        has_just_failed = self._tried_t > self._renewed_t and now - self._tried_t < self._rules.renew_s
        if self._is_taken_over or has_just_failed:
            return False
        return self._write(replace(self._record, rows=rows), now)

    def may_serve(self, state: StoreState, now: float) -> bool:
        """Renew the record if it is time to; return whether the store may serve on. To be asked again and again; No is for good."""
        if now - self._asked_t > self._rules.lease_s / 2:
            self._hears_all = False  # this stood still: what it hears now was sent before
        self._asked_t = now
        if now - self._tried_t >= self._rules.renew_s:
            self._write(self._record, now)
            now = self._clock()  # a register that is slow has taken some of the time
        self._hears_all = self._hears_all and hears_all(state, now)
        holds_s = self._rules.away_s if self._hears_all else self._rules.hold_s
        return not self._is_taken_over and now - self._renewed_t <= holds_s

    def _write(self, record: StoreRecord, now: float) -> bool:
        self._tried_t = now
        try:
            try:
                self._version = self._register.write(record.value(), self._version)
            except RegisterChanged:  # by an earlier write of this store that got no answer, or by who took over
                found = self._register.read()
                kept = StoreRecord.read(found.value)
                self._is_taken_over = kept is not None and kept.store != record.store  # None: the register lost it
                if self._is_taken_over:
                    return False
                self._version = self._register.write(record.value(), found.version)
        except (RegisterUnreachable, RegisterChanged):
            return False
        self._record, self._renewed_t, self._hears_all = record, now, True
        return True


def hears_all(state: StoreState, now: float) -> bool:
    """Return whether every member of the newest epoch sent something within a lease, and takes part in it."""
    epoch = state.epoch
    if epoch is None:
        return True
    out = nodes_of(state.rows, "lost", epoch.number) | nodes_of(state.rows, "left", epoch.number)
    recent = {node for node, t in state.last_message.items() if now - t <= state.rules.lease_s}
    return not out and all(node == state.host or node in recent for node in epoch.members)


@dataclass(frozen=True, slots=True)
class FollowStore:
    """The store is served there."""

    record: StoreRecord


@dataclass(frozen=True, slots=True)
class ServeStoreHere:
    """This node is to serve it, once it has replaced this version of the record.

    rows: with which it begins. key: of the store before it, "" for a new one. lost: the node that served it, "" where it is not lost.
    """

    version: int
    key: str = ""
    rows: tuple[tuple[str, str], ...] = ()
    lost: str = ""


class StoreFinder:
    """Where one node finds the store. followed: the key of the store that it knows, "" for none. host: where the others reach it."""

    def __init__(self, register: Register, rules: ClusterRules, node: str, followed: str, host: str = "") -> None:
        self._register, self._rules, self._node, self._followed, self._host = register, rules, node, followed, host
        self._seen, self._seen_t = Registered(-1, ""), 0.0

    def look(self, now: float, silent_s: float, meeting: NodesTogether | None) -> FollowStore | ServeStoreHere | None:
        """Return what the record asks of this node, None for nothing.

        silent_s: how long the store has not answered this node. meeting: the one that waits for its number. To be asked where this node
        does not serve the store itself.
        """
        try:
            found = self._register.read()
        except RegisterUnreachable:
            return None
        if found.version != self._seen.version:
            self._seen, self._seen_t = found, now
        record = StoreRecord.read(found.value)
        if record is not None and record.is_bid:
            return ServeStoreHere(found.version) if meeting is not None and record.host == self._host else None
        asked = self._asked(record, now - self._seen_t, silent_s, is_first=meeting is not None and meeting.index == 0)
        if isinstance(asked, FollowStore):
            self._followed = asked.record.key
        return asked

    def serves(self, key: str) -> None:
        """This node serves the store with this key. It then learns how that job ends, also where another node has taken over by then."""
        self._followed = key

    def _asked(self, record: StoreRecord | None, idle_s: float, silent_s: float, *, is_first: bool) -> FollowStore | ServeStoreHere | None:
        rules, version = self._rules, self._seen.version
        if record is None:
            return ServeStoreHere(version) if is_first else None
        if (
            record.is_final and record.key != self._followed
        ):  # an earlier job of this name is over: once its nodes are gone, this one begins
            return ServeStoreHere(version) if is_first and idle_s > rules.hold_s else None
        if record.node == self._node:  # it served before it was started again
            return ServeStoreHere(version, record.key, record.rows)
        if idle_s > rules.hold_s:
            is_for_us = self._node in record.members or record.is_final  # who was not there finds out how the job ended
            if is_for_us and silent_s > rules.lease_s:
                return ServeStoreHere(version, record.key, record.rows, record.node)
            # without an epoch nothing depends on it; else no member of it is left after so long
            if is_first and (not record.rows or idle_s > rules.away_s + rules.return_s):
                return ServeStoreHere(version, "" if record.rows else record.key)
        return FollowStore(record)
