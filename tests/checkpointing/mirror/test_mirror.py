"""The mirror process against a real S3 server: what arrives, what it reports, and what it does without permission."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checkpointing.mirror import listing, restore
from tests.checkpointing.mirror.faults import FLIP, HOLD, LOSE, RESET, STALL, TRUNCATE, Fault
from tests.checkpointing.mirror.process import FINISH, PART, Place, Process, describe, save, save_tree
from tests.support.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.process, pytest.mark.s3]


def test_a_checkpoint_arrives_with_its_manifest_and_comes_back_the_same(place: Place) -> None:
    path = place.home / "ckpt" / "step_100.pt"
    described = save(path)
    with Process(place) as process:
        process.wait_for("ready")
        assert process.mirror(path, described) in ("reflink", "link")
        done = process.wait_for("uploaded")
    assert done["left"] == 0
    assert done["sent"] == done["bytes"] == 12 << 20
    assert place.no_manifest_lies() == 1
    assert not place.unfinished()
    restored = restore.newest([place.backend()], "job", into=str(place.home / "fresh"))
    assert restored is not None
    assert restored.manifest.step == 100
    assert (place.home / "fresh" / "step_100.pt").read_bytes() == path.read_bytes()
    assert sorted(os.listdir(place.home / "fresh")) == ["step_100.pt"]  # noqa: PTH208


@pytest.mark.slow
def test_a_directory_arrives_whole_with_its_empty_and_small_files(place: Place) -> None:
    path = place.home / "ckpt" / "checkpoint-7"
    described = save_tree(path, {"a.distcp": 11 << 20, ".metadata": 1000, "sub/empty": 0, "sub/ä b+c%20.bin": 77, "exact": PART})
    with Process(place) as process:
        process.mirror(path, described)
        process.wait_for("uploaded")
    assert place.no_manifest_lies() == 1
    restored = restore.newest([place.backend()], "job", into=str(place.home / "fresh"))
    assert restored is not None
    for file in restored.manifest.files:
        assert (place.home / "fresh" / "checkpoint-7" / file.path).read_bytes() == (path / file.path).read_bytes()


@pytest.mark.parametrize(
    ("kind", "match", "after"),
    [
        pytest.param(RESET, "^PUT.*partNumber=2", 1 << 20, marks=pytest.mark.slow),
        pytest.param(LOSE, "^POST.*uploadId", 0, marks=pytest.mark.slow),
        (FLIP, "^PUT.*partNumber=2", 0),
        pytest.param("503 SlowDown", "^PUT.*partNumber", 0, marks=pytest.mark.slow),
        pytest.param(RESET, "^POST.*uploads", 0, marks=pytest.mark.slow),
        pytest.param(LOSE, "^PUT.*partNumber=1", 0, marks=pytest.mark.slow),
        pytest.param(LOSE, "^PUT.*manifest.json", 0, marks=pytest.mark.slow),
        pytest.param("500 InternalError", "^POST.*uploadId", 0, marks=pytest.mark.slow),
        pytest.param("503 SlowDown", "^PUT.*manifest.json", 0, marks=pytest.mark.slow),
    ],
    ids=lambda value: str(value).strip("^").replace(".*", " "),
)
def test_a_fault_on_the_way_does_not_stop_it_and_leaves_no_lie(place: Place, kind: str, match: str, after: int) -> None:
    path = place.home / "ckpt" / "step_100.pt"
    fault = Fault(kind, match, times=2 if kind[0].isdigit() else 1, after=after)
    place.proxy.faults.append(fault)
    with Process(place) as process:
        process.mirror(path, save(path))
        process.wait_for("uploaded")
    assert fault.hit.is_set()
    assert place.no_manifest_lies() == 1


@pytest.mark.slow
def test_a_server_that_says_nothing_is_given_up_and_asked_again(place: Place) -> None:
    path = place.home / "ckpt" / "step_100.pt"
    place.proxy.faults.append(Fault(STALL, "^PUT.*partNumber=2"))
    with Process(place, s3={**place.s3, "read_timeout_s": 1.0}) as process:
        process.mirror(path, save(path))
        process.wait_for("uploaded")
    assert place.no_manifest_lies() == 1


def test_a_truncated_download_is_requested_again(place: Place) -> None:
    path = place.home / "ckpt" / "step_100.pt"
    with Process(place) as process:
        process.mirror(path, save(path))
        process.wait_for("uploaded")
    fault = Fault(TRUNCATE, "^GET.*step_100.pt", after=70_000)
    place.proxy.faults.append(fault)
    restored = restore.newest([place.backend()], "job", into=str(place.home / "fresh"))
    assert fault.hit.is_set()
    assert restored is not None
    assert (place.home / "fresh" / "step_100.pt").read_bytes() == path.read_bytes()


def test_no_permission_is_one_alert_and_not_a_hot_loop(place: Place) -> None:
    path = place.home / "ckpt" / "step_100.pt"
    denied = Fault("403 AccessDenied", "^(PUT|POST)", times=1000)
    place.proxy.faults.append(denied)
    with Process(place) as process:
        process.mirror(path, save(path))
        alert = process.wait_for("alert")
        assert (alert["what"], "AccessDenied" in alert["message"]) == ("denied", True)
        process.send(FINISH)
        assert process.popen.wait(PATIENCE_S) == 0
    assert place.proxy.count("^(PUT|POST)") == 2, "finish is another attempt, and one only"
    assert process.alerts() == ["denied"]
    with Process(place, orders=process.undone()) as process:
        process.wait_for("alert", what="denied")
        denied.times = 0
        process.send(FINISH)
        process.wait_for("recovered", what="denied")
        process.wait_for("uploaded")
    assert place.no_manifest_lies() == 1


@pytest.mark.slow
def test_credentials_that_expired_are_taken_anew(place: Place) -> None:
    path = place.home / "ckpt" / "step_100.pt"
    place.proxy.faults.append(Fault("400 ExpiredToken", "^PUT.*partNumber=2"))
    with Process(place) as process:
        process.mirror(path, save(path))
        process.wait_for("alert", what="expired")
        done = process.wait_for("uploaded")
    assert done["sent"] < done["bytes"]
    assert place.no_manifest_lies() == 1


@pytest.mark.slow
def test_fresh_credentials_in_the_file_are_found_by_the_running_process(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    path, file = place.home / "ckpt" / "step_100.pt", place.home / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file.write_text("[default]\naws_access_key_id = test:tester\naws_secret_access_key = wrong\n")
    with Process(place, env={"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_EC2_METADATA_DISABLED": "true"}) as process:
        process.mirror(path, save(path))
        process.wait_for("alert", what="denied")
        file.write_text("[default]\naws_access_key_id = test:tester\naws_secret_access_key = testing\n")
        process.send(FINISH)
        process.wait_for("uploaded")
    assert place.no_manifest_lies() == 1


def test_checkpoints_wait_while_the_mirror_is_away_and_the_newest_goes_first(place: Place) -> None:
    place.proxy.refuses = True
    paths = [place.home / "ckpt" / f"step_{step}.pt" for step in (100, 200, 300, 400)]
    described = [save(path, step=number * 100) for number, path in enumerate(paths, 1)]  # before: it takes as long as a pause of the upload
    with Process(place) as process:
        for number, path in enumerate(paths, 1):
            process.mirror(path, described[number - 1])
            if number == 1:
                process.wait_for("alert", what="away")  # until then it is under way, and would not be dropped
        process.wait_for("alert", what="dropped", path=str(paths[0]))
    for path in paths:
        path.unlink()  # the job tidies up: the pins hold on
    with Process(place, orders=process.undone()) as process:
        process.wait_for("alert", what="away")
        place.proxy.refuses = False
        process.send(FINISH)
        assert [process.wait_for("uploaded")["step"] for _ in range(3)] == [400, 300, 200]
        assert process.alerts() == ["away"]
    assert place.no_manifest_lies() == 3


def test_a_file_that_is_overwritten_in_place_is_abandoned(place: Place) -> None:
    path = place.home / "ckpt" / "ckpt.pt"
    held = Fault(HOLD, "^PUT.*partNumber=1")
    place.proxy.faults.append(held)
    with Process(place, workers=1) as process:
        if process.mirror(path, save(path)) == "reflink":
            pytest.skip("this file system has reflinks, and an overwrite does not reach them: set TMPDIR to an ext4 or tmpfs")
        wait_for(held.hit.is_set, "a part on its way")
        with path.open("r+b") as file:
            file.seek(11 << 20)
            file.write(b"another step")
        held.release.set()
        alert = process.wait_for("alert", what="changed")
        assert str(path) in alert["message"]
        process.send(FINISH)
        assert process.popen.wait(PATIENCE_S) == 0
    assert process.alerts() == ["changed"], "it waits no more"
    assert place.objects() == {}
    assert not place.unfinished()


def test_a_content_that_is_not_what_its_manifest_says_is_never_vouched_for(place: Place) -> None:
    path = place.home / "ckpt" / "ckpt.pt"
    described = save(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with Process(place) as process:
        process.mirror(path, described)
        process.wait_for("alert", what="changed")
    assert place.objects() == {}


def test_the_same_content_is_sent_once(place: Place) -> None:
    path = place.home / "ckpt" / "step_100.pt"
    described = save(path)
    with Process(place) as process:
        process.mirror(path, described)
        process.wait_for("uploaded")
        process.mirror(path, described)
        assert process.wait_for("uploaded")["sent"] == 0


@pytest.mark.slow
def test_an_object_removed_from_the_mirror_is_sent_again_before_the_manifest(place: Place) -> None:
    path = place.home / "ckpt" / "step_100.pt"
    described = save(path)
    held = Fault("503 SlowDown", "^PUT.*manifest.json", times=1000)
    place.proxy.faults.append(held)
    with Process(place) as process:
        process.mirror(path, described)
        wait_for(held.hit.is_set, "the manifest")
        data = next(key for key in place.objects() if "/data/" in key)
        place.client.delete_object(Bucket=place.bucket, Key=f"pre/fix/{data}")
        process.kill()
    held.times = 0
    with Process(place, orders=process.undone()) as process:
        process.wait_for("uploaded")
    assert place.no_manifest_lies() == 1


def test_only_as_many_as_asked_for_stay_at_the_mirror(place: Place) -> None:
    with Process(place, keep=2) as process:
        for step in (1, 2, 3):
            path = place.home / "ckpt" / f"step_{step}.pt"
            process.mirror(path, save(path, 1000, step=step))
            process.wait_for("uploaded", step=step)
        assert process.wait_for("pruned")["step"] == 1
    assert place.proxy.count("^GET.*/manifest.json") == 3, "each manifest is read once"
    kept, _ = listing.newest_first(place.backend(), "job")
    assert [checkpoint.manifest.step for checkpoint in kept] == [3, 2]


def test_nonsense_is_refused_and_the_next_command_is_executed(place: Place) -> None:
    path = place.home / "ckpt" / "step_100.pt"
    with Process(place) as process:
        process.send({"cmd": "mirror"})
        assert process.wait_for("alert", what="refused")["hint"].startswith("report this")
        process.send({"cmd": "mirror", "id": "x", "path": str(path), "manifest": "{", "held": [], "at": 1.0, "n_bytes": 1})
        assert "the manifest does not belong to it" in process.wait_for("alert", what="refused", id="x")["hint"]
        process.mirror(path, save(path, 100))
        process.wait_for("uploaded")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_size(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "ckpt" / "big.pt"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(300 << 20)  # zeros are bytes as well
    described = describe(path, 1)
    with Process(place, workers=4) as process:
        process.mirror(path, described)
        process.wait_for("uploaded", 110)
        status = Path(f"/proc/{process.popen.pid}/status").read_text()
        peak_kib = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
    assert peak_kib < 150 << 10
