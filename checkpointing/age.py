"""Which of two checkpoints is newer: the one order for what lies on this disk, for our copies, and for what mirrors hold.

In: what is known of a checkpoint's place in the training. Out: a key that sorts the newest first. Pure; checkpointing/select.py says why
it is the step that decides, and not the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkpointing.manifest import Manifest

Age = tuple[int, int, int, int, int, str]

HERE, COPY, MIRROR = 0, 1, 2  # of the same step, what lies in its place goes before our copy of it, and that before a mirror's


def of(step: int | None, within: tuple[int, int] | None, mtime_ns: int, distance: int, name: str) -> Age:
    """Give the key: by step of the whole run, then by (epoch, step in it), then late before early. `distance`: HERE, COPY or MIRROR."""
    if step is not None:
        return (0, -step, 0, distance, -mtime_ns, name)
    if within is not None:
        epoch, in_epoch = within
        return (1, -epoch, -in_epoch, distance, -mtime_ns, name)
    return (2, -mtime_ns, 0, distance, 0, name)


def of_manifest(manifest: Manifest, distance: int, name: str) -> Age:
    """Give the key of what a manifest describes. A directory's identity tells no time: when it was proven stands for that."""
    modified = manifest.made_unix_s * 10**9 if manifest.is_tree else manifest.identity.mtime_ns
    return of(manifest.step, manifest.within, modified, distance, name)
