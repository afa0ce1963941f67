"""A set of files: a directory that holds one save, in a layout that no other format claims.

    step-20/model.pt, optim.pt        epoch_3/model/w.safetensors, optim/state.pt        step-20/rank0/x.pt, rank_1/x.pt
    step-20/model.pt, meta.json       last/model.pt, optimizer.pt

A directory is a set if its name is that of a save (`step_names.names_save`), or if weights and an optimizer lie in it under names without a
number. Files that name steps of their own (`epoch_1/step-100.pt`), and a `best.pt` beside a `last.pt`, are checkpoints by themselves. A
`best.pt` beside other files may be of an earlier step than they are.

Each member is examined by its own format; a directory in it that another format claims, by that one. No file lists the members of a set, so
it is complete if it has what the sets next to it have. A member is missing if at least half of the three sets before have it. If its name
has a rank's number, the nearest set before must have it, because the number of ranks may change. The first set has nothing to compare with:
it is complete. So is a set whose directory is not named like a save, because other runs lie next to it.
"""

from __future__ import annotations

import heapq
import os
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from checkpointing import step_names
from checkpointing.formats import (
    EDGE_BYTES,
    NOWHERE,
    TORCH_SUFFIXES,
    Examination,
    StepPosition,
    combine,
    examine_member,
    format_of,
    nested,
    prefixed,
    tree_format_of,
)
from checkpointing.formats.directories import members, rank_shards, weights
from checkpointing.io.reader import FileReader, NotRegular, Short
from checkpointing.io.tree import MOST_ENTRIES, MOST_LEVELS, Tree
from checkpointing.model import Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

