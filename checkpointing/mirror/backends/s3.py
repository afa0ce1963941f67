"""S3 and whatever speaks its language, as a place for copies.

In: keys, under s3://bucket/prefix. Out: objects. The client is botocore's: boto3 would add a sixth to the CPU of a start, and a transfer
manager whose `crt` kind ignores a custom endpoint and would send the data to the public cloud. Each body announces its CRC64NVME, so that
a server that knows it refuses what was damaged on the way; no server known to us both refuses and tells it, hence what is told afterwards
is compared, else the ETag. Bodies are streamed from the source in pieces, unsigned (the checksum stands for them), so that memory does
not grow with the size of a part. One request is one attempt: who calls decides about another. Credentials come from the usual chain;
after `CredentialsExpired` the next request takes them from there anew.
"""

from __future__ import annotations

import threading
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import botocore.session
from botocore import exceptions as trouble
from botocore.config import Config
from urllib3.exceptions import HTTPError

from checkpointing.io.reader import CHUNK_BYTES
from checkpointing.manifest import digest
from checkpointing.mirror.backends import (
    AlreadyExists,
    BackendError,
    ClockSkewed,
    CredentialsExpired,
    NotFound,
    PermissionDenied,
    Stored,
    StoredPart,
    TransferDamaged,
    Unavailable,
    Upload,
    is_made_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from checkpointing.mirror.backends import Body, S3Options

_MISSING: Final = {"404", "NoSuchKey", "NoSuchUpload", "NotFound"}
_EXISTS: Final = {"412", "PreconditionFailed", "ConditionalRequestConflict"}
_EXPIRED: Final = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_SKEWED: Final = {"RequestTimeTooSkewed", "RequestInTheFuture"}
#: AWS refuses from 900 s on, others from 300 s; a Date header has whole seconds and may be some old.
_SKEW_S: Final = 240.0
_DAMAGED: Final = {
    "BadDigest",
    "InvalidDigest",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
    "IncompleteBody",
    "InvalidPart",
}
_UNSUPPORTED: Final = {"501", "NotImplemented"}
_AWAY: Final = {
    "RequestTimeout",
    "SlowDown",
    "ServiceUnavailable",
    "InternalError",
    "Throttling",
    "ThrottlingException",
    "OperationAborted",
}
_LOST: Final = (
    trouble.HTTPClientError,
    trouble.IncompleteReadError,
    trouble.ResponseStreamingError,
    trouble.EndpointConnectionError,
    HTTPError,  # while a body is read botocore passes on what its library raises, as an SSLError that is no OSError
)
_NO_CREDENTIALS: Final = (trouble.NoCredentialsError, trouble.PartialCredentialsError, trouble.CredentialRetrievalError)


class S3Backend:
    """Copies in a bucket. The client is made at first use, and anew after credentials expired."""

    def __init__(self, url: str, options: S3Options) -> None:
        self._url = url.rstrip("/")
        self._bucket, _, prefix = self._url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._options = options
        self._lock = threading.Lock()
        self._client: Any = None
        self._encrypts = not options.sse  # the server said so once
        self._unsupported: set[str] = set()  # what the server answered 501 to; one of the process's life is enough

    @property
    def url(self) -> str:
        """The bucket and prefix."""
        return self._url

    def put(self, key: str, body: Body, *, only_new: bool = False) -> Stored:
        """Put one object, with If-None-Match where it must be new."""
        self._see_encrypts(key)
        if only_new and "If-None-Match" not in self._unsupported:
            extra: dict[str, Any] = {"IfNoneMatch": "*"}
        elif only_new:
            return self._put_new_unguarded(key, body)
        else:
            extra = {}
        try:
            answer = self._call("put_object", key, body=body, **self._sealed(body), **self._encryption(), **extra)
        except _UnsupportedError:
            if extra:
                self._unsupported.add("If-None-Match")
                return self._put_new_unguarded(key, body)
            self._unseal()
            return self.put(key, body)
        return Stored(key, body.n_bytes, _token(answer), _crc(answer))

    def begin(self, key: str, upload_id: str = "") -> Upload:
        """Create a multipart upload, or list the parts of one."""
        if upload_id:
            return Upload(key, upload_id, tuple(self._parts(key, upload_id)))
        if "checksum" not in self._unsupported:
            try:
                return self._opened(key, ChecksumAlgorithm="CRC64NVME", ChecksumType="FULL_OBJECT")
            except _UnsupportedError:  # the checksum, or something else: what happens without it tells
                pass
        opened = self._opened(key)
        self._unsupported.add("checksum")
        return opened

    def put_part(self, upload: Upload, number: int, body: Body) -> StoredPart:
        """Send one part."""
        try:
            answer = self._call("upload_part", upload.key, body=body, UploadId=upload.id, PartNumber=number, **self._sealed(body))
        except _UnsupportedError:
            self._unseal()
            return self.put_part(upload, number, body)
        told = _crc(answer)
        if told is not None and told != body.crc64nvme:
            raise self._damaged("upload a part", upload.key)
        return StoredPart(number, body.n_bytes, _token(answer), body.crc64nvme)

    def complete(self, upload: Upload, parts: Sequence[StoredPart], crc64nvme: int) -> Stored:
        """Complete, then compare what the server tells: the checksum of the whole, else ETag and size."""
        rows: list[dict[str, Any]] = [
            {"PartNumber": part.number, "ETag": f'"{part.token}"', **({} if "checksum" in self._unsupported else _part_crc(part))}
            for part in parts
        ]
        whole: dict[str, Any] = (
            {} if "checksum" in self._unsupported else {"ChecksumCRC64NVME": digest.to_base64(crc64nvme), "ChecksumType": "FULL_OBJECT"}
        )
        try:
            self._call("complete_multipart_upload", upload.key, UploadId=upload.id, MultipartUpload={"Parts": rows}, **whole)
        except _UnsupportedError:
            self._unseal()
            return self.complete(upload, parts, crc64nvme)
        stored = self.stat(upload.key)
        wrong = (
            stored.n_bytes != sum(part.n_bytes for part in parts)
            or (stored.crc64nvme is not None and stored.crc64nvme != crc64nvme)
            or (stored.crc64nvme is None and is_made_of(stored.token, parts) is False)
        )
        if wrong:
            raise self._damaged("complete", upload.key)
        return stored

    def stat(self, key: str) -> Stored:
        """Head the object."""
        answer = self._call("head_object", key, ChecksumMode="ENABLED")
        return Stored(key, answer["ContentLength"], _token(answer), _crc(answer), at=answer["LastModified"].timestamp())

    def read(self, key: str, offset: int, n_bytes: int) -> Iterator[bytes]:
        """Get a range."""
        if not n_bytes:
            return
        answer = self._call("get_object", key, Range=f"bytes={offset}-{offset + n_bytes - 1}")
        stream, left = answer["Body"], n_bytes
        try:
            while left:
                piece = stream.read(min(CHUNK_BYTES, left))
                if not piece:
                    raise self._away("read", key, "the stream ended early")
                yield piece
                left -= len(piece)
        except (*_LOST, OSError) as error:
            raise self._away("read", key, str(error)) from error
        finally:
            stream.close()

    def list(self, prefix: str, *, unfinished: bool = False) -> Iterator[Stored]:
        """List objects, or uploads, a page at a time."""
        marks: dict[str, Any] = {}
        while True:
            if unfinished:
                page = self._call("list_multipart_uploads", None, Prefix=self._prefix + prefix, **marks)
                for row in page.get("Uploads", ()):
                    if "UploadId" in row and row["Key"].startswith(
                        self._prefix + prefix
                    ):  # Swift lists keys of other prefixes with some versions
                        yield Stored(row["Key"][len(self._prefix) :], upload_id=row["UploadId"], at=row["Initiated"].timestamp())
                marks = {"KeyMarker": page.get("NextKeyMarker", ""), "UploadIdMarker": page.get("NextUploadIdMarker", "")}
            else:
                page = self._call("list_objects_v2", None, Prefix=self._prefix + prefix, **marks)
                for row in page.get("Contents", ()):
                    yield Stored(row["Key"][len(self._prefix) :], row["Size"], _token(row), at=row["LastModified"].timestamp())
                marks = {"ContinuationToken": page.get("NextContinuationToken", "")}
            if not page.get("IsTruncated") or not any(marks.values()):
                return

    def remove(self, key: str, upload_id: str = "") -> None:
        """Delete the object, or abort the upload."""
        try:
            if upload_id:
                self._call("abort_multipart_upload", key, UploadId=upload_id)
            else:
                self._call("delete_object", key)
        except NotFound:
            pass

    def _opened(self, key: str, **checksum: Any) -> Upload:  # noqa: ANN401 -- as of `_call`
        """Open an upload, unless the server does not say that it encrypts where it was told to."""
        answer = self._call("create_multipart_upload", key, **checksum, **self._encryption())
        try:
            self._see_sse("create_multipart_upload", key, answer)
        except PermissionDenied:
            self.remove(key, answer["UploadId"])
            raise
        self._encrypts = True
        return Upload(key, answer["UploadId"])

    def _see_encrypts(self, key: str) -> None:
        """Ask before the first byte, by an upload without parts: what a put answers comes after its bytes were sent."""
        if not self._encrypts:
            self.remove(key, self.begin(key).id)

    def _put_new_unguarded(self, key: str, body: Body) -> Stored:
        """Look first, where the server knows no If-None-Match: two writers in the same moment are not told apart."""
        try:
            self.stat(key)
        except NotFound:
            return self.put(key, body)
        message = f"cannot put: {self._name(key)}: it is there already"
        raise AlreadyExists(message, hint="nothing to do")

    def _parts(self, key: str, upload_id: str) -> Iterator[StoredPart]:
        mark = 0
        while True:
            page = self._call("list_parts", key, UploadId=upload_id, PartNumberMarker=mark)
            for row in page.get("Parts", ()):
                yield StoredPart(row["PartNumber"], row["Size"], _token(row), _crc(row))
            if not page.get("IsTruncated"):
                return
            mark = page["NextPartNumberMarker"]

    def _sealed(self, body: Body) -> dict[str, Any]:
        return {"ContentLength": body.n_bytes} | (
            {} if "checksum" in self._unsupported else {"ChecksumCRC64NVME": digest.to_base64(body.crc64nvme)}
        )

    def _unseal(self) -> None:
        """Do without announced checksums from now on; raises what is being handled where that was done before, and it is something else."""
        if "checksum" in self._unsupported:
            raise  # noqa: PLE0704 -- called where an exception is handled
        self._unsupported.add("checksum")

    def _encryption(self) -> dict[str, Any]:
        kind, _, key = self._options.sse.partition(":kms:")
        if key:
            return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key}
        return {"ServerSideEncryption": kind} if kind else {}

    def _call(self, operation: str, key: str | None, *, body: Body | None = None, **arguments: Any) -> Any:  # noqa: ANN401 -- botocore's clients have no types
        """Make one request and say its failure in our words."""
        if key is not None:
            arguments["Key"] = self._prefix + key
        stream = None
        if body is not None:
            stream = arguments["Body"] = _Stream(body)
        try:
            answer = getattr(self._connected(), operation)(Bucket=self._bucket, **arguments)
        except trouble.ClientError as error:
            raise self._said(operation, key, error) from error
        except _NO_CREDENTIALS as error:
            self._forget()
            raise CredentialsExpired(f"cannot {_words(operation)}: {self._name(key)}: {error}", hint=_CREDENTIALS_HINT) from error
        except (*_LOST, OSError) as error:
            if stream is not None and stream.failed is not None:
                raise stream.failed from error
            raise self._away(operation, key, str(error)) from error
        except trouble.BotoCoreError as error:
            raise PermissionDenied(
                f"cannot {_words(operation)}: {self._name(key)}: {error}", hint="see to the mirror's settings: [checkpoints.s3]"
            ) from error
        if stream is not None and body is not None and stream.crc64nvme != body.crc64nvme:
            raise self._damaged(operation, key)
        if operation == "put_object":
            self._see_sse(operation, key, answer)
        return answer

    def _see_sse(self, operation: str, key: str | None, answer: dict[str, Any]) -> None:
        if self._options.sse and "ServerSideEncryption" not in answer:
            message = f"cannot {_words(operation)}: {self._name(key)}: the server did not say that it encrypts"
            raise PermissionDenied(message, hint="leave sse out, or use a server that knows server-side encryption")

    def _said(self, operation: str, key: str | None, error: trouble.ClientError) -> BackendError:
        """Choose the class for what the server answered."""
        told = error.response.get("Error", {})
        code, status = str(told.get("Code", "")), int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        said = f"cannot {_words(operation)}: {self._name(key)}: {code or status}: {told.get('Message', '')}".rstrip(": ")
        behind_s = _behind_s(error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", ""))
        # a HEAD has no code: only the status, and the server's clock
        skewed = code in _SKEWED or ((status == 403 or code in _EXPIRED) and behind_s is not None and abs(behind_s) > _SKEW_S)  # noqa: PLR2004 -- HTTP
        if skewed:
            said += f": this machine's clock {_apart(behind_s)}"
        rows: tuple[tuple[bool, type[BackendError], str], ...] = (
            (skewed, ClockSkewed, "set this machine's clock (see timedatectl or chronyc tracking); the credentials may be right"),
            (code in _EXPIRED, CredentialsExpired, _CREDENTIALS_HINT),
            (code in _DAMAGED, TransferDamaged, "the source is looked at again"),
            (code in _EXISTS or status == 412, AlreadyExists, "nothing to do"),  # noqa: PLR2004 -- HTTP
            (code in _UNSUPPORTED or status == 501, _UnsupportedError, "the server does not know this"),  # noqa: PLR2004 -- HTTP
            (code in _AWAY or status >= 500 or status in (408, 429), Unavailable, "it is tried again"),  # noqa: PLR2004 -- HTTP
            (code == "NoSuchBucket", PermissionDenied, "make the bucket, or name another one with --mirror"),
            (code in _MISSING or status == 404, NotFound, "it is not there"),  # noqa: PLR2004 -- HTTP
        )
        for holds, kind, hint in rows:
            if holds:
                if issubclass(kind, CredentialsExpired):
                    self._forget()
                return kind(said, hint=hint)
        if status in (400, 403):
            self._forget()  # whoever gives us another key need not start us anew
        return PermissionDenied(said, hint="see to the credentials, and to Put, Get, List and AbortMultipart on the bucket's prefix")

    def _connected(self) -> Any:  # noqa: ANN401 -- as above
        with self._lock:
            if self._client is None:
                self._client = _client(self._options)
            return self._client

    def _forget(self) -> None:
        with self._lock:
            self._client = None

    def _name(self, key: str | None) -> str:
        return self._url if key is None else f"{self._url}/{key}"

    def _away(self, operation: str, key: str | None, why: str) -> Unavailable:
        return Unavailable(f"cannot {_words(operation)}: {self._name(key)}: {why}", hint="it is tried again")

    def _damaged(self, operation: str, key: str | None) -> TransferDamaged:
        return TransferDamaged(
            f"cannot {_words(operation)}: {self._name(key)}: the bytes are not those that were announced", hint="it is uploaded again"
        )


_CREDENTIALS_HINT: Final = "give fresh credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the shared credentials file"


class _UnsupportedError(PermissionDenied):
    """The server answered that it does not know this request."""


class _Stream:
    """A body as a file that botocore can send, and send again from its begin where it must."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._at = 0
        self._pieces = body.pieces()
        self.crc64nvme = 0
        self.failed: Exception | None = None

    def read(self, _n_bytes: int = -1) -> bytes | memoryview:
        """Give the next piece, however many were asked for: the sender asks for 16 KiB, which costs a sixth more CPU."""
        try:
            piece = next(self._pieces, memoryview(b""))
        except Exception as error:  # whatever it is, botocore would wrap it
            self.failed = error
            raise
        self.crc64nvme = digest.of_bytes(piece, self.crc64nvme)
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to the begin, or say where the end is: all that a sender does."""
        if whence == 2:  # noqa: PLR2004 -- SEEK_END
            self._at = self._body.n_bytes + offset
        elif whence == 0:
            self._pieces, self._at, self.crc64nvme = self._body.pieces(), offset, 0
        return self._at

    def tell(self) -> int:
        """Say where we are."""
        return self._at

    def __len__(self) -> int:
        """Say how many bytes there are."""
        return self._body.n_bytes


def _client(options: S3Options) -> Any:  # noqa: ANN401 -- as above
    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},  # the caller decides: it knows what is worth another attempt
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        max_pool_connections=options.connections + 2,
        tcp_keepalive=True,
        request_checksum_calculation="when_required",  # ours is announced with every body
        response_checksum_validation="when_required",  # ours is compared; rclone sends the whole object's with a range
        s3={
            "payload_signing_enabled": False,
            **({} if options.path_style is None else {"addressing_style": "path" if options.path_style else "virtual"}),
        },
    )
    session = botocore.session.Session(profile=options.profile or None)
    return session.create_client(
        "s3",
        endpoint_url=options.endpoint or None,
        region_name=options.region or session.get_config_variable("region") or "us-east-1",
        verify=options.ca_bundle or None,
        config=config,
    )


def _behind_s(date: str) -> float | None:
    """Say by how many seconds our clock is behind a server's Date header; None where it told none."""
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, TypeError):
        return None


def _apart(behind_s: float | None) -> str:
    if behind_s is None:
        return "and the server's are too far apart"
    minutes = abs(behind_s) / 60
    far = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"  # noqa: PLR2004 -- from two hours on
    return f"is {far} {'behind' if behind_s > 0 else 'ahead of'} the server's"


def _token(answer: dict[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _crc(answer: dict[str, Any]) -> int | None:
    """Read the checksum of the whole; a composite one (with a dash) is of the parts' checksums and says nothing here."""
    told = str(answer.get("ChecksumCRC64NVME", ""))
    if not told or answer.get("ChecksumType") == "COMPOSITE":
        return None
    try:
        return digest.from_base64(told)
    except ValueError:
        return None


def _part_crc(part: StoredPart) -> dict[str, str]:
    return {} if part.crc64nvme is None else {"ChecksumCRC64NVME": digest.to_base64(part.crc64nvme)}


def _words(operation: str) -> str:
    return operation.replace("_", " ")
