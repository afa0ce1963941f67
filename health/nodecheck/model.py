"""The values of the node check: who takes part, which pairs measure together, and what each pair trial showed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from health.model import Readings

if TYPE_CHECKING:
    from health.model import Json

Pair: TypeAlias = tuple[int, int]
NOBODY: Final = -1


class Kind(StrEnum):
    """The timed works, each apart. COMPUTE is a rank's own; the others belong to a pair."""

    COMPUTE = "compute"
    SMALL = "small all-reduce"
    LARGE = "large all-reduce"
    SWAP = "send and receive"
    OVERLAP = "compute and all-reduce at once"


#: The works of a pair.
TOGETHER: Final = (Kind.SMALL, Kind.LARGE, Kind.SWAP, Kind.OVERLAP)


@dataclass(frozen=True, slots=True)
class Member:
    """One rank. machine: the same for ranks of one kernel. device: `cpu` or `cuda:N`. model: only the same are compared."""

    rank: int
    host: str
    machine: str
    device: str
    model: str

    def __str__(self) -> str:
        """Return its name for people."""
        return f"rank {self.rank} ({self.host} {self.device})"

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: dict[str, Json]) -> Member:
        """Return the Member that `to_json` wrote."""
        return cls(**row)  # type: ignore[arg-type]  # this module wrote it


@dataclass(frozen=True, slots=True)
class PairTrial:
    """Two ranks that measure together in one round. phase: 0 the tournament, 1 what its doubts asked for. a < b."""

    phase: int
    number: int
    a: int
    b: int

    def partner(self, rank: int) -> int:
        """Return the other one."""
        return self.b if rank == self.a else self.a

    @property
    def name(self) -> str:
        """A name that no other trial of this check has."""
        return f"{self.phase}.{self.number}.{self.a}-{self.b}"


@dataclass(frozen=True, slots=True)
class Sample:
    """The measures of one rank in one pair trial. partner: NOBODY if it had none in this round.

    seconds: of every trial, by kind. failure: "" or what failed and where. own: it failed on this rank alone, with any partner.
    absent: the partner was gone, so the rank tried nothing.
    """

    phase: int
    number: int
    rank: int
    partner: int
    seconds: Mapping[Kind, tuple[float, ...]] = field(default_factory=dict)
    failure: str = ""
    own: bool = False
    absent: bool = False

    @property
    def pair(self) -> Pair:
        """The two ranks, the lower one first."""
        return min(self.rank, self.partner), max(self.rank, self.partner)

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON."""
        times: dict[str, Json] = {kind.value: [float(f"{second:.4g}") for second in trials] for kind, trials in self.seconds.items()}
        return {**{key: getattr(self, key) for key in self.__slots__}, "seconds": times}

    @classmethod
    def from_json(cls, row: dict[str, Json]) -> Sample:
        """Return the Sample that `to_json` wrote."""
        times = row["seconds"]
        seconds = (
            {Kind(kind): tuple(trials) for kind, trials in times.items() if isinstance(trials, list)} if isinstance(times, dict) else {}
        )
        return cls(**{**row, "seconds": seconds})  # type: ignore[arg-type]  # this module wrote it


@dataclass(frozen=True, slots=True)
class Node:
    """A node's versions, variables, code and ports, as its first rank read them."""

    host: str
    readings: Readings

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON."""
        return {"host": self.host, "readings": self.readings.to_json()}

    @classmethod
    def from_json(cls, row: dict[str, Json]) -> Node:
        """Return the Node that `to_json` wrote. Raises ValueError."""
        return cls(str(row["host"]), Readings.from_json(row["readings"]))


@dataclass(frozen=True, slots=True)
class TrialEvidence:
    """The input of the judge.

    gone: ranks that do not answer, and why. unfinished: living ranks, with their step at the deadline. rehearsed: the faults are injected.
    nodes: by the rank that read them.
    """

    members: Mapping[int, Member]
    samples: tuple[Sample, ...]
    gone: Mapping[int, str] = field(default_factory=dict)
    unfinished: Mapping[int, str] = field(default_factory=dict)
    world: int = 0
    rehearsed: bool = False
    nodes: Mapping[int, Node] = field(default_factory=dict)


class FaultKind(StrEnum):
    """The faults that a rehearsal injects. The comments say what the amount means."""

    SLOW_COMPUTE = "slow-compute"  # that many times as much work
    SLOW_LINK = "slow-link"  # seconds more for each operation of a pair
    FAIL = "fail"  # the probability that a pair trial fails, the connection lost
    CORRUPT = "corrupt"  # the probability that data sent in a pair trial is wrong
    HANG = "hang"  # stopped in the round of this number
    DIE = "die"  # killed in the round of this number


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a rehearsal. other: the second rank of a link, else NOBODY."""

    kind: FaultKind
    rank: int
    other: int
    amount: float

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Return the fault of `KIND:RANK:AMOUNT`, or `slow-link:RANK-RANK:SECONDS`. Raises ValueError naming the fault."""
        kinds = ", ".join(FaultKind)
        try:
            name, where, amount = text.split(":")
            first, _, second = where.partition("-")
            fault = cls(FaultKind(name), int(first), int(second) if second else NOBODY, float(amount))
        except ValueError as error:
            raise ValueError(f"no fault: {text!r}: KIND:RANK:AMOUNT is wanted, and one of {kinds}") from error
        if (fault.kind is FaultKind.SLOW_LINK) != bool(second):
            raise ValueError(f"no fault: {text!r}: a link has two ranks, A-B, and nothing else has")
        return fault

    def of_link(self, pair: Pair) -> bool:
        """Return whether it slows this pair."""
        return self.kind is FaultKind.SLOW_LINK and {self.rank, self.other} == set(pair)
