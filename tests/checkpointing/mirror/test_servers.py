"""What servers of S3 differ in: the checksums that they compare, how they deny, who pays, versions, and the way through a proxy."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from checkpointing.manifest import digest
from checkpointing.mirror.backends import Bytes, NotFound, PermissionDenied, S3Options, TransferDamaged
from checkpointing.mirror.backends.opening import open_backend
from tests.checkpointing.mirror import servers
from tests.checkpointing.mirror.faults import FLIP, Fault, Proxy
from tests.checkpointing.mirror.process import PART
from tests.support.http_serving import QuietHandler, served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpointing.mirror.backends import Backend
    from tests.checkpointing.mirror.process import Place

pytestmark = [pytest.mark.process, pytest.mark.s3]
CONTENT = Bytes(b"content", digest.of_bytes(b"content"))
LARGE = Bytes(bytes(PART), digest.of_bytes(bytes(PART)))


@pytest.fixture(params=["swift", pytest.param("older_swift", marks=pytest.mark.slow)])
def behind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, Backend]]:
    """A bucket at a server that compares CRC64NVME, and at one that ignores it without a word."""
    server: servers.Server = request.getfixturevalue(request.param)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)
    bucket = f"b{uuid.uuid4().hex[:16]}"
    server.client().create_bucket(Bucket=bucket)
    with Proxy(server.port) as proxy:
        options = S3Options(endpoint=f"http://127.0.0.1:{proxy.port}", path_style=True, region="us-east-1")
        yield proxy, open_backend(f"s3://{bucket}/pre", options)


def test_damage_on_the_way_is_refused_by_the_first_server_that_compares_anything(behind: tuple[Proxy, Backend]) -> None:
    proxy, backend = behind
    proxy.faults.append(Fault(FLIP, "^PUT.*/first"))
    with suppress(TransferDamaged):
        backend.put("first", CONTENT)
        assert b"".join(backend.read("first", 0, 7)) == b"content", "the server was tried, and it was sent again"
    assert proxy.faults[0].times == 0
    upload = backend.begin("large")
    proxy.faults.append(Fault(FLIP, "^PUT.*partNumber=1"))
    with pytest.raises(TransferDamaged):
        backend.put_part(upload, 1, LARGE)
    part = backend.put_part(upload, 1, LARGE)
    backend.complete(upload, [part], LARGE.crc64nvme)
    assert backend.put("first", CONTENT).n_bytes == 7
    assert b"".join(backend.read("first", 0, 7)) == b"content"


def test_a_server_is_tried_once_for_whether_it_compares(behind: tuple[Proxy, Backend]) -> None:
    proxy, backend = behind
    for name in ("a", "b", "c"):
        backend.put(name, CONTENT)
        assert b"".join(backend.read(name, 0, 7)) == b"content"
    assert tuple(proxy.count(f"^PUT.*/pre/{name}") for name in "abc") in {(2, 1, 1), (3, 1, 1)}


def test_a_denied_missing_object_differs_from_a_forbidden_one(place: Place) -> None:
    backend = place.backend()
    backend.put("there", CONTENT)
    for ask in (backend.stat, lambda key: list(backend.read(key, 0, 7))):
        place.proxy.faults[:] = [Fault("403 AccessDenied", "^(HEAD|GET).*/(missing|there)", times=2)]
        with pytest.raises(NotFound, match="no such object"):
            ask("missing")
        with pytest.raises(PermissionDenied, match=r"403|AccessDenied") as raised:
            ask("there")
        assert not isinstance(raised.value, NotFound)
    place.proxy.faults[:] = [Fault("403 AccessDenied", "^(HEAD|GET)", times=9)]
    with pytest.raises(PermissionDenied, match="403"):
        backend.stat("missing")


def test_every_request_says_that_the_requester_pays(place: Place) -> None:
    backend = open_backend(place.url, S3Options(**place.s3, requester_pays=True))
    says = Fault("418 Paid", ".", times=1000, header="x-amz-request-payer: requester")
    place.proxy.faults.append(says)
    calls = (
        lambda: backend.put("a", CONTENT),
        lambda: backend.begin("a"),
        lambda: backend.begin("a", "id"),
        lambda: backend.stat("a"),
        lambda: list(backend.read("a", 0, 1)),
        lambda: list(backend.list("a")),
        lambda: list(backend.list("a", unfinished=True)),
        lambda: backend.remove("a"),
        lambda: backend.remove("a", "id"),
    )
    for number, call in enumerate(calls):
        before = says.times
        with pytest.raises(PermissionDenied):
            call()
        assert says.times < before, number
    place.proxy.faults.clear()
    place.backend().put("a", CONTENT)


def test_an_object_removed_from_a_versioned_bucket_is_absent_and_can_return(place: Place) -> None:
    place.client.put_bucket_versioning(Bucket=place.bucket, VersioningConfiguration={"Status": "Enabled"})
    backend = place.backend()
    for content in (b"first", b"second"):
        backend.put("a/x", Bytes(content, digest.of_bytes(content)))
    assert [(stored.key, stored.n_bytes) for stored in backend.list("a/")] == [("a/x", 6)]
    assert b"".join(backend.read("a/x", 0, 6)) == b"second"
    backend.remove("a/x")
    assert list(backend.list("a/")) == []
    with pytest.raises(NotFound):
        backend.stat("a/x")
    backend.put("a/x", CONTENT)
    assert backend.stat("a/x").n_bytes == 7


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []

    class Forward(QuietHandler):
        def do_HEAD(self) -> None:
            paths.append(self.path)
            self.send_response(404)
            self.end_headers()

    with served(Forward) as port:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        backend = open_backend("s3://bucket/pre", S3Options(endpoint="http://store.invalid", path_style=True, region="us-east-1"))
        with pytest.raises(NotFound):
            backend.stat("a")
    assert paths == ["http://store.invalid/bucket/pre/a"]
