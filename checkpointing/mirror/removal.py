"""Chooses and removes the checkpoints of a mirror beyond the policy. Functions raise BackendError."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from checkpointing.mirror import listing
from checkpointing.mirror.backends import NotFound, PermissionDenied
from checkpointing.mirror.keys import MANIFEST, PARTS, holds_parts, prefix_of
from checkpointing.mirror.listing import ordered
from checkpointing.model import Verdict
from checkpointing.ordering import Generations
from checkpointing.retention import rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from checkpointing.mirror.backends import Backend, Stored
    from checkpointing.mirror.listing import MirroredCheckpoint


def may_go(present: Iterable[MirroredCheckpoint], policy: rules.RetentionPolicy, arrived: str | None = None) -> list[MirroredCheckpoint]:
    """Return the checkpoints that a policy removes from one mirror, in the order of removal. `arrived`: the key of the newest arrival.

    Count the run of `arrived` (or the newest) first, then earlier runs until the quota is full. Overlapping or later runs belong to other
    nodes, which prune them.
    """
    present = ordered(present)
    own = next((checkpoint for checkpoint in present if checkpoint.location.key == arrived), present[0] if present else None)
    if own is None:
        return []
    generations = Generations(checkpoint.manifest for checkpoint in present)
    number, run = generations.generation(own.manifest)
    counted: dict[str, MirroredCheckpoint] = {}
    for checkpoint in present:
        generation, its_run = generations.generation(checkpoint.manifest)
        if generation < number or (generation, its_run) == (number, run):
            counted[checkpoint.location.key] = checkpoint
    own_order = Generations(checkpoint.manifest for checkpoint in counted.values())
    held = [
        rules.RetainedItem(
            key,
            own_order.age(checkpoint.manifest, key),
            Verdict.VERIFIED,
            checkpoint.manifest.n_bytes,
            is_finite=not checkpoint.manifest.has_lost_weights,
        )
        for key, checkpoint in counted.items()
    ]
    return [counted[item.name] for item in rules.may_go(held, policy, arrived)]


def abort_leftovers(backend: Backend, job: str, before: float) -> Iterator[str]:
    """Abort the uploads of a job to which no part was added since `before` (wall time); yield the key of each.

    An upload of a large file may have been opened long ago and still grow: the time of its newest part counts.
    """
    for stored in list(backend.list(prefix_of(job), unfinished=True)):
        if 0 < stored.at < before and _newest_part_at(backend, stored) < before:
            backend.remove(stored.key, stored.upload_id)
            yield stored.key


def remove_incomplete(backend: Backend, job: str, before: float, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Remove the objects of checkpoints of a job that have no manifest, and to which nothing was added since `before` (wall time).

    They are what a pass sent of a checkpoint that was bad, or gone, when a process could have continued with it. Yield the key of each, and
    of its objects those that may not be removed. is_wanted: whether an upload below a key is to continue. Should another supervisor take
    such an upload up in this very moment, it lists all objects before it writes the manifest, and sends missing ones again.
    """
    for key in listing.incomplete(backend, job):
        objects = list(backend.list(key))
        uploads = backend.list(key, unfinished=True)
        times = [*(stored.at for stored in objects), *(_newest_part_at(backend, stored) for stored in uploads)]
        if not objects or is_wanted(key) or not 0 < max(times) < before:
            continue
        denied: list[str] = []
        for stored in objects:
            try:
                backend.remove(stored.key)
            except PermissionDenied:
                denied.append(stored.key)
        with contextlib.suppress(NotFound):  # it was completed since it was listed: a manifest must not outlive its data
            backend.stat(key + MANIFEST)
            backend.remove(key + MANIFEST)
        yield key, tuple(denied)


def _newest_part_at(backend: Backend, upload: Stored) -> float:
    """Return when the newest part came. A directory tells no times of parts: its file changed with the newest one."""
    try:
        return max([upload.at, *(part.at for part in backend.begin(upload.key, upload.upload_id).parts)])
    except NotFound:  # of a directory's mirror: a kill left the log of an upload that was completed
        return upload.at


def remove(backend: Backend, key: str) -> int:
    """Remove a checkpoint, its manifest first: a manifest must not outlive its data. Return the number of removed objects.

    The manifests of parts go before it: a node that finds them alone would join them again.
    """
    n_removed = 1
    for stored in list(backend.list(key + PARTS)) if holds_parts(key) else ():
        backend.remove(stored.key)
        n_removed += 1
    backend.remove(key + MANIFEST)
    for stored in backend.list(key, unfinished=True):
        backend.remove(stored.key, stored.upload_id)
    for stored in list(backend.list(key)):
        backend.remove(stored.key)
        n_removed += 1
    return n_removed
