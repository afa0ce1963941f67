"""Reports that a checkpoint's numbers turned to NaN or Inf: which tensors, and which step was the last finite one.

The facts are in the manifests (checkpointing/manifest/documents.py), which the watcher writes for each verified checkpoint. A tensor that
is not finite in a run's first save may be meant so (a mask, a placeholder), and stays a note on that checkpoint. A tensor that was finite
in an earlier save of the same run is reported: from there on the training computes nonsense.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from checkpointing.model import MOST_NON_FINITE, note_of
from checkpointing.ordering import saved_order
from supervisor.observe.ranks.path_patterns import pattern_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checkpointing.manifest.documents import Manifest
    from checkpointing.model import NonFinite


def last_of_run(manifests: Iterable[Manifest], run: str, pattern: str | None = None) -> Manifest | None:
    """Return the verified checkpoint that a run saved last; with `pattern` the last one there."""
    of_run = (
        manifest
        for manifest in manifests
        if run and manifest.about.run == run and (pattern is None or pattern_of(manifest.path) == pattern)
    )
    return max(of_run, key=saved_order, default=None)


def last_before(manifest: Manifest, recorded: Iterable[Manifest], run: str) -> Manifest | None:
    """Return the checkpoint of a run and of the same pattern that was saved last before this one, at another path."""
    when = saved_order(manifest)
    earlier = (other for other in recorded if other.path != manifest.path and saved_order(other) < when)
    return last_of_run(earlier, run, pattern_of(manifest.path))


def compared(entries: tuple[NonFinite, ...], before: Manifest | None) -> tuple[NonFinite, ...]:
    """Note for each tensor whether it was finite in an earlier save. `before`: the save before this one; None: the run's first."""
    if before is None:
        return entries
    known = {entry.tensor: entry for entry in before.non_finite}
    if len(known) >= MOST_NON_FINITE:  # not all were listed: a tensor that is not among them may hold NaN there too
        first = before.non_finite[0]
        return tuple(replace(entry, was_finite=first.was_finite, finite_step=first.finite_step) for entry in entries)
    rows = []
    for entry in entries:
        earlier = known.get(entry.tensor)
        if earlier is None:
            rows.append(replace(entry, was_finite=True, finite_step=before.step))
        else:
            rows.append(replace(entry, was_finite=earlier.was_finite, finite_step=earlier.finite_step))
    return tuple(rows)


def turned(manifest: Manifest) -> tuple[NonFinite, ...]:
    """Return the tensors that were finite in an earlier save of the run."""
    return tuple(entry for entry in manifest.non_finite if entry.was_finite)


def report(manifest: Manifest) -> str:
    """Say in one line what turned, and which step was the last finite one; "" where nothing did."""
    rows = turned(manifest)
    if not rows:
        return ""
    step = "" if manifest.step is None else f" of step {manifest.step}"
    finite = next((row.finite_step for row in rows if row.finite_step is not None), None)
    last = "an earlier checkpoint of this run was finite" if finite is None else f"the last finite one is of step {finite}"
    return f"the checkpoint{step} holds numbers that are not finite ({note_of(rows)}); {last}"
