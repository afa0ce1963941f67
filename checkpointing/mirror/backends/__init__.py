"""The storage of a mirror: a contract of eight methods, and one file for each kind of storage.

The class of a `BackendError` tells the caller what to do:

    Unavailable          wait and try again
    CredentialsExpired   get fresh credentials
    PermissionDenied     report it: another attempt does not help
    TransferDamaged      read the source again
    NotFound             nothing: it is an answer

A backend keeps no state that a kill -9 could lose. It is thread-safe. Keys are relative to the mirror's prefix, with "/" between their
parts. The content of a key never changes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from checkpointing.model import CheckpointingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MD5_HEX: Final = 32


class BackendError(CheckpointingError):
    """A request failed. The message holds the storage's own words."""


class NotFound(BackendError):  # noqa: N818 -- an answer
    """There is no such object, or no such upload."""


class PermissionDenied(BackendError):  # noqa: N818 -- a fact about the storage
    """The storage refuses, and would refuse again: permission, wrong bucket, full disk or quota."""


class CredentialsExpired(BackendError):  # noqa: N818 -- a fact about the credentials
    """The credentials are not valid now: fresh ones are needed."""


class ClockSkewed(CredentialsExpired):
    """The two clocks differ by more than the storage allows: it accepts no signature, whatever the credentials."""


class TransferDamaged(BackendError):  # noqa: N818 -- a fact about the bytes
    """A checksum or a length differs from the announced one."""


class Unavailable(BackendError):  # noqa: N818 -- a fact about the storage
    """The storage does not answer, or asks to wait: network, 5xx, SlowDown, timeout."""


class Body(Protocol):
    """The bytes of one object or part. `pieces` reads them from the start, each time it is called."""

    @property
    def n_bytes(self) -> int:
        """Their number."""

    @property
    def crc64nvme(self) -> int:
        """Their checksum by the manifest. The source may have changed since."""

    @property
    def offset(self) -> int:
        """The position of the first one in the object."""

    def pieces(self) -> Iterator[memoryview]:
        """Yield the bytes; a piece is valid until the next one is taken. Raises OSError."""

    def md5(self) -> bytes:
        """Return their MD5, for a storage that knows no other checksum; b"" if they are not those of `crc64nvme`. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object, or with `upload_id` an unfinished upload. `token`: its ETag, if any. crc64nvme None: not reported. `at`: wall time."""

    key: str
    n_bytes: int = 0
    token: str = ""
    crc64nvme: int | None = None
    upload_id: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part that has arrived. `token` is the storage's name for its content (S3: the ETag); parts are numbered from 1. `at`: wall time."""

    number: int
    n_bytes: int
    token: str
    crc64nvme: int | None = None
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload in parts, with the parts that have arrived, ordered by number."""

    key: str
    id: str
    parts: tuple[StoredPart, ...] = ()


def is_intact(stored: Stored, parts: Sequence[StoredPart], crc64nvme: int) -> bool:
    """Return whether an object is made of these parts: by its size, and by its checksum, else its ETag, if the storage reports one."""
    if stored.n_bytes != sum(part.n_bytes for part in parts):
        return False
    if stored.crc64nvme is not None:
        return stored.crc64nvme == crc64nvme
    return is_made_of(stored.token, parts) is not False


def is_made_of(token: str, parts: Sequence[StoredPart]) -> bool | None:
    """Return whether the ETag of an object follows from those of these parts; None if they are not MD5s, as they usually are."""
    whole, dash, _ = token.partition("-")
    tokens = [part.token for part in parts]
    if not dash or not parts or any(len(tag) != MD5_HEX for tag in (whole, *tokens)):
        return None
    try:
        joined = b"".join(bytes.fromhex(token) for token in tokens)
    except ValueError:
        return None
    return token == f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(tokens)}"


class Backend(Protocol):
    """The storage of one mirror. Every method may raise PermissionDenied, CredentialsExpired, Unavailable, and what its docstring names."""

    @property
    def url(self) -> str:
        """The mirror's address as the user wrote it, without a secret."""

    def put(self, key: str, body: Body) -> Stored:
        """Store an object whole, durably, before returning. Idempotent. Raises TransferDamaged if the bytes were not those announced."""

    def begin(self, key: str, upload_id: str = "") -> Upload:
        """Open an upload in parts, or return the one of `upload_id` with the parts that have arrived.

        Without an id not idempotent: each call opens another upload, which must be completed or removed. Raises NotFound if the upload
        `upload_id` was completed or removed, or never existed.
        """

    def put_part(self, upload: Upload, number: int, body: Body) -> StoredPart:
        """Store a part. Idempotent: the last one of a number counts. Raises NotFound (the upload), TransferDamaged (nothing is stored)."""

    def complete(self, upload: Upload, parts: Sequence[StoredPart], crc64nvme: int) -> Stored:
        """Make one object of the parts, atomically. `crc64nvme` is of the whole. Raises TransferDamaged.

        Not idempotent everywhere: raises NotFound if the upload is gone. It is also gone if the answer to a successful call was lost: see
        `stat` then.
        """

    def stat(self, key: str) -> Stored:
        """Return an object's size, ETag and checksum. Raises NotFound."""

    def read(self, key: str, offset: int, n_bytes: int) -> Iterator[bytes]:
        """Yield exactly `n_bytes` of an object from `offset` on. Raises NotFound, and Unavailable if the stream ends early."""

    def list(self, prefix: str, *, unfinished: bool = False, shallow: bool = False) -> Iterator[Stored]:
        """Yield the objects, or with `unfinished` the uploads, whose key begins with `prefix`, page after page.

        With `shallow`, all objects that have the same next "/" after the prefix are one row, whose key ends there.
        """

    def remove(self, key: str, upload_id: str = "") -> None:
        """Remove an object, or with `upload_id` an upload and its parts. Idempotent."""


@dataclass(frozen=True, slots=True)
class S3Options:
    """How to reach S3. Empty: from the environment and ~/.aws. `sse`: AES256, aws:kms or aws:kms:KEY.

    requester_pays: the requester pays for the requests, not the bucket's owner.
    """

    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None
    ca_bundle: str = ""
    sse: str = ""
    profile: str = ""
    requester_pays: bool = False
    connections: int = 4
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Bytes:
    """A body in memory: a manifest, or another small object."""

    content: bytes
    crc64nvme: int
    offset: int = field(default=0)

    @property
    def n_bytes(self) -> int:
        """Its length."""
        return len(self.content)

    def pieces(self) -> Iterator[memoryview]:
        """Yield it in one piece."""
        yield memoryview(self.content)

    def md5(self) -> bytes:
        """Return its MD5."""
        return hashlib.md5(self.content, usedforsecurity=False).digest()
