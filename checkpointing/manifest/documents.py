"""Manifests: documents of a checkpoint's bytes (docs/reference/checkpoint-format.md), and the rows of them in the catalogue.

`decode` raises `ManifestDamaged` for a document that is cut short, changed, or leads out of the checkpoint, and `Newer` for one of a later
version. Neither is a verdict on the checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from checkpointing.io import durable
from checkpointing.io.row_file import RowTable
from checkpointing.manifest import digest
from checkpointing.model import Identity, Lineage, NonFinite, is_unchanged, nan_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpointing.catalogue import CheckpointCatalogue

FORMAT: Final = "supervise-checkpoint"
VERSION: Final = 4
READER: Final = 1  # a reader of version 1 may ignore all that later versions add, but for what makes it a part
FILE_NAME: Final = "manifest.json"
_MOST_BYTES: Final = 256 << 20  # a hundred thousand files, or some hundred terabytes in parts of 32 MiB
#: The digests of one table of the catalogue; but those of the last checkpoints stay, however large they are.
MOST_DIGEST_BYTES: Final = 32 << 20
_LEAST_WITH_DIGESTS: Final = 8
_WITH_DIGESTS_BYTES: Final = 2048  # a smaller row has none, or few
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_SAVE: Final = re.compile(r"[0-9a-f]{16}")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._=-]")


class ManifestDamaged(Exception):  # noqa: N818 -- a fact about a document, not a program error
    """The document was changed or cut short, or one of its paths leads out of the checkpoint."""


class Newer(ManifestDamaged):
    """The document needs a newer version of supervise. It is not replaced."""


@dataclass(frozen=True, slots=True)
class File:
    """One file: its path relative to the checkpoint (for a checkpoint that is a file, its own name), size and CRCs."""

    path: str
    n_bytes: int
    crc64nvme: int
    parts: tuple[int, ...]
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class About:
    """The origin of a checkpoint; each part may be missing. `began`: when the run began, as in `Lineage`."""

    job: str = ""
    run: str = ""
    world_size: int | None = None
    knobs: tuple[tuple[str, str], ...] = ()
    began: int | None = None
    attempt: int | None = None

    @property
    def lineage(self) -> Lineage | None:
        """The run and the attempt that saved it, None if they were not recorded."""
        return None if self.began is None or self.attempt is None else Lineage(self.began, self.run, self.attempt)


@dataclass(frozen=True, slots=True)
class NodePart:
    """The part of a save that a manifest describes, where each node has a part on its own disk. node: its number in the attempt.

    absent: the missing files of the checkpoint, as (path, size in bytes or None). leads: it shows which files there must be.
    """

    node: int
    absent: tuple[tuple[str, int | None], ...]
    leads: bool


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint when it was verified. `path` and `identity` are those that were read, on `host`.

    Wall time: `made_unix_s` of the verification; `saved_unix_ns` of the newest modification in it, 0 in manifests of version 1.
    `files` is () where the catalogue has dropped the digests of one that was verified long ago: it is known then, and cannot be compared.
    `non_finite`: the tensors that hold NaN or Inf (model.listed). Version 1 had manifests of finite checkpoints only. `epoch`: as in
    Verification. `content_step`: as there, since version 4.

    Of a checkpoint that several nodes wrote to their own disks (manifest/joint.py): `save` is one name for all parts of one save, and for
    no other save. With `part` the manifest describes what one node wrote, and no checkpoint. Without, it is the joint manifest, and
    `places` are the (host, path) of all parts.
    """

    name: str
    is_tree: bool
    layout: str
    files: tuple[File, ...]
    path: str
    identity: Identity
    host: str = ""
    step: int | None = None
    within: tuple[int, int] | None = None
    about: About = About()
    made_unix_s: int = 0
    saved_unix_ns: int = 0
    part_bytes: int = digest.PART_BYTES
    non_finite: tuple[NonFinite, ...] = ()
    epoch: int | None = None
    content_step: int | None = None
    save: str = ""
    part: NodePart | None = None
    places: tuple[tuple[str, str], ...] = ()

    @property
    def saved_ns(self) -> int:
        """Wall time of the save in nanoseconds. A directory has no save time of its own; version 1 uses the time of the proof."""
        return (self.saved_unix_ns or self.made_unix_s * 10**9) if self.is_tree else self.identity.mtime_ns

    @property
    def n_bytes(self) -> int:
        """The sum of the files' sizes."""
        return sum(file.n_bytes for file in self.files) if self.files else self.identity.size

    @property
    def has_lost_weights(self) -> bool:
        """Whether weights hold NaN that were finite in an earlier save of the run. The last finite checkpoint must then stay."""
        return bool(nan_weights(entry for entry in self.non_finite if entry.was_finite))

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits that distinguish this content from other content of the same name."""
        rows = [[file.path, file.n_bytes, digest.to_hex(file.crc64nvme)] for file in self.files]
        return hashlib.sha256(_canonical(rows)).hexdigest()[:16]


def is_same(identity: Identity, manifest: Manifest) -> bool:
    """Return whether a manifest describes the content with this identity, which may have moved since.

    A moved file has the size and the time of before. The identity of a directory has no time, so one that moved is another.
    """
    recorded = manifest.identity
    has_moved = not manifest.is_tree and identity != recorded and (identity.size, identity.mtime_ns) == (recorded.size, recorded.mtime_ns)
    return has_moved or is_unchanged(identity, recorded)


def plain(name: str) -> str:
    """Return a short ASCII form of `name` for a file name."""
    return _UNSAFE.sub("_", name)[:80]


def encode(manifest: Manifest) -> bytes:
    """Write the document."""
    identity, about = manifest.identity, manifest.about
    document: dict[str, Any] = {
        "format": FORMAT,  # always `supervise-checkpoint`
        "version": VERSION,  # of the format that it was written in
        "reader": READER if manifest.part is None else VERSION,  # the lowest version that a reader must know to use it
        "name": manifest.name,  # the checkpoint's own name: of the file, or of the directory
        "kind": "tree" if manifest.is_tree else "file",  # `file` or `tree` (a directory)
        # the format of its content, `file_set` among them; by hand (`supervise checkpoints push`) `plain_pickle` and `unproven` too; empty
        # where none was recognised
        "layout": manifest.layout,
        "step": manifest.step,  # the step of the whole run, or null
        "within": None if manifest.within is None else list(manifest.within),  # `[epoch, step]` where only that is known, or null
        "world_size": about.world_size,  # ranks that saved it, or null
        "knobs": dict(about.knobs),  # the job's knobs when it was saved, name to value, both texts
        "job": about.job,  # who wrote it; empty where it was made by hand. Manifests of another job are never taken
        "run": about.run,  # of that job; empty likewise
        "made_unix_s": manifest.made_unix_s,  # when the manifest was made, wall time in seconds
        "saved_unix_ns": manifest.saved_unix_ns,  # since version 2: the newest modification time of the files, wall time in nanoseconds
        "run_began_unix_s": about.began,  # since version 2: when that run began; 0 for what no run saved, null where nobody knows
        "attempt": about.attempt,  # since version 2: which attempt of it saved; 0 and null likewise
        # where the bytes were read (`host`, `path`), and the identity that they had there (`dev`, `ino`, `bytes`, `mtime_ns`)
        "source": {
            "host": manifest.host,
            "path": manifest.path,
            "dev": identity.dev,
            "ino": identity.ino,
            "bytes": identity.size,
            "mtime_ns": identity.mtime_ns,
        },
        "bytes": manifest.n_bytes,  # the sum of the files'
        "part_bytes": manifest.part_bytes,  # the size of a part: each part but a file's last has it
        "files": [file_row(file) for file in manifest.files],  # every file of the checkpoint, sorted by path
    }
    if manifest.epoch is not None:
        document["epoch"] = manifest.epoch  # since version 3; absent if a step or `within` is known. It is for people and orders nothing
    if manifest.content_step is not None:
        # since version 4, absent if there is none: the step in the content alone, which may differ from the name's
        document["content_step"] = manifest.content_step
    if manifest.save:
        # since version 4, of a checkpoint that several nodes wrote: the name of the save, 16 hexadecimal digits, the same in all its parts
        document["save"] = manifest.save
        # since version 4, with `save`: `host` and `path` of each part; empty in a part
        document["places"] = [{"host": host, "path": path} for host, path in manifest.places]
    if manifest.part is not None:
        part = manifest.part
        absent = [{"path": path, "bytes": n_bytes} for path, n_bytes in part.absent]
        # since version 4: this is one node's part, and no checkpoint; `reader` is 4 then. `node`: its number in the attempt; `leads`: its
        # files show which files there must be; `absent`: `path` and `bytes` (or null) of those that are not here
        document["part"] = {"node": part.node, "leads": part.leads, "absent": absent}
    if manifest.non_finite:
        # since version 2, absent where all numbers are finite: at most 256 tensors that hold NaN or Inf, each with `tensor` (its name),
        # `what` and `element`; with `was_finite` and `finite_step` (or null) where an earlier save of the run held numbers there
        document["non_finite"] = [_non_finite_row(entry) for entry in manifest.non_finite]
    return _canonical({**document, "digest": _own_digest(document)}) + b"\n"


def decode(raw: bytes) -> Manifest:
    """Read a document. Raises Newer, ManifestDamaged."""
    try:
        document = json.loads(raw, object_pairs_hook=_once, parse_float=_no_fraction, parse_constant=_no_fraction)
        if document["format"] != FORMAT:
            raise ManifestDamaged("it is not a manifest of a checkpoint")
        if _count(document["reader"]) > VERSION:
            raise Newer(f"it needs version {document['reader']} of the format and this is version {VERSION}")
        recorded = document.pop("digest")
        if recorded != _own_digest(document):
            raise ManifestDamaged("its own digest does not fit: it was changed or is damaged")
        return _manifest(document)
    except RecursionError:
        raise ManifestDamaged("it is nested too deep") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestDamaged(f"it cannot be read: {type(error).__name__}: {error}") from None


def _manifest(row: dict[str, Any]) -> Manifest:
    source, part_bytes = row["source"], _count(row["part_bytes"])
    if row["kind"] not in ("file", "tree") or part_bytes == 0:
        raise ManifestDamaged("unknown kind, or part size 0")
    files = tuple(_file(file, part_bytes) for file in row["files"])
    paths = [file.path for file in files]
    if paths != sorted(set(paths)) or not paths:
        raise ManifestDamaged("its files are not sorted, occur twice, or are missing")
    name = _inner_path(row["name"])
    if row["kind"] == "file" and paths != [name]:
        raise ManifestDamaged("a single-file checkpoint must list exactly that file")
    manifest = Manifest(
        name=name,
        is_tree=row["kind"] == "tree",
        layout=_text(row["layout"]),
        files=files,
        path=_text(source["path"]),
        identity=Identity(*(_count(source[key]) for key in ("dev", "ino", "bytes", "mtime_ns"))),
        host=_text(source["host"]),
        step=None if row["step"] is None else _count(row["step"]),
        within=None if row["within"] is None else _pair(row["within"]),
        about=About(
            _text(row["job"]),
            _text(row["run"]),
            None if row["world_size"] is None else _count(row["world_size"]),
            tuple(sorted((_text(knob), _text(value)) for knob, value in row["knobs"].items())),
            *(None if row.get(name) is None else _count(row[name]) for name in ("run_began_unix_s", "attempt")),
        ),
        made_unix_s=_count(row["made_unix_s"]),
        saved_unix_ns=_count(row.get("saved_unix_ns", 0)),
        part_bytes=part_bytes,
        non_finite=tuple(_non_finite(entry) for entry in row.get("non_finite", ())),
        epoch=None if row.get("epoch") is None else _count(row["epoch"]),
        content_step=None if row.get("content_step") is None else _count(row["content_step"]),
        save=_save(row.get("save", "")),
        part=None if row.get("part") is None else _part(row["part"]),
        places=tuple((_text(entry["host"]), _text(entry["path"])) for entry in row.get("places", ())),
    )
    if manifest.n_bytes != row["bytes"] or "/" in name:
        raise ManifestDamaged("sizes do not add up, or its name is a path")
    if manifest.part is not None and not manifest.save:
        raise ManifestDamaged("it is a part of no save")
    return manifest


def _save(value: object) -> str:
    text = _text(value)
    if text and not _SAVE.fullmatch(text):
        raise ManifestDamaged(f"{text!r} names no save")
    return text


def _part(row: dict[str, Any]) -> NodePart:
    absent = tuple((_inner_path(file["path"]), None if file["bytes"] is None else _count(file["bytes"])) for file in row["absent"])
    return NodePart(_count(row["node"]), absent, row["leads"] is True)


def _file(row: dict[str, Any], part_bytes: int) -> File:
    sha256 = row.get("sha256", "")
    file = File(
        _inner_path(row["path"]), _count(row["bytes"]), digest.from_hex(row["crc64nvme"]), tuple(map(digest.from_hex, row["parts"])), sha256
    )
    if len(file.parts) != -(-file.n_bytes // part_bytes) or digest.combine(file.parts, file.n_bytes, part_bytes) != file.crc64nvme:
        raise ManifestDamaged(f"the parts of {file.path} do not combine into the whole")
    if sha256 and not _SHA256.fullmatch(sha256):
        raise ManifestDamaged(f"{file.path}: not a SHA-256")
    return file


def file_row(file: File) -> dict[str, Any]:
    """Return what the document says of a file."""
    row = {
        # relative to the checkpoint, with `/`; for `kind` `file` its own name. Never absolute, no part of it is empty, `.` or `..`
        "path": file.path,
        "bytes": file.n_bytes,  # its size
        "crc64nvme": digest.to_hex(file.crc64nvme),  # of the whole file: 16 lower-case hexadecimal digits
        # of each part of `part_bytes`, in order; empty for an empty file. They combine into `crc64nvme`, which a reader checks
        "parts": [digest.to_hex(part) for part in file.parts],
    }
    return {**row, "sha256": file.sha256} if file.sha256 else row


def _non_finite(row: dict[str, Any]) -> NonFinite:
    step = row.get("finite_step")
    was_finite = row.get("was_finite", False) is True
    return NonFinite(_text(row["tensor"]), _text(row["what"]), _count(row["element"]), was_finite, None if step is None else _count(step))


def _non_finite_row(entry: NonFinite) -> dict[str, Any]:
    row: dict[str, Any] = {"tensor": entry.tensor, "what": entry.what, "element": entry.element}
    return {**row, "was_finite": True, "finite_step": entry.finite_step} if entry.was_finite else row


def _inner_path(value: object) -> str:
    path = _text(value)
    if any(segment in ("", ".", "..") for segment in path.split("/")) or "\0" in path:
        raise ManifestDamaged(f"{path!r} leads out of the checkpoint")
    return path


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ManifestDamaged(f"{value!r} is not text")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ManifestDamaged(f"{value!r} is not a count")
    return value


def _pair(value: object) -> tuple[int, int]:
    if not isinstance(value, list):
        raise ManifestDamaged(f"{value!r} is not a pair")
    epoch, step = value
    return _count(epoch), _count(step)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ManifestDamaged("a name occurs twice")
    return row


def _no_fraction(text: str) -> int:
    raise ManifestDamaged(f"{text} is not an integer")


def _canonical(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def _own_digest(document: object) -> str:
    return "sha256:" + hashlib.sha256(_canonical(document)).hexdigest()


def read(path: str) -> Manifest:
    """Read a document from a file. Raises OSError, Newer, ManifestDamaged."""
    raw = durable.read(path, _MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise ManifestDamaged("it is larger than any manifest")
    return decode(raw)


class Manifests:
    """The manifests of a job's checkpoints, one per path: rows of the catalogue. Any thread may use it: it keeps nothing in memory.

    The digests take the most room: 130 KB for a thousand shards, 750 KB for a terabyte. Once they are more than `MOST_DIGEST_BYTES`, those
    that were recorded first are dropped, and who wrote these checkpoints, and that they were whole and finite, stays known. Such a
    checkpoint is read once more where its bytes count.
    """

    def __init__(self, catalogue: CheckpointCatalogue, table: RowTable[Manifest] | None = None) -> None:
        self._catalogue, self._table = catalogue, table or VERIFIED

    def get(self, path: str) -> Manifest | None:
        """Return the last manifest of a path, None where its digests are not known; the file there may have changed since."""
        manifest = self.facts(path)
        return manifest if manifest is not None and manifest.files else None

    def of(self, path: str, identity: Identity) -> Manifest | None:
        """Return the manifest of a path, as `get`, if it is of the content with this identity."""
        manifest = self.get(path)
        return manifest if manifest is not None and manifest.identity == identity else None

    def facts(self, path: str) -> Manifest | None:
        """Return the last manifest of a path, as `get`, but also one whose digests were dropped."""
        return self._catalogue.get(self._table, path)

    def put(self, manifest: Manifest) -> bool:
        """Replace the manifest of its path, durably. Return False where that failed."""
        is_written = self._catalogue.put(self._table, manifest)
        self._drop_old_digests()
        return is_written

    def _drop_old_digests(self) -> None:
        sizes = self._catalogue.sizes(self._table)
        too_many, without = sum(sizes.values()) - MOST_DIGEST_BYTES, list[Manifest]()
        large = [path for path, n_bytes in sizes.items() if n_bytes >= _WITH_DIGESTS_BYTES]
        for path in large[:-_LEAST_WITH_DIGESTS]:
            if too_many <= 0:
                break
            manifest = self.get(path)
            if manifest is not None:
                without.append(replace(manifest, files=()))
                too_many -= sizes[path]
        if without:
            self._catalogue.put(self._table, *without)

    def all(self) -> Iterator[Manifest]:
        """Yield every one, as `facts`."""
        return self._catalogue.each(self._table)

    def sweep(self) -> int:
        """Remove the manifests of checkpoints that are gone, and return how many.

        A checkpoint is gone if its directory holds other files: an unmounted file system does not count as a removal.
        """
        gone = [manifest.path for manifest in self.all() if is_gone(manifest.path)]
        self._catalogue.remove(self._table, *gone)
        return len(gone)

    def forget(self, path: str) -> bool:
        """Remove the manifest of a path. Return whether there was one."""
        return self._catalogue.remove(self._table, path)


#: By path: a checkpoint of the job as of the last look: its manifest, with `identity` for `source`, and the checksums as numbers. Beyond
#: 32 MiB the `files` of those recorded first are dropped: such a checkpoint is read once more where its bytes count.
VERIFIED: Final = RowTable("verified", Manifest, lambda row: row.path)
#: By path: what this node holds of a checkpoint whose other files lie on the disks of other nodes, in the same form.
PART: Final = RowTable("part", Manifest, lambda row: row.path)


def is_gone(path: str) -> bool:
    """Return whether a checkpoint was removed: its directory holds others. An unmounted file system removed nothing."""
    if os.path.lexists(path):
        return False
    try:
        names = os.listdir(os.path.dirname(path))  # noqa: PTH120,PTH208 -- as above
    except OSError:
        return False
    return bool(names) and path.rpartition("/")[2] not in names