NAME: Final = "file_set"
#: A file with such a name is a member that must be whole.
MEMBER_SUFFIXES: Final = (*TORCH_SUFFIXES, ".bin", ".safetensors")
_WEIGHTS: Final = re.compile(r"(?<![a-z])(model|net|network|weights|params|pytorch_model|state_dict|ema)(?![a-z])", re.IGNORECASE)
_OPTIMIZER: Final = re.compile(r"(?<![a-z])opt(im|imizer)?(s|_?states?)?(?![a-z])", re.IGNORECASE)
_RANK: Final = re.compile(r"(?<![a-z])(rank|shard|part|node|gpu|tp|pp|dp|mp)[-_=. ]?\d+", re.IGNORECASE)
#: Files that an evaluation writes there, often minutes after the save, and not each time.
_RESULTS: Final = re.compile(r"(?<![a-z])(eval\w*|val(id\w*)?|metrics?|results?|scores?|samples?|predictions?)(?![a-z])", re.IGNORECASE)
#: Words by which a script keeps several saves side by side: each file is a checkpoint of its own.
_CHOICE: Final = re.compile(r"(?<![a-z])(best|last|latest|final|newest)(?![a-z])", re.IGNORECASE)
_BEST: Final = re.compile(r"(?<![a-z])best(?![a-z])", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d+")
_RANK_OR_NUMBER: Final = re.compile(rf"{_RANK.pattern}|\d+", re.IGNORECASE)
_SHARD: Final = ".distcp"
_COMPARED: Final = 3
_MOST_NAMED: Final = 4


def claims(tree: Tree) -> bool:
    """Claim a directory that holds one save. The names directly in it decide; if no file there is a member, those below. Raises OSError."""
    files = [name for name in tree.entries if "/" not in name and _is_member(name)]
    below = [name for name in tree.directories if "/" not in name and not _is_passed_over(name)]
    if any(step_names.names_save(name) for name in below) or not (_is_named(tree) or _has_parts(files)) or _are_several(tree, files):
        return False
    if not _is_named(tree) and any(_holds_saves(f"{tree.path.rstrip('/')}/{name}") for name in below):
        return False
    if files:
        return not _is_begun_by_a_framework(tree, files)
    return any(_is_member(name) for directory in below for name in _names_below(f"{tree.path.rstrip('/')}/{directory}"))


def is_optimizer(name: str) -> bool:
    """Return whether a file is named like an optimizer's state."""
    return _OPTIMIZER.search(name) is not None


def single_files(tree: Tree) -> list[str]:
    """Return the files directly in a directory that are checkpoints by themselves. No format claims the directory.

    A directory of one save has none: its content is the beginning of another format's checkpoint.
    """
    files = sorted(name for name in tree.entries if "/" not in name and _is_member(name))
    return files if _are_several(tree, files) or not (_is_named(tree) or _has_parts(files)) else []


def examine(tree: Tree, *, bulk: bool) -> Examination:
    """Examine each member by its own format, and compare the set with those next to it. Raises OSError and Interrupted."""
    parts, names = _members(tree, bulk=bulk)
    if not any(member.verdict is not Verdict.FOREIGN for member in parts):
        return Examination(Verdict.FOREIGN, "a directory, and no file in it is a checkpoint")
    kept = [member for member in parts if member.verdict is not Verdict.FOREIGN]
    kept += rank_shards.without_none((missing(tree.path, names), _of_two_saves(kept)))
    places = sorted((member.place for member in kept if member.place.step is not None), key=lambda place: (not place.sure, place.loose))
    place = places[0] if places else next((member.place for member in kept if member.place.epoch is not None), StepPosition())
    return combine((replace(member, format="") for member in kept), place, files=tuple(sorted(names)))


def missing(path: str, names: Collection[str]) -> Examination | None:
    """Return an INCOMPLETE examination that names what the sets beside have and this one lacks; None if it has all. Raises OSError."""
    absent = sorted(_wanted(path) - set(_roles(path, names)))
    if not absent:
        return None
    number = next(iter(_NUMBER.findall(path.rstrip("/").rpartition("/")[2])), "#")
    more = f" and {len(absent) - _MOST_NAMED} more" if len(absent) > _MOST_NAMED else ""
    listed = ", ".join(role.replace("#", number) for role in absent[:_MOST_NAMED])
    return Examination(Verdict.INCOMPLETE, f"missing, and in the saves before it: {listed}{more}")


def common(path: str, names: Iterable[str]) -> frozenset[str]:
    """Return those of a set's files that one of the sets next to it has, too. Raises OSError."""
    beside = {role for other in _neighbours(path) for role in _roles(other, _names_below(other), every=True)}
    return frozenset(name for role, name in _roles(path, names, every=True).items() if role in beside)


def _members(tree: Tree, *, bulk: bool) -> tuple[list[Examination], list[str]]:
    """Return the examination of each member or directory of another format, and the paths of all files of the set."""
    parts: list[Examination] = []
    names: list[str] = []
    below, own = tree.split()
    is_beside_others = any(_is_member(name) and not _BEST.search(name) for name in own)
    for name in sorted(own):
        if own[name].what == "" and not _is_passed_over(name):
            names.append(name)
            member = _examined(tree, name, bulk=bulk)
            parts.append(replace(member, place=NOWHERE) if is_beside_others and _BEST.search(name) else member)
        elif own[name].what and _is_member(name):
            parts.append(examine_member(tree, name, bulk=bulk))
        elif (ended := _unfinished(tree, name)) is not None:
            parts.append(ended)
    for name in sorted(below):
        if _is_passed_over(name):
            continue
        inner = below[name]
        claimant = tree_format_of(inner)
        if claimant is not None and claimant[0] != NAME:
            member = claimant[1].examine(inner, bulk=bulk)
            files = member.files or inner.files
            parts.append(replace(nested(name, member), place=member.place))
        else:
            parts_below, files_below = _members(inner, bulk=bulk)
            files = tuple(files_below)
            parts += [_within(name, member) for member in parts_below]
        names += [f"{name}/{file}" for file in files]
    return parts, names


def _examined(tree: Tree, name: str, *, bulk: bool) -> Examination:
    """Examine one file: a checkpoint by its format, a JSON file as JSON; anything else is part of the set, and proves nothing."""
    if name.endswith(".json"):
        _, problem = members.json_of(tree, name)
        return problem or Examination(Verdict.FOREIGN, f"{name}: nothing proves it")
    member = examine_member(tree, name, bulk=bulk)
    if member.verdict is Verdict.FOREIGN and step_names.suffix_of(name) in MEMBER_SUFFIXES:
        if not tree.entries[name].size:
            return Examination(Verdict.BAD, f"{name}: torn: it is empty")
        if any(_is_checkpoint(f"{other}/{name}") for other in _neighbours(tree.path)):
            return Examination(Verdict.BAD, f"{name}: torn or damaged: it is not a checkpoint, and in the saves before it is one")
    return member


def _within(directory: str, member: Examination) -> Examination:
    """Return the examination of a member with its directory before each name."""
    also = tuple(f"{directory}/{reason}" for reason in member.also)
    return replace(
        member,
        reason=f"{directory}/{member.reason}" if member.reason else "",
        also=also,
        non_finite=prefixed(f"{directory}/", member.non_finite),
    )


def _is_checkpoint(path: str) -> bool:
    """Return whether a format claims a file by its first and last bytes."""
    try:
        with FileReader(path) as source:
            edge = min(EDGE_BYTES, source.size)
            claimant = format_of(source.read(0, edge), source.read(source.size - edge, edge), step_names.suffix_of(path))
    except (OSError, NotRegular, Short):
        return False
    return claimant is not None


def _unfinished(tree: Tree, name: str) -> Examination | None:
    """Return an INCOMPLETE examination if a member was not written to its end, so that only its temporary name is there; else None."""
    final = step_names.final_name(name)
    if final is None or not _is_member(final) or final in tree.entries:
        return None
    return Examination(Verdict.INCOMPLETE, f"{final} is missing: {name} is of a save that did not end")


def _of_two_saves(parts: list[Examination]) -> Examination | None:
    """Return a BAD examination if members name different steps of the run, so they are of two saves; else None."""
    steps = sorted({member.place.step for member in parts if member.place.sure and member.place.step is not None})
    if len(steps) < 2:  # noqa: PLR2004 -- two that differ
        return None
    return Examination(Verdict.BAD, f"its files are of steps {steps[0]} and {steps[-1]}: of two saves")


# completeness


def _wanted(path: str) -> set[str]:
    """Return the roles that a set needs, as the sets before it have them.

    Empty if its name is not that of a save: the directories beside `exp_2/model.pt, optim.pt` belong to other runs.
    """
    if not _names_save(path):
        return set()
    before = [roles for other in _neighbours(path, after=False) if (roles := _roles(other, _names_below(other)))]
    counted = Counter(role for roles in before for role in roles)
    return {role for role, n in counted.items() if (role in before[0] if _RANK.search(role) else 2 * n >= len(before))}


def _roles(path: str, names: Iterable[str], *, every: bool = False) -> dict[str, str]:
    """Return the members of a set by their role: their path without the numbers that are the set's own (`model_20.pt` in `step-20`).

    Only those that a set needs, or `every` file.
    """
    own = {str(int(number)) for number in _NUMBER.findall(path.rstrip("/").rpartition("/")[2])}

    def plain(match: re.Match[str]) -> str:
        return "#" if match[0].isdecimal() and str(int(match[0])) in own else match[0]

    roles: dict[str, str] = {}
    for name in names:
        if name.endswith(_SHARD):  # their own format checks how many there are
            roles[f"{name.rpartition('/')[0]}/*{_SHARD}"] = name
        elif every or _is_needed(name):
            roles[_RANK_OR_NUMBER.sub(plain, name)] = name
    return roles


def _neighbours(path: str, *, after: bool = True) -> list[str]:
    """Return the three sets before one, nearest first; if there are fewer and `after` allows it, the nearest after it too."""
    parent, _, name = path.rstrip("/").rpartition("/")
    parent = parent or ("/" if path.startswith("/") else ".")
    shape, number = _NUMBER.sub("#", name), _numbers(name)
    if not number:
        return []
    try:
        with os.scandir(parent) as listed:
            beside = [entry.name for entry in listed if entry.name != name and _NUMBER.sub("#", entry.name) == shape and entry.is_dir()]
    except OSError:
        return []
    earlier = heapq.nlargest(_COMPARED, (other for other in beside if _numbers(other) < number), key=_numbers)
    later = heapq.nsmallest(_COMPARED, (other for other in beside if after and _numbers(other) > number), key=_numbers)
    return [f"{parent.rstrip('/')}/{other}" for other in [*earlier, *later][:_COMPARED]]


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(map(int, _NUMBER.findall(name)))


def _names_below(path: str, levels: int = MOST_LEVELS) -> Iterator[str]:
    """Yield the relative paths of the files below a directory, without a system call for each file."""
    waiting, left = [("", levels)], MOST_ENTRIES
    while waiting and left > 0:
        prefix, level = waiting.pop()
        try:
            with os.scandir(f"{path}/{prefix}") as listed:
                entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listed]
        except OSError:
            continue
        left -= len(entries)
        for name, is_directory in entries:
            if _is_passed_over(name):
                continue
            if not is_directory:
                yield prefix + name
            elif level > 1:
                waiting.append((f"{prefix}{name}/", level - 1))


