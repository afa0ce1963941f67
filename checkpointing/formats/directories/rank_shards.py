"""Checks shared by the formats with one torch file for each rank, which must agree with one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpointing.formats import NOWHERE, Examination, StepPosition, examine_member, torch_zip
from checkpointing.formats.pickles import facts
from checkpointing.model import Verdict, first_names

if TYPE_CHECKING:
    import re
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
    listed = list(names)
    return Examination(Verdict.BAD, f"of another save: {first_names(listed)}: {why}") if listed else None


def common_step(
    steps: Mapping[str, int | None], directory: str, form: re.Pattern[str], noun: str = "steps"
) -> tuple[StepPosition, Examination | None]:
    """Return the step that the files of a checkpoint give, and a BAD examination if they, and the name of the directory, differ in it.

    form: matches a name of a directory that gives a step. noun: what the format calls steps.
    """
    step = next((step for step in steps.values() if step is not None), None)
    place = NOWHERE if step is None else StepPosition(step, sure=True)
    name_of_step: dict[int, str] = {}
    named = form.fullmatch(directory)
    for name, file_step in (*steps.items(), (directory, None if named is None else int(named[1]))):
        if file_step is not None:
            name_of_step.setdefault(file_step, name)
    if len(name_of_step) < 2:  # noqa: PLR2004 -- two that differ
        return place, None
    listed = ", ".join(f"{name} of {file_step}" for file_step, name in name_of_step.items())
    return place, Examination(Verdict.BAD, f"its files are of different {noun}: {listed}")


def mixed_facts(scans: Mapping[str, PickleScan | None]) -> Examination | None:
    """Compare the steps found anywhere in the shards: for each key, all shards that have it must have the same values."""
    name_of_values: dict[str, dict[frozenset[int], str]] = {}
    for name, scan in scans.items():
        for key, values in scan.facts if scan is not None else ():
            if key in (*facts.STEP_KEYS, facts.COUNTED):
                name_of_values.setdefault(key, {}).setdefault(values, name)
    for names in name_of_values.values():
        if len(names) > 1:
            return Examination(Verdict.BAD, f"its files were saved at different steps: {first_names(list(names.values()))}")
    return None


def without_none(parts: Iterable[Examination | None]) -> list[Examination]:
    """Leave out the checks that found nothing (None)."""
    return [examination for examination in parts if examination is not None]
