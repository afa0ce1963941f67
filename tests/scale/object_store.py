"""An S3 server on loopback that holds hundreds of thousands of objects, and takes its time to answer.

It knows what a start asks of a mirror: ListObjectsV2 (prefix, delimiter, pages of 1,000 as at Amazon), GET and HEAD of an object. Nothing
is written. The objects of `mirror_keys` are named as a mirror names them; only those in `contents` have bytes. `latency_s` passes before
each answer, in a thread for each connection. What was asked is in `requests`.

    with object_store(mirror_keys("bert", checkpoints=293, shards=1024), latency_s=0.2) as store:
        backend = open_backend("s3://bucket", S3Options(endpoint=store.url, region="us-east-1"))
"""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.http_serving import served

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MOST_KEYS: Final = 1000
_DAY: Final = "2026-11-01T00:00:00.000Z"
#: Sorts after every character that a key of a mirror holds.
_LAST: Final = "\U0010ffff"


@dataclass(slots=True)
class ObjectStore:
    """What a server holds and was asked. requests: of each, what it was (`list`, `get`, `head`) and its prefix or key."""

    keys: list[str] = field(repr=False)
    contents: dict[str, bytes] = field(repr=False)
    latency_s: float = 0.0
    requests: list[tuple[str, str]] = field(default_factory=list, repr=False)
    port: int = 0

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def n_lists(self) -> int:
        """How many pages were listed."""
        return sum(kind == "list" for kind, _ in self.requests)

    def page(self, prefix: str, delimiter: str, after: str, most: int) -> tuple[list[str], list[str], str]:
        """Return the keys and the common prefixes of one page, and the last of both, from which the next page continues; "" at the end."""
        keys: list[str] = []
        prefixes: list[str] = []
        last, at = "", max(bisect_left(self.keys, prefix), bisect_left(self.keys, after + _LAST) if after else 0)
        while at < len(self.keys) and self.keys[at].startswith(prefix):
            if len(keys) + len(prefixes) == most:
                return keys, prefixes, last
            key = self.keys[at]
            head, folder, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if folder:
                last = prefix + head + delimiter
                prefixes.append(last)
                at = bisect_left(self.keys, last + _LAST)
            else:
                last = key
                keys.append(key)
                at += 1
        return keys, prefixes, ""

    def size(self, key: str) -> int | None:
        """Return the size of an object, None where there is none."""
        if key in self.contents:
            return len(self.contents[key])
        at = bisect_left(self.keys, key)
        return 1_000_000_000 if at < len(self.keys) and self.keys[at] == key else None


def mirror_keys(job: str, checkpoints: int, shards: int, run: str = "20261101T000000-aaaa") -> Iterator[str]:
    """Yield the keys of a job's checkpoints: of each its manifest and so many shards."""
    for number in range(checkpoints):
        place = f"{job}/{run}/attempt-1/step-{number * 1000}/{number:012x}"
        yield f"{place}/manifest.json"
        for shard in range(shards):
            yield f"{place}/data/__{shard}_0.distcp"


@contextlib.contextmanager
def object_store(keys: Iterable[str], contents: Mapping[str, bytes] | None = None, latency_s: float = 0.0) -> Iterator[ObjectStore]:
    """Serve the objects of a bucket of any name."""
    store = ObjectStore(sorted({*keys, *(contents or {})}), dict(contents or {}), latency_s)

    class Handler(_Handler):
        held = store

    with served(Handler) as store.port:
        yield store


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    held: ObjectStore

    def do_GET(self) -> None:
        key, asked = self._asked()
        if "list-type" in asked:
            self._list({name: values[0] for name, values in asked.items()})
        else:
            self._object("get", key, self.held.contents.get(key))

    def do_HEAD(self) -> None:
        key, _ = self._asked()
        self._object("head", key, None)

    def _asked(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        time.sleep(self.held.latency_s)
        return unquote(parts.path).lstrip("/").partition("/")[2], parse_qs(parts.query, keep_blank_values=True)

    def _list(self, asked: Mapping[str, str]) -> None:
        prefix, most = asked.get("prefix", ""), min(int(asked.get("max-keys", MOST_KEYS)), MOST_KEYS)
        self.held.requests.append(("list", prefix))
        after = asked.get("continuation-token") or asked.get("start-after", "")
        keys, prefixes, last = self.held.page(prefix, asked.get("delimiter", ""), after, most)
        rows = [f"<IsTruncated>{'true' if last else 'false'}</IsTruncated>"]
        rows += [f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"] if last else []
        for key in keys:
            rows.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{_DAY}</LastModified><ETag>&quot;{0:032x}&quot;</ETag>"
                f"<Size>{self.held.size(key)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            )
        rows += [f"<CommonPrefixes><Prefix>{escape(text)}</Prefix></CommonPrefixes>" for text in prefixes]
        self._answer(200, f"<?xml version='1.0'?><ListBucketResult><Name>bucket</Name>{''.join(rows)}</ListBucketResult>".encode())

    def _object(self, kind: str, key: str, body: bytes | None) -> None:
        self.held.requests.append((kind, key))
        size = self.held.size(key) if kind == "head" or body is not None else None
        if size is None:
            self._answer(404, b"" if kind == "head" else b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._answer(200, body or b"", size)

    def _answer(self, status: int, body: bytes, size: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body) if size is None else size))
        self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
        self.send_header("ETag", f'"{0:032x}"')
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")

    def do_POST(self) -> None:
        self.do_PUT()

    def do_DELETE(self) -> None:
        self.do_PUT()

    def log_message(self, *_: object) -> None:
        """Say nothing."""
