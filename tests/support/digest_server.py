"""An S3 server on loopback that keeps the digests of what it gets, and nothing else: 200 GB cost it no room.

It knows what an upload asks: PUT of an object, uploads in parts (create, part, list, complete, abort), HEAD, ListObjectsV2, and GET of
small objects, which it keeps. It compares each body with its CRC64NVME, and reports that. `n_received` counts the bytes that arrived.

    with digest_server() as server:
        backend = open_backend("s3://bucket", S3Options(endpoint=server.url, region="us-east-1", path_style=True))
"""

from __future__ import annotations

import contextlib
import re
import threading
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from checkpointing.manifest import digest
from tests.support.http_serving import served

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEPT_BYTES: Final = 8 << 20
_MOST_ROWS: Final = 1000
_DAY: Final = "2026-11-01T00:00:00.000Z"
_CHECKSUM: Final = "x-amz-checksum-crc64nvme"


@dataclass(frozen=True)
class Digest:
    """An object or a part that was received. content: of a small object."""

    n_bytes: int
    crc64nvme: int
    content: bytes = b""

    @property
    def tag(self) -> str:
        """Its ETag, which is no MD5, as where a key of KMS encrypts."""
        return f"{self.crc64nvme:016x}-0"


@dataclass
class DigestServer:
    """What the server holds. uploads: the parts of each, by its id and their number."""

    port: int = 0
    objects: dict[str, Digest] = field(default_factory=dict)
    uploads: dict[str, tuple[str, dict[int, Digest]]] = field(default_factory=dict)
    n_received: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def digest_server() -> Iterator[DigestServer]:
    """Serve a bucket of any name."""
    digest_server = DigestServer()

    class Handler(_Handler):
        server_state = digest_server

    with served(Handler) as digest_server.port:
        yield digest_server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: DigestServer

    def do_PUT(self) -> None:
        key, query = self._asked()
        received = self._receive()
        if received is None:
            self._refuse(400, "BadDigest")
        elif "uploadId" not in query:
            self.server_state.objects[key] = received
            self._answer(b"", received)
        elif query["uploadId"] in self.server_state.uploads:
            self.server_state.uploads[query["uploadId"]][1][int(query["partNumber"])] = received
            self._answer(b"", received)
        else:
            self._refuse(404, "NoSuchUpload")

    def do_POST(self) -> None:
        key, query = self._asked()
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server_state = self.server_state
        if "uploads" in query:
            with server_state.lock:
                upload_id = f"upload-{len(server_state.uploads)}-{len(server_state.objects)}"
                server_state.uploads[upload_id] = (key, {})
            self._answer(f"<InitiateMultipartUploadResult><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>".encode())
            return
        _, parts = server_state.uploads.pop(query["uploadId"], ("", {}))
        if not parts:
            self._refuse(404, "NoSuchUpload")
            return
        ordered = [parts[number] for number in sorted(parts)]
        crc = digest.combine([part.crc64nvme for part in ordered], sum(part.n_bytes for part in ordered), ordered[0].n_bytes)
        server_state.objects[key] = Digest(sum(part.n_bytes for part in ordered), crc)
        self._answer(b"<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")

    def do_HEAD(self) -> None:
        key, _ = self._asked()
        stored = self.server_state.objects.get(key)
        if stored is None:
            self._refuse(404, "")
        else:
            self._answer(b"", stored, length=stored.n_bytes)

    def do_GET(self) -> None:
        key, query = self._asked()
        state, prefix = self.server_state, query.get("prefix", "")
        if "list-type" in query:
            rows = "".join(
                f"<Contents><Key>{escape(name)}</Key><LastModified>{_DAY}</LastModified><ETag>{stored.tag}</ETag>"
                f"<Size>{stored.n_bytes}</Size></Contents>"
                for name, stored in sorted(state.objects.items())
                if name.startswith(prefix)
            )
            self._answer(f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode())
        elif "uploads" in query:
            rows = "".join(
                f"<Upload><Key>{escape(name)}</Key><UploadId>{upload_id}</UploadId><Initiated>{_DAY}</Initiated></Upload>"
                for upload_id, (name, _) in state.uploads.items()
                if name.startswith(prefix)
            )
            self._answer(f"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>{rows}</ListMultipartUploadsResult>".encode())
        elif "uploadId" in query:
            self._list_parts(query)
        elif key in state.objects:
            self._answer(state.objects[key].content, state.objects[key])
        else:
            self._refuse(404, "NoSuchKey")

    def do_DELETE(self) -> None:
        key, query = self._asked()
        if "uploadId" in query:
            self.server_state.uploads.pop(query["uploadId"], None)
        else:
            self.server_state.objects.pop(key, None)
        self._answer(b"")

    def _list_parts(self, query: dict[str, str]) -> None:
        if query["uploadId"] not in self.server_state.uploads:
            self._refuse(404, "NoSuchUpload")
            return
        parts = self.server_state.uploads[query["uploadId"]][1]
        numbers = [number for number in sorted(parts) if number > int(query.get("part-number-marker", 0))]
        rows = "".join(
            f"<Part><PartNumber>{number}</PartNumber><LastModified>{_DAY}</LastModified><ETag>{parts[number].tag}</ETag>"
            f"<Size>{parts[number].n_bytes}</Size><ChecksumCRC64NVME>{digest.to_base64(parts[number].crc64nvme)}</ChecksumCRC64NVME></Part>"
            for number in numbers[:_MOST_ROWS]
        )
        more = f"<NextPartNumberMarker>{numbers[_MOST_ROWS - 1]}</NextPartNumberMarker>" if len(numbers) > _MOST_ROWS else ""
        truncated = "true" if more else "false"
        self._answer(f"<ListPartsResult><IsTruncated>{truncated}</IsTruncated>{more}{rows}</ListPartsResult>".encode())

    def _receive(self) -> Digest | None:
        """Return the digest of the body; None if it is not what was announced."""
        left, crc, kept = int(self.headers["Content-Length"]), 0, b""
        n_bytes, buffer = left, memoryview(bytearray(1 << 20))
        while left:
            n_read = self.rfile.readinto(buffer[: min(left, len(buffer))])  # type: ignore[attr-defined]
            if not n_read:
                raise EOFError
            crc = digest.of_bytes(buffer[:n_read], crc)
            kept += bytes(buffer[:n_read]) if n_bytes <= _KEPT_BYTES else b""
            left -= n_read
            with self.server_state.lock:
                self.server_state.n_received += n_read
        announced = self.headers.get(_CHECKSUM)
        return Digest(n_bytes, crc, kept) if announced in (None, digest.to_base64(crc)) else None

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        return re.sub(r"^/[^/]+/?", "", unquote(parts.path)), query

    def _refuse(self, status: int, code: str) -> None:
        self._answer(f"<Error><Code>{code}</Code></Error>".encode() if code else b"", status=status)

    def _answer(self, body: bytes, stored: Digest | None = None, *, status: int = 200, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("Last-Modified", formatdate(0, usegmt=True))
        if stored is not None:
            self.send_header("ETag", f'"{stored.tag}"')
            self.send_header(_CHECKSUM, digest.to_base64(stored.crc64nvme))
            self.send_header("x-amz-checksum-type", "FULL_OBJECT")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
