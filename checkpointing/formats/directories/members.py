"""The common part of the formats of directories: checks of JSON documents, of the files beside the weights, and of sharded states."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from checkpointing.formats import NOWHERE, Examination, examine_member, nested
from checkpointing.formats.directories import dcp
from checkpointing.io.reader import Short
from checkpointing.model import Verdict

if TYPE_CHECKING:
    import re
    from collections.abc import Collection, Iterator

    from checkpointing.io.tree import Tree

MOST_JSON_BYTES: Final = 64 << 20
NO_WEIGHTS: Final = Examination(Verdict.INCOMPLETE, "the model's weights are missing")


def json_of(tree: Tree, name: str) -> tuple[Any, Examination | None]:
    """Return the content of a JSON file, and its fault. One of more than MOST_JSON_BYTES is not read: None and None."""
    entry = tree.entries[name]
    if not entry.size:
        return None, Examination(Verdict.BAD, f"{name}: torn: it is empty")
    if entry.size > MOST_JSON_BYTES:
        return None, None
    try:
        return json.loads(tree.read_small(name, MOST_JSON_BYTES)), None
    except (ValueError, RecursionError, Short) as error:
        return None, Examination(Verdict.BAD, f"{name}: torn or damaged: it is not JSON: {str(error)[:80]}")


def damaged_if_foreign(examination: Examination) -> Examination:
    """Turn "no checkpoint" into damage: under this name nothing else is meant to be."""
    return replace(examination, verdict=Verdict.BAD) if examination.verdict is Verdict.FOREIGN else examination


def examine_beside(tree: Tree, form: re.Pattern[str], *, bulk: bool) -> Iterator[Examination]:
    """Examine the files of such names directly in a directory, beside the weights: their step does not count."""
    for name in sorted(name for name in tree.directories if form.fullmatch(name)):
        yield Examination(Verdict.INCOMPLETE, f"{name} is a directory")
    for name in sorted(name for name in tree.entries if form.fullmatch(name)):
        yield replace(damaged_if_foreign(examine_member(tree, name, bulk=bulk)), place=NOWHERE, format="")


def examine_sharded(tree: Tree, form: re.Pattern[str], *, bulk: bool) -> Iterator[Examination]:
    """Examine the directories of such names, all written by torch.distributed.checkpoint."""
    for name in sorted(name for name in tree.directories if form.fullmatch(name)):
        yield nested(name, dcp.examine(tree.sub(name), bulk=bulk))


def first_gap(ranks: Collection[int]) -> int | None:
    """Return the first rank that is not there between the lowest and the highest; None for none. A node may have its own ranks alone."""
    return next((rank for rank in range(min(ranks), max(ranks)) if rank not in ranks), None) if ranks else None
