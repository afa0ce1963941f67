"""Single requests to an S3 bucket, at Amazon or any server with the same API. checkpointing/mirror/upload.py uploads a checkpoint by them.

Each request with a body carries the body's CRC64NVME, which the manifest already holds, so that the server rejects a damaged body. The
completion of an upload carries that of the whole. A server that refuses the header (older MinIO, Garage, R2), or does not compare it
(Swift before 2.36), gets the body's MD5 instead, for which a file is read once more. After a multipart upload we compare what the server
reports with what we sent: the CRC64NVME if it has one, else size and ETag. The restore compares every byte.

boto3's transfer manager opens an upload of its own for each file and aborts it on an error: it can neither continue one after a kill nor
take parts out of a pass over the file. So we make the multipart requests ourselves. Bodies stream from the source, so memory does not
grow with the size of a part; they are not signed, because the checksum protects them. No request is retried here; `mirror/upload.py`
retries.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import threading
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import boto3.session
from botocore import exceptions
from botocore.config import Config
from urllib3.exceptions import HTTPError

from checkpointing.io.reader import CHUNK_BYTES
from checkpointing.manifest import digest
from checkpointing.mirror.backends import (
    BackendError,
    Bytes,
    ClockSkewed,
    CredentialsExpired,
    NotFound,
    PermissionDenied,
    Stored,
    StoredPart,
    TransferDamaged,
    Unavailable,
    Upload,
    is_intact,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from checkpointing.mirror.backends import Body, S3Options

_NOT_FOUND: Final = {"404", "NoSuchKey", "NoSuchUpload", "NotFound"}
_EXPIRED: Final = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_SKEWED: Final = {"RequestTimeTooSkewed", "RequestInTheFuture"}
#: AWS refuses a clock that is 900 s off, other servers 300 s. A Date header has whole seconds and may be some seconds old.
_SKEW_S: Final = 240.0
_DAMAGED: Final = {
    "BadDigest",
    "InvalidDigest",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
    "IncompleteBody",
    "InvalidPart",
}
#: Answers of servers that do not know CRC64NVME. Swift 2.34 ignores it in a header, and refuses it in the XML of a completion.
_UNSUPPORTED: Final = {"501", "NotImplemented", "InvalidArgument", "InvalidRequest", "MalformedXML"}
_UNAVAILABLE: Final = {
    "RequestTimeout",
    "SlowDown",
    "ServiceUnavailable",
    "InternalError",
    "Throttling",
    "ThrottlingException",
    "OperationAborted",
}
_CONNECTION_ERRORS: Final = (
    exceptions.HTTPClientError,
    exceptions.IncompleteReadError,
    exceptions.ResponseStreamingError,
    exceptions.EndpointConnectionError,
    HTTPError,  # while a body is read, botocore does not wrap urllib3's exceptions (an SSLError of it is not an OSError)
)
_NO_CREDENTIALS: Final = (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError)
_CREDENTIALS_HINT: Final = "give fresh credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the shared credentials file"
_NO_ARGUMENTS: Final[dict[str, Any]] = {}


class S3Backend:
    """Copies in a bucket. The client is made at first use, and anew after credentials expired."""

    def __init__(self, url: str, options: S3Options) -> None:
        self._url = url.rstrip("/")
        self._bucket, _, prefix = self._url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._options = options
        self._lock = threading.Lock()
        self._client: Any = None
        self._confirmed_sse = not options.sse
        self._sends_checksums = True  # False once the server refused one, or did not compare it
        self._compares_checksums = False  # True once it was seen to

    @property
    def url(self) -> str:
        """The bucket and prefix."""
        return self._url

    def put(self, key: str, body: Body) -> Stored:
        """Put one object."""
        # A put confirms encryption only after all bytes were sent. So first open an empty upload, whose answer shows it, and abort it.
        if not self._confirmed_sse:
            self.remove(key, self.begin(key).id)
        answer = self._send("put_object", key, body, **self._encryption())
        return Stored(key, body.n_bytes, _etag(answer), _crc64nvme(answer))

    def begin(self, key: str, upload_id: str = "") -> Upload:
        """Create a multipart upload, or list the parts of one."""
        if upload_id:
            rows = [row for page in self._pages("list_parts", key, UploadId=upload_id) for row in page.get("Parts", ())]
            return Upload(key, upload_id, tuple(_part(row) for row in rows))
        checksum = {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "FULL_OBJECT"}
        answer = self._call("create_multipart_upload", key, checksum=checksum, **self._encryption())
        try:
            self._check_sse("create_multipart_upload", key, answer)
        except PermissionDenied:
            self.remove(key, answer["UploadId"])
            raise
        self._confirmed_sse = True
        return Upload(key, answer["UploadId"])

    def put_part(self, upload: Upload, number: int, body: Body) -> StoredPart:
        """Send one part."""
        answer = self._send("upload_part", upload.key, body, UploadId=upload.id, PartNumber=number)
        if _crc64nvme(answer) not in (None, body.crc64nvme):
            raise self._damaged("upload a part", upload.key)
        return StoredPart(number, body.n_bytes, _etag(answer), body.crc64nvme)

    def complete(self, upload: Upload, parts: Sequence[StoredPart], crc64nvme: int) -> Stored:
        """Complete the upload, then compare the object that the server reports."""
        plain = [{"PartNumber": part.number, "ETag": f'"{part.token}"'} for part in parts]
        checked = [row | _checksum_argument(part.crc64nvme) for row, part in zip(plain, parts, strict=True)]
        checksum = {"MultipartUpload": {"Parts": checked}, "ChecksumType": "FULL_OBJECT"} | _checksum_argument(crc64nvme)
        self._call("complete_multipart_upload", upload.key, checksum=checksum, UploadId=upload.id, MultipartUpload={"Parts": plain})
        stored = self.stat(upload.key)
        if not is_intact(stored, parts, crc64nvme):
            raise self._damaged("complete", upload.key)
        return stored

    def stat(self, key: str) -> Stored:
        """Head the object."""
        answer = self._asked("head_object", key, ChecksumMode="ENABLED")
        return Stored(key, answer["ContentLength"], _etag(answer), _crc64nvme(answer), at=answer["LastModified"].timestamp())

    def read(self, key: str, offset: int, n_bytes: int) -> Iterator[bytes]:
        """Get a range."""
        if not n_bytes:
            return
        answer = self._asked("get_object", key, Range=f"bytes={offset}-{offset + n_bytes - 1}")
        stream, left = answer["Body"], n_bytes
        try:
            while left:
                piece = stream.read(min(CHUNK_BYTES, left))
                if not piece:
                    raise self._unavailable("read", key, "the stream ended early")
                yield piece
                left -= len(piece)
        except (*_CONNECTION_ERRORS, OSError) as error:
            raise self._unavailable("read", key, str(error)) from error
        finally:
            stream.close()

    def list(self, prefix: str, *, unfinished: bool = False, shallow: bool = False) -> Iterator[Stored]:
        """List objects, or uploads, a page at a time."""
        full, cut = self._prefix + prefix, len(self._prefix)
        if unfinished:
            for page in self._pages("list_multipart_uploads", None, Prefix=full):
                for row in page.get("Uploads", ()):
                    if "UploadId" in row and row["Key"].startswith(full):  # some versions of Swift list keys of other prefixes too
                        yield Stored(row["Key"][cut:], upload_id=row["UploadId"], at=row["Initiated"].timestamp())
        else:
            delimiter = {"Delimiter": "/"} if shallow else {}
            for page in self._pages("list_objects_v2", None, Prefix=full, **delimiter):
                for row in page.get("CommonPrefixes", ()):
                    yield Stored(row["Prefix"][cut:])
                for row in page.get("Contents", ()):
                    yield Stored(row["Key"][cut:], row["Size"], _etag(row), at=row["LastModified"].timestamp())

    def remove(self, key: str, upload_id: str = "") -> None:
        """Delete the object, or abort the upload."""
        try:
            if upload_id:
                self._call("abort_multipart_upload", key, UploadId=upload_id)
            else:
                self._call("delete_object", key)
        except NotFound:
            pass

    def _encryption(self) -> dict[str, Any]:
        kind, _, key = self._options.sse.partition(":kms:")
        if key:
            return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key}
        return {"ServerSideEncryption": kind} if kind else {}

    def _asked(self, operation: str, key: str, **arguments: Any) -> Any:  # noqa: ANN401 -- boto3's clients have no types
        """Ask for an object. Some servers deny one that is not there: then the listing tells which it is."""
        try:
            return self._request(operation, key, None, arguments)
        except PermissionDenied as error:
            try:
                is_there = any(stored.key == key for stored in itertools.islice(self.list(key), 1))
            except BackendError:
                raise error from None
            if is_there:
                raise
            raise NotFound(f"{error.message}: the bucket's listing has no such object", hint=error.hint) from error

    def _send(self, operation: str, key: str, body: Body, **arguments: Any) -> Any:  # noqa: ANN401 -- as above
        """Send a body with a checksum that the server compares: CRC64NVME, else MD5. Raises TransferDamaged."""
        if self._sends_checksums:
            with contextlib.suppress(_NotSupported):
                answer = self._request(operation, key, body, {**arguments, **_checksum_argument(body.crc64nvme)})
                if self._compares_checksums or _crc64nvme(answer) is not None or self._refuses_damage(operation, key, arguments):
                    self._compares_checksums = True
                    return answer
        md5 = body.md5()
        if not md5:
            raise self._damaged(operation, key)
        answer = self._request(operation, key, body, {**arguments, "ContentMD5": base64.b64encode(md5).decode("ascii")})
        self._sends_checksums = False  # if the server refuses for another reason, that was raised
        return answer

    def _refuses_damage(self, operation: str, key: str, arguments: dict[str, Any]) -> bool:
        """Send nothing, with a wrong checksum, in the place of a body that is sent again then: some servers ignore one without a word."""
        try:
            self._request(operation, key, Bytes(b"", 0), {**arguments, **_checksum_argument(1)})
        except TransferDamaged:
            return True
        return False

    def _call(
        self,
        operation: str,
        key: str | None,
        *,
        checksum: dict[str, Any] = _NO_ARGUMENTS,
        **arguments: Any,  # noqa: ANN401 -- boto3's clients have no types
    ) -> Any:  # noqa: ANN401 -- as above
        """Make one request.

        `checksum`: the arguments that carry a checksum. A server that rejects them gets later requests without them.
        """
        if not self._sends_checksums:
            checksum = {}
        try:
            return self._request(operation, key, None, {**arguments, **checksum})
        except _NotSupported:
            if not checksum:
                raise
        answer = self._request(operation, key, None, arguments)  # raises if the server refuses for another reason
        self._sends_checksums = False
        return answer

    def _request(self, operation: str, key: str | None, body: Body | None, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 -- as above
        """Make one request. Every failure raises a BackendError."""
        stream = None if body is None else _Stream(body)
        if stream is not None and body is not None:
            arguments = {**arguments, "Body": stream, "ContentLength": body.n_bytes}
        try:
            answer = getattr(self._connected(), operation)(**self._addressed(key), **arguments)
        except (exceptions.BotoCoreError, exceptions.ClientError, HTTPError, OSError) as error:
            if stream is not None and stream.failed is not None:
                raise stream.failed from error
            raise self._error_for(operation, key, error) from error
        if stream is not None and body is not None and stream.crc64nvme != body.crc64nvme:
            raise self._damaged(operation, key)
        if operation == "put_object":
            self._check_sse(operation, key, answer)
        return answer

    def _pages(self, operation: str, key: str | None, **arguments: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 -- as above
        """Yield the pages of a listing. Raises as `_request` does."""
        try:
            yield from self._connected().get_paginator(operation).paginate(**self._addressed(key), **arguments)
        except (exceptions.BotoCoreError, exceptions.ClientError, HTTPError, OSError) as error:
            raise self._error_for(operation, key, error) from error

    def _addressed(self, key: str | None) -> dict[str, str]:
        payer = {"RequestPayer": "requester"} if self._options.requester_pays else {}
        return {"Bucket": self._bucket, **payer} | ({} if key is None else {"Key": self._prefix + key})

    def _check_sse(self, operation: str, key: str | None, answer: dict[str, Any]) -> None:
        if self._options.sse and "ServerSideEncryption" not in answer:
            message = f"cannot {_words(operation)}: {self._name(key)}: the server did not confirm the encryption"
            raise PermissionDenied(message, hint="leave sse out, or use a server that knows server-side encryption")

    def _error_for(self, operation: str, key: str | None, error: Exception) -> BackendError:
        """Return the BackendError for an error of boto3's."""
        if isinstance(error, exceptions.ClientError):
            return self._error_for_answer(operation, key, error)
        message = f"cannot {_words(operation)}: {self._name(key)}: {error}"
        if isinstance(error, _NO_CREDENTIALS):
            self._forget()
            return CredentialsExpired(message, hint=_CREDENTIALS_HINT)
        if isinstance(error, (*_CONNECTION_ERRORS, OSError)):
            return self._unavailable(operation, key, str(error))
        return PermissionDenied(message, hint="check how the mirror is reached: endpoint, region, profile, certificates")

    def _error_for_answer(self, operation: str, key: str | None, error: exceptions.ClientError) -> BackendError:
        """Return the BackendError for an error answer of the server."""
        answer, metadata = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
        code, status = str(answer.get("Code", "")), int(metadata.get("HTTPStatusCode", 0))
        message = f"cannot {_words(operation)}: {self._name(key)}: {code or status}: {answer.get('Message', '')}".rstrip(": ")
        behind_s = _behind_s(metadata.get("HTTPHeaders", {}).get("date", ""))
        # a HEAD has no code: only the status, and the server's clock
        skewed = code in _SKEWED or ((status == 403 or code in _EXPIRED) and behind_s is not None and abs(behind_s) > _SKEW_S)  # noqa: PLR2004 -- HTTP
        if skewed:
            message += f": this machine's clock {_apart(behind_s)}"
        rows: tuple[tuple[bool, type[BackendError], str], ...] = (
            (skewed, ClockSkewed, "set this machine's clock (see timedatectl or chronyc tracking); the credentials may be right"),
            (code in _EXPIRED, CredentialsExpired, _CREDENTIALS_HINT),
            (code in _DAMAGED, TransferDamaged, "the source is read again"),
            (code in _UNSUPPORTED or status == 501, _NotSupported, "check the mirror's settings, such as sse"),  # noqa: PLR2004 -- HTTP
            (code in _UNAVAILABLE or status >= 500 or status in (408, 429), Unavailable, "it is tried again"),  # noqa: PLR2004 -- HTTP
            (code == "NoSuchBucket", PermissionDenied, "make the bucket, or name another one with --mirror"),
            (code in _NOT_FOUND or status == 404, NotFound, "check that the object exists below the mirror's prefix"),  # noqa: PLR2004 -- HTTP
        )
        for holds, kind, hint in rows:
            if holds:
                if issubclass(kind, CredentialsExpired):
                    self._forget()
                return kind(message, hint=hint)
        if status in (400, 403):
            self._forget()  # the next request makes a new client and so finds credentials that were replaced, without a restart
        return PermissionDenied(message, hint="check the credentials, and Put, Get, List and AbortMultipart on the bucket's prefix")

    def _connected(self) -> Any:  # noqa: ANN401 -- as above
        with self._lock:
            if self._client is None:
                self._client = _client(self._options)
            return self._client

    def _forget(self) -> None:
        """Drop the client. The next request makes a new one, which looks its credentials up again."""
        with self._lock:
            self._client = None

    def _name(self, key: str | None) -> str:
        return self._url if key is None else f"{self._url}/{key}"

    def _unavailable(self, operation: str, key: str | None, why: str) -> Unavailable:
        return Unavailable(f"cannot {_words(operation)}: {self._name(key)}: {why}", hint="it is tried again")

    def _damaged(self, operation: str, key: str | None) -> TransferDamaged:
        return TransferDamaged(f"cannot {_words(operation)}: {self._name(key)}: the checksums differ", hint="it is uploaded again")


