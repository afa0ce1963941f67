"""Which checkpoints of a mirror the policy removes, and their removal. Functions raise BackendError."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpointing.mirror.keys import MANIFEST, PARTS, data_key, document_key, holds_parts, key_of
from checkpointing.mirror.listing import ordered
from checkpointing.model import Verdict
from checkpointing.ordering import Generations
from checkpointing.retention import rules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checkpointing.manifest.documents import Manifest
    from checkpointing.mirror.backends import Backend
    from checkpointing.mirror.listing import MirroredCheckpoint


def may_go(present: Iterable[MirroredCheckpoint], policy: rules.RetentionPolicy, made: str | None = None) -> list[MirroredCheckpoint]:
    """Return the checkpoints that a policy removes from one mirror, in the order of removal. `made`: the key of the newest arrival.

    Count the run of `made` (or the newest) first, then earlier runs until the quota is full. Overlapping or later runs belong to other
    nodes, which prune them.
    """
    present = ordered(present)
    own = next((checkpoint for checkpoint in present if checkpoint.location.key == made), present[0] if present else None)
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
    # after the weights turned to NaN, a resume takes the last finite checkpoint
    finite = (
        next((key for key, one in counted.items() if not one.manifest.has_lost_weights), None) if own.manifest.has_lost_weights else None
    )
    held = [
        rules.RetainedItem(key, own_order.age(one.manifest, key), Verdict.VERIFIED, one.manifest.n_bytes, in_use=key == finite)
        for key, one in counted.items()
    ]
    return [counted[item.name] for item in rules.may_go(held, policy, made)]


def remove(backend: Backend, key: str) -> int:
    """Remove a checkpoint, its manifest first: a manifest must not outlive its data. Return the number of removed objects.

    The manifests of parts go before it: whoever found them alone would join them again.
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


def remove_part(backend: Backend, part: Manifest) -> None:
    """Remove what one node sent of a checkpoint of several nodes, and what was made of it. The others' parts stay, and are not joined."""
    backend.remove(document_key(part))
    backend.remove(key_of(part) + MANIFEST)
    own = {data_key(key_of(part), file.path) for file in part.files}
    for stored in [*backend.list(key_of(part), unfinished=True), *backend.list(key_of(part))]:
        if stored.key in own:
            backend.remove(stored.key, stored.upload_id)
