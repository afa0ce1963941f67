"""Where copies of checkpoints are kept: one contract of eight methods, and one file for each kind of place.

The class of a `BackendError` says what to do about it:

    Unavailable          wait and try again
    CredentialsExpired   ask for credentials anew
    PermissionDenied     report it: trying again does not help
    TransferDamaged      read the source again
    NotFound             nothing: it is an answer

A backend keeps no state that a kill -9 could lose, and several threads may use it. Keys are relative to the place's prefix, with "/"
between their parts. An object is written once and never changed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from checkpointing.model import CheckpointingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MD5_HEX: Final = 32


class BackendError(CheckpointingError):
    """What failed, where, and why: the place's own words are in the message."""


class NotFound(BackendError):  # noqa: N818 -- an answer
    """There is no such object, or no such upload."""


class PermissionDenied(BackendError):  # noqa: N818 -- a fact about the place
    """We may not do this, and asking again will not help: permission, wrong bucket, full disk or quota."""


class CredentialsExpired(BackendError):  # noqa: N818 -- a fact about the credentials
    """The credentials are no longer, or not yet, good: fresh ones are needed."""


class ClockSkewed(CredentialsExpired):
    """The two clocks differ by more than the place allows: it believes no signature of ours, whatever the credentials."""


class TransferDamaged(BackendError):  # noqa: N818 -- a fact about the bytes
    """What arrived is not what was announced: a checksum or a length differs."""


class Unavailable(BackendError):  # noqa: N818 -- a fact about the place
    """The place does not answer, or asks for patience: network, 5xx, SlowDown, time out."""


class Body(Protocol):
    """The bytes of one object or part. `crc64nvme` is what they have to be; `open` gives a fresh reader from their begin."""

    @property
    def n_bytes(self) -> int:
        """How many there are."""

    @property
    def crc64nvme(self) -> int:
        """The checksum that is announced, and that the bytes have unless the source was changed."""

    @property
    def offset(self) -> int:
        """Where the first of them stands in the object."""

    def pieces(self) -> Iterator[memoryview]:
        """Give the bytes from the begin on; a piece is valid until the next is asked for. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object, or with `upload_id` an upload that was not completed. `at` is wall time; crc64nvme None: the place does not tell it."""

    key: str
    n_bytes: int = 0
    token: str = ""
    crc64nvme: int | None = None
    upload_id: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part that the place holds. `token` is its own name for the content (S3: the ETag); parts are numbered from 1."""

    number: int
    n_bytes: int
    token: str
    crc64nvme: int | None = None


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload in parts, and the parts that are there already, ordered by number."""

    key: str
    id: str
    parts: tuple[StoredPart, ...] = ()


def is_intact(stored: Stored, parts: Sequence[StoredPart], crc64nvme: int) -> bool:
    """Return whether an object is made of these parts: by its size, and by its checksum, else its ETag, where the place has one."""
    if stored.n_bytes != sum(part.n_bytes for part in parts):
        return False
    if stored.crc64nvme is not None:
        return stored.crc64nvme == crc64nvme
    return is_made_of(stored.token, parts) is not False


def is_made_of(token: str, parts: Sequence[StoredPart]) -> bool | None:
    """Return whether the ETag of an object follows from those of these parts; None if they are not MD5s, as they usually are."""
    whole, dash, _ = token.partition("-")
    tokens = [part.token for part in parts]
    if not dash or not parts or any(len(one) != _MD5_HEX for one in (whole, *tokens)):
        return None
    try:
        joined = b"".join(bytes.fromhex(one) for one in tokens)
    except ValueError:
        return None
    return token == f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(tokens)}"


class Backend(Protocol):
    """A place for copies. Every method may raise PermissionDenied, CredentialsExpired, Unavailable; what else is said with it."""

    @property
    def url(self) -> str:
        """The place as the user wrote it, without a secret."""

    def put(self, key: str, body: Body) -> Stored:
        """Store an object whole, durably, before returning. Idempotent. Raises TransferDamaged if the bytes were not those announced."""

    def begin(self, key: str, upload_id: str = "") -> Upload:
        """Open an upload in parts; with `upload_id` the one that was opened before, with the parts that arrived.

        Without an id not idempotent: each call opens another, and what is not completed has to be removed. Raises NotFound where the
        upload `upload_id` was completed, removed or never was.
        """

    def put_part(self, upload: Upload, number: int, body: Body) -> StoredPart:
        """Store a part. Idempotent: the last one of a number counts. Raises NotFound for the upload, TransferDamaged if not stored."""

    def complete(self, upload: Upload, parts: Sequence[StoredPart], crc64nvme: int) -> Stored:
        """Make one object of the parts: all of it, or nothing. `crc64nvme` is of the whole.

        Not idempotent everywhere: raises NotFound where the upload is gone, which it is too after a complete whose answer was lost;
        `stat` then tells.
        """

    def stat(self, key: str) -> Stored:
        """Say what an object is. Raises NotFound."""

    def read(self, key: str, offset: int, n_bytes: int) -> Iterator[bytes]:
        """Yield exactly `n_bytes` of an object from `offset` on. Raises NotFound, and Unavailable where the stream ends early."""

    def list(self, prefix: str, *, unfinished: bool = False) -> Iterator[Stored]:
        """Yield the objects, or with `unfinished` the uploads, whose key begins with `prefix`; nothing where there is none."""

    def remove(self, key: str, upload_id: str = "") -> None:
        """Remove an object, or with `upload_id` an upload and its parts. Idempotent: what is not there is removed."""


@dataclass(frozen=True, slots=True)
class S3Options:
    """How to reach S3; empty is what the environment and the usual configuration files say. `sse`: AES256, aws:kms or aws:kms:KEY."""

    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None
    ca_bundle: str = ""
    sse: str = ""
    profile: str = ""
    connections: int = 4
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0


KEYS_HINT: Final = "the keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from the shared credentials file"


def has_keys(url: str) -> bool:
    """Say whether something that may be a secret stands in a URL, as in `s3://KEY:SECRET@bucket`: it is not to be shown then.

    A secret may hold a slash: `s3://KEY:SEC/RET@bucket` has a colon where the bucket's name would end.
    """
    _, found, rest = url.partition("://")
    host = rest.partition("/")[0]
    return bool(found) and ("@" in host or (":" in host and not host.startswith("arn:")))


@dataclass(frozen=True, slots=True)
class Bytes:
    """A body that is in memory: manifests, and what is small."""

    content: bytes
    crc64nvme: int
    offset: int = field(default=0)

    @property
    def n_bytes(self) -> int:
        """Its length."""
        return len(self.content)

    def pieces(self) -> Iterator[memoryview]:
        """Give it in one piece."""
        yield memoryview(self.content)
