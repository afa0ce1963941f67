"""Our own copies of what is overwritten in place: kept whole or not at all, within the cap, and put back."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.io import leftovers, staging
from checkpointing.io.reader import Interrupted, Throttle
from checkpointing.io.tree import ReadOptions
from checkpointing.manifest import check, documents
from checkpointing.model import Identity, Verdict, Verification
from checkpointing.retention.aside import AsideRecord
from checkpointing.retention.copies import DIRECTORY, Copies, Needed
from checkpointing.retention.rules import RetentionPolicy
from checkpointing.verification import identity_of, verify
from tests.checkpointing.mounts import btrfs, tmpfs
from tests.checkpointing.untouched import everything
from tests.support.damaged_files import tear

if TYPE_CHECKING:
    from checkpointing.manifest.documents import Manifest

KIB = 1 << 10
BIG = 1 << 40


def save(path: Path, step: int, n_kib: int = 100) -> Manifest:
    """Save in place, as nanoGPT does, and verify it."""
    torch.save({"w": torch.rand(n_kib * KIB // 4), "step": step}, path)
    verification = verify(str(path))
    assert verification.verdict is Verdict.VERIFIED
    return check.build(verification, part_bytes=16 * KIB)


def of_job(state: Path) -> CheckpointCatalogue:
    """Return the catalogue as a job's supervisor has it."""
    return CheckpointCatalogue(state, is_writer=True)


def free(disk: Path) -> int:
    return os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize


