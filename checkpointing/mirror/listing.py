"""Lists the checkpoints of a mirror in the one order (checkpointing/ordering.py). Functions raise BackendError."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.manifest import documents as manifests
from checkpointing.manifest.documents import Manifest
from checkpointing.mirror import joining
from checkpointing.mirror.backends import Backend, NotFound, PermissionDenied, Stored
from checkpointing.mirror.keys import LEVELS, MANIFEST, OF_NODES, PARTS, may_lead_to_checkpoints, nonce_in, nonce_of, prefix_of, unquoted
from checkpointing.mirror.retry import retried
from checkpointing.ordering import Generations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_READERS: Final = 6  # so many connections a client of S3 keeps (backends/s3.py)


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


def _unseen() -> None:
    """Nobody follows."""


def other_jobs(backend: Backend, job: str, seen: Callable[[], object]) -> Iterator[str]:
    """Yield the other jobs that have a checkpoint. `seen`: as for `newest_first`."""
    for prefix in _directories(backend, "", seen):
        if prefix != prefix_of(job) and any(
            stored.key == key + MANIFEST for key in _checkpoints(backend, prefix, seen) for stored in _level(backend, key, seen)
        ):
            yield unquoted(prefix[:-1])


def _level(backend: Backend, prefix: str, seen: Callable[[], object]) -> list[Stored]:
    """List the keys with a prefix, without deeper ones. A directory's content is never listed to learn that it is there."""

    def level() -> Iterator[Stored]:
        for stored in backend.list(prefix, shallow=True):
            seen()
            yield stored

    return retried(lambda: list(level()))


def _directories(backend: Backend, prefix: str, seen: Callable[[], object]) -> list[str]:
    """List the directories directly below one, of those that may lead to checkpoints."""
    return [stored.key for stored in _level(backend, prefix, seen) if stored.key != prefix and may_lead_to_checkpoints(stored.key)]


def _checkpoints(backend: Backend, prefix: str, seen: Callable[[], object]) -> Iterator[str]:
    """Yield the keys of the checkpoints below a level, whole or not."""
    for key in _directories(backend, prefix, seen):
        yield from [key] if key.count("/") == LEVELS else _checkpoints(backend, key, seen)


def _location(key: str, stored: Stored) -> MirrorLocation:
    job, run, *_ = key.split("/")
    return MirrorLocation(key, unquoted(job), unquoted(run), stored.n_bytes, stored.at)


def _look(backend: Backend, key: str, seen: Callable[[], object]) -> MirrorLocation | Unjoined | None:
    """Return the checkpoint at a key, or its parts; None where there is neither."""
    rows = {stored.key: stored for stored in _level(backend, key, seen)}
    if key + MANIFEST in rows:
        return _location(key, rows[key + MANIFEST])
    parts = retried(lambda: list(backend.list(key + PARTS))) if key + PARTS in rows else ()
    return Unjoined(_location(key, max(parts, key=lambda row: row.at)), tuple(parts)) if parts else None


def unjoined(backend: Backend, job: str) -> list[MirrorLocation]:
    """Return the locations of parts that have no joint manifest; `at` is of the newest part."""
    keys = _checkpoints(backend, f"{prefix_of(job)}{OF_NODES}/", _unseen)
    return [place.location for key in keys if isinstance(place := _look(backend, key, _unseen), Unjoined)]


def incomplete(backend: Backend, job: str) -> Iterator[str]:
    """Yield the keys below which a job has data and no manifest, not even of a part."""
    for key in _checkpoints(backend, prefix_of(job), _unseen):
        if {stored.key for stored in _level(backend, key, _unseen)}.isdisjoint((key + MANIFEST, key + PARTS)):
            yield key


def read_manifest(backend: Backend, location: MirrorLocation) -> Manifest:
    """Read a manifest. Raises ManifestDamaged, BackendError."""
    manifest = manifests.decode(b"".join(backend.read(location.key + MANIFEST, 0, location.n_bytes)))
    if (manifest.about.job, nonce_of(manifest)) != (location.job, nonce_in(location.key)):
        raise manifests.ManifestDamaged("it is another checkpoint's")
    return manifest


def newest_first(
    backend: Backend, job: str, seen: Callable[[], object] = _unseen, known: dict[str, MirroredCheckpoint] | None = None
) -> tuple[list[MirroredCheckpoint], list[tuple[str, str]]]:
    """Return a job's checkpoints, newest first, and (key, reason) for each whose manifest cannot be read.

    Parts of several nodes that make up a checkpoint are joined. The requests grow with the number of checkpoints, not with that of their
    files. `seen` is called, in a thread, for each row of a list and each manifest that was read. `known` is the caller's cache, by key: a
    manifest never changes, so only new ones are read, and removed ones are dropped. Raises PermissionDenied if none may be read, and
    other BackendErrors.
    """
    denied: list[PermissionDenied] = []

    def at_key(key: str) -> MirroredCheckpoint | tuple[str, str] | None:
        place = _look(backend, key, seen)
        cached = (known or {}).get(key)
        if place is None:
            return None
        if cached is not None and cached.location == place:
            return cached
        try:
            row = retried(lambda: _read(backend, place))
        except manifests.ManifestDamaged as error:
            return key, f"its manifest: {error}"
        except NotFound:
            return key, "it was removed meanwhile"
        except PermissionDenied as error:
            denied.append(error)
            return key, error.message
        seen()
        return row

    with ThreadPoolExecutor(_READERS, thread_name_prefix="manifests") as pool:
        places = [prefix_of(job)]
        for _ in range(1, LEVELS):  # level by level: each is listed by all threads
            places = [key for below in pool.map(lambda place: _directories(backend, place, seen), places) for key in below]
        rows = [row for row in pool.map(at_key, places) if row is not None]
    readable = [row for row in rows if isinstance(row, MirroredCheckpoint)]
    passed = [row for row in rows if not isinstance(row, MirroredCheckpoint)]
    if known is not None:
        known.clear()
        known.update((mirrored_checkpoint.location.key, mirrored_checkpoint) for mirrored_checkpoint in readable)
    if denied and not readable:
        raise denied[0]
    return ordered(readable), passed


def _read(backend: Backend, place: MirrorLocation | Unjoined) -> MirroredCheckpoint | tuple[str, str]:
    """Read a checkpoint's manifest. Join parts that their nodes did not join before their end; else return their key, and why not."""
    if isinstance(place, MirrorLocation):
        return MirroredCheckpoint(backend, place, read_manifest(backend, place))
    whole, why = joining.joined(backend, place.location.key, place.documents)
    if whole is None:
        return place.location.key, why
    joining.heal(backend, place.location.key, whole)
    return MirroredCheckpoint(backend, place.location, whole)


def ordered(present: Iterable[MirroredCheckpoint]) -> list[MirroredCheckpoint]:
    """Sort the checkpoints, newest first; the same checkpoint in several mirrors keeps the order of the mirrors."""
    present = list(present)
    generations = Generations(checkpoint.manifest for checkpoint in present)
    return sorted(present, key=lambda checkpoint: generations.age(checkpoint.manifest, checkpoint.location.key))
