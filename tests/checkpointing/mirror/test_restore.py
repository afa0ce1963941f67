"""Restoring: the newest whole one of this job, proven before it has its name, and nothing of the user's replaced."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from checkpointing.manifest import documents
from checkpointing.mirror import keys, removal, restore
from checkpointing.mirror.backends import Backend, NotFound, Stored, StoredPart, TransferDamaged, Upload, is_made_of
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.restore import NoSpace, OtherJob, PathOccupied, Unreachable
from checkpointing.mirror.source import SourceChanged, TransferControl
from checkpointing.mirror.stall import RestoreProgress
from checkpointing.mirror.upload import parts_of
from checkpointing.model import NonFinite
from tests.checkpointing.mirror.process import PART, ROOT, save, save_tree, upload, waiting
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def bring(backend: Backend, path: Path, described: Path) -> str:
    """Mirror a checkpoint and return its key."""
    return upload(backend, waiting(str(path), described.read_bytes()), TransferControl())


def brought(home: Path, backend: Backend, step: int, *, job: str = "job", n_bytes: int = 11 << 20) -> tuple[Path, str]:
    path = home / "ckpt" / f"step_{step}.pt"
    return path, bring(backend, path, save(path, n_bytes, step, job=job))


def test_the_newest_goes_back_to_where_it_was_saved(tmp_path: Path, backend: Backend) -> None:
    brought(tmp_path, backend, 1)
    path, _ = brought(tmp_path, backend, 2)
    content = path.read_bytes()
    path.unlink()
    shown: list[tuple[int, int]] = []
    done = restore.newest([backend], "job", progress=RestoreProgress(on_fetched=lambda *row: shown.append(row)))
    assert done is not None
    assert (done.path, done.fetched_bytes, path.read_bytes() == content) == (str(path), len(content), True)
    assert shown[-1] == (len(content), len(content))


def test_a_file_already_there_is_not_fetched_and_another_is_not_replaced(tmp_path: Path, backend: Backend) -> None:
    path, _ = brought(tmp_path, backend, 1)
    done = restore.newest([backend], "job")
    assert done is not None
    assert done.fetched_bytes == 0
    path.write_bytes(b"the user's own")
    with pytest.raises(PathOccupied) as caught:
        restore.newest([backend], "job")
    assert "--to" in caught.value.hint
    assert path.read_bytes() == b"the user's own"
    assert os.listdir(path.parent) == [path.name]  # noqa: PTH208


def without_numbers(described: Path, *tensors: str) -> Path:
    """Record that these tensors of a checkpoint hold NaN, as the watcher found when it read it."""
    manifest = documents.decode(described.read_bytes())
    described.write_bytes(documents.encode(replace(manifest, non_finite=tuple(NonFinite(name, "NaN", 0) for name in tensors))))
    return described


def test_after_weights_turned_nan_the_last_finite_one_is_restored_as_a_resume_would_take_it(tmp_path: Path, backend: Backend) -> None:
    """A lost disk does not bring the poisoned state back."""
    paths = {step: tmp_path / "ckpt" / f"step_{step}.pt" for step in (10, 20, 30, 40)}
    for step, path in paths.items():
        described = save(path, 100, step)
        bring(backend, path, without_numbers(described, "model.weight") if step >= 30 else described)
        path.unlink()
    done = restore.newest([backend], "job")
    assert done is not None
    assert (done.path, done.manifest.step, len(done.passed_over)) == (str(paths[20]), 20, 2)
    assert [why for _, why in done.passed_over] == [
        "its weights hold NaN: model.weight is not finite: NaN at element 0; step 20 is taken instead"
    ] * 2


def test_where_every_one_holds_nan_in_the_same_weights_or_only_beside_them_the_newest_is_restored(tmp_path: Path, backend: Backend) -> None:
    for tensor in ("model.mask_of_nan", "optimizer.state.0.exp_avg"):
        for step in (1, 2):
            path = tmp_path / tensor / f"step_{step}.pt"
            bring(backend, path, without_numbers(save(path, 100, step, job=tensor), tensor))
            path.unlink()
        done = restore.newest([backend], tensor)
        assert done is not None
        assert (done.manifest.step, done.passed_over) == (2, ())


def test_a_damaged_copy_is_passed_over_for_an_older_whole_one(tmp_path: Path, backend: Backend) -> None:
    old, _ = brought(tmp_path, backend, 1)
    new, key = brought(tmp_path, backend, 2)
    stored = tmp_path / "mirror" / keys.data_key(key, new.name)
    content = bytearray(stored.read_bytes())
    content[6 << 20] ^= 1
    stored.write_bytes(content)
    done = restore.newest([backend], "job", into=str(tmp_path / "fresh"))
    assert done is not None
    assert done.manifest.step == 1
    assert (tmp_path / "fresh" / old.name).read_bytes() == old.read_bytes()
    assert "damaged" in done.passed_over[0][1]
    assert not (tmp_path / "fresh" / new.name).exists()


def test_a_damaged_copy_is_taken_from_the_other_mirror(tmp_path: Path, backend: Backend) -> None:
    (tmp_path / "second").mkdir()
    other = open_backend(str(tmp_path / "second"))
    path, key = brought(tmp_path, backend, 2)
    bring(other, path, tmp_path / "manifests" / f"{path.name}.json")
    (tmp_path / "mirror" / keys.data_key(key, path.name)).write_bytes(bytes(11 << 20))
    done = restore.newest([backend, other], "job", into=str(tmp_path / "fresh"))
    assert done is not None
    assert done.url == other.url
    assert (tmp_path / "fresh" / path.name).read_bytes() == path.read_bytes()


def test_data_without_a_manifest_is_no_checkpoint(tmp_path: Path, backend: Backend) -> None:
    _, key = brought(tmp_path, backend, 1)
    backend.remove(key + "manifest.json")
    assert restore.newest([backend], "job", into=str(tmp_path / "fresh")) is None


@pytest.mark.parametrize("damage", [b"", b"{}", b"not json"], ids=["empty", "other", "noise"])
def test_a_damaged_manifest_is_passed_over(tmp_path: Path, backend: Backend, damage: bytes) -> None:
    brought(tmp_path, backend, 1)
    _, key = brought(tmp_path, backend, 2)
    (tmp_path / "mirror" / key / "manifest.json").write_bytes(damage)
    done = restore.newest([backend], "job", into=str(tmp_path / "fresh"))
    assert done is not None
    assert (done.manifest.step, len(done.passed_over)) == (1, 1)


def test_a_manifest_that_stands_where_another_belongs_is_passed_over(tmp_path: Path, backend: Backend) -> None:
    _, first_key = brought(tmp_path, backend, 1)
    _, second_key = brought(tmp_path, backend, 2)
    place = tmp_path / "mirror"
    (place / second_key / "manifest.json").write_bytes((place / first_key / "manifest.json").read_bytes())
    done = restore.newest([backend], "job", into=str(tmp_path / "fresh"))
    assert done is not None
    assert done.manifest.step == 1


def test_another_jobs_checkpoints_are_never_taken_unless_named(tmp_path: Path, backend: Backend) -> None:
    brought(tmp_path, backend, 5, job="the/other")
    with pytest.raises(OtherJob, match="the/other") as caught:
        restore.newest([backend], "job", into=str(tmp_path / "fresh"))
    assert "checkpoints.restore_from" in caught.value.hint
    done = restore.newest([backend], "the/other", into=str(tmp_path / "fresh"))
    assert done is not None
    assert done.manifest.about.job == "the/other"


def test_the_job_that_is_named_is_taken_only_until_this_one_has_a_checkpoint(tmp_path: Path, backend: Backend) -> None:
    fresh = str(tmp_path / "fresh")
    assert restore.newest_of([backend], "job", "", into=fresh) is None
    with pytest.raises(OtherJob, match="no checkpoint of job 'base'") as nothing:
        restore.newest_of([backend], "job", "base", into=fresh)
    assert "--set checkpoints.restore_from=none" in nothing.value.hint
    brought(tmp_path, backend, 5, job="base")
    with pytest.raises(OtherJob) as caught:
        restore.newest_of([backend], "job", "", into=fresh)
    assert "--set checkpoints.restore_from=none" in caught.value.hint
    with pytest.raises(OtherJob, match="'typo'"):
        restore.newest_of([backend], "job", "typo", into=fresh)
    assert restore.newest_of([backend], "job", restore.NO_JOB, into=fresh) is None
    taken = restore.newest_of([backend], "job", "base", into=fresh)
    assert taken is not None
    assert taken.manifest.step == 5
    brought(tmp_path, backend, 6, job="job")
    for instead in ("base", restore.NO_JOB, ""):
        own = restore.newest_of([backend], "job", instead, into=str(tmp_path / f"again-{instead}"))
        assert own is not None
        assert (own.manifest.about.job, own.manifest.step) == ("job", 6)


def test_an_empty_mirror_is_an_answer_and_an_unreachable_one_is_not(tmp_path: Path, backend: Backend) -> None:
    assert restore.newest([backend], "job") is None
    dead = open_backend("file:///proc/1/mem/none")
    with pytest.raises(Unreachable):
        restore.newest([dead], "job")
    brought(tmp_path, backend, 1)
    done = restore.newest([dead, backend], "job", into=str(tmp_path / "fresh"))
    assert done is not None


def test_a_restore_that_does_not_fit_is_not_begun(tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    brought(tmp_path, backend, 1)
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((*real[:3], 0, 0, *real[5:10]))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    with pytest.raises(NoSpace, match="11 MiB are needed"):
        restore.newest([backend], "job", into=str(tmp_path / "fresh"))
    assert os.listdir(tmp_path / "fresh") == []  # noqa: PTH208


@pytest.mark.process
def test_a_killed_restore_continues_from_its_partial_download(tmp_path: Path, backend: Backend) -> None:
    path, _ = brought(tmp_path, backend, 1, n_bytes=40 << 20)
    code = """