class _NotSupported(PermissionDenied):
    """The server does not know an argument of this request. A PermissionDenied, because another attempt does not help either."""


class _Stream:
    """A body as a file that botocore can send, and send again from its start after a redirect."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._at = 0
        self._pieces = body.pieces()
        self.crc64nvme = 0
        self.failed: Exception | None = None

    def read(self, _n_bytes: int = -1) -> bytes | memoryview:
        """Return the next piece, whatever length was asked for: the sender asks for 16 KiB, and so small pieces cost a sixth more CPU."""
        try:
            piece = next(self._pieces, memoryview(b""))
        except Exception as error:  # botocore would wrap it
            self.failed = error
            raise
        self.crc64nvme = digest.of_bytes(piece, self.crc64nvme)
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = 0) -> int:
        """Seek. Only two seeks occur: to the start (to send again) and to the end (to learn the size)."""
        if whence == 2:  # noqa: PLR2004 -- SEEK_END
            self._at = self._body.n_bytes + offset
        elif whence == 0:
            self._pieces, self._at, self.crc64nvme = self._body.pieces(), offset, 0
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self._body.n_bytes


def _client(options: S3Options) -> Any:  # noqa: ANN401 -- as above
    """Make a client as any program with boto3 does: empty options are taken from the environment and the shared files."""
    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},  # the caller decides which failure is worth another attempt
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        max_pool_connections=options.connections + 2,
        tcp_keepalive=True,
        request_checksum_calculation="when_required",  # we send our own with every body
        # We compare checksums ourselves. boto3 would fail on rclone, which answers a range with the whole object's checksum.
        response_checksum_validation="when_required",
        s3={
            "payload_signing_enabled": False,
            **({} if options.path_style is None else {"addressing_style": "path" if options.path_style else "virtual"}),
        },
    )
    session = boto3.session.Session(profile_name=options.profile or None)
    return session.client(
        "s3",
        endpoint_url=options.endpoint or None,
        region_name=options.region or session.region_name or "us-east-1",
        verify=options.ca_bundle or None,
        config=config,
    )


def _behind_s(date: str) -> float | None:
    """Return by how many seconds our clock is behind a server's Date header; None without one."""
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


def _etag(answer: dict[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _part(row: dict[str, Any]) -> StoredPart:
    return StoredPart(row["PartNumber"], row["Size"], _etag(row), _crc64nvme(row), row["LastModified"].timestamp())


def _checksum_argument(crc64nvme: int | None) -> dict[str, str]:
    return {} if crc64nvme is None else {"ChecksumCRC64NVME": digest.to_base64(crc64nvme)}


def _crc64nvme(answer: dict[str, Any]) -> int | None:
    """Return the checksum of the whole object or part. A composite one, over the parts' checksums, is ignored."""
    text = str(answer.get("ChecksumCRC64NVME", ""))
    if not text or answer.get("ChecksumType") == "COMPOSITE":
        return None
    try:
        return digest.from_base64(text)
    except ValueError:
        return None


def _words(operation: str) -> str:
    return operation.replace("_", " ")
