"""The bytes of an upload: a range of a file that is read, or a part that a pass over the file has in memory.

Both are bodies of requests (backends.Body), and send no faster than the upload's control permits.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkpointing.io import durable, reflink
from checkpointing.io.reader import CHUNK_BYTES, Interrupted
from checkpointing.manifest import digest
from checkpointing.model import Identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpointing.manifest.documents import Manifest


class SourceChanged(Exception):  # noqa: N818 -- a fact about the source
    """The source differs from its manifest."""


@dataclass(frozen=True, slots=True)
class TransferControl:
    """How an upload is limited, stopped and followed. Threads of the upload call these.

    `throttle` waits until so many bytes may be sent. `pause` waits for seconds, or until a stop. `on_sent` gets the bytes of each part
    that arrived. `on_released` gets the file and the number of each part that was offered, once its memory is not needed any more.
    """

    workers: int = 4
    throttle: Callable[[int], None] = lambda _n_bytes: None
    pause: Callable[[float], object] = time.sleep
    is_stopped: Callable[[], bool] = lambda: False
    on_sent: Callable[[int], None] = lambda _n_bytes: None
    on_released: Callable[[str, int], None] = lambda _file, _number: None


@dataclass(frozen=True, slots=True)
class HeldFile:
    """One file of a checkpoint: the path that is read, how it is pinned (reflink, link or path), and the identity of the right content."""

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


def held_files(path: str, manifest: Manifest) -> tuple[HeldFile, ...]:
    """Return the files of a checkpoint as they are now, where nothing pins them. Raises OSError."""
    paths = [f"{path}/{file.path}" if manifest.is_tree else path for file in manifest.files]
    return tuple(HeldFile(path, reflink.PATH, Identity.of(os.stat(path))) for path in paths)  # noqa: PTH116 -- strings throughout


def pinned_files(path: str, manifest: Manifest, directory: str) -> tuple[HeldFile, ...]:
    """Pin the files of a checkpoint in an empty directory, durably, as far as that is possible (io/reflink.py). Raises OSError."""
    pinned = []
    for number, held in enumerate(held_files(path, manifest)):
        pin = f"{directory}/{number}"
        how = reflink.pin(held.path, pin)
        pinned.append(HeldFile(held.path if how == reflink.PATH else pin, how, held.identity))
    durable.sync_directory(directory)
    return tuple(pinned)


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of a file."""

    held: HeldFile
    offset: int
    n_bytes: int
    crc64nvme: int
    control: TransferControl

    def pieces(self) -> Iterator[memoryview]:
        """Read it, no faster than it may be sent. Its pages leave the page cache: nobody else is expected to read them."""
        for piece in self._read(drops_cache=True):
            self.control.throttle(len(piece))
            yield piece

    def md5(self) -> bytes:
        """Read it, and compare it: b"" if its bytes are not those that were announced."""
        return _md5(self._read(), self.crc64nvme)

    def check(self) -> None:
        """Read it, and compare it. Raises SourceChanged."""
        if not self.md5():
            raise SourceChanged(f"{self.held.path} differs from its manifest")

    def _read(self, *, drops_cache: bool = False) -> Iterator[memoryview]:
        fd = _open(self.held)
        try:
            buffer = memoryview(bytearray(min(CHUNK_BYTES, max(self.n_bytes, 1))))
            at, end = self.offset, self.offset + self.n_bytes
            while at < end:
                if self.control.is_stopped():
                    raise Interrupted
                n_read = os.preadv(fd, [buffer[: end - at]], at)
                if not n_read:
                    raise SourceChanged(f"{self.held.path} became shorter")
                yield buffer[:n_read]
                at += n_read
            if drops_cache:
                os.posix_fadvise(fd, self.offset, self.n_bytes, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class OfferedPart:
    """A part that a pass over the file has in memory."""

    content: memoryview
    offset: int
    crc64nvme: int
    control: TransferControl

    @property
    def n_bytes(self) -> int:
        """Its length."""
        return len(self.content)

    def pieces(self) -> Iterator[memoryview]:
        """Yield it, no faster than it may be sent."""
        for at in range(0, len(self.content), CHUNK_BYTES):
            piece = self.content[at : at + CHUNK_BYTES]
            if self.control.is_stopped():
                raise Interrupted
            self.control.throttle(len(piece))
            yield piece

    def md5(self) -> bytes:
        """Return its MD5."""
        return hashlib.md5(self.content, usedforsecurity=False).digest()

    def check(self) -> None:
        """Nothing changes it."""


def _md5(pieces: Iterator[memoryview], crc64nvme: int) -> bytes:
    md5, crc = hashlib.md5(usedforsecurity=False), 0
    for piece in pieces:
        md5.update(piece)
        crc = digest.of_bytes(piece, crc)
    return md5.digest() if crc == crc64nvme else b""


def _open(held: HeldFile) -> int:
    try:
        return os.open(held.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SourceChanged(f"{held.path} is gone") from None
