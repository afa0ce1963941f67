"""Knows the living ranks, by the heartbeats that each rank writes to the shared store.

Each rank measures the age of a heartbeat by its own clock, so the clocks of the nodes need not agree.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

from health.nodecheck.model import Fault, Member, Node, Sample, TrialEvidence

if TYPE_CHECKING:
    from collections.abc import Sequence


class SharedStore(Protocol):
    """Texts by name that all ranks share."""

    def get(self, name: str) -> str:
        """Return the text, "" where there is none."""

    def put(self, name: str, text: str) -> None:
        """Set it."""

    def put_first(self, name: str, text: str) -> None:
        """Set it if no rank has."""

    def has(self, name: str) -> bool:
        """Return whether any rank set it."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a check is made; the same on every rank.

    deadline_s: until the verdict, in any case. join_s: for a rank to join. trial_s: for one operation of a pair. stale_s: a rank without a
    heartbeat for this long is gone. rounds: of the tournament. faults: of a rehearsal.
    """

    world: int
    deadline_s: float = 60.0
    join_s: float = 20.0
    trial_s: float = 8.0
    stale_s: float = 8.0
    rounds: int = 21
    faults: tuple[Fault, ...] = ()

    @property
    def silence_s(self) -> float:
        """The longest time for one step: longer than a trial, which ends if the partner hangs."""
        return 1.5 * self.trial_s

    @property
    def tournament_s(self) -> float:
        """After this no round begins: the rest is for second looks and for ranks that hang."""
        return 0.6 * self.deadline_s


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The state that a rank last reported.

    beat: counts up while its monitor lives. finished: the last phase that it completed. gone: why it is gone. read: its node is read, or
    another rank reads it.
    """

    beat: int = 0
    step: str = ""
    finished: int = -1
    gone: str = ""
    read: bool = True


class Peers:
    """All ranks, as seen from one."""

    def __init__(self, store: SharedStore, options: Options) -> None:
        self._store, self._options = store, options
        self._began = time.monotonic()
        self._last: dict[int, tuple[Heartbeat, float]] = {}

    def send_heartbeat(self, rank: int, heartbeat: Heartbeat) -> None:
        """Publish a heartbeat of this rank."""
        self._store.put(f"sign/{rank}", json.dumps(asdict(heartbeat)))

    def heartbeat(self, rank: int) -> Heartbeat | None:
        """Return the rank's last heartbeat, None where it never came."""
        text = self._store.get(f"sign/{rank}")
        if not text:
            return None
        heartbeat = Heartbeat(**json.loads(text))
        if rank not in self._last or self._last[rank][0].beat != heartbeat.beat:
            self._last[rank] = heartbeat, time.monotonic()
        return heartbeat

    def gone(self, rank: int) -> str:
        """Return why the rank is gone, "" where it lives or may still come."""
        heartbeat = self.heartbeat(rank)
        now = time.monotonic()
        if heartbeat is None:
            return f"did not come within {self._options.join_s:.0f} s" if now - self._began > self._options.join_s else ""
        if heartbeat.gone or heartbeat.finished > 0:
            return heartbeat.gone
        silent_s = now - self._last[rank][1]
        return f"no sign of life for {silent_s:.0f} s; last: {heartbeat.step}" if silent_s > self._options.stale_s else ""

    def evidence(self, ranks: Sequence[int]) -> TrialEvidence:
        """Return all that the ranks have written to the store."""
        members, samples, gone, unfinished, nodes = {}, [], {}, {}, {}
        for rank in ranks:
            if text := self._store.get(f"member/{rank}"):
                members[rank] = Member.from_json(json.loads(text))
            if text := self._store.get(f"node/{rank}"):
                nodes[rank] = Node.from_json(json.loads(text))
            samples += [Sample.from_json(row) for row in json.loads(self._store.get(f"samples/{rank}") or "[]")]
            if why := self.gone(rank):
                gone[rank] = why
            elif (heartbeat := self.heartbeat(rank)) is not None and heartbeat.finished < 0:
                unfinished[rank] = heartbeat.step
        rehearsed = bool(self._options.faults)
        return TrialEvidence(members, tuple(samples), gone, unfinished, world=len(ranks), rehearsed=rehearsed, nodes=nodes)