import sys, time
from checkpointing.mirror import restore
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.stall import RestoreProgress
def fetched(done, total):
    print(done, flush=True)
    if done >= total // 2:
        time.sleep(60)
restore.newest([open_backend(sys.argv[1])], "job", into=sys.argv[2], workers=1, progress=RestoreProgress(on_fetched=fetched))
"""
    process = subprocess.Popen(  # noqa: S603 -- the test's own
        [sys.executable, "-c", code, backend.url, str(tmp_path / "fresh")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    seen: list[int] = []

    def half() -> bool:
        assert process.stdout is not None
        seen.append(int(process.stdout.readline()))
        return seen[-1] >= 20 << 20

    wait_for(half, "half of it")
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (tmp_path / "fresh" / path.name).exists()
    done = restore.newest([backend], "job", into=str(tmp_path / "fresh"))
    assert done is not None
    assert done.fetched_bytes <= 20 << 20
    assert (tmp_path / "fresh" / path.name).read_bytes() == path.read_bytes()
    assert os.listdir(tmp_path / "fresh") == [path.name]  # noqa: PTH208


def test_removing_takes_the_manifest_first(tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    _, key = brought(tmp_path, backend, 1)
    order: list[str] = []
    real = type(backend).remove

    def watched(self: Backend, name: str, upload_id: str = "") -> None:
        order.append(name)
        real(self, name, upload_id)

    monkeypatch.setattr(type(backend), "remove", watched)
    assert removal.remove(backend, key) == 2
    assert order[0] == key + "manifest.json"
    with pytest.raises(NotFound):
        backend.stat(key + "manifest.json")


def test_a_directory_restores_with_all_its_files(tmp_path: Path, backend: Backend) -> None:
    path = tmp_path / "ckpt" / "checkpoint-3"
    bring(backend, path, save_tree(path, {"a/b/c.bin": 100, "empty": 0, "z": PART + 1}))
    done = restore.newest([backend], "job", into=str(tmp_path / "fresh"))
    assert done is not None
    contents = {str(file.relative_to(tmp_path / "fresh")): file.read_bytes() for file in (tmp_path / "fresh").rglob("*") if file.is_file()}
    assert contents == {f"checkpoint-3/{name}": (path / name).read_bytes() for name in ("a/b/c.bin", "empty", "z")}


def test_a_source_that_was_truncated_is_never_vouched_for(tmp_path: Path, backend: Backend) -> None:
    path = tmp_path / "ckpt" / "step_1.pt"
    described = save(path, 11 << 20, 1)
    entry = waiting(str(path), described.read_bytes())
    os.truncate(path, 6 << 20)
    with pytest.raises(SourceChanged):
        upload(backend, entry, TransferControl())
    assert restore.newest([backend], "job", into=str(tmp_path / "fresh")) is None


def test_a_completed_upload_found_damaged_gets_no_manifest(tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ckpt" / "step_1.pt"
    described = save(path, 11 << 20, 1)
    real = type(backend).complete
    completed: list[str] = []

    def damages(self: Backend, upload: Upload, parts: Sequence[StoredPart], crc64nvme: int) -> Stored:
        """Do as a server does that damages the first object, reports an ETag but no checksum, and forgets uploads once completed."""
        if upload.id in completed:
            raise NotFound("NoSuchUpload", hint="")
        stored = real(self, upload, parts, crc64nvme)
        completed.append(upload.id)
        if len(completed) == 1:
            with (tmp_path / "mirror" / upload.key).open("r+b") as file:
                file.write(b"damaged")
            raise TransferDamaged("the ETag differs", hint="")
        return stored

    monkeypatch.setattr(type(backend), "complete", damages)
    entry = waiting(str(path), described.read_bytes())
    with pytest.raises((TransferDamaged, NotFound)):
        upload(backend, entry, TransferControl(pause=lambda _seconds: None))
    assert restore.newest([backend], "job", into=str(tmp_path / "fresh")) is None, "nothing vouches for it"
    key = upload(backend, entry, TransferControl())
    assert (tmp_path / "mirror" / keys.data_key(key, path.name)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("token", "expected"),
    [("9f1b0f4d9bb8b2f1a7d1c9b1f2d2c0b5-2", False), ("d27b9a3396e25d98241d19dbef4ab961-2", True), ("9f1b0f4d", None), ("", None)],
    ids=["another", "these", "no-md5", "none"],
)
def test_an_etag_shows_of_which_parts_an_object_was_made(token: str, expected: bool | None) -> None:  # noqa: FBT001 -- a parameter
    parts = [StoredPart(number, 1, hashlib.md5(b"x" * number, usedforsecurity=False).hexdigest()) for number in (1, 2)]
    assert is_made_of(token, parts) is expected


def test_parts_are_joined_where_there_would_be_more_than_s3_allows() -> None:
    n_parts, size = 25_001, 1 << 20
    file = documents.File("x", n_parts * size, 0, (7,) * n_parts)
    pieces = parts_of(file, size)
    assert len(pieces) <= 10_000
    assert sum(n_bytes for _, n_bytes, _ in pieces) == file.n_bytes
    assert [offset for offset, _, _ in pieces[:3]] == [0, 3 * size, 6 * size]
