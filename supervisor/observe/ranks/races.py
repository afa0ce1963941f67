"""Finds the ranks that died of reading a file while another rank was writing it: the file need not be damaged, the script is.

The logs of loads and saves (instrument/_supervise_shim) have both times. Seen are the ranks of this node, and saves through torch, DCP,
safetensors or Lightning. A file that is saved under another name and renamed is never half written, so its save is of another path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.core.model import Cause, Claim, Evidence
from supervisor.core.values import Struct
from supervisor.observe.ranks import save_logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from supervisor.core.model import RankInfo

#: An exception so soon after a load that failed is that load's, or was raised from it.
RAISED_S = 5.0
#: A file that the script opened by itself is closed, and with it whole, after its save has ended.
CLOSED_S = 1.0
#: The race comes before the exception that it led to, whatever the resolution of the two clocks.
BEFORE_S = 0.001


class _Use(Struct, frozen=True):
    """One rank's load or save of a path, in wall seconds. until_s: None while a save had not ended."""

    rank: int
    path: str
    since_s: float
    until_s: float | None


def evidence(directory: Path, ranks: Sequence[RankInfo], reported: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return each rank whose last load failed, killed it, and was of a path that another rank was writing at that time.

    directory: of the attempt; reported: what the ranks wrote of their exceptions. A missing or broken log proves nothing. Raises OSError.
    """
    raised = [(fact.rank, fact.t) for fact in reported if (fact.source, fact.name) == ("error_file", "exception")]
    if not raised:
        return ()
    of_local = {rank.local_rank: rank.rank for rank in ranks}
    loads = [load for load in _failed_loads(directory, of_local) if _killed(load, raised)]
    saves = list(_saves(directory, of_local)) if loads else []
    facts = []
    for load in loads:
        writer = next((save for save in saves if save.rank != load.rank and save.path == load.path and _overlap(save, load)), None)
        if writer is not None:
            raised_t = min(t for rank, t in raised if rank == load.rank)
            facts.append(_evidence(load, writer, min(_end(load), raised_t - BEFORE_S)))
    return tuple(facts)


def _evidence(load: _Use, writer: _Use, t: float) -> Evidence:
    return Evidence(
        "checkpoint",
        "race",
        f"rank {load.rank} read what rank {writer.rank} was writing: {load.path}",
        load.rank,
        t,
        fields=(("race_writer", str(writer.rank)), ("path", load.path)),
        claim=Claim(Cause.CHECKPOINT_CORRUPT, 0.97, transient=True),
    )


def _killed(load: _Use, raised: Iterable[tuple[int | None, float]]) -> bool:
    return any(rank == load.rank and abs(t - _end(load)) < RAISED_S for rank, t in raised)


def _overlap(save: _Use, load: _Use) -> bool:
    return save.since_s <= _end(load) and (save.until_s is None or save.until_s >= load.since_s)


def _end(load: _Use) -> float:
    return load.since_s if load.until_s is None else load.until_s


def _failed_loads(directory: Path, of_local: dict[int, int]) -> Iterable[_Use]:
    """Yield the last load of each rank if it failed."""
    for file in directory.glob("loads-*.jsonl"):
        rank, rows = save_logs.rank_of(file, of_local), list(save_logs.rows(file.read_bytes()))
        if rank is not None and rows and rows[-1].get("complete") is False:
            row = rows[-1]
            yield _Use(rank, row["path"], _seconds(row.get("began"), row["t"]), row["t"])


def _saves(directory: Path, of_local: dict[int, int]) -> Iterable[_Use]:
    """Yield every save that is logged with its beginning."""
    for file in directory.glob("saves-*.jsonl"):
        rank = save_logs.rank_of(file, of_local)
        began: dict[tuple[str, Any], dict[str, Any]] = {}
        for row in save_logs.rows(file.read_bytes()) if rank is not None else ():
            key = row["path"], row.get("n")
            if row.get("what") == "began":
                began[key] = row
            elif row.get("what") == "ended" and rank is not None and (first := began.pop(key, None)) is not None:
                yield _Use(rank, row["path"], first["t"], row["t"] + (CLOSED_S if first.get("file") else 0.0))
        if rank is not None:
            yield from (_Use(rank, path, row["t"], None) for (path, _), row in began.items())


def _seconds(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) else default
