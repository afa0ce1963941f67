"""Where a step goes: the shares of its parts on each rank, compared, and the sentence that says who waits for whom. Pure.

A rank that waits for its peers is in *communication*; with CUDA it waits for the GPU, which waits for them. So the rank that the others
wait for is one that hardly waits, and the part of which it has more than they is the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.core.numeric import median
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The parts of a step, in the order of a heartbeat's fields (`_supervise_shim/layout.py`), and what each is called for people.
PART_NAMES: Final = {
    "data": "data",
    "compute": "forward and backward",
    "communication": "communication",
    "optimizer": "optimizer",
    "checkpoint": "checkpoint",
    "gpu": "waits for the GPU",
    "rest": "other code",
}
PARTS: Final = tuple(PART_NAMES)
DATA, COMPUTE, COMMUNICATION, OPTIMIZER, CHECKPOINT, GPU, REST = range(len(PARTS))
#: The work of a rank that the others wait for, with its share in percent.
_REASONS: Final = {
    DATA: "waits {} % of the time for data",
    COMPUTE: "spends {} % of the time in forward and backward",
    OPTIMIZER: "spends {} % of the time in the optimizer",
    CHECKPOINT: "spends {} % of the time saving checkpoints",
    REST: "spends {} % of the time outside of data, forward, backward and optimizer",
}
#: The others wait for a rank where they wait so many percent of the time more than it does, and twice as long or longer.
LEAST_WAIT: Final = 20
#: The reason is a part of which the rank has so many percent more than the others.
LEAST_EXCESS: Final = 10
#: From this share on the common wait of all ranks is reported.
NOTABLE: Final = 25


class RankShares(Struct, frozen=True):
    """The time of one rank: percent of each of PARTS, and of it on a disk, whatever the part is."""

    parts: tuple[float, ...]
    disk: float = 0.0
    place: str = ""  # the line that waits for the GPU most, "" for none

    @property
    def waits(self) -> float:
        """Percent of the time in which it waits for its peers, or for a GPU that does."""
        return self.parts[COMMUNICATION] + self.parts[GPU]


class StepShares(Struct, frozen=True, omit_defaults=True):
    """Where the steps of this node's ranks go. Percent. In JSON and in the journal, what does not apply is left out."""

    parts: tuple[int, ...]  # percent of data, compute, communication, optimizer, checkpoint, gpu and rest: the mean of the ranks
    ranks: int = 1  # how many
    rank: int | None = None  # the others wait for this one; none is named where none is seen here
    of_rank: tuple[int, ...] = ()  # its own parts
    others_wait: int = 0  # percent that the others wait
    reason: int | None = None  # the number of the part, from 0, of which it has more than the others
    disk: int = 0  # percent of the time of `rank`, or of all ranks on average, on a disk
    place: str = ""  # the line that waits for the GPU most

    def differs(self, other: StepShares) -> bool:
        """Whether it says something else: another rank, another reason, or another share by more than a few percent."""
        same = (self.ranks, self.rank, self.reason, self.place) == (other.ranks, other.rank, other.reason, other.place)
        pairs = (*zip(self.parts, other.parts, strict=True), *zip(self.of_rank, other.of_rank, strict=False))
        return not same or any(abs(own - other_share) >= 5 for own, other_share in pairs)  # noqa: PLR2004 (less is chance)

    @property
    def sentence(self) -> str:
        """The ranks that wait and their reasons; "" where all are alike."""
        if self.rank is not None and self.reason is not None:
            does, waits = _reason(self.reason, self.of_rank, self.disk), f"{self.others_wait} % for rank {self.rank}"
            return f"rank {self.rank} {does}, {'the other waits' if self.ranks == 2 else 'the others wait'} {waits}"  # noqa: PLR2004 (a pair)
        subject = "the rank waits" if self.ranks == 1 else "every rank waits"
        if self.parts[DATA] >= NOTABLE:
            disk = ", of it on a disk" if self.disk >= self.parts[DATA] / 2 else ""
            return f"{subject} for data {self.parts[DATA]} % of the time{disk}"
        if self.parts[CHECKPOINT] >= NOTABLE:
            return f"{subject} for its saves {self.parts[CHECKPOINT]} % of the time"
        if self.parts[COMMUNICATION] >= NOTABLE:
            return f"{subject} for other ranks {self.parts[COMMUNICATION]} % of the time, and none of this node is slower than the others"
        if self.parts[GPU] >= NOTABLE and self.place:
            return f"the host waits for the GPU at {self.place}, {self.parts[GPU]} % of the time"
        return ""

    @property
    def text(self) -> str:
        """The parts that take time, the largest first: `forward and backward 61 %, data 20 %`."""
        rows = sorted(zip(self.parts, PART_NAMES.values(), strict=True), reverse=True)
        return ", ".join(f"{name} {share} %" for share, name in rows if share)


def compared(ranks: Mapping[int, RankShares]) -> StepShares | None:
    """Compare the ranks of this node; None where nothing is known of any."""
    if not ranks:
        return None
    rows = list(ranks.values())
    parts = _percent([sum(row.parts[part] for row in rows) / len(rows) for part in range(len(PARTS))])
    place = max(rows, key=lambda row: row.parts[GPU]).place if parts[GPU] else ""
    disk = round(sum(row.disk for row in rows) / len(rows))
    shares = StepShares(parts, len(rows), disk=disk, place=place)
    named: list[tuple[float, int, int, float]] = []  # by how much more it has of a part than the others, the rank, the part, what they wait
    for rank, own in ranks.items():
        others = [row for number, row in ranks.items() if number != rank]
        wait = median([row.waits for row in others] or [0.0])
        part = _most_excess(own, others) if wait - own.waits >= LEAST_WAIT and own.waits <= wait / 2 else None
        if part is not None:
            named.append((own.parts[part] - median(row.parts[part] for row in others), rank, part, wait))
    if not named:
        return shares
    _, rank, part, wait = max(named)
    own = ranks[rank]
    return StepShares(parts, len(rows), rank, _percent(own.parts), round(wait), part, round(own.disk), place)


def reasons(ranks: Mapping[int, RankShares]) -> dict[int, str]:
    """Return for each rank, after its name, of which part it has more than the others; no entry where none differs."""
    texts = {}
    for rank, own in ranks.items():
        others = [row for number, row in ranks.items() if number != rank]
        part = _most_excess(own, others) if others else None
        if part is not None:
            texts[rank] = _reason(part, _percent(own.parts), round(own.disk))
    return texts


def _most_excess(own: RankShares, others: list[RankShares]) -> int | None:
    excess = {part: own.parts[part] - median(row.parts[part] for row in others) for part in _REASONS}
    part = max(excess, key=lambda part: excess[part])
    return part if excess[part] >= LEAST_EXCESS else None


def _reason(part: int, parts: tuple[int, ...], disk: int) -> str:
    on_disk = f" ({disk} % on a disk or a network file system)" if part in {DATA, CHECKPOINT} and disk >= parts[part] / 2 else ""
    return _REASONS[part].format(parts[part]) + on_disk


def _percent(parts: Iterable[float]) -> tuple[int, ...]:
    return tuple(round(part) for part in parts)
