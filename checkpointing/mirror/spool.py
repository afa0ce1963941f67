"""The queue of checkpoints to upload, on disk: it survives this process, an outage, and the removal of the files by the job.

Each entry is a directory, named by `keys.spool_name`:

    entry.json       written last: a directory without it is a leftover and is removed
    manifest.json    the manifest, byte for byte as it will be uploaded
    pins/<number>    the n-th file of the manifest, if it could be linked (checkpointing/io/reflink.py)
    <mirror>.jsonl   what has arrived at one mirror, a line each, synced: {"file", "upload"},
                     {"file", "upload", "part", "bytes", "token"}, {"file", "stored"}
    <mirror>.done    the manifest arrived there

Each line is written after the mirror acknowledged: after a kill -9 the log may know less than the mirror, never more. The process that
mirrors holds the directory's lock. Methods raise OSError if the disk fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypedDict

from checkpointing.io import durable, reflink, staging
from checkpointing.manifest import documents as manifests
from checkpointing.manifest.documents import Manifest
from checkpointing.mirror import keys
from checkpointing.model import CheckpointingError, Identity

if TYPE_CHECKING:
    from collections.abc import Iterable


_ENTRY: Final = "entry.json"
_MANIFEST: Final = "manifest.json"


class SpoolLeft(TypedDict):
    """How many entries are in the spool, and their size: a part of events (messages.py)."""

    left: int
    left_bytes: int


class SpoolBusy(CheckpointingError):  # noqa: N818 -- an answer
    """Another process holds the spool. It may end soon."""


@dataclass(frozen=True, slots=True)
class HeldFile:
    """One file of an entry: the path that is read, how it is pinned (reflink, link or path), and the identity of the right content."""

    path: str
    how: str
    identity: Identity

    def is_same(self) -> bool:
        """Return whether it can still have the right content. This only saves reading: the checksum of each part is the proof."""
        try:
            now = Identity.of(os.stat(self.path))  # noqa: PTH116
        except OSError:
            return False
        # a reflink is another inode, and a pin changes ctime: size and modification time are what a write changes
        return (now.size, now.mtime_ns) == (self.identity.size, self.identity.mtime_ns) or self.how == reflink.REFLINK


@dataclass(frozen=True, slots=True)
class SpoolEntry:
    """A checkpoint to upload. `at`: the time of the request, wall time."""

    directory: str
    path: str
    step: int | None
    manifest: Manifest
    raw_manifest: bytes
    held: tuple[HeldFile, ...]
    at: float

    @property
    def id(self) -> str:
        """Its name: `keys.spool_name`."""
        return os.path.basename(self.directory)  # noqa: PTH119

    @property
    def how(self) -> str:
        """The weakest pin among its files."""
        ways = {held.how for held in self.held}
        return next((way for way in (reflink.PATH, reflink.LINK) if way in ways), reflink.REFLINK)


@dataclass(slots=True)
class TransferLog:
    """The parts and files of one entry that have arrived at one mirror. Thread-safe; `note` returns after its line is durable."""

    path: str
    uploads: dict[str, str] = field(default_factory=dict)
    parts: dict[tuple[str, str, int], tuple[int, str]] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def read(cls, path: str) -> TransferLog:
        """Read the log. A torn last line is skipped: the mirror is asked for that part."""
        log = cls(path)
        with contextlib.suppress(FileNotFoundError):
            for line in durable.read(path).splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    log._take(json.loads(line))
        return log

    def note(self, **row: Any) -> None:  # noqa: ANN401 -- a row of JSON
        """Add a line."""
        line = json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n"
        with self._lock:
            self._take(row)
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, b"\n" + line)  # the first byte ends a torn line
                os.fdatasync(fd)
            finally:
                os.close(fd)

    def _take(self, row: dict[str, Any]) -> None:
        file = row["file"]
        if "part" in row:
            self.parts[file, row["upload"], row["part"]] = (row["bytes"], row["token"])
        elif "upload" in row:
            self.uploads[file] = row["upload"]
        else:
            self.stored[file] = row["stored"]


class Spool:
    """The entries of one process. Raises SpoolBusy if another process holds the directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._entries: dict[str, SpoolEntry] = {}
        self._under_way: dict[str, str] = {}  # mirror → id of the entry on its way there
        self._failing: dict[str, str] = {}  # mirror → id of the entry that failed at the last attempt: others go first
        durable.make_directory(directory)
        self._fd = os.open(f"{directory}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            durable.lock(self._fd)  # without locks two processes may send the same for a moment: each request is idempotent
        except BlockingIOError:
            os.close(self._fd)
            message = f"cannot mirror: {directory}: another process holds it"
            raise SpoolBusy(message, hint="wait until it has ended: it ends with its supervisor") from None
        self._load()

    def close(self) -> None:
        """Release the lock."""
        os.close(self._fd)

    def add(self, path: str, step: int | None, raw_manifest: bytes) -> SpoolEntry:
        """Pin a checkpoint and add it durably, if it is not here. Raises OSError, ManifestDamaged."""
        manifest = manifests.decode(raw_manifest)
        name = keys.spool_name(manifest)
        with self._lock:
            if name in self._entries:
                return self._entries[name]
        directory = f"{self._directory}/{name}"
        shutil.rmtree(directory, ignore_errors=True)
        durable.make_directory(f"{directory}/pins")
        held = []
        for number, file in enumerate(manifest.files):
            source = f"{path}/{file.path}" if manifest.is_tree else path
            identity = Identity.of(os.stat(source))  # noqa: PTH116
            how = reflink.pin(source, f"{directory}/pins/{number}")
            held.append(HeldFile(source if how == reflink.PATH else f"{directory}/pins/{number}", how, identity))
        entry = SpoolEntry(directory, path, step, manifest, raw_manifest, tuple(held), time.time())
        durable.sync_directory(f"{directory}/pins")
        staging.write(f"{directory}/{_MANIFEST}", raw_manifest)
        staging.write(f"{directory}/{_ENTRY}", json.dumps(_row(entry)).encode("ascii"))
        with self._lock:
            self._entries[entry.id] = entry
        return entry

    def entries(self) -> tuple[SpoolEntry, ...]:
        """Return the entries, newest first: after days without a mirror the newest is worth most."""
        with self._lock:
            return tuple(sorted(self._entries.values(), key=lambda entry: -entry.at))

    def left(self) -> SpoolLeft:
        """Return how much waits."""
        entries = self.entries()
        return {"left": len(entries), "left_bytes": sum(entry.manifest.n_bytes for entry in entries)}

    def claim(self, mirror: str) -> SpoolEntry | None:
        """Return the entry to upload to a mirror next, claimed until `release`: the unfinished one, else the newest.

        If uploads are slower than saves, the newest alone would leave each upload unfinished for the next.
        """
        with self._lock:
            entry = self._next(mirror)
            if entry is not None:
                self._under_way[mirror] = entry.id
            return entry

    def has_for(self, mirror: str) -> bool:
        """Return whether an entry has not arrived at a mirror yet."""
        with self._lock:
            return self._next(mirror) is not None

    def release(self, mirror: str, *, failing: bool = False) -> None:
        """End a claim. `failing`: the entry failed, so another one goes first."""
        with self._lock:
            claimed = self._under_way.pop(mirror, "")
            self._failing[mirror] = claimed if failing else ""

    def drop_waiting(self, most: int, mirrors: Iterable[str]) -> list[SpoolEntry]:
        """Drop the oldest entries beyond `most`, but not the newest, nor those on their way or unfinished."""
        with self._lock:
            stays = {*self._under_way.values(), *(entry.id for mirror in mirrors if (entry := self._next(mirror)) is not None)}
            ordered = sorted(self._entries.values(), key=lambda entry: entry.at)
        waiting = [entry for entry in ordered[:-1] if entry.id not in stays]
        dropped = waiting[: max(0, len(ordered) - most)]
        for entry in dropped:
            self.drop(entry)
        return dropped

    def holds(self, entry: SpoolEntry) -> bool:
        """Return whether an entry is still here."""
        with self._lock:
            return entry.id in self._entries

    def log(self, entry: SpoolEntry, mirror: str) -> TransferLog:
        """Return the log of an entry at a mirror."""
        return TransferLog.read(f"{entry.directory}/{_mark(mirror)}.jsonl")

    def is_done(self, entry: SpoolEntry, mirror: str) -> bool:
        """Return whether an entry has arrived at a mirror."""
        return os.path.exists(f"{entry.directory}/{_mark(mirror)}.done")  # noqa: PTH110

    def mark_done(self, entry: SpoolEntry, mirror: str, mirrors: Iterable[str]) -> None:
        """Record that an entry has arrived; drop it once it has arrived everywhere."""
        staging.write(f"{entry.directory}/{_mark(mirror)}.done", b"")
        if all(self.is_done(entry, name) for name in mirrors):
            self.drop(entry)

    def drop(self, entry: SpoolEntry) -> None:
        """Drop an entry with its pins."""
        with self._lock:
            self._entries.pop(entry.id, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{entry.directory}/{_ENTRY}")  # noqa: PTH108 -- first: the rest is a leftover after a kill
        shutil.rmtree(entry.directory, ignore_errors=True)

    def _next(self, mirror: str) -> SpoolEntry | None:
        """Return the next entry for a mirror. The caller holds the lock."""
        waiting = [entry for entry in self._entries.values() if not self.is_done(entry, mirror)]
        failing = self._failing.get(mirror)
        started = {entry.id for entry in waiting if os.path.exists(f"{entry.directory}/{_mark(mirror)}.jsonl")}  # noqa: PTH110
        return min(waiting, key=lambda entry: (entry.id == failing, entry.id not in started, -entry.at), default=None)

    def _load(self) -> None:
        """Load the entries of an earlier process. An entry of a later version, or one that cannot be read now, stays with its pins."""
        for name in os.listdir(self._directory):  # noqa: PTH208
            directory = f"{self._directory}/{name}"
            if not os.path.isdir(directory):  # noqa: PTH112
                continue
            try:
                row, raw = json.loads(durable.read(f"{directory}/{_ENTRY}")), durable.read(f"{directory}/{_MANIFEST}")
                held = tuple(HeldFile(path, how, Identity(*identity)) for path, how, identity in row["held"])
                self._entries[name] = SpoolEntry(directory, row["path"], row["step"], manifests.decode(raw), raw, held, row["at"])
            except manifests.Newer:
                continue
            except (FileNotFoundError, ValueError, KeyError, TypeError, manifests.ManifestDamaged):
                shutil.rmtree(directory, ignore_errors=True)
            except OSError:  # too many open files, a slow disk: the next process tries again
                continue


def _row(entry: SpoolEntry) -> dict[str, Any]:
    held = [[h.path, h.how, [h.identity.dev, h.identity.ino, h.identity.size, h.identity.mtime_ns]] for h in entry.held]
    return {"path": entry.path, "step": entry.step, "at": entry.at, "held": held}


def _mark(mirror: str) -> str:
    return hashlib.sha256(mirror.encode()).hexdigest()[:16]
