"""Several nodes restore to one disk: one downloads, the others wait with a line and take what it restored."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpointing.io import leftovers
from checkpointing.mirror import download, restore, restore_target
from checkpointing.mirror.restore import NoSpace, PathOccupied
from checkpointing.mirror.stall import RestoreProgress
from tests.checkpointing.mirror.process import save, save_tree
from tests.checkpointing.mirror.test_restore import bring
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from checkpointing.mirror.backends import Backend
    from checkpointing.mirror.restore import Restored

MIB = 1 << 20


@pytest.fixture
def mirrored(tmp_path: Path, backend: Backend) -> Path:
    """Return the path of a checkpoint that is in the mirror alone."""
    path = tmp_path / "ckpt" / "step_1.pt"
    bring(backend, path, save(path, 16 * MIB, 1))
    path.unlink()
    return path


def bytes_read() -> int:
    """Return how many bytes this process has read by now."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_node_takes_what_another_has_just_restored_without_reading_it_again(backend: Backend, mirrored: Path) -> None:
    """Of a hundred nodes on one disk the last would begin after a hundred readings, one after the other."""
    restore.newest([backend], "job")
    assert mirrored.exists()
    before = bytes_read()
    restore.newest([backend], "job")
    assert bytes_read() - before < 8 * MIB


def test_of_nodes_that_start_together_one_downloads_and_no_byte_is_read_under_the_lock(
    backend: Backend, mirrored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, real = threading.Semaphore(0), download.fetch
    lines: list[str] = []
    done: list[Restored | None] = []

    def slowly(*given: object) -> int:
        for _ in range(5):
            assert waiting.acquire(timeout=PATIENCE_S)
        return real(*given)  # type: ignore[arg-type] -- passed on

    monkeypatch.setattr(download, "fetch", slowly)
    monkeypatch.setattr(restore, "_FIRST_S", 0.0)

    def report(line: str) -> None:
        lines.append(line)
        waiting.release()

    def node() -> None:
        done.append(restore.newest([backend], "job", progress=RestoreProgress(report)))

    before, threads = bytes_read(), [threading.Thread(target=node) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(outcome.fetched_bytes > 0 for outcome in done if outcome is not None) == [False] * 5 + [True]
    assert bytes_read() - before < 1.5 * mirrored.stat().st_size  # once from the mirror, however many nodes there are
    assert lines == [f"waiting for process {os.getpid()} on {os.uname().nodename}, which restores {mirrored}"] * 5


def test_a_new_holder_of_the_lock_is_named_once_its_name_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "download.lock"
    lock.touch()
    looks = iter(range(3))

    def later(_seconds: float) -> None:
        if next(looks) == 1:  # its second look found nothing either
            lock.write_text(f"{leftovers.tag()} process 7 on n7")

    with monkeypatch.context() as patched:
        patched.setattr(restore_target.time, "sleep", later)
        assert restore_target._holder(str(tmp_path / "download")) == "process 7 on n7"  # noqa: SLF001 -- what is between two system calls
    assert next(looks) == 2
    lock.write_text("")
    assert restore_target._holder(str(tmp_path / "download")) == "another process"  # noqa: SLF001


@pytest.mark.slow
def test_a_node_that_waits_for_another_one_s_restore_says_so(backend: Backend, mirrored: Path) -> None:
    (kept,), _ = restore.available([backend], "job")
    mirrored.parent.mkdir(exist_ok=True)
    lines, report_event = list[str](), threading.Event()

    def report(text: str) -> None:
        lines.append(text)
        report_event.set()

    progress = RestoreProgress(report=report)
    with restore_target.download_lock(restore_target.partial_path(str(mirrored), kept.manifest)):
        thread = threading.Thread(target=lambda: restore.newest([backend], "job", progress=progress), daemon=True)
        thread.start()
        report_event.wait(12)
    thread.join(PATIENCE_S)
    assert mirrored.exists()
    assert lines


def test_a_restore_that_waits_for_another_never_times_out(backend: Backend, mirrored: Path) -> None:
    (kept,), _ = restore.available([backend], "job")
    mirrored.parent.mkdir(exist_ok=True)
    waited, done = threading.Event(), list[object]()
    with restore_target.download_lock(restore_target.partial_path(str(mirrored), kept.manifest)):
        progress = RestoreProgress(stall_s=1.0)
        thread = threading.Thread(target=lambda: done.append(restore.newest([backend], "job", progress=progress)), daemon=True)
        thread.start()
        waited.wait(3.0)
    thread.join(PATIENCE_S)
    assert len(done) == 1


@pytest.mark.parametrize("is_tree", [False, True], ids=["file", "directory"])
def test_a_file_changed_or_restored_long_ago_is_read(tmp_path: Path, backend: Backend, *, is_tree: bool) -> None:
    path = tmp_path / "ckpt" / ("checkpoint-3" if is_tree else "step_3.pt")
    described = save_tree(path, {"a.pt": 5 * MIB, "b.pt": 5 * MIB}, 3) if is_tree else save(path, 10 * MIB, 3)
    bring(backend, path, described)
    into = str(tmp_path / "fresh")
    assert restore.newest([backend], "job", into=into) is not None
    here = tmp_path / "fresh" / path.name
    file = here / "b.pt" if is_tree else here
    st, before = file.stat(), bytes_read()
    os.utime(file, ns=(st.st_mtime_ns - 7200 * 10**9,) * 2)
    again = restore.newest([backend], "job", into=into)
    assert again is not None
    assert again.fetched_bytes == 0
    assert bytes_read() - before >= st.st_size
    with file.open("r+b") as stream:
        stream.seek(1000)
        stream.write(b"changed")
    with pytest.raises(PathOccupied):
        restore.newest([backend], "job", into=into)


def test_a_download_that_was_cut_at_its_start_has_no_room_yet(backend: Backend, mirrored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its full length and hardly a block, so the restore would meet the full disk in its middle."""
    (kept,), _ = restore.available([backend], "job")
    mirrored.parent.mkdir(exist_ok=True)
    beside = Path(restore_target.partial_path(str(mirrored), kept.manifest))
    with beside.open("wb") as file:
        file.truncate(kept.manifest.n_bytes)
    assert beside.stat().st_blocks == 0, "this file system knows no holes"
    real = os.statvfs(mirrored.parent)
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result((*real[:3], 0, 0, *real[5:10])))
    with pytest.raises(NoSpace):
        restore.newest([backend], "job")


def test_bytes_already_downloaded_need_no_room_again(
    tmp_path: Path, backend: Backend, mirrored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kept,), _ = restore.available([backend], "job")
    mirrored.parent.mkdir(exist_ok=True)
    beside = Path(restore_target.partial_path(str(mirrored), kept.manifest))
    (data,) = (tmp_path / "mirror").rglob("data/*")
    beside.write_bytes(data.read_bytes())
    with beside.open("rb") as file:
        os.fsync(file.fileno())
    wait_for(lambda: beside.stat().st_blocks * 512 >= kept.manifest.n_bytes, "the blocks")
    real = os.statvfs(mirrored.parent)
    few = (80 * MIB) // real.f_frsize
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result((*real[:3], few, few, *real[5:10])))
    done = restore.newest([backend], "job")
    assert done is not None
    assert done.fetched_bytes == 0
