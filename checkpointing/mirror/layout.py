"""The layout of a mirror: the keys of checkpoints, and their listing in the one order (checkpointing/ordering.py).

A checkpoint lies at `<job>/<run>/<step or name>-<id>/`: its files below `data/`, and `manifest.json`, written last. Without a manifest
there is no checkpoint. Job and run are percent-encoded, so that neither can leave its directory. Functions raise BackendError.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from checkpointing.manifest import documents as manifests
from checkpointing.manifest.documents import Manifest
from checkpointing.mirror.backends import Backend, NotFound, PermissionDenied
from checkpointing.model import Verdict
from checkpointing.ordering import Generations
from checkpointing.retention import rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


MANIFEST: Final = "manifest.json"
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


def key_of(manifest: Manifest) -> str:
    """Return the key of a checkpoint, with "/" at its end."""
    step = manifest.name if manifest.step is None else f"step-{manifest.step}"
    return f"{prefix_of(manifest.about.job)}{_quoted(manifest.about.run)}/{_quoted(step)}-{manifest.id}/"


def prefix_of(job: str) -> str:
    """Return the prefix of all keys of a job."""
    return f"{_quoted(job)}/"


def data_key(key: str, path: str) -> str:
    """Return the key of one file of the checkpoint at `key`."""
    return f"{key}data/{path}"


def locations(backend: Backend, job: str | None = None) -> Iterator[MirrorLocation]:
    """Yield the locations of checkpoints, of one job or of all."""
    for stored in backend.list("" if job is None else prefix_of(job)):
        parts = stored.key.split("/")
        if len(parts) == _DEPTH and parts[-1] == MANIFEST:
            yield MirrorLocation(stored.key.removesuffix(MANIFEST), _unquoted(parts[0]), _unquoted(parts[1]), stored.n_bytes, stored.at)


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


def may_go(present: Iterable[MirroredCheckpoint], policy: rules.RetentionPolicy, made: str | None = None) -> list[MirroredCheckpoint]:
    """Return the checkpoints that a policy removes from one mirror, in the order of removal. `made`: the key of the newest arrival.

    Count the run of `made` (or the newest) first, then earlier runs until the quota is full. Overlapping or later runs belong to other
    nodes, which prune them.
    """
    present = ordered(present)
    own = next((one for one in present if one.location.key == made), present[0] if present else None)
    if own is None:
        return []
    generations = Generations(one.manifest for one in present)
    number, run = generations.generation(own.manifest)
    counted: dict[str, MirroredCheckpoint] = {}
    for one in present:
        generation, its_run = generations.generation(one.manifest)
        if generation < number or (generation, its_run) == (number, run):
            counted[one.location.key] = one
    own_order = Generations(one.manifest for one in counted.values())
    # after the weights turned to NaN, a resume takes the last finite checkpoint
    finite = (
        next((key for key, one in counted.items() if not one.manifest.has_lost_weights), None) if own.manifest.has_lost_weights else None
    )
    held = [
        rules.RetainedItem(key, own_order.age(one.manifest, key), Verdict.VERIFIED, one.manifest.n_bytes, in_use=key == finite)
        for key, one in counted.items()
    ]
    return [counted[one.name] for one in rules.may_go(held, policy, made)]


def remove(backend: Backend, key: str) -> int:
    """Remove a checkpoint, its manifest first: a manifest must not outlive its data. Return the number of removed objects."""
    backend.remove(key + MANIFEST)
    n_removed = 1
    for stored in backend.list(key, unfinished=True):
        backend.remove(stored.key, stored.upload_id)
    for stored in list(backend.list(key)):
        backend.remove(stored.key)
        n_removed += 1
    return n_removed


def _quoted(text: str) -> str:
    return quote(text, safe="") if text not in ("", ".", "..") else {"": "%", ".": "%2E", "..": "%2E%2E"}[text]


def _unquoted(text: str) -> str:
    return "" if text == "%" else unquote(text)
