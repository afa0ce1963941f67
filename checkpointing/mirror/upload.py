"""Uploads one checkpoint to one mirror: its data, and after all of it has arrived, its manifest, which alone makes it count.

The parts of a file come from the pass that reads it (`offer`), and those that it did not hand over are read again (`complete`). A kill may
come at any byte. There is no record of what arrived but the mirror's own: the key is the same after a kill (keys.py), and the mirror lists
the parts of an upload and the objects below the key. A listed object is taken for this upload's only if its checksum is right or, where a
server reports none, if its ETag is the MD5 of our bytes. So no part that has arrived is sent twice.

An upload may be one node's part of a checkpoint: then the manifest of the part is written, and after the last part the joint one
(mirror/joining.py).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from checkpointing.io.reader import Interrupted
from checkpointing.manifest import digest
from checkpointing.manifest import documents as manifests
from checkpointing.mirror import joining, keys
from checkpointing.mirror.backends import (
    MD5_HEX,
    Backend,
    BackendError,
    Bytes,
    NotFound,
    PermissionDenied,
    Stored,
    StoredPart,
    TransferDamaged,
    Upload,
    is_made_of,
)
from checkpointing.mirror.retry import retried
from checkpointing.mirror.source import FileRange, HeldFile, OfferedPart, TransferControl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from checkpointing.manifest.documents import File, Manifest

_MOST_PARTS: Final = 10_000  # S3's limit on the parts of an object
Answer = TypeVar("Answer")


@dataclass(slots=True)
class _FileUpload:
    """One file on its way. `stored`: the object that has its key and size; `upload`: of a file that is sent in parts.

    listed: the parts that the mirror holds of it, unproven; arrived: those that are proven or were sent now. A file that is sent in one
    request is its part 1. `token`: the object's, once it is proven.
    """

    key: str
    n_bytes: int
    stored: Stored | None = None
    upload: Upload | None = None
    listed: dict[int, StoredPart] = field(default_factory=dict)
    arrived: dict[int, StoredPart] = field(default_factory=dict)
    token: str | None = None
    is_open: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin_anew(self) -> None:
        """Forget the facts of the mirror."""
        self.stored = self.upload = self.token = None
        self.listed, self.arrived, self.is_open = {}, {}, False


class CheckpointUpload:
    """One checkpoint on its way to one mirror. `offer` never blocks; `complete` and `abandon` take as long as the network needs."""

    def __init__(self, backend: Backend, key: str, control: TransferControl, part_bytes: int = digest.PART_BYTES) -> None:
        """Ask nothing of the mirror yet. key: see keys.checkpoint_key; part_bytes: of the manifest."""
        self._backend, self._key, self._control, self._part_bytes = backend, key, control, part_bytes
        self._files: dict[str, _FileUpload] = {}
        self._written: set[str] = set()  # the keys of the manifests that this upload writes
        self._pool = ThreadPoolExecutor(control.workers, thread_name_prefix="upload")
        self._offered: list[Future[None]] = []
        self._is_failing = False
        self._lock = threading.Lock()
        self._objects: dict[str, Stored] | None = None

    def begin(self, file: str, n_bytes: int) -> None:
        """Expect the parts of a file: its structure is known to be sound. file: its path relative to the checkpoint."""
        self._files.setdefault(file, _FileUpload(keys.data_key(self._key, file), n_bytes))

    def offer(self, file: str, number: int, content: bytes | memoryview, crc64nvme: int) -> bool:
        """Send a part of a file that was begun, some time; return False if it is not taken.

        number: from 1; each part but the last has `sent_part_bytes`. A part that is taken must stay as it is until `control.on_released`
        is called for it, in any case. After a failure nothing is taken until `complete` has met it.
        """
        sent = self._files.get(file)
        if sent is None or self._is_failing or self._control.is_stopped():
            return False
        offset = (number - 1) * sent_part_bytes(sent.n_bytes, self._part_bytes)
        part = OfferedPart(memoryview(content), offset, crc64nvme, self._control)
        self._offered.append(self._pool.submit(self._take, file, sent, number, part))
        return True

    def complete(self, manifest: Manifest, raw_manifest: bytes, sources: Sequence[HeldFile]) -> str:
        """Send the missing parts and after them the manifest; return the key, "" if this is a part and parts of other nodes are missing.

        sources: of each file of the manifest, in its order. May be called again after a failure. Raises BackendError after some attempts,
        SourceChanged, Interrupted, OSError.
        """
        document = self._key + keys.document_name(manifest)
        wait(self._offered)
        self._offered.clear()
        self._is_failing = False
        self._part_bytes = manifest.part_bytes
        for file in manifest.files:
            self.begin(file.path, file.n_bytes)
        if not self._is_uploaded(document, manifest):
            self._send_missing(manifest, sources)
            self._check(manifest)
            self._written = {document, self._key + keys.MANIFEST}
            # another node may have put its manifest meanwhile: it describes the same save, so either may stay
            self._retried(lambda: self._backend.put(document, Bytes(raw_manifest, digest.of_bytes(raw_manifest))))
        if manifest.part is None or self._retried(lambda: joining.write(self._backend, self._key)):
            return self._key
        return ""

    def abandon(self) -> tuple[str, ...]:
        """Abort and remove the sent parts of a save that turned out bad, manifest first. Return the keys that may not be removed.

        Objects of a manifest that this upload did not write stay: the mirror may be right where the disk went bad since. So do the
        parts of other nodes, and they are not joined. Raises BackendError.
        """
        self._is_failing = True
        wait(self._offered)
        listed = self._listed(self._key)
        stays = self._vouched_for(listed)
        own = {sent.key for sent in self._files.values()} | self._written
        rows = {(sent.key, sent.upload.id) for sent in self._files.values() if sent.upload is not None}
        for stored in (*listed, *self._listed(self._key, unfinished=True)):
            if stored.key in own or not keys.holds_parts(self._key):
                rows.add((stored.key, stored.upload_id))
        denied: list[str] = []
        for key, upload_id in sorted(rows, key=lambda row: (row[0] not in self._written, row)):
            try:
                if upload_id or key not in stays:
                    self._retried(partial(self._backend.remove, key, upload_id))
            except PermissionDenied:
                denied.append(key)
        return tuple(denied)

    def _vouched_for(self, listed: Sequence[Stored]) -> set[str]:
        """Return the keys of what manifests vouch for that this upload did not write, with theirs."""
        vouched: set[str] = set()
        for stored in listed:
            is_manifest = stored.key == self._key + keys.MANIFEST or stored.key.startswith(self._key + keys.PARTS)
            if is_manifest and stored.key not in self._written:
                raw = self._retried(partial(self._content, stored))
                with contextlib.suppress(manifests.ManifestDamaged):
                    vouched.update((stored.key, *(keys.data_key(self._key, file.path) for file in manifests.decode(raw).files)))
        return vouched

    def _take(self, file: str, sent: _FileUpload, number: int, part: OfferedPart) -> None:
        """Send an offered part. If that fails, `complete` reads and sends it again, and raises the error of that."""
        try:
            if not self._is_failing:
                self._send(sent, number, part)
        except (BackendError, Interrupted, OSError):
            self._is_failing = True
        finally:
            self._control.on_released(file, number)

    def _send(self, sent: _FileUpload, number: int, part: FileRange | OfferedPart) -> None:
        """Send one part, or a small file, unless it is there."""
        self._open(sent)
        if sent.stored is not None or number in sent.arrived or self._holds(sent, number, part):
            return

        def attempt() -> StoredPart:
            try:
                if sent.upload is not None:
                    return self._backend.put_part(sent.upload, number, part)
                stored = self._backend.put(sent.key, part)
                return StoredPart(1, stored.n_bytes, stored.token, part.crc64nvme)
            except TransferDamaged:
                part.check()
                raise  # the source is right: it was damaged on the way

        arrived = self._retried(attempt)
        sent.arrived[number] = arrived
        self._control.on_sent(part.n_bytes)

    def _open(self, sent: _FileUpload) -> None:
        """Learn what the mirror holds of a file, and open its upload in parts where it is large."""
        with sent.lock:
            if sent.is_open:
                return
            with self._lock:
                if self._objects is None:
                    self._objects = {stored.key: stored for stored in self._listed(self._key)}
            stored = self._objects.get(sent.key)
            if stored is not None and stored.n_bytes == sent.n_bytes:
                sent.stored = stored
            elif sent.n_bytes > self._part_bytes:
                # the one that is farthest: two processes that were killed may each have opened one
                sent.upload = max(self._unfinished(sent.key), key=lambda upload: len(upload.parts), default=None)
                # one attempt: each would open another upload, and the one whose answer was lost is removed in the end
                sent.upload = sent.upload or self._backend.begin(sent.key)
                sent.listed = {part.number: part for part in sent.upload.parts}
            sent.is_open = True

    def _unfinished(self, key: str) -> Iterator[Upload]:
        """Yield the uploads of an object. By its whole key: some servers list them in no other way."""
        for stored in self._listed(key, unfinished=True):
            if stored.key == key:
                with contextlib.suppress(NotFound):
                    yield self._retried(partial(self._backend.begin, key, stored.upload_id))

    def _holds(self, sent: _FileUpload, number: int, part: FileRange | OfferedPart) -> bool:
        """Return whether the mirror has listed a part of this upload."""
        listed = sent.listed.get(number)
        if listed is None or listed.n_bytes != part.n_bytes:
            return False
        # an MD5 costs more than a CRC, and less than to send it again
        is_ours = part.md5().hex() == listed.token if listed.crc64nvme is None else listed.crc64nvme == part.crc64nvme
        if is_ours:
            sent.arrived[number] = StoredPart(number, listed.n_bytes, listed.token, part.crc64nvme)
        return is_ours

    def _send_missing(self, manifest: Manifest, sources: Sequence[HeldFile]) -> None:
        """Send what did not arrive, make objects of the parts, and remove the uploads that nobody continues."""
        self._run(self._sends(manifest, sources))
        large = [(file, held) for file, held in zip(manifest.files, sources, strict=True) if file.n_bytes > manifest.part_bytes]
        self._run(partial(self._finish, file, self._ranges(file, held)) for file, held in large)

    def _run(self, calls: Iterable[Callable[[], None]]) -> None:
        """Make calls in the upload's threads, few at once. Raises what the first one raises that fails."""
        on_way: deque[Future[None]] = deque()
        try:
            for call in calls:
                on_way.append(self._pool.submit(call))
                if len(on_way) > 2 * self._control.workers:
                    on_way.popleft().result()
            while on_way:
                on_way.popleft().result()
        finally:
            for future in on_way:
                future.cancel()
            wait(on_way)  # the next attempt must not meet a thread that sends the same

    def _sends(self, manifest: Manifest, sources: Sequence[HeldFile]) -> Iterator[Callable[[], None]]:
        """Yield a call for each part of which it is not known that it arrived."""
        for file, held in zip(manifest.files, sources, strict=True):
            sent = self._files[file.path]
            parts = self._ranges(file, held)
            for number, part in enumerate(parts, 1):
                if number in sent.arrived and sent.arrived[number].crc64nvme != part.crc64nvme:
                    del sent.arrived[number]  # of a file that changed between the pass and its manifest
            if len(parts) == 1:
                yield partial(self._send_small, file, parts)
            elif not self._is_there(file, parts):
                for number, part in enumerate(parts, 1):
                    if number not in sent.arrived:
                        yield partial(self._send, sent, number, part)

    def _send_small(self, file: File, parts: Sequence[FileRange]) -> None:
        """Send a file that is sent in one request, unless it is there."""
        if not self._is_there(file, parts):
            sent = self._files[file.path]
            self._send(sent, 1, parts[0])
            sent.token = sent.arrived[1].token

    def _is_there(self, file: File, parts: Sequence[FileRange]) -> bool:
        """Return whether the mirror has a file as an object that is right; if not, its upload is open."""
        sent = self._files[file.path]
        self._open(sent)
        if sent.token is None and sent.stored is not None:
            if self._is_right(sent.key, file, parts):
                sent.token = sent.stored.token
            else:
                self._begin_anew(sent)
                self._open(sent)
        return sent.token is not None

    def _begin_anew(self, sent: _FileUpload) -> None:
        with self._lock:
            (self._objects or {}).pop(sent.key, None)
        sent.begin_anew()

    def _ranges(self, file: File, held: HeldFile) -> tuple[FileRange, ...]:
        """Return the parts to send, the one of an empty file too."""
        parts = parts_of(file, self._part_bytes) or [(0, 0, file.crc64nvme)]
        return tuple(FileRange(held, *part, self._control) for part in parts)

    def _is_right(self, key: str, file: File, parts: Sequence[FileRange]) -> bool:
        """Return whether an object has the file's content: by its checksum, by its ETag if that is an MD5, else by reading it."""
        try:
            stored = self._retried(lambda: self._backend.stat(key))
        except NotFound:
            return False
        if stored.n_bytes != file.n_bytes:
            return False
        if stored.crc64nvme is not None:
            return stored.crc64nvme == file.crc64nvme
        return _has_etag(stored.token, parts) or self._reads_back(stored, file)

    def _reads_back(self, stored: Stored, file: File) -> bool:
        crc = 0
        for piece in self._backend.read(stored.key, 0, stored.n_bytes):
            crc = digest.of_bytes(piece, crc)
        return crc == file.crc64nvme

    def _finish(self, file: File, parts: Sequence[FileRange]) -> None:
        """Make an object of a file's parts, if that is not done."""
        sent = self._files[file.path]
        upload = sent.upload

        def attempt(upload: Upload) -> str:
            try:
                return self._backend.complete(upload, [sent.arrived[number] for number in sorted(sent.arrived)], file.crc64nvme).token
            except NotFound:  # the answer to the first attempt was lost, or another node has completed it
                if self._is_right(sent.key, file, parts):
                    return ""
                raise

        if sent.token is None and upload is not None:
            try:
                sent.token = self._retried(partial(attempt, upload))
            except (TransferDamaged, NotFound):
                with contextlib.suppress(BackendError):  # the next attempt opens another upload, and sends all of the file
                    self._backend.remove(sent.key, upload.id)
                self._begin_anew(sent)
                raise
        for stored in self._listed(sent.key, unfinished=True):
            if stored.key == sent.key:
                self._retried(partial(self._backend.remove, stored.key, stored.upload_id))

    def _check(self, manifest: Manifest) -> None:
        """List every file at the mirror before its manifest is written: somebody may have removed some while the upload waited."""
        there = {stored.key: stored for stored in self._listed(self._key)}
        for file in manifest.files:
            sent = self._files[file.path]
            stored = there.get(sent.key)
            if stored is None or stored.n_bytes != file.n_bytes or (sent.token and stored.token and sent.token != stored.token):
                self._objects = there  # the next attempt proves everything again
                for path in self._files.values():
                    path.begin_anew()
                message = f"cannot complete {self._backend.url}/{self._key}: {file.path} was removed or changed in the mirror"
                raise TransferDamaged(message, hint="it is uploaded again; find out who else writes or removes below the prefix")

    def _is_uploaded(self, document: str, manifest: Manifest) -> bool:
        """Return whether the mirror has this content with its manifest. A damaged manifest is removed.

        A manifest that a later version wrote stays: its key is of this save.
        """
        try:
            stored = self._retried(lambda: self._backend.stat(document))
        except NotFound:
            return False
        raw = self._retried(partial(self._content, stored))
        try:
            if manifests.decode(raw).id == manifest.id:
                return True
        except manifests.Newer:
            return True
        except manifests.ManifestDamaged:
            pass
        self._backend.remove(document)
        return False

    def _content(self, stored: Stored) -> bytes:
        return b"".join(self._backend.read(stored.key, 0, stored.n_bytes))

    def _listed(self, prefix: str, *, unfinished: bool = False) -> list[Stored]:
        return self._retried(lambda: list(self._backend.list(prefix, unfinished=unfinished)))

    def _retried(self, call: Callable[[], Answer]) -> Answer:
        return retried(call, self._pause)

    def _pause(self, seconds: float) -> None:
        self._control.pause(seconds)
        if self._control.is_stopped():
            raise Interrupted