# sets


def _is_named(tree: Tree) -> bool:
    return _names_save(tree.path)


def _names_save(path: str) -> bool:
    return step_names.names_save(os.path.abspath(path))  # noqa: PTH100 -- strings throughout the package


def _holds_saves(path: str) -> bool:
    """Return whether a directory holds saves, each under a name of its own: `ckpts/step-20.pt`, `ckpts/step-20/model.pt`."""
    for name in filter(_is_member, _names_below(path)):
        place = path
        for directory in name.split("/"):
            place = f"{place}/{directory}"
            if step_names.names_save(place.removesuffix(step_names.suffix_of(directory))):
                return True
    return False


def _has_parts(files: list[str]) -> bool:
    """Return whether weights and an optimizer lie side by side, under names without a number: a set that is written in place."""
    if any(_NUMBER.search(_RANK.sub("", name)) for name in files):
        return False
    optimizers = [name for name in files if _OPTIMIZER.search(name)]
    return bool(optimizers) and any(_WEIGHTS.search(name) for name in files if name not in optimizers)


def _are_several(tree: Tree, files: list[str]) -> bool:
    """Return whether the files are checkpoints by themselves: best.pt and last.pt, names with their own steps, or a row of numbers."""
    if files and all(map(step_names.names_choice, files)):
        return True
    if len({choice[0].lower() for name in files if (choice := _CHOICE.search(name))}) > 1:
        return True
    own = step_names.worded_step_in(tree.name)
    steps = {step for name in files if (step := step_names.worded_step_in(name)) is not None}
    if steps - {own}:
        return True
    rows: dict[str, set[int]] = {}
    for name in files:
        numbers = _numbers(_RANK.sub("", name))
        if len(numbers) == 1 and numbers[0] not in _numbers(tree.name):
            rows.setdefault(_NUMBER.sub("#", name), set()).add(numbers[0])
    return any(len(row) > 1 and max(row) - min(row) >= len(row) for row in rows.values())


def _is_begun_by_a_framework(tree: Tree, files: list[str]) -> bool:
    """Return whether only weights under a framework's name are there, and no set beside has files: the framework writes more after them."""
    alone = all(name in files or _is_passed_over(name) for name in tree.top())
    if not alone or not all(weights.SINGLE.fullmatch(name) for name in files):
        return False
    return not any(_is_member(name) for other in _neighbours(tree.path) for name in _names_below(other, 1))


def _is_member(name: str) -> bool:
    """Return whether a file is named like a checkpoint."""
    base = name.rpartition("/")[2]
    return step_names.suffix_of(base) in MEMBER_SUFFIXES and not _is_passed_over(base)


def _is_needed(name: str) -> bool:
    """Return whether a file that is in the other sets must stand in this one: a log, a picture or the result of a test need not."""
    return _is_member(name) or (step_names.suffix_of(name) in (".json", ".npz", ".npy", ".pkl", ".yaml") and not _RESULTS.search(name))


def _is_passed_over(name: str) -> bool:
    return name.startswith(".") or step_names.is_temporary(name)
