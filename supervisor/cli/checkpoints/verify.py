"""`supervise checkpoints verify` and `latest`: what checkpoints are worth, on any directory, with or without a job.

In: paths as they were typed, and for `latest` what the job recorded that saves there. Out: one JSON object for each checkpoint and line,
or a table; the exit code. What is wrong with a checkpoint, or with a path, is a row. Nothing is written, no pickle is executed, and what is
read is given back to the page cache.
"""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from checkpointing import examine
from checkpointing.formats import pointer_files
from checkpointing.io.reader import NotRegular
from checkpointing.manifest.documents import Manifests
from checkpointing.model import CheckpointingError, Identity, Verdict, Verification
from checkpointing.rejections import Fences
from checkpointing.retention.copies import Copies
from checkpointing.select import newest
from checkpointing.verification import Cache
from supervisor.checkpoints.order import CheckpointOrder
from supervisor.cli import stdio
from supervisor.errors import SuperviseError
from supervisor.observe.path_patterns import is_within
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from checkpointing.discover import Listing
    from checkpointing.select import Selection

_SHOWN_REASONS = 3


def verify(paths: Sequence[str], *, as_json: bool) -> int:
    """Print a verdict for each checkpoint that the paths stand for. Returns 0 only where all are good."""
    good = True
    progress = stdio.StatusLine(wanted=not as_json)
    rows: list[Verification] = []
    for path in paths:
        for found in examine.look(path, told=lambda one: progress.show(_reading(one))):
            progress.clear()
            good = good and found.verdict is Verdict.VERIFIED
            if as_json:
                stdio.write(sys.stdout, json.dumps(as_dict(found)))
            rows.append(found)
    if not as_json:
        stdio.write(sys.stdout, "\n".join(table(rows)))
    return 0 if good else 1


def latest(directory: str, records: Path | None, *, as_json: bool) -> int:
    """Print which checkpoint a resume would take, and why the newer ones were passed over. Returns 0 where there is one.

    `records`: what the job that saves there recorded of its checkpoints, None where none did. It is the same choice as a resume's, by what
    is recorded now: fences, manifests, kept copies, the order of the runs, weights that turned NaN, and what was given up by a step back.
    Nothing is recorded.
    """
    progress = stdio.StatusLine(wanted=not as_json)
    progress.show(_reading(directory))
    cache = Cache()
    listing = examine.listing(os.path.abspath(directory))  # noqa: PTH100  a link stays as it is named
    selection, fenced = _selected(listing, records, directory, cache)
    progress.clear()
    torn = (*fenced, *selection.not_finite, *selection.fenced)
    refused = (*torn, *selection.dangerous, *selection.poisoned, *selection.unverifiable, *selection.unknown)
    identities = {candidate.path: candidate.identity for candidate in listing.candidates}
    passed = [_known(cache, path, identities.get(path), why) for path, why in refused]
    chosen = selection.chosen
    reasons = [*selection.notes, *_pointed(directory, chosen)]
    if as_json:
        row = {**as_dict(chosen), "reasons": [*(chosen.reasons if chosen else ()), *reasons]}
        stdio.write(sys.stdout, json.dumps({**row, "passed_over": [as_dict(one) for one in passed]}))
    else:
        stdio.write(sys.stdout, "\n".join(_told(directory, chosen, passed, reasons)))
    return 0 if chosen is not None else 1


def _selected(listing: Listing, records: Path | None, directory: str, cache: Cache) -> tuple[Selection, list[tuple[str, str]]]:
    """Choose as a resume does; and give what a fence keeps out, as (path, reason)."""
    if records is None:
        return newest(listing, None, cache, limit_s=math.inf, prefer_finite=True), []
    try:
        fences, manifests = Fences(records), Manifests(str(records))
    except CheckpointingError as error:
        raise SuperviseError(error.message, hint=error.hint) from error
    fenced = {one.path: fence.reason for one in listing.candidates if (fence := fences.get(one.path, one.identity)) is not None}
    free = replace(listing, candidates=tuple(one for one in listing.candidates if one.path not in fenced))
    known = CheckpointOrder(records, manifests)
    copies = Copies(str(records), 0, order=known.order, is_abandoned=known.is_abandoned)
    above = os.path.abspath(directory)  # noqa: PTH100  as above
    spares = [spare for spare in copies.spares() if is_within(above, spare.home)]
    order = known.order()
    chosen = newest(free, None, cache, manifests=manifests, spares=spares, limit_s=math.inf, prefer_finite=True, order=order)
    return chosen, list(fenced.items())


def _known(cache: Cache, path: str, identity: Identity | None, why: str) -> Verification:
    """Return what was found about one that was passed over; of what nobody read now, what is recorded."""
    found = None if identity is None else cache.get(path, identity)
    if found is not None:
        return found if found.verdict is not Verdict.VERIFIED else replace(found, reasons=(why,))
    return Verification(path, identity or Identity(0, 0, 0, 0), Verdict.BAD, why, reasons=(why,))


def as_dict(found: Verification | None) -> dict[str, Any]:
    """Give a verdict as the object that is documented; all is null where there is none."""
    if found is None:
        return {"path": None, "format": "", "step": None, "verdict": None, "reasons": []}
    return {
        "path": found.path,
        "format": _format(found),
        "step": found.step,
        "verdict": examine.word(found.verdict),
        "reasons": list(found.reasons or ((found.reason,) if found.reason else ())),
    }


def _format(found: Verification) -> str:
    """Give the format's name; what merely is named like a checkpoint has none."""
    return "" if found.format == "unproven" else found.format


def table(rows: Sequence[Verification]) -> list[str]:
    """Lay verdicts out for a person: one line each, and their reasons below."""
    told = [(examine.word(row.verdict), "-" if row.step is None else str(row.step), _format(row) or "-", clean(row.path)) for row in rows]
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
        pointer = pointer_files.read(directory)
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