def sent_part_bytes(n_bytes: int, part_bytes: int) -> int:
    """Return the size of the parts in which a file of `n_bytes` is sent: that of the manifest's, joined where S3 would refuse so many."""
    return part_bytes * max(1, -(-n_bytes // (part_bytes * _MOST_PARTS)))


def parts_of(file: File, part_bytes: int) -> list[tuple[int, int, int]]:
    """Return (offset, n_bytes, crc64nvme) of the parts in which a file is sent."""
    size = sent_part_bytes(file.n_bytes, part_bytes)
    together = size // part_bytes
    parts = []
    for offset in range(0, file.n_bytes, size):
        n_bytes, first = min(size, file.n_bytes - offset), offset // part_bytes
        parts.append((offset, n_bytes, digest.combine(file.parts[first : first + together], n_bytes, part_bytes)))
    return parts


def _has_etag(token: str, parts: Sequence[FileRange]) -> bool:
    """Return whether an ETag is the MD5 of these parts; False where it is not a MD5 at all."""
    if len(parts) == 1:
        return len(token) == MD5_HEX and parts[0].md5().hex() == token
    if not token.endswith(f"-{len(parts)}"):
        return False
    md5s = [StoredPart(number, part.n_bytes, part.md5().hex()) for number, part in enumerate(parts, 1)]
    return is_made_of(token, md5s) is True
