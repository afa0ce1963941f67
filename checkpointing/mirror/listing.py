"""Lists the checkpoints of a mirror in the one order (checkpointing/ordering.py). Functions raise BackendError."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.manifest import documents as manifests
from checkpointing.manifest.documents import Manifest
from checkpointing.mirror.backends import Backend, NotFound, PermissionDenied
from checkpointing.mirror.keys import MANIFEST, key_of, prefix_of, unquoted
from checkpointing.ordering import Generations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_DEPTH: Final = 4  # job, run, checkpoint, manifest.json
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


def locations(backend: Backend, job: str | None = None) -> Iterator[MirrorLocation]:
    """Yield the locations of checkpoints, of one job or of all."""
    for stored in backend.list("" if job is None else prefix_of(job)):
        parts = stored.key.split("/")
        if len(parts) == _DEPTH and parts[-1] == MANIFEST:
            yield MirrorLocation(stored.key.removesuffix(MANIFEST), unquoted(parts[0]), unquoted(parts[1]), stored.n_bytes, stored.at)


def read_manifest(backend: Backend, location: MirrorLocation) -> Manifest:
    """Read a manifest. Raises ManifestDamaged, BackendError."""
    found = manifests.decode(b"".join(backend.read(location.key + MANIFEST, 0, location.n_bytes)))
    if key_of(found) != location.key:
        raise manifests.ManifestDamaged("it is another checkpoint's")
    return found


def newest_first(
    backend: Backend, job: str, seen: Callable[[], object] = lambda: None, known: dict[str, MirroredCheckpoint] | None = None
) -> tuple[list[MirroredCheckpoint], list[tuple[str, str]]]:
    """Return a job's checkpoints, newest first, and (key, reason) for each whose manifest cannot be read.

    `seen` is called, in a thread, for each that was read. `known` is the caller's cache, by key: a manifest never changes, so only new ones
    are read, and removed ones are dropped. Raises PermissionDenied if none may be read, and other BackendErrors.
    """
    readable: list[MirroredCheckpoint] = []
    passed: list[tuple[str, str]] = []
    denied: list[PermissionDenied] = []

    def look(location: MirrorLocation) -> MirroredCheckpoint | tuple[str, str]:
        cached = (known or {}).get(location.key)
        if cached is not None and cached.location == location:
            return cached
        try:
            read = read_manifest(backend, location)
            seen()
            return MirroredCheckpoint(backend, location, read)
        except manifests.ManifestDamaged as error:
            return location.key, f"its manifest: {error}"
        except NotFound:
            return location.key, "it was removed meanwhile"
        except PermissionDenied as error:
            denied.append(error)
            return location.key, error.message

    with ThreadPoolExecutor(_READERS, thread_name_prefix="manifests") as pool:
        for found in pool.map(look, locations(backend, job)):
            if isinstance(found, MirroredCheckpoint):
                readable.append(found)
            else:
                passed.append(found)
    if known is not None:
        known.clear()
        known.update((one.location.key, one) for one in readable)
    if denied and not readable:
        raise denied[0]
    return ordered(readable), passed


def ordered(present: Iterable[MirroredCheckpoint]) -> list[MirroredCheckpoint]:
    """Sort the checkpoints, newest first; the same checkpoint in several mirrors keeps the order of the mirrors."""
    present = list(present)
    generations = Generations(one.manifest for one in present)
    return sorted(present, key=lambda one: generations.age(one.manifest, one.location.key))
