"""What a mirror holds: where checkpoints stand in it, and which there are.

In: a backend. Out: keys and manifests, the newest first, in the one order (checkpointing/ordering.py). A checkpoint
stands in `<job>/<run>/<step or name>-<id>/`: its files under `data/`, and `manifest.json`, written last: without it there is no
checkpoint. Job and run are percent-encoded, so that neither leads elsewhere. Raises what the backend does. Nothing is kept.
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
    """Where one checkpoint stands in a mirror. `key` ends with "/"; n_bytes is of its manifest; `at` is when that was written."""

    key: str
    job: str
    run: str
    n_bytes: int
    at: float


@dataclass(frozen=True, slots=True)
class MirroredCheckpoint:
    """A checkpoint in a mirror, with its manifest."""

    backend: Backend
    place: MirrorLocation
    manifest: Manifest


def key_of(manifest: Manifest) -> str:
    """Give the key under which a checkpoint stands, with "/" at its end."""
    step = manifest.name if manifest.step is None else f"step-{manifest.step}"
    return f"{prefix_of(manifest.about.job)}{_quoted(manifest.about.run)}/{_quoted(step)}-{manifest.id}/"


def prefix_of(job: str) -> str:
    """Give the prefix of all keys of a job."""
    return f"{_quoted(job)}/"


def data_key(key: str, path: str) -> str:
    """Give the key of one file of the checkpoint at `key`."""
    return f"{key}data/{path}"


def places(backend: Backend, job: str | None = None) -> Iterator[MirrorLocation]:
    """Yield where checkpoints stand, of one job or of all."""
    for stored in backend.list("" if job is None else prefix_of(job)):
        parts = stored.key.split("/")
        if len(parts) == _DEPTH and parts[-1] == MANIFEST:
            yield MirrorLocation(stored.key.removesuffix(MANIFEST), _unquoted(parts[0]), _unquoted(parts[1]), stored.n_bytes, stored.at)


def read_manifest(backend: Backend, place: MirrorLocation) -> Manifest:
    """Read a manifest. Raises manifest.Damaged, and what the backend does."""
    found = manifests.decode(b"".join(backend.read(place.key + MANIFEST, 0, place.n_bytes)))
    if key_of(found) != place.key:
        raise manifests.ManifestDamaged("it stands where another one belongs")
    return found


def newest_first(
    backend: Backend, job: str, seen: Callable[[], object] = lambda: None, known: dict[str, MirroredCheckpoint] | None = None
) -> tuple[list[MirroredCheckpoint], list[tuple[str, str]]]:
    """Give a job's checkpoints, the newest first; and (key, reason) for each whose manifest says nothing, or was removed meanwhile.

    `seen` is called, in a thread, for each that was read. `known` is a cache that the caller owns, by key: a manifest is never changed, so
    only those that are new are read, and those that are gone are dropped from it.
    Raises PermissionDenied where not one may be read, and what else the backend does.
    """
    kept: list[MirroredCheckpoint] = []
    passed: list[tuple[str, str]] = []
    denied: list[PermissionDenied] = []

    def look(place: MirrorLocation) -> MirroredCheckpoint | tuple[str, str]:
        cached = (known or {}).get(place.key)
        if cached is not None and cached.place == place:
            return cached
        try:
            read = read_manifest(backend, place)
            seen()
            return MirroredCheckpoint(backend, place, read)
        except manifests.ManifestDamaged as error:
            return place.key, f"its manifest: {error}"
        except NotFound:
            return place.key, "it was removed meanwhile"
        except PermissionDenied as error:
            denied.append(error)
            return place.key, error.message

    with ThreadPoolExecutor(_READERS, thread_name_prefix="manifests") as pool:
        for found in pool.map(look, places(backend, job)):
            if isinstance(found, MirroredCheckpoint):
                kept.append(found)
            else:
                passed.append(found)
    if known is not None:
        known.clear()
        known.update((one.place.key, one) for one in kept)
    if denied and not kept:
        raise denied[0]
    return ordered(kept), passed


def ordered(kept: Iterable[MirroredCheckpoint]) -> list[MirroredCheckpoint]:
    """Give them the newest first; of the same one in several mirrors, the mirror that came first."""
    kept = list(kept)
    generations = Generations(one.manifest for one in kept)
    return sorted(kept, key=lambda one: generations.age(one.manifest, one.place.key))


def may_go(kept: Iterable[MirroredCheckpoint], policy: rules.RetentionPolicy, made: str | None = None) -> list[MirroredCheckpoint]:
    """Give what a policy lets go of one mirror, in the order in which it should be removed. `made`: the key of what arrived just now.

    The quota is that of one run, the one that `made` is of, else the newest. Earlier runs get what it leaves of the quota. A run that goes
    on beside it, or began later, is left alone: it is of another node, and looks after its own.
    """
    kept = ordered(kept)
    own = next((one for one in kept if one.place.key == made), kept[0] if kept else None)
    if own is None:
        return []
    generations = Generations(one.manifest for one in kept)
    number, run = generations.generation(own.manifest)
    counted: dict[str, MirroredCheckpoint] = {}
    for one in kept:
        generation, its_run = generations.generation(one.manifest)
        if generation < number or (generation, its_run) == (number, run):
            counted[one.place.key] = one
    own_order = Generations(one.manifest for one in counted.values())
    # where the weights turned to NaN, the last finite one is what a resume will take
    finite = (
        next((key for key, one in counted.items() if not one.manifest.has_lost_weights), None) if own.manifest.has_lost_weights else None
    )
    held = [
        rules.RetainedItem(key, own_order.age(one.manifest, key), Verdict.VERIFIED, one.manifest.n_bytes, in_use=key == finite)
        for key, one in counted.items()
    ]
    return [counted[one.name] for one in rules.may_go(held, policy, made)]


def remove(backend: Backend, key: str) -> int:
    """Remove a checkpoint: its manifest first, so that at no time there is one without its data. Returns how many objects went."""
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
