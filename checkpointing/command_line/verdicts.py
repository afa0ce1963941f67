"""`verify` and `latest`: what checkpoints are worth, in any directory, with or without a job.

A fault of a checkpoint or of a path is a row. Nothing is written and no pickle is executed.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from checkpointing import discover, examine, markers
from checkpointing.candidates import SelectionOptions
from checkpointing.command_line.progress import path_name
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

HEAD: Final = ("verdict", "step", "format", "checkpoint")
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
        n_good = sum(verification.verdict is Verdict.VERIFIED for verification in rows)
        lines = [out.lay_out(HEAD, verdict_rows(rows)), *([f"{n_good} of {len(rows)} are good"] if len(rows) > 1 else [])]
        out.write("\n".join(lines))
    return 0 if good else 1


def _verdicts_at(path: str, out: Output) -> Iterator[Verification]:
    """Yield a verdict for each checkpoint at `path`, and show how far each is read."""

    def started(checkpoint: str) -> None:
        identity = identity_of(checkpoint)
        progress.begin(_reading(checkpoint), None if identity is None else identity.size)

    with out.progress(_reading(path)) as progress:
        yield from examine.look(path, reading=ReadOptions(Throttle(UNLIMITED, taken=progress.advance)), started=started)


def choose(listing: Listing, cache: Cache, throttle: Throttle) -> tuple[Selection, Sequence[tuple[str, str]]]:
    """Choose by the files alone: no job recorded anything about them."""
    return newest(listing, SelectionOptions(cache=cache, throttle=throttle)), ()


def latest(
    directory: str,
    out: Output,
    choose: Callable[[Listing, Cache, Throttle], tuple[Selection, Sequence[tuple[str, str]]]] = choose,
) -> int:
    """Print which checkpoint a resume would take, and why newer ones were passed over. Returns 0 if there is one, else 1.

    `choose` returns the selection, and (path, reason) of those that were rejected before it.
    """
    cache = Cache()
    with out.progress(_reading(directory)) as progress:
        listing = discover.find_in(os.path.abspath(directory))  # noqa: PTH100 -- a link keeps its name
        throttle = Throttle(UNLIMITED, taken=progress.advance)
        selection, rejected = choose(listing, cache, throttle)
        passed = _passed_over(listing, selection, rejected, cache, ReadOptions(throttle))
    chosen = selection.chosen
    reasons = [*selection.notes, *_pointer_disagrees(directory, chosen)]
    if out.as_json:
        row = {**as_dict(chosen), "reasons": [*(chosen.reasons if chosen else ()), *reasons]}
        out.write(json.dumps({**row, "passed_over": [as_dict(verification) for verification in passed]}))
    else:
        none = f"none is proven good in {out.clean(directory)}"
        lines = [none if chosen is None else out.lay_out(HEAD, verdict_rows([chosen]))]
        lines += [f"  {out.clean(reason)}" for reason in reasons]
        out.write("\n".join([*lines, "passed over:", out.lay_out(HEAD, verdict_rows(passed))] if passed else lines))
    return 0 if chosen is not None else 1


def _passed_over(
    listing: Listing, selection: Selection, rejected: Sequence[tuple[str, str]], cache: Cache, reading: ReadOptions
) -> list[Verification]:
    torn = (*rejected, *selection.not_finite, *selection.torn)
    refused = (*torn, *selection.dangerous, *selection.rejected, *selection.unverifiable, *selection.unknown)
    identities = {candidate.path: candidate.identity for candidate in listing.candidates}
    unread = {path for path, _ in listing.problems}
    return [_unread(path, why) if path in unread else _known(cache, path, identities.get(path), why, reading) for path, why in refused]


def _unread(path: str, why: str) -> Verification:
    return Verification(path, Identity(0, 0, 0, 0), Verdict.UNKNOWN, why, reasons=(why,))


def _known(cache: Cache, path: str, identity: Identity | None, why: str, reading: ReadOptions) -> Verification:
    """Return the verdict of `verify` on a checkpoint that was passed over, with the reason first; read now, if it was not."""
    verification = None if identity is None else cache.get(path, identity)
    if verification is None and identity is None:  # a copy, or a checkpoint that is gone: only the recorded reason is known
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


def verdict_rows(verifications: Sequence[Verification]) -> list[tuple[str, ...]]:
    """Return the rows of a table under HEAD: one for each verdict, and below it the first reasons."""
    rows: list[tuple[str, ...]] = []
    for row in verifications:
        rows.append((examine.word(row.verdict), _step_text(row), _format(row) or "-", row.path))
        reasons = row.reasons or ((row.reason,) if row.reason else ())
        rows += [("", "", "", f"  {reason}") for reason in reasons[:_SHOWN_REASONS]]
    return rows


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


def _reading(path: str) -> str:
    return f"reading {path_name(path)}"
