"""`verify` and `latest`: what checkpoints are worth, in any directory, with or without a job.

A fault of a checkpoint or of a path is a row. Nothing is written and no pickle is executed.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from checkpointing import examine, markers
from checkpointing.command_line.progress import ProgressBar, path_name
from checkpointing.formats import pointer_files
from checkpointing.io.reader import UNLIMITED, NotRegular, Throttle
from checkpointing.io.tree import ReadOptions
from checkpointing.model import Identity, Verdict, Verification
from checkpointing.select import newest
from checkpointing.step_names import shown_step
from checkpointing.verification import Cache, identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from checkpointing.command_line.output import Output
    from checkpointing.discover import Listing
    from checkpointing.select import Selection

_SHOWN_REASONS: Final = 3


def verify(paths: Sequence[str], out: Output) -> int:
    """Print a verdict for each checkpoint that the paths stand for. Returns 0 if all are good, else 1."""
    good = True
    rows: list[Verification] = []
    for path in paths:
        for verification in _verdicts_at(path, out):
            good = good and verification.verdict is Verdict.VERIFIED
            if out.as_json:
                out.write(json.dumps(as_dict(verification)))
            rows.append(verification)
    if not out.as_json:
        out.write("\n".join(table(rows, out.clean)))
    return 0 if good else 1


def _verdicts_at(path: str, out: Output) -> Iterator[Verification]:
    """Yield a verdict for each checkpoint at `path`, with a bar while one is read."""

    def started(one: str) -> None:
        identity = identity_of(one)
        bar.begin(_reading(one, out), None if identity is None else identity.size)

    with ProgressBar(_reading(path, out), wanted=out.bars) as bar:
        for verification in examine.look(path, reading=ReadOptions(Throttle(UNLIMITED, taken=bar.advance)), started=started):
            bar.clear()
            yield verification


def choose(listing: Listing, cache: Cache, throttle: Throttle) -> tuple[Selection, Sequence[tuple[str, str]]]:
    """Choose by the files alone: no job recorded anything about them."""
    return newest(listing, cache=cache, throttle=throttle, prefer_finite=True), ()


def latest(
    directory: str,
    out: Output,
    choose: Callable[[Listing, Cache, Throttle], tuple[Selection, Sequence[tuple[str, str]]]] = choose,
) -> int:
    """Print which checkpoint a resume would take, and why newer ones were passed over. Returns 0 if there is one, else 1.

    `choose` returns the selection, and (path, reason) of those that were rejected before it.
    """
    cache = Cache()
    with ProgressBar(_reading(directory, out), wanted=out.bars) as bar:
        listing = examine.listing(os.path.abspath(directory))  # noqa: PTH100 -- a link keeps its name
        throttle = Throttle(UNLIMITED, taken=bar.advance)
        selection, rejected = choose(listing, cache, throttle)
        passed = _passed_over(listing, selection, rejected, cache, ReadOptions(throttle))
    chosen = selection.chosen
    reasons = [*selection.notes, *_pointer_disagrees(directory, chosen)]
    if out.as_json:
        row = {**as_dict(chosen), "reasons": [*(chosen.reasons if chosen else ()), *reasons]}
        out.write(json.dumps({**row, "passed_over": [as_dict(verification) for verification in passed]}))
    else:
        lines = table([chosen], out.clean) if chosen is not None else [f"none is proven good in {out.clean(directory)}"]
        lines += [f"  {out.clean(reason)}" for reason in reasons]
        out.write("\n".join([*lines, "passed over:", *table(passed, out.clean)] if passed else lines))
    return 0 if chosen is not None else 1


def _passed_over(
    listing: Listing, selection: Selection, rejected: Sequence[tuple[str, str]], cache: Cache, reading: ReadOptions
) -> list[Verification]:
    torn = (*rejected, *selection.not_finite, *selection.torn)
    refused = (*torn, *selection.dangerous, *selection.rejected, *selection.unverifiable, *selection.unknown)
    identities = {candidate.path: candidate.identity for candidate in listing.candidates}
    return [_known(cache, path, identities.get(path), why, reading) for path, why in refused]


def _known(cache: Cache, path: str, identity: Identity | None, why: str, reading: ReadOptions) -> Verification:
    """Return the verdict of `verify` on a checkpoint that was passed over, with the reason first; read now, if it was not."""
    verification = None if identity is None else cache.get(path, identity)
    if verification is None and identity is None:  # a copy, or what is gone: the recorded reason is all that is known
        return Verification(path, Identity(0, 0, 0, 0), Verdict.BAD, why, reasons=(why,))
    verification = examine.judged(path, reading) if verification is None else examine.concluded(verification)
    return verification if verification.verdict is not Verdict.VERIFIED else replace(verification, reasons=(why,))


def as_dict(verification: Verification | None) -> dict[str, Any]:
    """Return a verdict as the documented object; all is null where there is none."""
    if verification is None:
        return {"path": None, "format": "", "step": None, "verdict": None, "reasons": []}
    return {
        "path": verification.path,
        "format": _format(verification),
        "step": verification.step,
        "verdict": examine.word(verification.verdict),
        "reasons": list(verification.reasons or ((verification.reason,) if verification.reason else ())),
    }


def _step_text(verification: Verification) -> str:
    step = shown_step(verification.path, verification.step, verification.content_step)
    return "-" if step is None else str(step)


def _format(verification: Verification) -> str:
    """Return the format's name; a file that is merely named like a checkpoint has none."""
    return "" if verification.format == "unproven" else verification.format


def table(rows: Sequence[Verification], clean: Callable[[str], str]) -> list[str]:
    """Lay verdicts out for a person: one line each, with the reasons below."""
    cells = [(examine.word(row.verdict), _step_text(row), _format(row) or "-", clean(row.path)) for row in rows]
    widths = [max((len(line[at]) for line in cells), default=0) for at in range(3)]
    lines: list[str] = []
    for line, row in zip(cells, rows, strict=True):
        lines.append("  ".join((line[0].ljust(widths[0]), line[1].rjust(widths[1]), line[2].ljust(widths[2]), line[3])))
        reasons = row.reasons or ((row.reason,) if row.reason else ())
        lines += [f"{'':{widths[0]}}  {clean(reason)}" for reason in reasons[:_SHOWN_REASONS]]
    return lines


def _pointer_disagrees(directory: str, chosen: Verification | None) -> list[str]:
    """Return a line where the framework's own pointer names another checkpoint."""
    try:
        pointer = pointer_files.read(directory)
    except (OSError, NotRegular):
        return []
    if pointer is None:
        missing = None if chosen is None else markers.missing_tracker(chosen.path)
        return [] if missing is None else [f"{missing[0]} is missing: a framework that looks for its newest checkpoint there finds none"]
    if pointer.problem:
        return [pointer.problem]
    name = os.path.basename(chosen.path) if chosen is not None else ""  # noqa: PTH119 -- the package's paths are strings
    return [] if name == pointer.target else [f"{pointer.name} names {pointer.target}: the framework's own loader would take that one"]


def _reading(path: str, out: Output) -> str:
    return f"reading {out.clean(path_name(path))}"
