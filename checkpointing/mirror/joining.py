"""Joins the parts that several nodes sent of one checkpoint (manifest/joint.py), in a mirror.

Each node writes the manifest of its part after its files, and then looks at all parts. Whoever finds that they make up a checkpoint writes
the joint manifest; two that do it at once write the same. If the node that sent the last part dies before that, the next reader of the
mirror that finds the parts joins them. Functions raise BackendError.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from checkpointing.manifest import digest, joint
from checkpointing.manifest import documents as manifests
from checkpointing.mirror import keys
from checkpointing.mirror.backends import Backend, BackendError, Bytes, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checkpointing.manifest.documents import Manifest
    from checkpointing.mirror.backends import Stored


#: How the reason begins where parts may still come.
UNSENT: Final = "not all nodes have sent their part"


def joined(backend: Backend, key: str, documents: Iterable[Stored] | None = None) -> tuple[Manifest | None, str]:
    """Return the checkpoint at `key` that its parts make up; None, and why, if they do not. `documents`: its parts, if they are listed."""
    parts: list[Manifest] = []
    for stored in list(backend.list(key + keys.PARTS)) if documents is None else documents:
        try:
            part = manifests.decode(b"".join(backend.read(stored.key, 0, stored.n_bytes)))
        except manifests.ManifestDamaged as error:
            return None, f"the manifest of a part: {error}"
        except NotFound:
            return None, "it was removed meanwhile"
        if key + keys.document_name(part) != stored.key or part.save != keys.nonce_in(key):
            return None, "the manifest of a part: it is another checkpoint's"
        parts.append(part)
    try:
        whole, missing = joint.join(parts)
    except joint.PartsDiffer as error:
        return None, f"its parts differ: {error}"
    if whole is None:
        sent = ", ".join(f"{part.host} (node {part.part.node})" for part in parts if part.part is not None)
        return None, f"{UNSENT}: {missing}; sent by {sent or 'none'}"
    damaged = _misses(backend, key, whole)
    return (None, damaged) if damaged else (whole, "")


def write(backend: Backend, key: str) -> bool:
    """Write the joint manifest, if the parts at `key` make up a checkpoint. Return whether it is there."""
    whole, _ = joined(backend, key)
    if whole is None:
        return False
    raw = manifests.encode(whole)
    backend.put(key + keys.MANIFEST, Bytes(raw, digest.of_bytes(raw)))
    return True


def heal(backend: Backend, key: str, manifest: Manifest) -> None:
    """Write a joint manifest that its nodes did not live to write. A reader may not be allowed to; then the next one joins them again."""
    raw = manifests.encode(manifest)
    with contextlib.suppress(BackendError):
        backend.put(key + keys.MANIFEST, Bytes(raw, digest.of_bytes(raw)))


def _misses(backend: Backend, key: str, manifest: Manifest) -> str:
    """Return which file of a checkpoint is not in the mirror as it was recorded; "" for none."""
    there = {stored.key: stored for stored in backend.list(f"{key}data/")}
    for file in manifest.files:
        stored = there.get(keys.data_key(key, file.path))
        if stored is None or stored.n_bytes != file.n_bytes or stored.crc64nvme not in (None, file.crc64nvme):
            return f"{file.path} was removed or changed in the mirror"
    return ""
