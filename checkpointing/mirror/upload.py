"""Uploads one checkpoint to one mirror: its data, and after all of it has arrived, its manifest.

A kill may come at any byte. The entry's log and the mirror hold the parts that were sent. So the next process continues there and sends no
part twice. A part at the mirror is trusted only if its checksum is right, if the log has its ETag, or if its ETag is the MD5 of our bytes.
The source is read once: its bytes are compared with the manifest while they are sent. The manifest is written after every file was
listed at the mirror with its size.

An entry may be one node's part of a checkpoint: then the manifest of the part is written, and after the last part the joint one
(mirror/joining.py).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import tenacity

from checkpointing.io.reader import CHUNK_BYTES, Interrupted
from checkpointing.manifest import digest
from checkpointing.manifest import documents as manifests
from checkpointing.manifest.documents import File
from checkpointing.mirror import joining, keys
from checkpointing.mirror.backends import (
    Backend,
    Bytes,
    NotFound,
    StoredPart,
    TransferDamaged,
    Unavailable,
    Upload,
    is_made_of,
)
from checkpointing.mirror.spool import HeldFile, SpoolEntry, TransferLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpointing.mirror.backends import Stored

_MOST_PARTS: Final = 10_000  # S3's limit on the parts of an object
_TRIES: Final = 5
Answer = TypeVar("Answer")


class SourceChanged(Exception):  # noqa: N818 -- a fact about the source
    """The source differs from its manifest."""


@dataclass(frozen=True, slots=True)
class TransferControl:
    """How an upload is limited, stopped and followed.

    `throttle` waits until so many bytes may be sent. `pause` waits for seconds, or until a stop. `on_sent` gets the bytes of each part
    that arrived. Threads of the upload call them.
    """

    workers: int = 4
    throttle: Callable[[int], None] = lambda _n_bytes: None
    pause: Callable[[float], object] = time.sleep
    is_stopped: Callable[[], bool] = lambda: False
    on_sent: Callable[[int], None] = lambda _n_bytes: None


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of a source as the body of a request."""

    held: HeldFile
    offset: int
    n_bytes: int
    crc64nvme: int
    control: TransferControl

    def pieces(self) -> Iterator[memoryview]:
        """Read it, no faster than it may be sent. Its pages leave the page cache: nobody else is expected to read them."""
        fd = _open(self.held)
        try:
            buffer = memoryview(bytearray(min(CHUNK_BYTES, max(self.n_bytes, 1))))
            at, end = self.offset, self.offset + self.n_bytes
            while at < end:
                if self.control.is_stopped():
                    raise Interrupted
                self.control.throttle(min(len(buffer), end - at))
                n_read = os.preadv(fd, [buffer[: end - at]], at)
                if not n_read:
                    raise SourceChanged(f"{self.held.path} became shorter")
                yield buffer[:n_read]
                at += n_read
            os.posix_fadvise(fd, self.offset, self.n_bytes, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class _Transfer:
    """One upload: what is sent where, and what is known to have arrived."""

    backend: Backend
    entry: SpoolEntry
    key: str
    log: TransferLog
    control: TransferControl


@dataclass(slots=True)
class _FileUpload:
    """One file of it, with the parts that have arrived. `upload`: None for a file that is sent in one request."""

    file: File
    key: str
    upload: Upload | None
    parts: dict[int, StoredPart]
    n_parts: int


def upload(backend: Backend, entry: SpoolEntry, log: TransferLog, control: TransferControl) -> str:
    """Upload an entry to a mirror and return its key there, "" if it is a part, and parts of other nodes are missing.

    Raises BackendError after some attempts, SourceChanged, Interrupted.
    """
    transfer = _Transfer(backend, entry, keys.key_of(entry.manifest), log, control)
    if not _is_uploaded(transfer):
        _upload(transfer)
    if entry.manifest.part is None or _retried(control, lambda: joining.write(backend, transfer.key)):
        return transfer.key
    return ""


def _upload(transfer: _Transfer) -> None:
    """Send what is missing, and after it the manifest."""
    control, backend = transfer.control, transfer.backend
    _sweep(transfer)
    with ThreadPoolExecutor(control.workers, thread_name_prefix="upload") as pool:
        on_way: deque[tuple[_FileUpload, Future[StoredPart]]] = deque()
        try:
            for file_upload, number, body in _missing(transfer):
                on_way.append((file_upload, pool.submit(_send, transfer, file_upload, number, body)))
                if len(on_way) > 2 * control.workers:
                    _arrived(transfer, *on_way.popleft())
            while on_way:
                _arrived(transfer, *on_way.popleft())
        finally:
            for _, future in on_way:
                future.cancel()
    _check(transfer)
    raw = transfer.entry.raw_manifest
    # another node may have put its manifest meanwhile: it describes the same content, so either may stay
    _retried(control, lambda: backend.put(keys.document_key(transfer.entry.manifest), Bytes(raw, digest.of_bytes(raw))))


def _is_uploaded(transfer: _Transfer) -> bool:
    """Return whether the mirror has this content with its manifest. A damaged manifest is removed.

    A manifest that a later version wrote stays: its key holds the id of this content.
    """
    try:
        stored = _retried(transfer.control, lambda: transfer.backend.stat(keys.document_key(transfer.entry.manifest)))
    except NotFound:
        return False
    raw = _retried(transfer.control, lambda: b"".join(transfer.backend.read(stored.key, 0, stored.n_bytes)))
    try:
        return manifests.decode(raw).id == transfer.entry.manifest.id
    except manifests.Newer:
        return True
    except manifests.ManifestDamaged:
        transfer.backend.remove(stored.key)
        return False


def _sweep(transfer: _Transfer) -> None:
    """Remove the uploads that were opened for these files and are not in the log: a kill came in between."""
    known = set(transfer.log.uploads.values())
    own = {keys.data_key(transfer.key, file.path) for file in transfer.entry.manifest.files}  # other nodes may send theirs just now
    for stored in _retried(transfer.control, lambda: list(transfer.backend.list(transfer.key, unfinished=True))):
        if stored.upload_id not in known and stored.key in own:
            transfer.backend.remove(stored.key, stored.upload_id)


def _missing(transfer: _Transfer) -> Iterator[tuple[_FileUpload, int, Piece]]:
    """Yield the parts that are still to be sent; number 0 is a file that is sent in one request."""
    for file, held in zip(transfer.entry.manifest.files, transfer.entry.held, strict=True):
        if file.path in transfer.log.stored:
            continue
        object_key = keys.data_key(transfer.key, file.path)
        ranges = parts_of(file, transfer.entry.manifest.part_bytes)
        if len(ranges) <= 1:
            yield _FileUpload(file, object_key, None, {}, 0), 0, Piece(held, 0, file.n_bytes, file.crc64nvme, transfer.control)
            continue
        bodies = {number: Piece(held, *where, transfer.control) for number, where in enumerate(ranges, 1)}
        opened = _opened(transfer, object_key, file, len(ranges))
        if opened is None:
            continue
        there = {part.number: part for part in opened.parts if _is_ours(transfer, part, bodies.get(part.number), file, opened)}
        there = {number: StoredPart(number, part.n_bytes, part.token, bodies[number].crc64nvme) for number, part in there.items()}
        file_upload = _FileUpload(file, object_key, opened, there, len(ranges))
        if len(there) == len(ranges):
            _complete(transfer, file_upload)
        for number in [number for number in bodies if number not in there]:
            yield file_upload, number, bodies[number]


def parts_of(file: File, part_bytes: int) -> list[tuple[int, int, int]]:
    """Return (offset, n_bytes, crc64nvme) of the parts to send: those of the manifest, joined where S3 would refuse so many."""
    together = -(-len(file.parts) // _MOST_PARTS) or 1
    found = []
    for first in range(0, len(file.parts), together):
        offset = first * part_bytes
        n_bytes = min(together * part_bytes, file.n_bytes - offset)
        found.append((offset, n_bytes, digest.combine(file.parts[first : first + together], n_bytes, part_bytes)))
    return found


def _opened(transfer: _Transfer, key: str, file: File, n_parts: int) -> Upload | None:
    """Open the upload that the log knows, or a new one; None if it was completed before a kill, and only the log lacks that."""
    known = transfer.log.uploads.get(file.path, "")
    if known:
        try:
            opened = _retried(transfer.control, lambda: transfer.backend.begin(key, known))
            if not _was_completed(transfer, key, file, known, n_parts):
                return opened
        except NotFound:
            if not _was_completed(transfer, key, file, known, n_parts):
                known = ""
        if known:
            transfer.log.note(file=file.path, stored="")
            return None
    # one attempt: each would open another upload; the next process sweeps the one whose answer was lost
    opened = transfer.backend.begin(key)
    transfer.log.note(file=file.path, upload=opened.id)
    return opened


def _was_completed(transfer: _Transfer, key: str, file: File, upload_id: str, n_parts: int, *, doubted: bool = False) -> bool:  # noqa: PLR0913 -- a flag
    """Return whether the object is there and right: by its checksum, by the parts that the mirror acknowledged, or by reading it.

    `doubted`: the completed object was found damaged once, so that the acknowledged parts prove nothing.
    """
    try:
        stored = _retried(transfer.control, lambda: transfer.backend.stat(key))
    except NotFound:
        return False
    if stored.n_bytes != file.n_bytes:
        return False
    if stored.crc64nvme is not None:
        return stored.crc64nvme == file.crc64nvme
    noted = [(number, transfer.log.parts.get((file.path, upload_id, number))) for number in range(1, n_parts + 1)]
    parts = [StoredPart(number, *part) for number, part in noted if part is not None]
    if not doubted and len(parts) == n_parts and is_made_of(stored.token, parts) is not False:
        return True
    return _reads_back(transfer.backend, stored, file)


def _reads_back(backend: Backend, stored: Stored, file: File) -> bool:
    crc = 0
    for piece in backend.read(stored.key, 0, stored.n_bytes):
        crc = digest.of_bytes(piece, crc)
    return crc == file.crc64nvme


def _is_ours(transfer: _Transfer, part: StoredPart, body: Piece | None, file: File, opened: Upload) -> bool:
    if body is None or part.n_bytes != body.n_bytes:
        return False
    if part.crc64nvme is not None:
        return part.crc64nvme == body.crc64nvme
    if transfer.log.parts.get((file.path, opened.id, part.number)) == (part.n_bytes, part.token):
        return True
    # the server has it, and a kill came before the log had it: an MD5 costs more than a CRC, and less than to send it again
    md5, crc = hashlib.md5(usedforsecurity=False), 0
    for piece in body.pieces():
        md5.update(piece)
        crc = digest.of_bytes(piece, crc)
    if crc != body.crc64nvme or md5.hexdigest() != part.token:
        return False
    transfer.log.note(file=file.path, upload=opened.id, part=part.number, bytes=part.n_bytes, token=part.token)
    return True


def _send(transfer: _Transfer, file_upload: _FileUpload, number: int, body: Piece) -> StoredPart:
    """Send one part, or a small file, and log it."""
    if not body.held.is_same():
        raise SourceChanged(f"{body.held.path} changed after it was verified")

    def attempt() -> StoredPart:
        try:
            if file_upload.upload is None:
                stored = transfer.backend.put(file_upload.key, body)
                return StoredPart(0, stored.n_bytes, stored.token, body.crc64nvme)
            return transfer.backend.put_part(file_upload.upload, number, body)
        except TransferDamaged:
            crc = 0
            for piece in body.pieces():
                crc = digest.of_bytes(piece, crc)
            if crc != body.crc64nvme:
                raise SourceChanged(f"{body.held.path} differs from its manifest") from None
            raise  # the source is right: it was damaged on the way

    part = _retried(transfer.control, attempt)
    if file_upload.upload is None:
        transfer.log.note(file=file_upload.file.path, stored=part.token)
    else:
        transfer.log.note(file=file_upload.file.path, upload=file_upload.upload.id, part=number, bytes=part.n_bytes, token=part.token)
    transfer.control.on_sent(body.n_bytes)
    return part


def _arrived(transfer: _Transfer, file_upload: _FileUpload, future: Future[StoredPart]) -> None:
    part = future.result()
    if file_upload.upload is not None:
        file_upload.parts[part.number] = part
        if len(file_upload.parts) == file_upload.n_parts:
            _complete(transfer, file_upload)


def _complete(transfer: _Transfer, file_upload: _FileUpload) -> None:
    opened, file = file_upload.upload, file_upload.file
    if opened is None:
        return
    parts = [file_upload.parts[number] for number in sorted(file_upload.parts)]
    doubted = False

    def attempt() -> str:
        nonlocal doubted
        try:
            return transfer.backend.complete(opened, parts, file.crc64nvme).token
        except TransferDamaged:
            doubted = True
            raise
        except NotFound:  # the answer to the first attempt was lost
            if _was_completed(transfer, file_upload.key, file, opened.id, len(parts), doubted=doubted):
                return ""
            raise

    try:
        token = _retried(transfer.control, attempt)
    except (TransferDamaged, NotFound):
        transfer.log.note(file=file.path, upload="")  # the next attempt opens another upload, and sends all of the file
        raise
    transfer.log.note(file=file.path, stored=token)


def _check(transfer: _Transfer) -> None:
    """List every file at the mirror before its manifest is written: somebody may have removed some while the upload waited."""
    there = {stored.key: stored for stored in _retried(transfer.control, lambda: list(transfer.backend.list(transfer.key)))}
    for file in transfer.entry.manifest.files:
        stored = there.get(keys.data_key(transfer.key, file.path))
        token = transfer.log.stored.get(file.path)
        if stored is None or stored.n_bytes != file.n_bytes or (token and stored.token and token != stored.token):
            transfer.log.stored.pop(file.path, None)
            transfer.log.uploads.pop(file.path, None)
            message = f"cannot complete {transfer.backend.url}/{transfer.key}: {file.path} was removed or changed in the mirror"
            os.unlink(transfer.log.path)  # noqa: PTH108 -- it is wrong: the next attempt asks the mirror for everything
            raise TransferDamaged(message, hint="it is uploaded again; find out who else writes or removes below the prefix")


def _retried(control: TransferControl, call: Callable[[], Answer]) -> Answer:
    """Make an idempotent call, again after a failure that may pass, with longer and longer pauses."""

    def pause(seconds: float) -> None:
        control.pause(seconds)
        if control.is_stopped():
            raise Interrupted

    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(_TRIES),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
        retry=tenacity.retry_if_exception_type((Unavailable, TransferDamaged)),
        sleep=pause,
        reraise=True,
    )
    return retrying(call)


def _open(held: HeldFile) -> int:
    try:
        return os.open(held.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SourceChanged(f"{held.path} is gone") from None
