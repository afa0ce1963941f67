"""Who of the others is alive, by signs that each rank leaves on a board that all see.

In: a Board. Out: signs, and why a rank counts as gone. What fails is the board's. State: when each rank's sign last changed, by our
own clock, so that the nodes' clocks need not agree.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

from health.nodecheck.model import Evidence, Fault, Member, Node, Sample

if TYPE_CHECKING:
    from collections.abc import Sequence


class Board(Protocol):
    """Texts by name that all ranks see."""

    def get(self, name: str) -> str:
        """Return the text, "" where there is none."""

    def put(self, name: str, text: str) -> None:
        """Set it."""

    def put_first(self, name: str, text: str) -> None:
        """Set it where nobody has."""

    def has(self, name: str) -> bool:
        """Return whether anybody set it."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a check is made; the same on every rank.

    deadline_s: when there is a verdict, whatever happens. join_s: for a rank to come. trial_s: for one operation of a pair.
    stale_s: without a sign a rank is gone. rounds: of the tournament. faults: of a rehearsal.
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
        """How long a rank may do one step: longer than a trial, which the partner's hanging ends."""
        return 1.5 * self.trial_s

    @property
    def tournament_s(self) -> float:
        """When no further round is begun: the rest is for second looks and for ranks that hang."""
        return 0.6 * self.deadline_s


@dataclass(frozen=True, slots=True)
class Sign:
    """What a rank last said.

    beat: counts up while its warden lives. finished: the last phase it is through with. gone: why it is. read: its node is read, or is
    another rank's to read.
    """

    beat: int = 0
    step: str = ""
    finished: int = -1
    gone: str = ""
    read: bool = True


class Peers:
    """All ranks, as seen from one."""

    def __init__(self, board: Board, options: Options) -> None:
        self._board, self._options = board, options
        self._begun = time.monotonic()
        self._last: dict[int, tuple[Sign, float]] = {}

    def leave_sign(self, rank: int, sign: Sign) -> None:
        """Tell the others."""
        self._board.put(f"sign/{rank}", json.dumps(asdict(sign)))

    def sign(self, rank: int) -> Sign | None:
        """Return what the rank last said, None where it never came."""
        text = self._board.get(f"sign/{rank}")
        if not text:
            return None
        sign = Sign(**json.loads(text))
        if rank not in self._last or self._last[rank][0].beat != sign.beat:
            self._last[rank] = sign, time.monotonic()
        return sign

    def gone(self, rank: int) -> str:
        """Return why the rank is gone, "" where it lives or may still come."""
        sign = self.sign(rank)
        now = time.monotonic()
        if sign is None:
            return f"did not come within {self._options.join_s:.0f} s" if now - self._begun > self._options.join_s else ""
        if sign.gone or sign.finished > 0:
            return sign.gone
        silent_s = now - self._last[rank][1]
        return f"no sign of life for {silent_s:.0f} s; last: {sign.step}" if silent_s > self._options.stale_s else ""

    def evidence(self, ranks: Sequence[int]) -> Evidence:
        """Return all that the ranks have left on the board."""
        members, samples, gone, unfinished, nodes = {}, [], {}, {}, {}
        for rank in ranks:
            if text := self._board.get(f"member/{rank}"):
                members[rank] = Member.from_json(json.loads(text))
            if text := self._board.get(f"node/{rank}"):
                nodes[rank] = Node.from_json(json.loads(text))
            samples += [Sample.from_json(row) for row in json.loads(self._board.get(f"samples/{rank}") or "[]")]
            if why := self.gone(rank):
                gone[rank] = why
            elif (sign := self.sign(rank)) is not None and sign.finished < 0:
                unfinished[rank] = sign.step
        rehearsed = bool(self._options.faults)
        return Evidence(members, tuple(samples), gone, unfinished, world=len(ranks), rehearsed=rehearsed, nodes=nodes)
