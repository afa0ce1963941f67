"""A directory with one torch file for each rank, as written by an FSDP script that saves each rank's local state.

Names: `rank_3`, `rank3` or `rank-3` somewhere before the suffix, and the number of ranks if the name has it
(`model_world_size_4_rank_3.pt`, `rank-3-of-8.pt`). Files whose names differ only in the rank form one row. Every row must have a file for
every rank.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from checkpointing import step_names
from checkpointing.formats import NOWHERE, Examination, combine, examine_member
from checkpointing.formats.directories import rank_shards
from checkpointing.model import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpointing.io.tree import Tree

_FILE: Final = re.compile(r"(?P<before>.*?)rank[-_]?(?P<rank>\d{1,6})(?P<after>(?:[-_]of[-_]\d{1,6})?\.(?:pt|pth|bin|ckpt))", re.IGNORECASE)
_WORLD: Final = re.compile(r"world_?size[-_]?(\d{1,6})", re.IGNORECASE)
_MOST_RANKS: Final = 100_000


def claims(tree: Tree) -> bool:
    """Claim a directory where a row has two ranks or a name with the number of ranks, and all names have the same step (or none)."""
    rows = rows_of(tree)
    is_per_rank = any(len(ranks) > 1 or _world_in_name(row) for row, ranks in rows.items())
    return is_per_rank and len({named.step if (named := step_names.step_in(before)) else None for before, _ in rows}) == 1


def examine(tree: Tree, *, bulk: bool) -> Examination:
    """Examine each file, and compare those of different ranks. Raises OSError and Interrupted."""
    rows = rows_of(tree)
    parts = [examine_member(tree, name, bulk=bulk) for ranks in rows.values() for name in sorted(ranks.values())]
    world = max([1 + rank for ranks in rows.values() for rank in ranks] + [_world_in_name(row) for row in rows])
    parts += _missing(rows, min(world, _MOST_RANKS))
    for ranks in rows.values():
        mixed = rank_shards.mixed_facts({name: rank_shards.scan_of(tree, name) for name in sorted(ranks.values())})
        parts += [mixed] if mixed is not None else []
    places = [shard.place for shard in parts if shard.place.step is not None]
    return combine(parts, places[0] if places else NOWHERE)


def rows_of(tree: Tree) -> dict[tuple[str, str], dict[int, str]]:
    """Return {(name before 'rank', name after the number): {rank: file name}}."""
    rows: dict[tuple[str, str], dict[int, str]] = {}
    for name in sorted(tree.entries):
        match = _FILE.fullmatch(name) if "/" not in name else None
        if match is not None:
            rows.setdefault((match["before"], match["after"]), {})[int(match["rank"])] = name
    return rows


def _world_in_name(row: tuple[str, str]) -> int:
    """Return the number of ranks in a row's name, 0 if it has none."""
    match = _WORLD.search(row[0]) or re.search(r"of[-_](\d+)", row[1])
    return int(match[1]) if match else 0


def _missing(rows: dict[tuple[str, str], dict[int, str]], world: int) -> Iterator[Examination]:
    for (before, after), ranks in rows.items():
        absent = [rank for rank in range(world) if rank not in ranks]
        if absent:
            more = f" (and of {len(absent) - 1} other ranks)" if len(absent) > 1 else ""
            yield Examination(Verdict.INCOMPLETE, f"of {world} ranks, the file of rank {absent[0]}{more} is missing: {before}rank…{after}")
