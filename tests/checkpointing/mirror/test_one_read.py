"""A checkpoint is read once, for its verdict, its digests and its upload; and no mirror holds up its verdict."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
import torch

from checkpointing.manifest import documents
from checkpointing.mirror import keys
from checkpointing.mirror.source import held_files
from checkpointing.mirror.upload import CheckpointUpload
from checkpointing.reader.messages import CheckpointUploaded, Configure, MirrorAlert, MirrorRecovered, SendCheckpoint
from checkpointing.reader.uploads import Uploads
from checkpointing.verification import identity_of
from tests.checkpointing.mirror.faults import STALL, Fault
from tests.checkpointing.mirror.process import Process
from tests.checkpointing.mirror.process import save as save_described
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from checkpointing.reader.messages import ReaderEvent
    from tests.checkpointing.mirror.process import Directory, Place

MIB = 1 << 20


def save(path: Path, n_mib: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    torch.save({"w": torch.rand(n_mib * MIB // 4), "step": 7}, path)
    return path


def key_of(path: Path) -> str:
    identity = identity_of(str(path))
    assert identity is not None
    return keys.checkpoint_key("job", "run-1", None, str(path), identity)


def n_read(process: Process) -> int:
    """Return the bytes that a process has read from files."""
    return int(Path(f"/proc/{process.popen.pid}/io").read_text(encoding="ascii").split()[1])


def begin(process: Process, number: int, path: Path) -> None:
    process.send({"cmd": "read", "id": number, "path": str(path), "key": key_of(path)})


def send(process: Process, path: Path, answer: dict[str, Any]) -> None:
    """Ask for the upload, as of this run."""
    row = documents.decode(answer["manifest"].encode())
    about = documents.About("job", "run-1")
    raw = documents.encode(documents.Manifest(**{**{name: getattr(row, name) for name in row.__slots__}, "about": about}))
    described = path.with_suffix(".json")
    described.write_bytes(raw)
    process.mirror(path, described)


def read_and_send(process: Process, number: int, path: Path) -> dict[str, Any]:
    begin(process, number, path)
    answer = process.wait_for("read", id=number)
    assert answer["verification"]["verdict"] == "verified", answer
    send(process, path, answer)
    return process.wait_for("uploaded", path=str(path))


@pytest.mark.slow
def test_each_byte_is_read_once_while_the_mirror_keeps_up(place: Place) -> None:
    with Process(place, read_mib_s=30.0) as process:  # of the server, that is
        read_and_send(process, 1, save(place.home / "ckpt" / "step_1.pt", 1))  # the libraries are read by now
        path = save(place.home / "ckpt" / "step_7.pt", 130)
        before, size = n_read(process), path.stat().st_size
        done = read_and_send(process, 2, path)
        assert size <= n_read(process) - before <= 1.05 * size
    assert (done["sent"], done["key"]) == (size, key_of(path))
    assert place.no_manifest_lies() == 2
    assert place.unfinished() == []


@pytest.mark.slow
def test_a_mirror_that_takes_nothing_does_not_hold_up_the_verdict_and_gets_the_rest_later(place: Place) -> None:
    stalled = Fault(STALL, "^(PUT|POST)", times=1000)
    place.proxy.faults.append(stalled)
    path = save(place.home / "ckpt" / "step_7.pt", 400)
    with Process(place, s3={**place.s3, "read_timeout_s": 2.0}) as process:
        begun = time.monotonic()
        begin(process, 1, path)
        answer = process.wait_for("read", id=1)
        took_s = time.monotonic() - begun
        assert not any(row["ev"] == "alert" for row in process.events), "no request had the time to fail"
        assert took_s < 30.0
        status = Path(f"/proc/{process.popen.pid}/status").read_text(encoding="ascii")
        peak_mib = int(status.partition("VmHWM:")[2].split()[0]) // 1024
        assert peak_mib < 256 + 220
        stalled.times = 0
        send(process, path, answer)
        process.wait_for("uploaded")
    assert place.no_manifest_lies() == 1


@pytest.mark.slow
def test_the_sent_parts_of_a_bad_checkpoint_are_removed_from_the_mirror(place: Place) -> None:
    path = save(place.home / "ckpt" / "step_7.pt", 130)
    with path.open("r+b") as file:
        file.seek(129 * MIB)
        file.write(os.urandom(64))
    with Process(place, read_mib_s=16.0) as process:
        begin(process, 1, path)
        wait_for(lambda: place.proxy.body_bytes("^PUT.*partNumber") > 30 * MIB, "a part in the mirror")
        process.send({"cmd": "lift"})
        answer = process.wait_for("read", id=1)
        assert answer["verification"]["verdict"] == "bad"
        wait_for(lambda: place.unfinished() == [], "the abort")
    assert place.objects() == {}


@pytest.mark.slow
def test_a_bad_object_that_may_not_be_deleted_is_named(place: Place) -> None:
    path = save(place.home / "ckpt" / "step_7.pt", 70)
    with path.open("r+b") as file:
        file.seek(66 * MIB)
        file.write(os.urandom(64))
    place.proxy.faults.append(Fault("403 AccessDenied", "^DELETE", times=1000))
    with Process(place, read_mib_s=16.0) as process:
        begin(process, 1, path)
        wait_for(lambda: place.proxy.body_bytes("^PUT.*partNumber") > 30 * MIB, "a part in the mirror")
        process.send({"cmd": "lift"})
        assert process.wait_for("read", id=1)["verification"]["verdict"] == "bad"
        alert = process.wait_for("alert", what="tidy")
    assert f"{key_of(path)}data/step_7.pt" in alert["message"], alert


def test_a_checkpoint_torn_by_its_structure_is_never_sent(directory: Directory) -> None:
    path = save(directory.home / "ckpt" / "step_7.pt", 40)
    os.truncate(path, 39 * MIB)
    with Process(directory) as process:
        begin(process, 1, path)
        assert process.wait_for("read", id=1)["verification"]["verdict"] == "bad"
    assert [file for file in directory.root.rglob("*") if file.is_file()] == []


@pytest.mark.slow
def test_the_sent_parts_of_an_unwanted_checkpoint_go_with_the_next_read(place: Place) -> None:
    first, second = save(place.home / "ckpt" / "step_7.pt", 40), save(place.home / "ckpt" / "step_8.pt", 1)
    with Process(place) as process:
        begin(process, 1, first)
        process.wait_for("read", id=1)
        wait_for(lambda: place.unfinished() or place.objects(), "a part of the first")
        process.send({"cmd": "read", "id": 2, "path": str(second)})
        process.wait_for("read", id=2)
        wait_for(lambda: not place.unfinished() and not place.objects(), "the end of it")


def files(directory: Directory) -> list[Path]:
    return [file for file in directory.root.rglob("*") if file.is_file()]


@pytest.mark.parametrize("is_asked", [False, True], ids=["not wanted after all", "asked for"])
def test_parts_sent_during_the_read_are_completed_or_removed_at_the_end(directory: Directory, *, is_asked: bool) -> None:
    path = save(directory.home / "ckpt" / "step_7.pt", 40)
    with Process(directory) as process:
        begin(process, 1, path)
        answer = process.wait_for("read", id=1)
        wait_for(lambda: files(directory), "a part")
        if is_asked:
            send(process, path, answer)
        process.send({"cmd": "finish", "deadline_s": 30.0})
        process.popen.wait(60)
        left = sorted(file.name for file in files(directory))
    assert left == (["manifest.json", "step_7.pt"] if is_asked else [])


@pytest.mark.slow
def test_the_old_parts_of_a_killed_process_are_swept_by_a_later_one(directory: Directory) -> None:
    gone, path = save(directory.home / "ckpt" / "step_6.pt", 40), save(directory.home / "ckpt" / "step_7.pt", 1)
    with Process(directory, read_mib_s=16.0) as process:
        begin(process, 1, gone)
        wait_for(lambda: any(file.stat().st_size > MIB for file in files(directory)), "a part")
        process.kill()
    left = files(directory)
    small = left[0].with_name("small")
    small.write_bytes(b"x")  # of the same checkpoint, and sent whole
    for file in (*left, small):
        os.utime(file, (100.0, 100.0))
    key_gone = key_of(gone)
    gone.unlink()
    with Process(directory) as process:
        read_and_send(process, 1, path)
        process.wait_for("swept", key=key_gone)
        process.send({"cmd": "finish", "deadline_s": 30.0})
        process.popen.wait(60)
    assert sorted(file.name for file in files(directory)) == ["manifest.json", "step_7.pt"]


def test_an_internal_error_at_one_upload_ends_no_thread_and_is_reported(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[ReaderEvent] = []
    stop = threading.Event()
    uploads = Uploads(Configure("job", (directory.url,)), events.append, stop)
    path = directory.home / "ckpt" / "step_7.pt"
    raw = save_described(path, 1000).read_text(encoding="ascii")
    manifest = documents.decode(raw.encode())
    real = CheckpointUpload.complete
    failing = MagicMock(side_effect=LookupError("a bug"))
    monkeypatch.setattr(CheckpointUpload, "complete", failing)
    uploads.start()
    try:
        uploads.send(SendCheckpoint(keys.nonce_of(manifest), str(path), raw, held_files(str(path), manifest), 0.0, 1000))
        wait_for(lambda: any(isinstance(event, MirrorAlert) for event in events), "the alert")
        monkeypatch.setattr(CheckpointUpload, "complete", real)
        uploads.finish(30.0)
    finally:
        stop.set()
        uploads.join()
    alert = next(event for event in events if isinstance(event, MirrorAlert))
    assert (alert.what, alert.message) == ("internal", f"cannot mirror: {path}: internal error: LookupError: a bug")
    assert any(isinstance(event, MirrorRecovered) and event.what == "internal" for event in events)
    assert any(isinstance(event, CheckpointUploaded) for event in events)


@pytest.mark.slow
def test_after_a_kill_in_the_middle_no_part_is_sent_twice(place: Place) -> None:
    path = save(place.home / "ckpt" / "step_7.pt", 130)
    with Process(place, read_mib_s=24.0) as process:
        begin(process, 1, path)
        wait_for(lambda: place.proxy.body_bytes("^PUT.*partNumber=1") > 30 * MIB, "the first part")
        wait_for(lambda: place.proxy.count("^PUT.*partNumber=2") > 0, "the second part on its way")
        process.kill()
    with Process(place) as process:
        done = read_and_send(process, 1, path)
    assert done["sent"] <= path.stat().st_size - 32 * MIB
    assert place.no_manifest_lies() == 1


def test_a_checkpoint_that_is_in_the_mirror_stays_there_when_it_is_read_again_and_not_sent(directory: Directory) -> None:
    path, other = save(directory.home / "ckpt" / "step_7.pt", 1), save(directory.home / "ckpt" / "step_8.pt", 1)
    with Process(directory) as process:
        read_and_send(process, 1, path)
        before = sorted(str(file) for file in directory.root.rglob("*") if file.is_file())
        begin(process, 2, path)
        process.wait_for("read", id=2)
        read_and_send(process, 3, other)
    after = sorted(str(file) for file in directory.root.rglob("*") if file.is_file())
    assert len(before) == 2
    assert set(before) < set(after)