def steps(copies: Copies) -> list[int | None]:
    return [copy.manifest.step for copy in copies.all()]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The directory that the job writes to; our state is beside it."""
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


def test_a_copy_is_the_file_and_stays_so_when_that_is_overwritten(job: Path, tmp_path: Path) -> None:
    path, copies = job / "ckpt.pt", Copies(of_job(tmp_path), BIG)
    manifest = save(path, 10)
    content, before = path.read_bytes(), everything(job)
    kept = copies.keep(manifest)
    assert kept.copy is not None, kept
    assert everything(job) == before
    assert copies.keep(manifest).copy == kept.copy
    save(path, 20)
    assert Path(kept.copy.place).read_bytes() == content
    assert check.check(kept.copy.place, kept.copy.manifest).verdict is Verdict.VERIFIED
    assert verify(kept.copy.place).step == 10
    assert (copies.all(), copies.newest_for(str(path)), copies.newest_for("elsewhere")) == ((kept.copy,), kept.copy, None)
    assert [spare.copy_path for spare in copies.spares()] == [kept.copy.place]


def test_a_name_may_begin_with_a_dot(job: Path, tmp_path: Path) -> None:
    path, copies = job / ".ckpt.pt", Copies(of_job(tmp_path), BIG)
    first, second = (copies.keep(save(path, step), RetentionPolicy(1)) for step in (10, 20))
    assert first.copy is not None
    assert second.copy is not None
    assert copies.all() == (second.copy,)
    assert second.removed == (first.copy.place,)
    assert [str(directory) for directory in (tmp_path / DIRECTORY).iterdir()] == [second.copy.directory]


def test_a_name_may_be_as_long_as_a_name_may_be(job: Path, tmp_path: Path) -> None:
    manifest = save(job / ("路" * 80 + ".pt"), 1)
    copies = Copies(of_job(tmp_path), BIG)
    kept = copies.keep(manifest)
    assert kept.copy is not None, kept.reason
    assert Path(kept.copy.place).name == manifest.name
    os.unlink(manifest.path)  # noqa: PTH108 -- a name
    assert copies.put_back(kept.copy, AsideRecord(of_job(tmp_path)), 1, "torn") == ""
    assert verify(manifest.path).step == 1
    assert os.listdir(job) == [manifest.name]  # noqa: PTH208 -- names


def test_a_file_system_that_cannot_sync_directories_holds_copies(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = os.fsync

    def sync_files_only(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        synced(fd)

    monkeypatch.setattr(os, "fsync", sync_files_only)
    kept = Copies(of_job(tmp_path), BIG).keep(save(job / "ckpt.pt", 1))
    assert kept.copy is not None, kept.reason


def test_a_file_written_since_its_manifest_is_not_kept(job: Path, tmp_path: Path) -> None:
    path, copies = job / "ckpt.pt", Copies(of_job(tmp_path), BIG)
    manifest = save(path, 10)
    save(path, 20)
    kept = copies.keep(manifest)
    assert (kept.copy, copies.all()) == (None, ())
    assert "not what its manifest says" in kept.reason
    tear(path)
    assert copies.keep(manifest).copy is None
    path.unlink()
    assert "No such file" in copies.keep(manifest).reason
    assert list((tmp_path / DIRECTORY).iterdir()) == []


def test_a_file_overwritten_during_its_copy_is_not_kept(job: Path, tmp_path: Path) -> None:
    path, copies = job / "ckpt.pt", Copies(of_job(tmp_path), BIG)
    manifest = save(path, 10, n_kib=4000)
    begun = threading.Event()

    def overwrite(_seconds: float) -> None:
        if not begun.is_set():
            begun.set()
            save(path, 20, n_kib=4000)

    kept = copies.keep(manifest, reading=ReadOptions(Throttle(1e9, burst_bytes=1, wait=overwrite)))
    assert begun.is_set()
    assert (kept.copy, copies.all(), list((tmp_path / DIRECTORY).iterdir())) == (None, (), [])


def test_a_directory_is_kept_with_the_members_that_belong_to_it(job: Path, tmp_path: Path) -> None:
    tree, copies = job / "global_step7", Copies(of_job(tmp_path), BIG)
    (tree / "sub").mkdir(parents=True, mode=0o755)
    for name in ("rank_0.bin", "sub/rank_1.bin", "notes"):
        (tree / name).write_bytes(os.urandom(9999))
    identity = identity_of(str(tree))
    assert identity is not None
    verification = Verification(str(tree), identity, Verdict.VERIFIED, step=7, files=("rank_0.bin", "sub/rank_1.bin"))
    kept = copies.keep(check.build(verification))
    assert kept.copy is not None, kept
    place = Path(kept.copy.place)
    assert sorted(str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()) == ["rank_0.bin", "sub/rank_1.bin"]
    before = everything(job)
    tree.rename(job / "aside")
    assert copies.put_back(kept.copy, AsideRecord(of_job(tmp_path)), 1, "its copy") == ""
    assert check.check(str(tree), kept.copy.manifest).verdict is Verdict.VERIFIED
    assert [(tree / name).stat().st_mode & 0o777 for name in ("", "sub")] == [0o755, 0o755]
    assert not (tree / "notes").exists()
    assert len(everything(job)) == len(before) + 4


def test_the_policy_and_the_cap_hold_and_needed_copies_stay(job: Path, tmp_path: Path) -> None:
    path = job / "ckpt.pt"
    copies = Copies(of_job(tmp_path), BIG)
    for step in (1, 2, 3, 4):
        assert copies.keep(save(path, step), RetentionPolicy(newest=2)).copy is not None
    assert steps(copies) == [3, 4]
    three, four = copies.all()
    capped = Copies(of_job(tmp_path), int(2.5 * four.manifest.n_bytes))
    kept = capped.keep(save(path, 5), RetentionPolicy(newest=5), Needed(in_use=frozenset({three.place})))
    assert (steps(copies), kept.removed) == ([3, 5], (four.place,))
    kept = capped.keep(save(path, 6), RetentionPolicy(newest=5), Needed(frozenset({three.place}), frozenset({copies.all()[1].place})))
    assert (kept.copy, steps(copies)) == (None, [3, 5])
    assert "would not fit" in kept.reason
    assert Copies(of_job(tmp_path), 1000).keep(save(path, 7)).copy is None
    assert steps(copies) == [3, 5]


def test_of_each_path_so_many_stay_and_the_cap_alone_is_of_all(job: Path, tmp_path: Path) -> None:
    copies = Copies(of_job(tmp_path), BIG)
    for step in (1, 2, 3):
        for name in ("model.pt", "optim.pt", "sched.pt", "best.pt")[: 4 if step == 1 else 3]:
            assert copies.keep(save(job / name, step), RetentionPolicy(newest=2)).copy is not None
    assert sorted((copy.manifest.name, copy.manifest.step) for copy in copies.all()) == [
        ("best.pt", 1), ("model.pt", 2), ("model.pt", 3), ("optim.pt", 2), ("optim.pt", 3), ("sched.pt", 2), ("sched.pt", 3),
    ]  # fmt: skip
    assert len(copies.prune(RetentionPolicy(newest=1)).removed) == 3
    assert sorted(copy.manifest.name for copy in copies.all()) == ["best.pt", "model.pt", "optim.pt", "sched.pt"]
    n_bytes = copies.all()[0].manifest.n_bytes
    kept = Copies(of_job(tmp_path), int(3.5 * n_bytes)).keep(save(job / "model.pt", 4), RetentionPolicy(newest=2))
    assert (kept.copy is not None, sorted(Path(place).name for place in kept.removed)) == (True, ["best.pt", "model.pt"])


def test_the_remaining_copy_is_read_through_before_any_is_removed(job: Path, tmp_path: Path) -> None:
    path, copies = job / "ckpt.pt", Copies(of_job(tmp_path), BIG)
    for step in (1, 2, 3):
        copies.keep(save(path, step), RetentionPolicy(newest=9))
    newest = Path(copies.all()[-1].place)
    content = newest.read_bytes()
    newest.write_bytes(content[:-1] + b"?")
    refused = copies.prune(RetentionPolicy(newest=1))
    assert "not proven" in refused.reason
    assert steps(copies) == [1, 2, 3]
    would = copies.prune(RetentionPolicy(newest=1), bad=[str(newest)], dry_run=True)
    assert (len(would.removed), steps(copies)) == (2, [1, 2, 3])
    done = copies.prune(RetentionPolicy(newest=1), bad=[str(newest)])
    assert (done.removed, steps(copies)) == (would.removed, [2])
    assert copies.prune(RetentionPolicy(newest=1)).removed == ()


def test_the_copy_of_another_thread_stays_and_is_the_answer(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = CheckpointCatalogue(tmp_path, is_writer=True)
    path, copies, other = job / "ckpt.pt", Copies(catalogue, BIG, run_id="r"), Copies(catalogue, BIG, run_id="r")
    first = copies.keep(save(path, 10)).copy
    assert first is not None
    manifest, complete = save(path, 20), copies.complete

    def meanwhile(*args: object, **kwargs: object) -> object:
        assert other.keep(manifest).copy is not None
        assert not other.hold(first)
        return complete(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(copies, "complete", meanwhile)
    kept = copies.keep(manifest, RetentionPolicy(1))
    assert kept.copy is not None, kept
    monkeypatch.setattr(copies, "complete", complete)
    assert copies.keep(save(path, 30), RetentionPolicy(1)).copy is not None
    assert steps(copies) == [10, 30]


def test_a_copy_that_is_held_while_another_is_made_is_not_removed(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, copies = job / "ckpt.pt", Copies(of_job(tmp_path), BIG, run_id="r")
    first = copies.keep(save(path, 10)).copy
    assert first is not None
    put = staging.put

    def meanwhile(*args: object, **kwargs: object) -> None:
        assert not copies.hold(first)
        put(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(staging, "put", meanwhile)
    assert copies.keep(save(path, 20), RetentionPolicy(1)).removed == ()
    assert steps(copies) == [10, 20]


def test_a_torn_file_is_set_aside_and_its_copy_put_back_with_its_time_and_mode(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, copies, aside = job / "ckpt.pt", Copies(of_job(tmp_path), BIG), AsideRecord(of_job(tmp_path))
    manifest = save(path, 10)
    path.chmod(0o640)
    mtime_ns, content = path.stat().st_mtime_ns, path.read_bytes()
    kept = copies.keep(manifest).copy
    assert kept is not None
    save(path, 20)
    tear(path)
    torn = everything(job)
    assert copies.put_back(kept, aside, 4, "torn") == f"something is there: {path}"
    verification = verify(str(path))
    moved = aside.move(verification, 4, {str(path): Identity.of(path.stat())}, ranks_alive=False)
    listed: list[list[str]] = []
    put = aside.put

    def seen(*args: Any) -> str:  # noqa: ANN401 -- those of `put`
        listed.append([file.name for file in job.iterdir()])
        return put(*args)

    monkeypatch.setattr(aside, "put", seen)
    assert copies.put_back(kept, aside, 4, "its copy of step 10") == ""
    assert listed == [[]], "an unfinished copy has no name that a script may take for a step's"
    assert (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode & 0o777) == (content, mtime_ns, 0o640)
    assert [file.name for file in job.iterdir()] == ["ckpt.pt"]
    assert Path(moved.to).parent == tmp_path / ".supervise-aside"
    assert not any(undone.problem for undone in aside.undo())
    assert everything(job) == torn


def test_a_copy_that_rotted_is_not_put_back(job: Path, tmp_path: Path) -> None:
    path, copies = job / "ckpt.pt", Copies(of_job(tmp_path), BIG)
    kept = copies.keep(save(path, 10)).copy
    assert kept is not None
    path.unlink()
    place = Path(kept.place)
    place.write_bytes(place.read_bytes()[:-1] + b"?")
    assert "not what its manifest says" in copies.put_back(kept, AsideRecord(of_job(tmp_path)), 1, "")
    assert list(job.iterdir()) == []


def test_a_copy_without_a_sound_manifest_is_none(job: Path, tmp_path: Path) -> None:
    copies = Copies(of_job(tmp_path), BIG)
    kept = copies.keep(save(job / "ckpt.pt", 10)).copy
    assert kept is not None
    document = Path(kept.directory) / "manifest.json"
    document.write_bytes(document.read_bytes()[:-30])
    assert copies.all() == ()
    assert "could not be read" in str(copies.problem)


def test_giving_up_leaves_nothing(job: Path, tmp_path: Path) -> None:
    copies = Copies(of_job(tmp_path), BIG)
    manifest = save(job / "ckpt.pt", 10)
    with pytest.raises(Interrupted):
        copies.keep(manifest, reading=ReadOptions(interrupted=lambda: True))
    assert list((tmp_path / DIRECTORY).iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.manifest import documents
from checkpointing.retention import copies
from checkpointing.io.reader import Throttle
from checkpointing.io.tree import ReadOptions
made = documents.read(sys.argv[1])
slow = Throttle(1e9, burst_bytes=1, wait=lambda _: os.kill(os.getpid(), signal.SIGKILL))
copies.Copies(CheckpointCatalogue(Path(sys.argv[2]), is_writer=True), 1 << 40).keep(made, reading=ReadOptions(slow))
"""


