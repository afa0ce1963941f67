"""Uploads one checkpoint to one mirror: its data, and when all of that is there, its manifest.

A kill may come at any byte. What was sent is in the entry's log or is asked of the mirror, so the next process continues there and sends
no part twice. A part that the mirror has is trusted only if its checksum is right, the log has its token, or its token is the MD5 of our
bytes. Bytes are compared with the manifest while they are read for sending, which is the only time that they are read.

Raises what the backend does, after some attempts; `SourceChanged` if the source no longer is what the manifest says; Interrupted. The
manifest is written only after every file was seen at the mirror with its size.
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
from checkpointing.mirror import layout
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
    """The source is not, or no longer, what its manifest says."""


@dataclass(frozen=True, slots=True)
class Means:
    """What an upload may use. `take` waits until so many bytes may be sent; `pause` waits for seconds, less when told to stop."""

    workers: int = 4
    take: Callable[[int], None] = lambda _n_bytes: None
    pause: Callable[[float], object] = time.sleep
    stopped: Callable[[], bool] = lambda: False
    sent: Callable[[int], None] = lambda _n_bytes: None


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of a source as the body of a request."""

    held: HeldFile
    offset: int
    n_bytes: int
    crc64nvme: int
    means: Means

    def pieces(self) -> Iterator[memoryview]:
        """Read it, no faster than we may send; its pages are given back, as nobody else is expected to want them."""
        fd = _open(self.held)
        try:
            buffer = memoryview(bytearray(min(CHUNK_BYTES, max(self.n_bytes, 1))))
            at, end = self.offset, self.offset + self.n_bytes
            while at < end:
                if self.means.stopped():
                    raise Interrupted
                self.means.take(min(len(buffer), end - at))
                n_read = os.preadv(fd, [buffer[: end - at]], at)
                if not n_read:
                    raise SourceChanged(f"{self.held.path} became shorter")
                yield buffer[:n_read]
                at += n_read
            os.posix_fadvise(fd, self.offset, self.n_bytes, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class _Errand:
    """What is brought where, and what is known of it."""

    backend: Backend
    entry: SpoolEntry
    key: str
    log: TransferLog
    means: Means


@dataclass(slots=True)
class _Sending:
    """A file of which parts are on their way."""

    file: File
    key: str
    upload: Upload | None
    parts: dict[int, StoredPart]
    n_parts: int


def upload(backend: Backend, entry: SpoolEntry, log: TransferLog, means: Means) -> str:
    """Bring an entry to a mirror and return its key there."""
    errand = _Errand(backend, entry, layout.key_of(entry.manifest), log, means)
    if _is_there(errand):
        return errand.key
    _sweep(errand)
    with ThreadPoolExecutor(means.workers, thread_name_prefix="upload") as pool:
        on_way: deque[tuple[_Sending, Future[StoredPart]]] = deque()
        try:
            for sending, number, body in _missing(errand):
                on_way.append((sending, pool.submit(_send, errand, sending, number, body)))
                if len(on_way) > 2 * means.workers:
                    _arrived(errand, *on_way.popleft())
            while on_way:
                _arrived(errand, *on_way.popleft())
        finally:
            for _, future in on_way:
                future.cancel()
    _check(errand)
    raw = entry.raw_manifest
    # another node may have put its manifest meanwhile: it describes the same content, so either may stay
    _insist(means, lambda: backend.put(errand.key + layout.MANIFEST, Bytes(raw, digest.of_bytes(raw))))
    return errand.key


def _is_there(errand: _Errand) -> bool:
    """Say whether the mirror has this content with its manifest. One that is damaged is removed: it vouches for nothing.

    What a later version of us wrote stands under this content's id, and is left to vouch for it.
    """
    try:
        stored = _insist(errand.means, lambda: errand.backend.stat(errand.key + layout.MANIFEST))
    except NotFound:
        return False
    raw = _insist(errand.means, lambda: b"".join(errand.backend.read(stored.key, 0, stored.n_bytes)))
    try:
        return manifests.decode(raw).id == errand.entry.manifest.id
    except manifests.Newer:
        return True
    except manifests.ManifestDamaged:
        errand.backend.remove(stored.key)
        return False


def _sweep(errand: _Errand) -> None:
    """Remove the uploads that were opened for this checkpoint and never noted: we were killed in between."""
    known = set(errand.log.uploads.values())
    for stored in _insist(errand.means, lambda: list(errand.backend.list(errand.key, unfinished=True))):
        if stored.upload_id not in known:
            errand.backend.remove(stored.key, stored.upload_id)


def _missing(errand: _Errand) -> Iterator[tuple[_Sending, int, Piece]]:
    """Yield the parts that are still to be sent; number 0 is a file that is sent whole."""
    for file, held in zip(errand.entry.manifest.files, errand.entry.held, strict=True):
        if file.path in errand.log.stored:
            continue
        object_key = layout.data_key(errand.key, file.path)
        ranges = parts_of(file, errand.entry.manifest.part_bytes)
        if len(ranges) <= 1:
            yield _Sending(file, object_key, None, {}, 0), 0, Piece(held, 0, file.n_bytes, file.crc64nvme, errand.means)
            continue
        bodies = {number: Piece(held, *where, errand.means) for number, where in enumerate(ranges, 1)}
        opened = _opened(errand, object_key, file, len(ranges))
        if opened is None:
            continue
        there = {part.number: part for part in opened.parts if _is_ours(errand, part, bodies.get(part.number), file, opened)}
        there = {number: StoredPart(number, part.n_bytes, part.token, bodies[number].crc64nvme) for number, part in there.items()}
        sending = _Sending(file, object_key, opened, there, len(ranges))
        if len(there) == len(ranges):
            _complete(errand, sending)
        for number in [number for number in bodies if number not in there]:
            yield sending, number, bodies[number]


def parts_of(file: File, part_bytes: int) -> list[tuple[int, int, int]]:
    """Give (offset, n_bytes, crc64nvme) of the parts to send: those of the manifest, several together where S3 allows no more."""
    together = -(-len(file.parts) // _MOST_PARTS) or 1
    found = []
    for first in range(0, len(file.parts), together):
        offset = first * part_bytes
        n_bytes = min(together * part_bytes, file.n_bytes - offset)
        found.append((offset, n_bytes, digest.combine(file.parts[first : first + together], n_bytes, part_bytes)))
    return found


def _opened(errand: _Errand, key: str, file: File, n_parts: int) -> Upload | None:
    """Open the upload that the log knows, or another; None where it was completed before we could note that."""
    known = errand.log.uploads.get(file.path, "")
    if known:
        try:
            opened = _insist(errand.means, lambda: errand.backend.begin(key, known))
            if not _was_completed(errand, key, file, known, n_parts):
                return opened
        except NotFound:
            if not _was_completed(errand, key, file, known, n_parts):
                known = ""
        if known:
            errand.log.note(file=file.path, stored="")
            return None
    # not tried again: each attempt would open another; the next of us sweeps what this one leaves
    opened = errand.backend.begin(key)
    errand.log.note(file=file.path, upload=opened.id)
    return opened


def _was_completed(errand: _Errand, key: str, file: File, upload_id: str, n_parts: int, *, doubted: bool = False) -> bool:  # noqa: PLR0913 -- a flag
    """Say whether the object is there and proven: by what the mirror tells, by the parts that were acknowledged to us, or by reading it.

    `doubted`: what became of the parts was found damaged once, so that their having arrived says nothing.
    """
    try:
        stored = _insist(errand.means, lambda: errand.backend.stat(key))
    except NotFound:
        return False
    if stored.n_bytes != file.n_bytes:
        return False
    if stored.crc64nvme is not None:
        return stored.crc64nvme == file.crc64nvme
    noted = [(number, errand.log.parts.get((file.path, upload_id, number))) for number in range(1, n_parts + 1)]
    parts = [StoredPart(number, *part) for number, part in noted if part is not None]
    if not doubted and len(parts) == n_parts and is_made_of(stored.token, parts) is not False:
        return True
    return _reads_back(errand.backend, stored, file)


def _reads_back(backend: Backend, stored: Stored, file: File) -> bool:
    crc = 0
    for piece in backend.read(stored.key, 0, stored.n_bytes):
        crc = digest.of_bytes(piece, crc)
    return crc == file.crc64nvme


def _is_ours(errand: _Errand, part: StoredPart, body: Piece | None, file: File, opened: Upload) -> bool:
    if body is None or part.n_bytes != body.n_bytes:
        return False
    if part.crc64nvme is not None:
        return part.crc64nvme == body.crc64nvme
    if errand.log.parts.get((file.path, opened.id, part.number)) == (part.n_bytes, part.token):
        return True
    # the server took it and we were killed before we could note that: an MD5 is dearer than a CRC, but cheaper than sending
    md5, crc = hashlib.md5(usedforsecurity=False), 0
    for piece in body.pieces():
        md5.update(piece)
        crc = digest.of_bytes(piece, crc)
    if crc != body.crc64nvme or md5.hexdigest() != part.token:
        return False
    errand.log.note(file=file.path, upload=opened.id, part=part.number, bytes=part.n_bytes, token=part.token)
    return True


def _send(errand: _Errand, sending: _Sending, number: int, body: Piece) -> StoredPart:
    """Send one part, or a small file, and note it."""
    if not body.held.is_same():
        raise SourceChanged(f"{body.held.path} was changed after it was proven")

    def attempt() -> StoredPart:
        try:
            if sending.upload is None:
                stored = errand.backend.put(sending.key, body)
                return StoredPart(0, stored.n_bytes, stored.token, body.crc64nvme)
            return errand.backend.put_part(sending.upload, number, body)
        except TransferDamaged:
            crc = 0
            for piece in body.pieces():
                crc = digest.of_bytes(piece, crc)
            if crc != body.crc64nvme:
                raise SourceChanged(f"{body.held.path} is not what its manifest says") from None
            raise  # it was damaged on the way

    part = _insist(errand.means, attempt)
    if sending.upload is None:
        errand.log.note(file=sending.file.path, stored=part.token)
    else:
        errand.log.note(file=sending.file.path, upload=sending.upload.id, part=number, bytes=part.n_bytes, token=part.token)
    errand.means.sent(body.n_bytes)
    return part


def _arrived(errand: _Errand, sending: _Sending, future: Future[StoredPart]) -> None:
    part = future.result()
    if sending.upload is not None:
        sending.parts[part.number] = part
        if len(sending.parts) == sending.n_parts:
            _complete(errand, sending)


def _complete(errand: _Errand, sending: _Sending) -> None:
    opened, file = sending.upload, sending.file
    if opened is None:
        return
    parts = [sending.parts[number] for number in sorted(sending.parts)]
    doubted = False

    def attempt() -> str:
        nonlocal doubted
        try:
            return errand.backend.complete(opened, parts, file.crc64nvme).token
        except TransferDamaged:
            doubted = True
            raise
        except NotFound:  # an answer that was lost: the first attempt did it
            if _was_completed(errand, sending.key, file, opened.id, len(parts), doubted=doubted):
                return ""
            raise

    try:
        token = _insist(errand.means, attempt)
    except (TransferDamaged, NotFound):
        errand.log.note(file=file.path, upload="")  # the next attempt opens another upload, and sends all of the file
        raise
    errand.log.note(file=file.path, stored=token)


def _check(errand: _Errand) -> None:
    """See every file at the mirror once more before vouching for it: somebody may have tidied up there while we were away."""
    there = {stored.key: stored for stored in _insist(errand.means, lambda: list(errand.backend.list(errand.key)))}
    for file in errand.entry.manifest.files:
        stored = there.get(layout.data_key(errand.key, file.path))
        token = errand.log.stored.get(file.path)
        if stored is None or stored.n_bytes != file.n_bytes or (token and stored.token and token != stored.token):
            errand.log.stored.pop(file.path, None)
            errand.log.uploads.pop(file.path, None)
            message = f"cannot vouch for {errand.backend.url}/{errand.key}: {file.path} is not there, or not as it was sent"
            os.unlink(errand.log.path)  # noqa: PTH108 -- what it says does not hold: the next attempt asks the mirror for everything
            raise TransferDamaged(message, hint="it is uploaded again; see who else writes or removes below the prefix")


def _insist(means: Means, call: Callable[[], Answer]) -> Answer:
    """Make a call that may be made again, a few times, with longer and longer pauses."""

    def pause(seconds: float) -> None:
        means.pause(seconds)
        if means.stopped():
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
