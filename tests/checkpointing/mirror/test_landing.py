"""Where a restored checkpoint goes: only to what is the job's, one restorer at a time, with the framework's pointer, without leavings."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing.io import leftovers
from checkpointing.manifest import digest, documents
from checkpointing.mirror import keys, restore, restore_target
from checkpointing.mirror.backends import Backend, Bytes, NotFound, PermissionDenied
from checkpointing.mirror.restore import PathNotPermitted, PathOccupied, Unreachable
from checkpointing.mirror.source import TransferControl
from supervisor.checkpoints.mirror import restore_process
from supervisor.checkpoints.mirror.restore_permission import refusal
from supervisor.config.settings import Settings
from supervisor.core.values import replace
from supervisor.job.job import Job
from tests.checkpointing.mirror.process import save, save_tree, upload, waiting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def bring(backend: Backend, path: Path, described: Path, **changed: object) -> str:
    """Mirror a checkpoint, its manifest changed in parts, and return its key."""
    raw = documents.encode(dataclasses.replace(documents.read(str(described)), **changed))  # type: ignore[arg-type] -- the test's own
    return upload(backend, waiting(str(path), raw), TransferControl())


def brought(home: Path, backend: Backend, step: int, n_bytes: int = 1000) -> tuple[Path, str]:
    path = home / "ckpt" / f"step_{step}.pt"
    return path, bring(backend, path, save(path, n_bytes, step))


def test_a_place_that_is_not_the_jobs_is_refused_and_nothing_is_made(tmp_path: Path, backend: Backend) -> None:
    path, _ = brought(tmp_path, backend, 1)
    path.unlink()
    path.parent.rmdir()
    with pytest.raises(PathNotPermitted, match="is not ours") as caught:
        restore.newest([backend], "job", refusal=lambda path: (f"{path} is not ours", "--to DIR"))
    assert "--to" in caught.value.hint
    assert not path.parent.exists()
    into = restore.newest([backend], "job", into=str(tmp_path / "to"), refusal=lambda _path: ("is not ours", ""))
    assert into is not None, "a directory that was named is the answer to the hint"


COMMAND = ["/usr/bin/python", "train.py", "--out=/named/ckpt", "root=/", "--data", "../data", "x.y=/named/runs/", "--to", "/named/ckpt.pt"]
DECLARED, LEARNED = ["ckpt/*.pt", "/scratch/run/**/model-*", "~/saves"], ["/learned/step_[0-9]*.pt"]


@pytest.mark.parametrize(
    ("path", "may"),
    [
        ("/srv/job/ckpt/step_1.pt", True),
        ("/srv/job/runs/a/b/checkpoint-5", True),
        ("/scratch/run/model-5", True),
        ("/scratch/run/a/b/model-5", True),
        ("/home/me/saves/step_1.pt", True),
        ("/learned/step_7.pt", True),
        ("/named/ckpt/step_1.pt", True),
        ("/named/runs/a/checkpoint-5", True),
        ("/srv/data/step_1.pt", True),
        ("/named/ckpt.pt", True),
        ("/named/step_1.pt", False),
        ("/named/ckpt/.git/hooks", False),
        ("/srv/other/ckpt/step_1.pt", False),
        ("/srv/job-2/ckpt/step_1.pt", False),
        ("/srv/job/../other/step_1.pt", False),
        ("/srv/job/.venv/lib/x.pt", False),
        ("/srv/job/venv/lib/python3/site-packages/x.pth", False),
        ("/srv/job/torch.py", False),
        ("/scratch/run/.hidden/model-5", False),
        ("/scratch/run/a/other-5", False),
        ("/home/me/.bashrc", False),
        ("/home/me/saves/.x/step_1.pt", False),
        ("/learned/best.pt", False),
        ("ckpt/step_1.pt", False),
        ("", False),
    ],
)
def test_the_jobs_own_paths_are_decided_by_names(path: str, may: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001 -- a parameter
    monkeypatch.setenv("HOME", "/home/me")
    refused = refusal(path, "/srv/job", DECLARED, LEARNED, COMMAND)
    assert (refused is None) is may
    assert refused is None or "--to DIR" in refused[1]


def test_a_container_that_begins_at_the_root_is_no_leave_to_write_anywhere() -> None:
    assert refusal("/etc/cron.d/step_1", "/", [], []) is not None
    assert refusal("/ckpt/step_1.pt", "/", ["ckpt/*.pt"], []) is None


@pytest.mark.process
def test_a_start_on_a_fresh_node_learns_how_to_declare_the_place(tmp_path: Path, backend: Backend) -> None:
    path, _ = brought(tmp_path, backend, 1)
    shutil.rmtree(path.parent)
    base = Settings()
    settings = dataclasses.replace(base, checkpoints=dataclasses.replace(base.checkpoints, mirror=(backend.url,)))
    cwd = tmp_path / "work"
    cwd.mkdir()
    job = Job("job", "run-1", "node", ("true",), cwd, dict(os.environ), settings, tmp_path / "state", tmp_path / "scratch", "cookie")
    refused = restore_process.restore(job, lambda _line: None)
    assert (refused.kind, path.parent.exists()) == ("elsewhere", False)
    assert f"--checkpoints '{path.parent}/step_[0-9]*.pt'" in refused.hint
    paths = (f"{path.parent}/step_[0-9]*.pt",)
    declared = dataclasses.replace(settings, checkpoints=dataclasses.replace(settings.checkpoints, paths=paths))
    assert restore_process.restore(replace(job, settings=declared), lambda _line: None).kind == "restored"
    assert path.exists()


def test_two_nodes_of_one_disk_take_turns(tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = brought(tmp_path, backend, 1, 11 << 20)
    real, reading = type(backend).read, threading.Barrier(2, timeout=60)
    waits = iter([reading.wait])

    def slowly(self: Backend, key: str, offset: int, n_bytes: int) -> Iterator[bytes]:
        if "/data/" in key:
            next(waits, lambda: None)()  # the first part of the first restorer, until the second one is about to begin
            time.sleep(0.05)
        yield from real(self, key, offset, n_bytes)

    monkeypatch.setattr(type(backend), "read", slowly)
    outcomes: list[object] = []

    def go() -> None:
        try:
            done = restore.newest([backend], "job", into=str(tmp_path / "shared"), workers=1)
            outcomes.append(done and done.fetched_bytes)
        except Exception as error:  # noqa: BLE001 -- shown by the assertion
            outcomes.append(error)

    first = threading.Thread(target=go)
    first.start()
    reading.wait()
    second = threading.Thread(target=go)
    second.start()
    first.join()
    second.join()
    assert outcomes == [11 << 20, 0]
    assert (tmp_path / "shared" / path.name).read_bytes() == path.read_bytes()
    assert os.listdir(tmp_path / "shared") == [path.name]  # noqa: PTH208 -- no lock stays, either


def test_a_whole_checkpoint_that_is_there_already_is_the_answer(tmp_path: Path, backend: Backend) -> None:
    path = tmp_path / "ckpt" / "ckpt.pt"
    bring(backend, path, save(path, 1000, 1))
    torch.save({"step": 9, "model": torch.ones(5)}, path)
    before = path.read_bytes()
    done = restore.newest([backend], "job")
    assert done is not None
    assert (done.path, done.manifest.step, done.fetched_bytes) == (str(path), 9, 0)
    assert path.read_bytes() == before


def test_something_torn_in_the_way_of_the_newest_lets_the_one_before_through(tmp_path: Path, backend: Backend) -> None:
    old, _ = brought(tmp_path, backend, 1)
    new, _ = brought(tmp_path, backend, 2)
    old.unlink()
    new.write_bytes(b"torn")
    done = restore.newest([backend], "job")
    assert done is not None
    assert (done.path, new.read_bytes()) == (str(old), b"torn")
    assert "another file has this name" in done.passed_over[0][1]
    old.write_bytes(b"torn, too")
    with pytest.raises(PathOccupied, match=new.name):
        restore.newest([backend], "job")


def test_leftovers_of_other_restores_go_unless_a_process_works_at_them(tmp_path: Path, backend: Backend) -> None:
    path, _ = brought(tmp_path, backend, 1)
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    held = fresh / f".held.pt.restore-{'a' * 16}"
    left, tree = fresh / f".step_0.pt.restore-{'b' * 16}", fresh / f".checkpoint-3.restore-{'c' * 16}"
    tree.mkdir()
    for file in (held, left, tree / "part", fresh / ".step_0.pt.restore-mine", fresh / f".gone.restore-{'d' * 16}.lock"):
        file.touch()
    for name in (left, tree, fresh / f".gone.restore-{'d' * 16}"):
        name.with_name(f"{name.name}.lock").write_text(leftovers.tag())  # as a killed restore of this node leaves it
    with restore_target.download_lock(str(held)):
        assert restore.newest([backend], "job", into=str(fresh)) is not None
        assert sorted(os.listdir(fresh)) == sorted([held.name, f"{held.name}.lock", ".step_0.pt.restore-mine", path.name])  # noqa: PTH208


def test_the_download_of_another_node_stays_though_its_lock_looks_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda _fd, _how: None)  # of this node alone: every lock looks free
    theirs, late = tmp_path / f".a.pt.restore-{'a' * 16}", tmp_path / f".b.pt.restore-{'b' * 16}"
    for path in (theirs, late):
        path.touch()
        path.with_name(f"{path.name}.lock").write_text("0badcafe")
    os.utime(late, (0, 0))
    assert restore_target.sweep(str(tmp_path)) == (late.name,)
    assert theirs.exists()


@pytest.mark.parametrize(
    ("layout", "name", "text"),
    [("deepspeed", "global_step7", "global_step7"), ("megatron", "iter_0000070", "70"), ("megatron", "release", "release")],
)
def test_a_framework_finds_what_was_restored_by_its_pointer(tmp_path: Path, backend: Backend, layout: str, name: str, text: str) -> None:
    pointer = {"deepspeed": "latest", "megatron": "latest_checkpointed_iteration.txt"}[layout]
    path = tmp_path / "ckpt" / name
    bring(backend, path, save_tree(path, {"a.pt": 100}, 7), layout=layout)
    assert restore.newest([backend], "job", into=str(tmp_path / "fresh")) is not None
    assert (tmp_path / "fresh" / pointer).read_text() == text
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / pointer).write_text("the user's")
    assert restore.newest([backend], "job", into=str(tmp_path / "own")) is not None
    assert (tmp_path / "own" / pointer).read_text() == "the user's"


@pytest.mark.parametrize("kind", [NotFound, PermissionDenied], ids=["removed", "denied"])
def test_one_manifest_that_cannot_be_read_is_passed_over(
    tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch, kind: type[NotFound | PermissionDenied]
) -> None:
    brought(tmp_path, backend, 1)
    _, key = brought(tmp_path, backend, 2)
    refused, real = [key], type(backend).read

    def read(self: Backend, name: str, offset: int, n_bytes: int) -> Iterator[bytes]:
        if any(name.startswith(prefix) for prefix in refused):
            raise kind(f"cannot read: {name}", hint="")
        yield from real(self, name, offset, n_bytes)

    monkeypatch.setattr(type(backend), "read", read)
    done = restore.newest([backend], "job", into=str(tmp_path / "fresh"))
    assert done is not None
    assert (done.manifest.step, len(done.passed_over)) == (1, 1)
    refused.append("job/")
    with pytest.raises(Unreachable):
        restore.newest([backend], "job", into=str(tmp_path / "none"))


def test_a_mirror_of_which_no_manifest_says_anything_is_not_empty(tmp_path: Path, backend: Backend) -> None:
    _, key = brought(tmp_path, backend, 1)
    backend.put(key + keys.MANIFEST, Bytes(b"{}", digest.of_bytes(b"{}")))
    with pytest.raises(Unreachable, match="manifest"):
        restore.newest([backend], "job", into=str(tmp_path / "fresh"))
