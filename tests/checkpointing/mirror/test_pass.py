"""An upload that a pass over the files feeds: what it is offered is sent from memory, the rest is read again, and a kill costs no part."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest

from checkpointing.manifest import digest, documents
from checkpointing.mirror import keys, removal
from checkpointing.mirror.backends import Bytes, PermissionDenied, Unavailable
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.source import SourceChanged, TransferControl, held_files
from checkpointing.mirror.upload import CheckpointUpload, sent_part_bytes
from tests.checkpointing.mirror.process import PART, save, save_tree, upload, waiting
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from checkpointing.manifest.documents import Manifest
    from checkpointing.mirror.backends import Backend, Body, StoredPart, Upload
    from tests.checkpointing.mirror.process import Directory, Place

FILES = {"large": 3 * PART + 7, "small": 1000, "empty": 0}


class Pass:
    """A pass over a checkpoint, with what its upload sent and released."""

    def __init__(self, path: Path, described: Path, backend: Backend) -> None:
        self.path, self.raw = path, described.read_bytes()
        self.manifest: Manifest = documents.decode(self.raw)
        self.backend, self.sent, self.released = backend, 0, set[tuple[str, int]]()
        self.upload = self.new_upload()

    def new_upload(self) -> CheckpointUpload:
        """Begin as another process does."""
        self.sent = 0
        control = TransferControl(
            pause=lambda _s: None, on_sent=self._count, on_released=lambda file, number: self.released.add((file, number))
        )
        return CheckpointUpload(self.backend, keys.key_of(self.manifest), control, PART)

    def offer(self, numbers: Callable[[str, int], bool] = lambda _file, _number: True) -> list[tuple[str, int]]:
        """Read all and offer the parts for which `numbers` holds; return those that were taken."""
        taken = []
        for file in self.manifest.files:
            content = (self.path / file.path if self.manifest.is_tree else self.path).read_bytes()
            self.upload.begin(file.path, len(content))
            for number, at in enumerate(range(0, len(content), PART), 1):
                piece = content[at : at + PART]
                if numbers(file.path, number) and self.upload.offer(file.path, number, piece, digest.of_bytes(piece)):
                    taken.append((file.path, number))
        return taken

    def complete(self) -> str:
        """End it."""
        return self.upload.complete(self.manifest, self.raw, held_files(str(self.path), self.manifest))

    def is_whole(self) -> bool:
        """Return whether the mirror has each file as it is."""
        key = keys.key_of(self.manifest)
        return all(
            b"".join(self.backend.read(keys.data_key(key, file.path), 0, file.n_bytes))
            == (self.path / file.path if self.manifest.is_tree else self.path).read_bytes()
            for file in self.manifest.files
        )

    def _count(self, n_bytes: int) -> None:
        self.sent += n_bytes


@pytest.fixture
def feed(place: Place) -> Pass:
    path = place.home / "ckpt" / "step_1"
    return Pass(path, save_tree(path, FILES), place.backend())


@pytest.mark.process
def test_offered_files_are_sent_from_memory_and_the_rest_is_read(feed: Pass, monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    read: list[int] = []
    real = os.preadv

    def preadv(fd: int, buffers: Iterable[memoryview], offset: int) -> int:
        read.append(real(fd, buffers, offset))  # type: ignore[arg-type]
        return read[-1]

    monkeypatch.setattr(os, "preadv", preadv)
    taken = feed.offer(lambda file, number: (file, number) != ("large", 2))
    assert taken == [("large", 1), ("large", 3), ("large", 4), ("small", 1)]
    assert feed.complete() == keys.key_of(feed.manifest)
    assert feed.released == set(taken)
    assert (feed.sent, sum(read)) == (sum(FILES.values()), PART), "only what was not offered is read a second time"
    assert feed.is_whole()
    assert place.no_manifest_lies() == 1


@pytest.mark.process
@pytest.mark.parametrize("kind", ["place", "directory"])
def test_after_a_kill_no_part_that_has_arrived_is_sent_again(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = request.getfixturevalue(kind)
    path = tmp_path / "ckpt" / "step_1"
    feed = Pass(path, save_tree(path, FILES), place.backend() if kind == "place" else open_backend(place.url))
    feed.offer(lambda file, number: number == 1 or (file, number) == ("large", 3))
    wait_for(lambda: len(feed.released) == 3, "three parts")
    feed.upload = feed.new_upload()
    feed.complete()
    assert feed.sent == PART + 7, "the second part and the last"
    assert feed.is_whole()
    feed.upload = feed.new_upload()
    assert feed.offer(), "the pass does not know that it is there"
    assert feed.complete()
    assert feed.sent == 0


@pytest.mark.process
def test_a_part_of_another_content_that_the_mirror_holds_is_sent_again(feed: Pass) -> None:
    upload = feed.backend.begin(keys.data_key(keys.key_of(feed.manifest), "large"))
    other = os.urandom(PART)
    feed.backend.put_part(upload, 1, content_of(other))
    feed.complete()
    assert feed.sent == sum(FILES.values())
    assert feed.is_whole()
    assert list(feed.backend.list("", unfinished=True)) == []


def test_while_the_mirror_is_away_nothing_more_is_taken_and_all_is_released(
    directory: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_backend(directory.url)
    path = tmp_path / "ckpt" / "step_1.pt"
    feed = Pass(path, save(path, 4 * PART), backend)

    def away(_self: Backend, _upload: Upload, _number: int, _body: Body) -> StoredPart:
        raise Unavailable("503", hint="")

    with monkeypatch.context() as patched:
        patched.setattr(type(backend), "put_part", away)
        taken = feed.offer(lambda _file, number: number < 4)
        wait_for(lambda: feed.released == set(taken), "the end of each part")
        assert feed.offer() == [], "a pass keeps no memory for a mirror that does not answer"
        with pytest.raises(Unavailable):
            feed.complete()
    assert feed.complete()
    assert feed.is_whole()


@pytest.mark.process
def test_a_bad_upload_is_aborted_and_undeletable_objects_are_named(feed: Pass, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    feed.offer()
    assert feed.upload.abandon() == ()
    assert (place.objects(), place.unfinished()) == ({}, [])
    assert feed.offer() == [], "nothing more is sent of it"
    feed.upload = feed.new_upload()
    feed.released.clear()
    taken = feed.offer()
    wait_for(lambda: feed.released == set(taken), "all parts")
    real = type(feed.backend).remove

    def denied(self: Backend, key: str, upload_id: str = "") -> None:
        if not upload_id:
            raise PermissionDenied("AccessDenied", hint="")
        real(self, key, upload_id)

    monkeypatch.setattr(type(feed.backend), "remove", denied)
    key = keys.key_of(feed.manifest)
    assert feed.upload.abandon() == (f"{key}data/small",)
    assert place.unfinished() == []


@pytest.mark.slow
@pytest.mark.process
def test_an_object_that_another_upload_completed_stays_though_the_disk_went_bad(feed: Pass, place: Place) -> None:
    feed.complete()
    objects = place.objects()
    feed.upload = feed.new_upload()
    feed.offer()
    assert feed.upload.abandon() == ()
    assert place.objects() == objects
    assert feed.is_whole()


def test_a_file_that_changed_after_the_pass_is_not_vouched_for(directory: Directory, tmp_path: Path) -> None:
    path = tmp_path / "ckpt" / "step_1.pt"
    feed = Pass(path, save(path, 2 * PART), open_backend(directory.url))
    feed.offer(lambda _file, number: number == 1)
    sources = held_files(str(path), feed.manifest)
    path.write_bytes(os.urandom(2 * PART))
    with pytest.raises(SourceChanged):
        feed.upload.complete(feed.manifest, feed.raw, sources)
    assert feed.upload.abandon() == ()
    assert [stored.key for stored in feed.backend.list("")] == []


def newer(raw: bytes) -> bytes:
    changed = raw.replace(b'"reader":1', f'"reader":{documents.VERSION + 1}'.encode())
    assert changed != raw
    return changed


def test_a_manifest_of_a_later_version_in_the_mirror_is_left_and_believed(tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    backend = open_backend(str(tmp_path / "mirror"))
    path = tmp_path / "ckpt" / "step_1.pt"
    entry = waiting(str(path), save(path, 1000, 1).read_bytes())
    key, raw = keys.key_of(entry.manifest) + keys.MANIFEST, newer(entry.raw_manifest)
    backend.put(key, Bytes(raw, digest.of_bytes(raw)))
    assert upload(backend, entry, TransferControl()) == keys.key_of(entry.manifest)
    assert b"".join(backend.read(key, 0, len(raw))) == raw


def test_an_old_upload_that_still_grows_is_no_leftover(place: Place) -> None:
    backend = place.backend()
    upload = backend.begin("job/run/attempt-1/step-1/0123456789ab/data/x")
    backend.put_part(upload, 1, content_of(b"x"))
    (part,) = backend.begin(upload.key, upload.id).parts
    (opened,) = backend.list("job/", unfinished=True)
    assert opened.at <= part.at
    assert list(removal.abort_leftovers(backend, "job", part.at)) == [], "its newest part is not older"
    assert place.unfinished()
    assert list(removal.abort_leftovers(backend, "job", part.at + 1)) == [upload.key]
    assert place.unfinished() == []


def put(backend: Backend, key: str) -> None:
    backend.put(key, content_of(b"x"))


def test_the_incomplete_checkpoint_of_a_killed_process_goes_after_three_days(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_backend(directory.url)
    own, waits, whole, grows, anew, part, other = (
        f"{job}/{way}/step-{step}/0123456789ab/"
        for step, (job, way) in enumerate([("job", "run/attempt-1")] * 5 + [("job", "nodes/parts"), ("other", "run/attempt-1")])
    )
    for key in (own, waits, whole, grows, anew, part, other):
        put(backend, f"{key}data/x")
    put(backend, f"{whole}manifest.json")
    put(backend, f"{part}parts/0.json")
    for file in directory.root.rglob("*"):
        os.utime(file, (100.0, 100.0))
    put(backend, f"{anew}data/y")
    backend.put_part(backend.begin(f"{grows}data/large"), 1, content_of(b"x"))
    before = sorted(stored.key for stored in backend.list(""))
    assert list(removal.remove_incomplete(backend, "job", 99.0, lambda _key: False)) == [], "nothing is so old"
    with monkeypatch.context() as patch:
        patch.setattr(type(backend), "remove", MagicMock(side_effect=PermissionDenied("AccessDenied", hint="")))
        assert list(removal.remove_incomplete(backend, "job", 101.0, lambda key: key == waits)) == [(own, (f"{own}data/x",))]
    assert list(removal.remove_incomplete(backend, "job", 101.0, lambda key: key == waits)) == [(own, ())]
    assert sorted(stored.key for stored in backend.list("")) == [key for key in before if not key.startswith(own)]


@pytest.mark.parametrize(("n_bytes", "expected"), [(0, PART), (PART * 10_000, PART), (PART * 10_000 + 1, 2 * PART)])
def test_parts_are_as_large_as_s3_permits_their_number(n_bytes: int, expected: int) -> None:
    assert sent_part_bytes(n_bytes, PART) == expected


def content_of(content: bytes) -> Body:
    return Bytes(content, digest.of_bytes(content))
