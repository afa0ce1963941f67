"""Lists the checkpoints of a mirror in the one order (checkpointing/ordering.py). Functions raise BackendError."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.manifest import documents as manifests
from checkpointing.manifest.documents import Manifest
from checkpointing.mirror import joining
from checkpointing.mirror.backends import Backend, NotFound, PermissionDenied, Stored
from checkpointing.mirror.keys import MANIFEST, PARTS, key_of, prefix_of, unquoted
from checkpointing.ordering import Generations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_DEPTH: Final = 4  # job, run, checkpoint, manifest.json
_PART_DEPTH: Final = 5  # job, "nodes", checkpoint, "parts", node
_READERS: Final = 8


@dataclass(frozen=True, slots=True)
class MirrorLocation:
    """The location of one checkpoint in a mirror. `key` ends with "/"; n_bytes and `at` (wall time): size and time of its manifest."""

    key: str
    job: str
    run: str
    n_bytes: int
    at: float


@dataclass(frozen=True, slots=True)
class MirroredCheckpoint:
    """A checkpoint in a mirror, with its manifest."""

    backend: Backend
    location: MirrorLocation
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Unjoined:
    """The parts of a checkpoint that has no joint manifest. The location's `n_bytes` and `at` are those of the newest part."""

    location: MirrorLocation
    documents: tuple[Stored, ...]


def locations(backend: Backend, job: str | None = None) -> Iterator[MirrorLocation]:
    """Yield the locations of checkpoints, of one job or of all."""
    for stored in backend.list("" if job is None else prefix_of(job)):
        parts = stored.key.split("/")
        if len(parts) == _DEPTH and parts[-1] == MANIFEST:
            yield _location(stored.key.removesuffix(MANIFEST), stored)


def _location(key: str, stored: Stored) -> MirrorLocation:
    job, run, *_ = key.split("/")
    return MirrorLocation(key, unquoted(job), unquoted(run), stored.n_bytes, stored.at)


def _scan(backend: Backend, job: str) -> tuple[list[MirrorLocation], list[Unjoined]]:
    """Return what has a manifest, and what has parts only, in one listing."""
    found: dict[str, MirrorLocation] = {}
    parts: dict[str, list[Stored]] = {}
    for stored in backend.list(prefix_of(job)):
        words = stored.key.split("/")
        if len(words) == _DEPTH and words[-1] == MANIFEST:
            key = stored.key.removesuffix(MANIFEST)
            found[key] = _location(key, stored)
        elif len(words) == _PART_DEPTH and f"{words[-2]}/" == PARTS:
            parts.setdefault(stored.key.removesuffix(PARTS + words[-1]), []).append(stored)
    alone = {key: rows for key, rows in parts.items() if key not in found}
    return list(found.values()), [Unjoined(_location(key, max(rows, key=lambda row: row.at)), tuple(rows)) for key, rows in alone.items()]


def unjoined(backend: Backend, job: str) -> list[MirrorLocation]:
    """Return the locations of parts that have no joint manifest; `at` is of the newest part."""
    return [one.location for one in _scan(backend, job)[1]]


def read_manifest(backend: Backend, location: MirrorLocation) -> Manifest:
    """Read a manifest. Raises ManifestDamaged, BackendError."""
    manifest = manifests.decode(b"".join(backend.read(location.key + MANIFEST, 0, location.n_bytes)))
    if key_of(manifest) != location.key:
        raise manifests.ManifestDamaged("it is another checkpoint's")
    return manifest


def newest_first(
    backend: Backend, job: str, seen: Callable[[], object] = lambda: None, known: dict[str, MirroredCheckpoint] | None = None
) -> tuple[list[MirroredCheckpoint], list[tuple[str, str]]]:
    """Return a job's checkpoints, newest first, and (key, reason) for each whose manifest cannot be read.

    Parts of several nodes that make up a checkpoint are joined. `seen` is called, in a thread, for each that was read. `known` is the
    caller's cache, by key: a manifest never changes, so only new ones are read, and removed ones are dropped. Raises PermissionDenied if
    none may be read, and other BackendErrors.
    """
    denied: list[PermissionDenied] = []

    def look(location: MirrorLocation) -> MirroredCheckpoint | tuple[str, str]:
        cached = (known or {}).get(location.key)
        if cached is not None and cached.location == location:
            return cached
        return read(location.key, lambda: MirroredCheckpoint(backend, location, read_manifest(backend, location)))

    def read(key: str, call: Callable[[], MirroredCheckpoint | tuple[str, str]]) -> MirroredCheckpoint | tuple[str, str]:
        try:
            found = call()
        except manifests.ManifestDamaged as error:
            return key, f"its manifest: {error}"
        except NotFound:
            return key, "it was removed meanwhile"
        except PermissionDenied as error:
            denied.append(error)
            return key, error.message
        seen()
        return found

    present, apart = _scan(backend, job)
    with ThreadPoolExecutor(_READERS, thread_name_prefix="manifests") as pool:
        joined = pool.map(lambda one: read(one.location.key, lambda: _joined(backend, one)), apart)
        rows = [*pool.map(look, present), *joined]
    readable = [row for row in rows if isinstance(row, MirroredCheckpoint)]
    passed = [row for row in rows if not isinstance(row, MirroredCheckpoint)]
    if known is not None:
        known.clear()
        known.update((mirrored_checkpoint.location.key, mirrored_checkpoint) for mirrored_checkpoint in readable)
    if denied and not readable:
        raise denied[0]
    return ordered(readable), passed


def _joined(backend: Backend, one: Unjoined) -> MirroredCheckpoint | tuple[str, str]:
    """Join parts that their nodes did not live to join; else return their key, and why they are no checkpoint."""
    made, why = joining.joined(backend, one.location.key, one.documents)
    if made is None:
        return one.location.key, why
    joining.heal(backend, one.location.key, made)
    return MirroredCheckpoint(backend, one.location, made)


def ordered(present: Iterable[MirroredCheckpoint]) -> list[MirroredCheckpoint]:
    """Sort the checkpoints, newest first; the same checkpoint in several mirrors keeps the order of the mirrors."""
    present = list(present)
    generations = Generations(checkpoint.manifest for checkpoint in present)
    return sorted(present, key=lambda checkpoint: generations.age(checkpoint.manifest, checkpoint.location.key))
