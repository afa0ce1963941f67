"""Hands the parts of files to uploads from the bytes of a pass, within a budget of memory.

The pass never waits: a part for which there is no room, because the mirrors are slower than the disk, is not handed over, and its upload
reads it again later.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.manifest import digest
from checkpointing.mirror.upload import sent_part_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkpointing.mirror.upload import CheckpointUpload

BUDGET_BYTES: Final = 256 << 20
#: The memory of a pass before any part of it was sent: three parts, so that two are ready while a mirror that keeps up takes the first.
FIRST_BYTES: Final = 96 << 20


class PartBuffer:
    """The memory that parts on their way may take, of all passes of a process. Thread-safe.

    While a pass continues, the memory of a part that was sent is given to the next part: to get a GB anew from the kernel, which fills it
    with zeros, costs more than to verify a GB. For the same reason a pass begins with little, and may take more with each part that was
    sent: where the mirror takes nothing, all of it would be filled for nothing.
    """

    def __init__(self, budget_bytes: int = BUDGET_BYTES, first_bytes: int = FIRST_BYTES) -> None:
        """Begin empty."""
        self._lock = threading.Lock()
        self._budget_bytes, self._first_bytes = budget_bytes, first_bytes
        self._most_bytes = min(first_bytes, budget_bytes)  # that may be taken now
        self._taken_bytes = 0  # on their way, or kept
        self._n_passes = 0
        self._free: list[bytearray] = []

    def begin_pass(self) -> None:
        """Keep the memory of parts that were sent."""
        with self._lock:
            if not self._n_passes:
                self._most_bytes = min(self._first_bytes, self._budget_bytes)
            self._n_passes += 1

    def end_pass(self) -> None:
        """Give the kept memory back, unless another pass continues."""
        with self._lock:
            self._n_passes -= 1
            if not self._n_passes:
                self._drop_free()

    def reserve(self, n_bytes: int) -> bytearray | None:
        """Return memory for a part, `n_bytes` or more; None if there is no room."""
        with self._lock:
            fitting = [content for content in self._free if len(content) >= n_bytes]
            if fitting:
                content = min(fitting, key=len)
                self._free = [other for other in self._free if other is not content]
                return content
            if self._taken_bytes + n_bytes > self._most_bytes:
                self._drop_free()
            # the first part may be larger than what a pass begins with: that of a file beyond 320 GB has over 32 MiB
            if self._taken_bytes + n_bytes > (self._most_bytes if self._taken_bytes else self._budget_bytes):
                return None
            self._taken_bytes += n_bytes
        return bytearray(n_bytes)

    def release(self, content: bytearray) -> None:
        """Take the memory of a part back."""
        with self._lock:
            self._most_bytes = min(self._budget_bytes, self._most_bytes + len(content))
            self._free.append(content)
            if not self._n_passes:
                self._drop_free()

    def _drop_free(self) -> None:
        self._taken_bytes -= sum(map(len, self._free))
        self._free.clear()


@dataclass(slots=True)
class _FilePass:
    """How far the pass over a file is. content: the memory of the part under way, None if there was no room for it."""

    member: str
    n_bytes: int
    part_bytes: int
    at: int = 0
    content: bytearray | None = None


@dataclass(slots=True)
class _HeldPart:
    """A part on its way, and how many uploads have it."""

    content: bytearray
    n_uploads: int


class PartSink:
    """Cuts one checkpoint into parts while it is read, and offers each to its uploads. `take` and `close` belong to one thread."""

    def __init__(self, path: str, buffer: PartBuffer) -> None:
        """Offer nothing before `uploads` are set. `path`: the checkpoint, a file or a directory."""
        self.uploads: Sequence[CheckpointUpload] = ()
        self._root = os.path.realpath(path)
        self._is_tree = os.path.isdir(path)  # noqa: PTH112 -- strings throughout the package
        self._name = path.rstrip("/").rpartition("/")[2]
        self._buffer = buffer
        self._files: dict[str, _FilePass | None] = {}
        self._lock = threading.Lock()
        self._held: dict[tuple[str, int], _HeldPart] = {}
        buffer.begin_pass()

    def take(self, path: str, piece: memoryview, hasher: digest.Hasher) -> None:
        """Add the next bytes of the file that was opened at a path; `hasher` has had them."""
        if path not in self._files:
            self._files[path] = self._begun(path)
        file = self._files[path]
        while file is not None and piece and file.at < file.n_bytes:
            number, filled = divmod(file.at, file.part_bytes)
            part_bytes = min(file.part_bytes, file.n_bytes - number * file.part_bytes)
            if filled == 0:
                file.content = self._buffer.reserve(part_bytes)
            now = piece[: part_bytes - filled]
            if file.content is not None:
                with memoryview(file.content) as content:  # a bytearray's own slice makes a copy first
                    content[filled : filled + len(now)] = now
            file.at += len(now)
            piece = piece[len(now) :]
            if filled + len(now) == part_bytes and file.content is not None:
                self._offer(file, number, file.content, part_bytes, hasher)
                file.content = None

    def released(self, member: str, number: int) -> None:
        """Note that one upload does not need a part any more. In any thread."""
        with self._lock:
            held = self._held[member, number]
            held.n_uploads -= 1
            if held.n_uploads:
                return
            del self._held[member, number]
        self._buffer.release(held.content)

    def close(self) -> None:
        """Give back the room of parts that will not be whole."""
        for file in self._files.values():
            if file is not None and file.content is not None:
                self._buffer.release(file.content)
                file.content = None
        self._buffer.end_pass()

    def _begun(self, path: str) -> _FilePass | None:
        """Return the file of the checkpoint that was opened at a path; None for another file."""
        real = os.path.realpath(path)
        member = real.removeprefix(f"{self._root}/") if self._is_tree else self._name
        if self._is_tree and member == real:
            return None
        try:
            n_bytes = os.stat(real).st_size  # noqa: PTH116 -- as above
        except OSError:  # removed meanwhile, which the end of the pass shows
            return None
        for upload in self.uploads:
            upload.begin(member, n_bytes)
        return _FilePass(member, n_bytes, sent_part_bytes(n_bytes, digest.PART_BYTES))

    def _offer(self, file: _FilePass, number: int, content: bytearray, n_bytes: int, hasher: digest.Hasher) -> None:
        together = file.part_bytes // digest.PART_BYTES
        crc = digest.combine(hasher.crcs(number * together, together), n_bytes)
        with self._lock:
            self._held[file.member, number + 1] = _HeldPart(content, len(self.uploads))
        for upload in self.uploads:
            if not upload.offer(file.member, number + 1, memoryview(content)[:n_bytes], crc):
                self.released(file.member, number + 1)