@pytest.mark.process
def test_the_leftover_of_a_kill_is_no_copy_and_is_swept(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = save(job / "ckpt.pt", 10)
    (tmp_path / "made.json").write_bytes(documents.encode(manifest))
    argv = [sys.executable, "-c", KILLED, str(tmp_path / "made.json"), str(tmp_path)]
    assert subprocess.run(argv, check=False).returncode == -signal.SIGKILL  # noqa: S603 -- this interpreter and the text above
    copies = Copies(of_job(tmp_path), BIG)
    assert len(list((tmp_path / DIRECTORY).iterdir())) == 1
    assert copies.all() == ()
    monkeypatch.setattr(leftovers, "YOUNG_S", 0.0)
    assert copies.keep(manifest).copy is not None
    assert len(list((tmp_path / DIRECTORY).iterdir())) == 1


def test_copies_share_their_blocks_where_the_file_system_can(tmp_path: Path) -> None:
    with btrfs(tmp_path / "disk") as disk:
        path, copies = disk / "ckpt.pt", Copies(of_job(disk / "state"), BIG)
        manifest = save(path, 10, n_kib=int(free(disk) / 3.6) // KIB)
        with path.open("rb") as file:
            os.fsync(file.fileno())  # until then Btrfs has counted nothing
        assert 2 < free(disk) / manifest.n_bytes < 3  # for two more saves there is room, for a copy besides there is not
        kept = copies.keep(manifest)
        assert kept.copy is not None, kept
        content = path.read_bytes()
        with path.open("r+b") as file:  # in place, as a training overwrites it
            file.write(bytes(1 << 20))
        assert Path(kept.copy.place).read_bytes() == content
        assert Path(kept.copy.place).stat().st_mtime_ns == manifest.identity.mtime_ns
        path.unlink()
        assert copies.put_back(kept.copy, AsideRecord(of_job(disk / "state")), 1, "") == ""
        assert path.read_bytes() == content


def test_a_disk_without_room_for_two_more_saves_is_left_to_the_job(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 8 << 20) as disk:
        path, copies = disk / "ckpt.pt", Copies(of_job(disk / "state"), BIG)
        kept = copies.keep(save(path, 10, n_kib=2500))
        assert kept.copy is None
        assert "room for 2 more" in kept.reason
        assert copies.keep(save(path, 20, n_kib=1000)).copy is not None
        assert verify(str(path)).step == 20


def test_a_full_disk_and_a_limit_are_reasons_and_leave_nothing(job: Path, tmp_path: Path) -> None:
    copies = Copies(of_job(tmp_path), BIG)
    manifest = save(job / "ckpt.pt", 10, n_kib=900)
    with tmpfs(tmp_path / "disk", 700 * KIB) as disk:
        assert "room" in Copies(of_job(disk), BIG).keep(manifest).reason
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500 * KIB, before[1]))
    try:
        kept = copies.keep(manifest)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert kept.copy is None
    assert "File too large" in kept.reason
    assert list((tmp_path / DIRECTORY).iterdir()) == []
