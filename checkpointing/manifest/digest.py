"""Computes a digest in one pass: CRC-64/NVME of the whole and of each part, and SHA-256 if asked for.

A CRC detects accidents; an adversary can make any content fit. Use SHA-256 against an adversary, at a seventh of the speed.
The CRC of a file can be computed from the CRCs of its parts, without reading its bytes again: of a file that was uploaded in parts, or
read by several threads.

CRC-64/NVME is what S3 calls CRC64NVME: polynomial 0xAD93D23594C93659, reflected, initial value and final XOR all ones; the check value of
"123456789" is ae8b14860a799888. Manifests hold it as 16 hex digits, S3's headers as base64 of its 8 bytes in big-endian order.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from checkpointing.io.reader import FileReader

PART_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of a file.

    `parts`: the CRCs of the parts, each `part_bytes` long, the last one shorter; empty for an empty file. `sha256`: "" if not requested.
    """

    n_bytes: int
    crc64nvme: int
    parts: tuple[int, ...]
    part_bytes: int = PART_BYTES
    sha256: str = ""


def _drop(_piece: memoryview, _hasher: Hasher) -> None:
    """Take bytes, for nobody."""


class Hasher:
    """Computes the digest of bytes that arrive in order. `also` gets them after it, with itself."""

    def __init__(
        self,
        *,
        part_bytes: int = PART_BYTES,
        sha256: bool = False,
        also: Callable[[memoryview, Hasher], object] = _drop,
    ) -> None:
        self._also = also
        self._part_bytes = part_bytes
        self._part_left_bytes = part_bytes
        self._part_crc = 0
        self._parts: list[int] = []
        self._n_bytes = 0
        self._sha256 = hashlib.sha256() if sha256 else None

    @property
    def n_bytes(self) -> int:
        """How many bytes it has had."""
        return self._n_bytes

    def update(self, piece: memoryview) -> None:
        """Add the next bytes."""
        whole = piece
        if self._sha256 is not None:
            self._sha256.update(piece)
        self._n_bytes += len(piece)
        while len(piece) >= self._part_left_bytes:
            self._parts.append(_crc(piece[: self._part_left_bytes], self._part_crc))
            piece = piece[self._part_left_bytes :]
            self._part_crc, self._part_left_bytes = 0, self._part_bytes
        if piece:
            self._part_crc = _crc(piece, self._part_crc)
            self._part_left_bytes -= len(piece)
        self._also(whole, self)

    def crcs(self, first: int, count: int) -> tuple[int, ...]:
        """Return the CRCs of so many parts from one on, of the bytes so far; the last may be of a part that is not whole."""
        unfinished = (self._part_crc,) if self._part_left_bytes < self._part_bytes else ()
        parts = tuple(self._parts[first : first + count])
        return parts if len(parts) == count else (*parts, *unfinished)

    def digest(self) -> Digest:
        """Return the digest of the bytes so far."""
        unfinished = self._part_left_bytes < self._part_bytes
        parts = (*self._parts, self._part_crc) if unfinished else tuple(self._parts)
        whole = combine(parts, self._n_bytes, self._part_bytes)
        return Digest(self._n_bytes, whole, parts, self._part_bytes, self._sha256.hexdigest() if self._sha256 is not None else "")


class Hashers:
    """Computes the digests of files from the reads of their examiner (`ReadOptions.follower`).

    `also` gets the path of a file and its bytes, in their order, as they are read, with what computes their digest.
    """

    def __init__(self, *also: Callable[[str, memoryview, Hasher], object]) -> None:
        self._by_path: dict[str, Hasher] = {}
        self._also = also

    def follower(self, path: str) -> Hasher:
        """Return what follows the reads of the file that is opened at a path."""
        if path not in self._by_path:
            self._by_path[path] = Hasher(also=functools.partial(self._hand_on, path))
        return self._by_path[path]

    def _hand_on(self, path: str, piece: memoryview, hasher: Hasher) -> None:
        for take in self._also:
            take(path, piece, hasher)


def of_source(source: FileReader, hasher: Hasher | None = None, *, part_bytes: int = PART_BYTES, sha256: bool = False) -> Digest:
    """Read a file once; of what `hasher` had already, no byte. Raises Short, Interrupted, OSError."""
    hasher = hasher or Hasher(part_bytes=part_bytes, sha256=sha256)
    for piece in source.stream(hasher.n_bytes, source.size - hasher.n_bytes):
        hasher.update(piece)
    return hasher.digest()


def of_range(source: FileReader, offset: int, n_bytes: int) -> int:
    """Return the CRC of a range of a file. Raises Short, Interrupted, OSError."""
    crc = 0
    for piece in source.stream(offset, n_bytes):
        crc = _crc(piece, crc)
    return crc


def of_bytes(content: bytes | memoryview, before: int = 0) -> int:
    """Return the CRC of bytes in memory. With `before`, the CRC of earlier bytes, return the CRC of both together."""
    return _crc(content, before)


def combine(parts: Sequence[int], n_bytes: int, part_bytes: int = PART_BYTES) -> int:
    """Return the CRC of `n_bytes` from the CRCs of its parts, each `part_bytes` long, the last one shorter."""
    whole = 0
    for number, part in enumerate(parts):
        length = min(part_bytes, n_bytes - number * part_bytes)
        # the first part needs no combining
        whole = int(_model().combine(whole, part, length)) if number else part
    return whole


def to_hex(crc: int) -> str:
    """Write a CRC as manifests do."""
    return f"{crc:016x}"


def from_hex(text: str) -> int:
    """Read a CRC as manifests write it. Raises ValueError for anything else."""
    if len(text) != 16 or text.strip("0123456789abcdef"):  # noqa: PLR2004 -- eight bytes
        message = f"not 16 hexadecimal digits: {text!r}"
        raise ValueError(message)
    return int(text, 16)


def to_base64(crc: int) -> str:
    """Write a CRC as S3's headers do (x-amz-checksum-crc64nvme)."""
    return base64.b64encode(crc.to_bytes(8, "big")).decode("ascii")


def from_base64(text: str) -> int:
    """Read a CRC as S3's headers write it. Raises ValueError for anything else."""
    raw = base64.b64decode(text, validate=True)
    if len(raw) != 8:  # noqa: PLR2004 -- eight bytes
        message = f"not 8 bytes: {text!r}"
        raise ValueError(message)
    return int.from_bytes(raw, "big")


def _crc(piece: bytes | memoryview, before: int) -> int:
    return int(_model().calc(piece, before))


@functools.cache
def _model() -> Any:  # noqa: ANN401 -- anycrc is not typed
    """Import anycrc at the first hash: most importers of this package hash nothing."""
    from anycrc import Model  # noqa: PLC0415 -- as above

    return Model("CRC64-NVME")
