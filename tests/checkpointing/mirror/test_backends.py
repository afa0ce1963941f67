"""The contract of eight methods, held by each kind of place: a directory, two versions of Swift, and moto's server."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import pytest
from urllib3.exceptions import SSLError

from checkpointing.manifest import digest
from checkpointing.mirror.backends import Backend, Bytes, NotFound, PermissionDenied, S3Options, TransferDamaged, Unavailable
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.model import CheckpointingError
from tests.checkpointing.mirror import servers
from tests.checkpointing.mirror.process import PART

if TYPE_CHECKING:
    from pathlib import Path

KINDS = [
    "file",
    pytest.param("swift", marks=[pytest.mark.s3, pytest.mark.process]),
    pytest.param("older_swift", marks=[pytest.mark.s3, pytest.mark.process, pytest.mark.slow]),
    pytest.param("moto", marks=[pytest.mark.s3, pytest.mark.process, pytest.mark.slow]),
]


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    if request.param == "file":
        (tmp_path / "mirror").mkdir()
        return open_backend(str(tmp_path / "mirror"))
    server: servers.Server = request.getfixturevalue(request.param)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)
    bucket = f"b{uuid.uuid4().hex[:16]}"
    server.client().create_bucket(Bucket=bucket)
    return open_backend(f"s3://{bucket}/pre", S3Options(endpoint=server.endpoint, path_style=True))


def body(content: bytes, offset: int = 0) -> Bytes:
    return Bytes(content, digest.of_bytes(content), offset)


def test_a_stored_object_is_listed_and_can_be_removed_twice(backend: Backend) -> None:
    backend.put("a/x y%20ä/1", body(b"one"))
    backend.put("a/2", body(b""))
    backend.put("ab/3", body(b"three"))
    assert b"".join(backend.read("a/x y%20ä/1", 1, 2)) == b"ne"
    assert [(stored.key, stored.n_bytes) for stored in sorted(backend.list("a/"), key=lambda stored: stored.key)] == [
        ("a/2", 0),
        ("a/x y%20ä/1", 3),
    ]
    assert backend.stat("ab/3").n_bytes == 5
    backend.remove("a/2")
    backend.remove("a/2")
    assert {stored.key for stored in backend.list("")} == {"a/x y%20ä/1", "ab/3"}


def test_a_shallow_list_has_one_row_for_all_that_lies_deeper(backend: Backend) -> None:
    for key in ("a%2Fb/1", "a%2Fb/c/2", "a%2Fb/c/d/3", "a%2Fb/e/4", "f/5", "g"):
        backend.put(key, body(b"x"))
    assert sorted(stored.key for stored in backend.list("", shallow=True)) == ["a%2Fb/", "f/", "g"]
    assert sorted(stored.key for stored in backend.list("a%2Fb/", shallow=True)) == ["a%2Fb/1", "a%2Fb/c/", "a%2Fb/e/"]
    assert list(backend.list("none/", shallow=True)) == []


def test_an_object_that_is_put_twice_is_there_once(backend: Backend) -> None:
    for _ in range(2):
        backend.put("m", body(b"first"))
    assert [(stored.key, stored.n_bytes) for stored in backend.list("")] == [("m", 5)]
    assert b"".join(backend.read("m", 0, 5)) == b"first"


def test_an_absent_object_is_missing(backend: Backend) -> None:
    with pytest.raises(NotFound):
        backend.stat("none")
    with pytest.raises(NotFound):
        list(backend.read("none", 0, 1))
    with pytest.raises(NotFound):
        backend.begin("none", "MjE2ODc5YjMtMTczMS00YzRlLWI2MDEtYTA1NDIwYTgyNjcx")
    assert list(backend.list("none")) == []
    assert list(backend.list("none", unfinished=True)) == []
    backend.remove("none", "MjE2ODc5YjMtMTczMS00YzRlLWI2MDEtYTA1NDIwYTgyNjcx")


def test_bytes_that_are_not_those_announced_are_not_stored(backend: Backend) -> None:
    with pytest.raises(TransferDamaged):
        backend.put("bad", Bytes(b"content", 1))
    # moto stores what it did not check; who put it knows, and vouches for nothing


def test_an_upload_in_parts_is_nothing_until_it_is_completed_and_can_be_gone_on_with(backend: Backend) -> None:
    first, last = os.urandom(PART), b"the end"
    upload = backend.begin("big/one")
    first_part = backend.put_part(upload, 1, body(first))
    assert list(backend.list("big/")) == []
    assert [(stored.key, stored.upload_id) for stored in backend.list("big/", unfinished=True)] == [("big/one", upload.id)]
    again = backend.begin("big/one", upload.id)
    assert [(part.number, part.n_bytes, part.token) for part in again.parts] == [(1, PART, first_part.token)]
    second_part = backend.put_part(again, 2, body(last, PART))
    whole = digest.of_bytes(first + last)
    stored = backend.complete(again, [first_part, second_part], whole)
    assert stored.n_bytes == PART + len(last)
    assert stored.crc64nvme in (None, whole)
    assert b"".join(backend.read("big/one", PART - 2, 9)) == first[-2:] + last
    assert list(backend.list("big/", unfinished=True)) == []


def test_an_upload_that_is_given_up_leaves_nothing(backend: Backend) -> None:
    upload = backend.begin("gone")
    backend.put_part(upload, 1, body(b"x"))
    backend.remove("gone", upload.id)
    backend.remove("gone", upload.id)
    assert list(backend.list("", unfinished=True)) == []
    with pytest.raises(NotFound):
        backend.begin("gone", upload.id)


def test_a_name_with_part_in_it_is_an_object_like_any_other(backend: Backend) -> None:
    for name in ("weights.part-00001.pt", "weights.part-1", "x.part-0123456789abcdef.pt"):
        backend.put(f"a/{name}", body(b"x"))
        assert [stored.key for stored in backend.list(f"a/{name}")] == [f"a/{name}"]
    assert list(backend.list("", unfinished=True)) == []


def test_an_object_whose_name_is_as_long_as_a_name_may_be_is_kept_and_its_upload_found_and_removed(tmp_path: Path) -> None:
    backend = open_backend(str(tmp_path))
    for name in ("x" * 255, "é" * 127):
        backend.put(f"a/{name}", body(b"one"))
        assert b"".join(backend.read(f"a/{name}", 0, 3)) == b"one"
        upload = backend.begin(f"b/{name}")
        part = backend.put_part(upload, 1, body(b"two"))
        assert backend.begin(f"b/{name}", upload.id).parts == (part,)
        assert [stored.upload_id for stored in backend.list("b/", unfinished=True)] == [upload.id]
        assert not list(backend.list("b/"))
        backend.complete(upload, [part], digest.of_bytes(b"two"))
        left = backend.begin(f"c/{name}")
        [stored] = backend.list("c/", unfinished=True)
        assert stored.upload_id == left.id
        backend.remove(stored.key, stored.upload_id)
        assert {stored.key for stored in backend.list("")} == {f"a/{name}", f"b/{name}"}
        assert not (tmp_path / "c").exists()
        backend.remove(f"a/{name}")
        backend.remove(f"b/{name}")


def test_the_log_that_a_kill_left_after_the_rename_is_found_and_removed(tmp_path: Path) -> None:
    backend = open_backend(str(tmp_path))
    upload = backend.begin("a/x")
    backend.put_part(upload, 1, body(b"abc"))
    (tmp_path / "a" / f"x.part-{upload.id}").rename(tmp_path / "a" / "x")  # killed here, before the log went
    assert [stored.key for stored in backend.list("")] == ["a/x"]
    assert [(stored.key, stored.upload_id) for stored in backend.list("", unfinished=True)] == [("a/x", upload.id)]
    backend.remove("a/x", upload.id)
    assert os.listdir(tmp_path / "a") == ["x"]  # noqa: PTH208 -- strings throughout the package


def test_a_directory_that_is_not_mounted_is_not_made(tmp_path: Path) -> None:
    backend = open_backend(str(tmp_path / "nfs"))
    with pytest.raises(PermissionDenied, match="mounted"):
        backend.put("a", body(b"x"))
    assert not (tmp_path / "nfs").exists()


def test_a_key_cannot_lead_out_of_the_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointingError, match="leads out"):
        open_backend(str(tmp_path)).put("../x", body(b"x"))


@pytest.mark.parametrize("url", ["", "relative", "http://x/y", "s3://", "s3:///x"])
def test_a_place_that_is_none_is_refused_with_what_helps(url: str) -> None:
    with pytest.raises(CheckpointingError) as caught:
        open_backend(url)
    assert "--mirror" in caught.value.hint


def test_the_transfer_client_that_ignores_an_endpoint_is_never_there() -> None:
    backend = open_backend("s3://bucket", S3Options(endpoint="http://127.0.0.1:1", region="us-east-1"))
    client = backend._connected()  # type: ignore[attr-defined]  # noqa: SLF001 -- what requests really go to
    assert client.meta.endpoint_url == "http://127.0.0.1:1"


def test_a_connection_whose_encryption_breaks_while_a_body_is_read_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_backend("s3://bucket", S3Options(endpoint="http://127.0.0.1:1", region="us-east-1"))

    class Breaks:
        def read(self, _n_bytes: int) -> bytes:
            raise SSLError("record layer failure")

        def close(self) -> None:
            pass

    monkeypatch.setattr(type(backend), "_asked", lambda *_rest, **_more: {"Body": Breaks()})
    with pytest.raises(Unavailable, match="record layer"):
        list(backend.read("a", 0, 1))
