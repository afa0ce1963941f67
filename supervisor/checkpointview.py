"""`supervise checkpoints verify` and `latest`: what checkpoints are worth, on any directory, without a job and without settings.

In: paths as they were typed. Out: one JSON object for each checkpoint and line, or a table; the exit code. What is wrong with a
checkpoint, or with a path, is a row. Nothing is written, no pickle is executed, and what is read is given back to the page cache.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from checkpointing import pointers, survey
from checkpointing.model import Verdict
from checkpointing.source import NotRegular
from checkpointing.verify import verify as verify_one
from supervisor import stdio
from supervisor.card import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkpointing.model import Verification

_SHOWN_REASONS = 3


def verify(paths: Sequence[str], *, as_json: bool) -> int:
    """Print a verdict for each checkpoint that the paths stand for. Returns 0 only where all are good."""
    good = True
    progress = stdio.StatusLine(wanted=not as_json)
    rows: list[Verification] = []
    for path in paths:
        for found in survey.look(path, told=lambda one: progress.show(_reading(one))):
            progress.clear()
            good = good and found.verdict is Verdict.VERIFIED
            if as_json:
                stdio.write(sys.stdout, json.dumps(as_dict(found)))
            rows.append(found)
    if not as_json:
        stdio.write(sys.stdout, "\n".join(table(rows)))
    return 0 if good else 1


def latest(directory: str, *, as_json: bool) -> int:
    """Print which checkpoint a resume would take, and why the newer ones were passed over. Returns 0 where there is one."""
    progress = stdio.StatusLine(wanted=not as_json)
    glances = [verify_one(path, bulk=False) for path in survey.checkpoints_in(directory)]
    chosen: Verification | None = None
    passed: list[Verification] = []
    # what the content says beyond a glance may put it behind another: sorted anew until the first is both read and good
    waiting = survey.newest_first(glances)
    read: set[str] = set()
    while waiting and chosen is None:
        first = waiting.pop(0)
        if first.path not in read:
            progress.show(_reading(first.path))
            found = survey.judged(first.path)
            progress.clear()
            read.add(first.path)
            waiting = survey.newest_first([found, *waiting])
        elif first.verdict is Verdict.VERIFIED:
            chosen = first
        elif first.verdict is not Verdict.FOREIGN:
            passed.append(first)
    reasons = _pointed(directory, chosen)
    if as_json:
        row = {**as_dict(chosen), "reasons": [*(chosen.reasons if chosen else ()), *reasons]}
        stdio.write(sys.stdout, json.dumps({**row, "passed_over": [as_dict(one) for one in passed]}))
    else:
        stdio.write(sys.stdout, "\n".join(_told(directory, chosen, passed, reasons)))
    return 0 if chosen is not None else 1


def as_dict(found: Verification | None) -> dict[str, Any]:
    """Give a verdict as the object that is documented; all is null where there is none."""
    if found is None:
        return {"path": None, "format": "", "step": None, "verdict": None, "reasons": []}
    return {
        "path": found.path,
        "format": _format(found),
        "step": found.step,
        "verdict": survey.word(found.verdict),
        "reasons": list(found.reasons or ((found.reason,) if found.reason else ())),
    }


def _format(found: Verification) -> str:
    """Give the format's name; what merely is named like a checkpoint has none."""
    return "" if found.format == "unproven" else found.format


def table(rows: Sequence[Verification]) -> list[str]:
    """Lay verdicts out for a person: one line each, and their reasons below."""
    told = [(survey.word(row.verdict), "-" if row.step is None else str(row.step), _format(row) or "-", clean(row.path)) for row in rows]
    widths = [max((len(line[at]) for line in told), default=0) for at in range(3)]
    lines: list[str] = []
    for line, row in zip(told, rows, strict=True):
        cells = [line[0].ljust(widths[0]), line[1].rjust(widths[1]), line[2].ljust(widths[2]), line[3]]
        lines.append("  ".join(cells))
        reasons = row.reasons or ((row.reason,) if row.reason else ())
        lines += [f"{'':{widths[0]}}  {clean(reason)}" for reason in reasons[:_SHOWN_REASONS]]
    return lines


def _pointed(directory: str, chosen: Verification | None) -> list[str]:
    """Say where the framework's own pointer disagrees with the choice."""
    try:
        pointer = pointers.read(directory)
    except (OSError, NotRegular):
        return []
    if pointer is None:
        return []
    if pointer.problem:
        return [pointer.problem]
    name = os.path.basename(chosen.path) if chosen is not None else ""  # noqa: PTH119  the package's paths are strings
    return [] if name == pointer.target else [f"{pointer.name} names {pointer.target}: the framework's own loader would take that one"]


def _told(directory: str, chosen: Verification | None, passed: Sequence[Verification], reasons: Sequence[str]) -> list[str]:
    lines = table([chosen]) if chosen is not None else [f"none is proven good in {clean(directory)}"]
    lines += [f"  {clean(reason)}" for reason in reasons]
    return [*lines, "passed over:", *table(passed)] if passed else lines


def _reading(path: str) -> str:
    return f"reading {clean(path)[-80:]}"
