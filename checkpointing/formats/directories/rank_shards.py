"""Checks that DeepSpeed and Megatron share: torch files, one for each rank, that must agree with one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from checkpointing.formats import Examination, examine_member, torch_zip
from checkpointing.formats.pickles import facts
from checkpointing.model import Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from checkpointing.formats.pickles.facts import PickleScan
    from checkpointing.io.tree import Tree

_MOST_NAMED: Final = 4


def members(tree: Tree, names: Iterable[str], *, bulk: bool) -> list[Examination]:
    """Examine each file by itself."""
    return [examine_member(tree, name, bulk=bulk) for name in names]


def scan_of(tree: Tree, name: str) -> PickleScan | None:
    """Scan the pickle of a torch zip; None where the file is none, or is damaged: its own examination says so."""
    if tree.file(name) is None:
        return None
    with tree.open(name) as source:
        return torch_zip.scan_of(source)


def fact(scan: PickleScan | None, key: str) -> int | None:
    """Return the integer that stands under `key` in a pickle's dictionaries, if it is the same wherever it stands."""
    values = dict(scan.facts).get(key, frozenset()) if scan is not None else frozenset()
    return next(iter(values)) if len(values) == 1 else None


def number(scan: PickleScan | None, key: str) -> int | None:
    """Return the integer under `key` in the outermost dictionary."""
    return dict(scan.numbers).get(key) if scan is not None else None


def missing(wanted: Iterable[str], there: Collection[str]) -> Examination | None:
    """Return which files must be there and are not."""
    absent = [name for name in wanted if name not in there]
    return Examination(Verdict.INCOMPLETE, f"missing: {_some(absent)}") if absent else None


def left_over(names: Iterable[str], why: str) -> Examination | None:
    """Return which files are there and must not be."""
    found = list(names)
    return Examination(Verdict.BAD, f"of another save: {_some(found)}: {why}") if found else None


def mixed(steps: Mapping[str, int | None], what: str = "steps") -> Examination | None:
    """Return what is wrong if files of one checkpoint have different steps."""
    file_of_step: dict[int, str] = {}
    for name, step in steps.items():
        if step is not None:
            file_of_step.setdefault(step, name)
    if len(file_of_step) < 2:  # noqa: PLR2004 -- two that differ
        return None
    return Examination(
        Verdict.BAD, f"its files are of different {what}: {', '.join(f'{name} of {step}' for step, name in file_of_step.items())}"
    )


def mixed_facts(scans: Mapping[str, PickleScan | None]) -> Examination | None:
    """Compare the steps that stand anywhere within shards: all that tell any tell the same ones."""
    found: dict[str, dict[frozenset[int], str]] = {}
    for name, scan in scans.items():
        for key, values in scan.facts if scan is not None else ():
            if key in (*facts.STEP_KEYS, facts.COUNTED):
                found.setdefault(key, {}).setdefault(values, name)
    for names in found.values():
        if len(names) > 1:
            return Examination(Verdict.BAD, f"its files were saved at different steps: {_some(list(names.values()))}")
    return None


def present(parts: Iterable[Examination | None]) -> list[Examination]:
    """Leave out what there is nothing to say about."""
    return [part for part in parts if part is not None]


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
