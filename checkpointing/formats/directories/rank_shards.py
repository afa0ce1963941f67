"""Checks shared by the formats with one torch file for each rank, which must agree with one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpointing.formats import Examination, examine_member, torch_zip
from checkpointing.formats.pickles import facts
from checkpointing.model import Verdict, first_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from checkpointing.formats.pickles.facts import PickleScan
    from checkpointing.io.tree import Tree


def examine_each(tree: Tree, names: Iterable[str], *, bulk: bool) -> list[Examination]:
    """Examine each file by itself."""
    return [examine_member(tree, name, bulk=bulk) for name in names]


def scan_of(tree: Tree, name: str) -> PickleScan | None:
    """Scan the pickle of a torch zip. None if there is no such file or its data.pkl cannot be read; `examine_each` reports that."""
    if tree.file(name) is None:
        return None
    with tree.open(name) as source:
        return torch_zip.scan_of(source)


def integer_anywhere(scan: PickleScan | None, key: str) -> int | None:
    """Return the integer under `key` in any dictionary of the pickle; None if it is not there or the places disagree."""
    values = dict(scan.facts).get(key, frozenset()) if scan is not None else frozenset()
    return next(iter(values)) if len(values) == 1 else None


def integer_outermost(scan: PickleScan | None, key: str) -> int | None:
    """Return the integer under `key` in the outermost dictionary."""
    return dict(scan.numbers).get(key) if scan is not None else None


def missing(wanted: Iterable[str], there: Collection[str]) -> Examination | None:
    """Return an INCOMPLETE examination naming the wanted files that are not there; None if all are."""
    absent = [name for name in wanted if name not in there]
    return Examination(Verdict.INCOMPLETE, f"missing: {first_names(absent)}") if absent else None


def left_over(names: Iterable[str], why: str) -> Examination | None:
    """Return a BAD examination naming files that belong to another save; None if there are none."""
    found = list(names)
    return Examination(Verdict.BAD, f"of another save: {first_names(found)}: {why}") if found else None


def mixed(steps: Mapping[str, int | None], what: str = "steps") -> Examination | None:
    """Return a BAD examination if the files of one checkpoint have different steps (`what` names them); None if they agree."""
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
    """Compare the steps found anywhere in the shards: for each key, all shards that have it must have the same values."""
    found: dict[str, dict[frozenset[int], str]] = {}
    for name, scan in scans.items():
        for key, values in scan.facts if scan is not None else ():
            if key in (*facts.STEP_KEYS, facts.COUNTED):
                found.setdefault(key, {}).setdefault(values, name)
    for names in found.values():
        if len(names) > 1:
            return Examination(Verdict.BAD, f"its files were saved at different steps: {first_names(list(names.values()))}")
    return None


def found_problems(parts: Iterable[Examination | None]) -> list[Examination]:
    """Leave out the checks that found nothing (None)."""
    return [part for part in parts if part is not None]
