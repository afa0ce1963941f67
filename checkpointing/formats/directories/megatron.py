"""One iteration of a Megatron-LM training: `iter_NNNNNNN/` (or `release/`) with a directory for each pair of model-parallel ranks.

Names (megatron/training/checkpointing.py, get_checkpoint_name):

    mp_rank_TT[_PPP[_EEE]]/model_optim_rng.pt    with PPP where the pipeline has more than one stage, EEE with expert parallelism
    mp_rank_TT[_PPP[_EEE]]/distrib_optim.pt      the distributed optimizer's, in each of them or in none

The saved arguments give the sizes (`tensor_model_parallel_size`, `pipeline_model_parallel_size`) and the `iteration`. Newer trainings save
with torch.distributed.checkpoint into the same directories (`.metadata`, `common.pt`, `metadata.json`): then dcp.py checks the shards, and
this file checks `common.pt`. `latest_checkpointed_iteration.txt` is a pointer: `checkpointing.formats.pointer_files`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from checkpointing.formats import NOWHERE, Examination, combine
from checkpointing.formats.directories import dcp, members, rank_shards
from checkpointing.model import Verdict

if TYPE_CHECKING:
    from checkpointing.formats.pickles.facts import PickleScan
    from checkpointing.io.tree import Tree

_ITERATION: Final = re.compile(r"iter_(\d{7,18})")
_RANK: Final = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?")
_FILES: Final = ("model_optim_rng.pt", "model_rng.pt", "distrib_optim.pt", "optim.pt")
_METADATA: Final = "metadata.json"
_COMMON: Final = ("common.pt", _METADATA)
_MOST_RANKS: Final = 100_000


def claims(tree: Tree) -> bool:
    """Claim a directory of ranks, a directory of torch.distributed.checkpoint with Megatron's own files, and an empty iteration."""
    top = tree.top()
    if any(_RANK.fullmatch(name) for name in top & tree.directories.keys()) or (_sharded(top) and _beside_shards(tree, top)):
        return True
    return _ITERATION.fullmatch(tree.name) is not None and not _sharded(top) and top <= set(_COMMON)


def examine(tree: Tree, *, bulk: bool) -> Examination:
    """Examine every rank's files and compare them with one another. Raises OSError, Interrupted."""
    top = tree.top()
    if _sharded(top):
        return _examine_sharded(tree, bulk=bulk)
    ranks = sorted(name for name in top if name in tree.directories and _RANK.fullmatch(name))
    if not ranks:
        return Examination(Verdict.INCOMPLETE, "it holds no rank's files")
    names = [f"{rank}/{name}" for rank in ranks for name in _FILES if f"{rank}/{name}" in tree.entries]
    parts = rank_shards.examine_each(tree, names, bulk=bulk)
    scans = {name: rank_shards.scan_of(tree, name) for name in names}
    steps = {name: rank_shards.integer_outermost(scan, "iteration") for name, scan in scans.items()}
    place, mixed = rank_shards.common_step(steps, tree.name, _ITERATION, "iterations")
    checks = [_layout(ranks, scans), _files(ranks, set(names)), mixed]
    return combine([*parts, *rank_shards.without_none(checks)], place, files=tuple(names))


def _sharded(top: frozenset[str]) -> bool:
    return any(name == ".metadata" or name.endswith(".distcp") for name in top)


def _beside_shards(tree: Tree, top: frozenset[str]) -> bool:
    return "common.pt" in top or (_METADATA in top and _ITERATION.fullmatch(tree.name) is not None)


def _described(tree: Tree) -> Examination | None:
    """Examine the file that tells Megatron's reader how the shards are stored."""
    entry = tree.entries.get(_METADATA)
    if entry is None:
        return None  # another check reports it
    if entry.what:
        return Examination(Verdict.UNVERIFIABLE, f"{_METADATA} is {entry.what}: it was not read")
    document, problem = members.json_of(tree, _METADATA)
    is_object = problem is None and isinstance(document, dict)
    return None if is_object else Examination(Verdict.BAD, f"{_METADATA}: torn or damaged: it is not a JSON object")


def _examine_sharded(tree: Tree, *, bulk: bool) -> Examination:
    examination = dcp.examine(tree, bulk=bulk)
    beside = rank_shards.examine_each(tree, ["common.pt"], bulk=bulk)
    step = rank_shards.integer_outermost(rank_shards.scan_of(tree, "common.pt"), "iteration")
    place, mixed = rank_shards.common_step({"common.pt": step}, tree.name, _ITERATION, "iterations")
    problems = rank_shards.without_none([rank_shards.missing(_COMMON, set(tree.entries)), _described(tree), mixed])
    return combine([replace(examination, format=""), *beside, *problems], examination.place if place is NOWHERE else place)


def _layout(ranks: list[str], scans: dict[str, PickleScan | None]) -> Examination | None:
    """Compare the directories with the sizes in the arguments, else with the largest rank number among them."""
    places = {
        tuple(int(number) for number in match.groups() if number is not None): rank for rank in ranks if (match := _RANK.fullmatch(rank))
    }
    width = max(map(len, places))
    odd = [rank for place, rank in places.items() if len(place) != width]
    if odd:
        return rank_shards.left_over(odd, "the others are numbered in another way")
    saved = [_saved_size(scans, key) for key in ("tensor_model_parallel_size", "pipeline_model_parallel_size")]
    sizes = [1 + max(place[axis] for place in places) for axis in range(width)]
    for axis, size in enumerate(saved[:width]):
        if size is None:
            continue
        beyond = [rank for place, rank in places.items() if place[axis] >= size]
        if beyond:
            return rank_shards.left_over(beyond, f"there were {size} ranks on that axis")
        sizes[axis] = size
    wanted: list[tuple[int, ...]] = [()]
    for size in sizes:
        if len(wanted) * size > _MOST_RANKS:
            return None
        wanted = [(*place, index) for place in wanted for index in range(size)]
    return rank_shards.missing([_name(place) for place in wanted], set(ranks))


def _saved_size(scans: dict[str, PickleScan | None], key: str) -> int | None:
    return next((size for scan in scans.values() if (size := rank_shards.integer_anywhere(scan, key))), None)


def _name(place: tuple[int, ...]) -> str:
    return "mp_rank_" + "_".join([f"{place[0]:02d}", *(f"{index:03d}" for index in place[1:])])


def _files(ranks: list[str], names: set[str]) -> Examination | None:
    """Require of each rank the model's file, and each other kind of file that any rank has."""
    kinds = {name for name in _FILES if any(f"{rank}/{name}" in names for rank in ranks)}
    if "model_rng.pt" not in kinds:
        kinds.add("model_optim_rng.pt")
    return rank_shards.missing([f"{rank}/{kind}" for rank in ranks for kind in sorted(kinds)], names)
