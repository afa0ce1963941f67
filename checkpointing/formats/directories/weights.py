"""The weights of a model in a directory: one file, or several that an index names. The format of transformers and accelerate.

It compares the files with the index: a file may be missing, or a tensor may not be in the file that the index names. The layout is
huggingface_hub's:

    model-00001-of-00003.safetensors …   model.safetensors.index.json: {"metadata": {"total_size"}, "weight_map": {tensor: file}}
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from checkpointing.formats import NOWHERE, Examination, examine_member, safetensors
from checkpointing.formats.directories import members
from checkpointing.formats.directories import rank_shards as shards_of
from checkpointing.formats.pickles import facts
from checkpointing.io.reader import Short
from checkpointing.model import Verdict, first_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpointing.io.tree import Tree

INDEX: Final = ".index.json"
_SHARD: Final = re.compile(r"(?P<stem>.+)-(?P<n>\d{5})-of-(?P<total>\d{5})(?P<suffix>\.safetensors|\.bin|\.pt)")
SINGLE: Final = re.compile(r"(model|pytorch_model|adapter_model|diffusion_pytorch_model)(_\d+)?(\.\w+)?\.(safetensors|bin)")
_OF_A_RANK: Final = re.compile(r"shard-\d{5}-")
_MOST_NAMED: Final = 5


def indexes(tree: Tree) -> list[str]:
    """Return the indexes of weights directly in a directory."""
    return sorted(name for name in tree.top() if name.endswith((".safetensors" + INDEX, ".bin" + INDEX)))


def shards(tree: Tree) -> list[str]:
    """Return the files whose names say that they are one of several."""
    return sorted(name for name in tree.top() if _SHARD.fullmatch(name))


def singles(tree: Tree) -> list[str]:
    """Return the files that hold a model's weights by themselves."""
    return sorted(name for name in tree.top() if SINGLE.fullmatch(name) and not _SHARD.fullmatch(name) and name in tree.entries)


def examine(tree: Tree, *, bulk: bool) -> list[Examination]:
    """Examine all weights of a directory; an empty list if there are none."""
    parts = [_examine_weights(tree, name, bulk=bulk) for name in singles(tree)]
    named: set[str] = set()
    for index in indexes(tree):
        examinations, files = _examine_index(tree, index, bulk=bulk)
        parts += examinations
        named |= files
    return [*parts, *_unnamed(tree, named, bulk=bulk)]


def _examine_index(tree: Tree, index: str, *, bulk: bool) -> tuple[list[Examination], set[str]]:
    """Examine the files that one index names. Return their names too."""
    entry = tree.file(index)
    if entry is None:
        return [examine_member(tree, index, bulk=bulk)], set()
    document, _ = members.json_of(tree, index)
    try:
        files = _files_of(document["weight_map"])
    except (ValueError, KeyError, TypeError):
        why = "torn: it is empty" if not entry.size else "it is not an index of weights: torn, or not written to its end"
        return [Examination(Verdict.BAD, f"{index}: {why}")], set()
    parts = []
    for name, tensors in sorted(files.items()):
        parts.append(_examine_weights(tree, name, bulk=bulk))
        if parts[-1].verdict is Verdict.VERIFIED:
            present, are_all = _tensors_in(tree, name)
            lacking, further = sorted(tensors - present if are_all else ()), sorted(present - tensors)
            if lacking:
                parts.append(Examination(Verdict.BAD, f"{name}: it lacks {first_names(lacking, _MOST_NAMED)}, which {index} puts there"))
            if further:
                why = f"{name}: it holds {first_names(further, _MOST_NAMED)}, which {index} does not put there: they are of two saves"
                parts.append(Examination(Verdict.BAD, why))
    return parts, set(files)


def _files_of(weight_map: Any) -> dict[str, set[str]]:  # noqa: ANN401 -- whatever is in the JSON
    """Return the tensors of each file. Raises ValueError, TypeError for any other content."""
    if not isinstance(weight_map, dict) or not weight_map:
        raise TypeError
    files: dict[str, set[str]] = {}
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError
        files.setdefault(name, set()).add(tensor)
    return files


def _tensors_in(tree: Tree, name: str) -> tuple[set[str], bool]:
    """Return the names of tensors in a file, and whether these are all of them. A torch file may show only its first ones, or none."""
    if name.endswith(safetensors.SUFFIX):
        try:
            with tree.open(name) as source:
                return {tensor.name for tensor in safetensors.read_header(source).tensors}, True
        except (safetensors.HeaderDamaged, Short):  # it was sound a moment ago: it changed, which the second listing will show
            return set(), False
    scan = shards_of.scan_of(tree, name)
    keys = set() if scan is None else set(scan.keys)
    return keys, 0 < len(keys) < facts.MOST_KEYS


def _unnamed(tree: Tree, named: set[str], *, bulk: bool) -> Iterator[Examination]:
    """Examine shards that no index names."""
    groups: dict[tuple[str, str, int], set[int]] = {}
    for name in shards(tree):
        match = _SHARD.fullmatch(name)
        if match is not None and name not in named:
            groups.setdefault((match["stem"], match["suffix"], int(match["total"])), set()).add(int(match["n"]))
    for (stem, suffix, total), numbers in sorted(groups.items()):
        index = f"{stem}{suffix}{INDEX}"
        if index in tree.entries and any((match := _SHARD.fullmatch(name)) and int(match["total"]) == total for name in named):
            unnamed = [f"{stem}-{number:05d}-of-{total:05d}{suffix}" for number in sorted(numbers)]
            yield Examination(Verdict.BAD, f"{index} names other files of the {total}, and not {first_names(unnamed, _MOST_NAMED)}")
            continue
        if index in tree.entries:
            missing = f"{len(numbers)} files like {stem}-{min(numbers):05d}-of-{total:05d}{suffix}"
            yield Examination(Verdict.VERIFIED, f"{missing} belong to another save: {index} does not name them", NOWHERE, safetensors.LEVEL)
            continue
        if _OF_A_RANK.match(stem) and len(numbers) == total:  # DCP wrote them as safetensors: its reader needs no index
            for number in sorted(numbers):
                yield _examine_weights(tree, f"{stem}-{number:05d}-of-{total:05d}{suffix}", bulk=bulk)
            continue
        absent = [number for number in range(1, total + 1) if number not in numbers]
        names = ", ".join(f"{stem}-{number:05d}-of-{total:05d}{suffix}" for number in absent[:_MOST_NAMED])
        yield Examination(Verdict.INCOMPLETE, f"{index} is missing{', and ' + names if absent else ''}")
        for number in sorted(numbers):
            yield _examine_weights(tree, f"{stem}-{number:05d}-of-{total:05d}{suffix}", bulk=bulk)


def _examine_weights(tree: Tree, name: str, *, bulk: bool) -> Examination:
    return members.damaged_if_foreign(examine_member(tree, name, bulk=bulk))
