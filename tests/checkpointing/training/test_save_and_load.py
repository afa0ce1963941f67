"""One process that saves and loads: names, what stays and what goes, what a full disk leaves, and what is passed over."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from checkpointing import find, latest, load_latest, newest, save
from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.io import durable, leftovers, staging
from checkpointing.manifest import check
from checkpointing.model import CheckpointingError, Verdict
from checkpointing.retention.copies import Copies
from checkpointing.training import load
from checkpointing.verification import verify
from tests.support import preloaded
from tests.support.damaged_files import tear

if TYPE_CHECKING:
    from collections.abc import Callable


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# what does not cost anything


@pytest.mark.process
def test_importing_the_package_imports_neither_torch_nor_the_supervisor() -> None:
    program = "import sys, checkpointing\n"
    program += "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'numpy', 'supervisor', 'boto3', 'anycrc'}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603 -- ours
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.process
def test_the_function_is_what_the_package_gives_whatever_was_imported_before() -> None:
    program = "import checkpointing.training.save, checkpointing.training.load\n"
    program += "from checkpointing import save, load_latest\n"
    program += "assert all(map(callable, (save, load_latest)))"
    subprocess.run([sys.executable, "-c", program], check=True)  # noqa: S603 -- ours


@pytest.mark.process
def test_without_torch_functions_that_need_it_say_so_and_the_rest_works(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    program = """
import sys
sys.path.insert(0, sys.argv[1])
from checkpointing import discover, select, verification
from supervisor.worker import should_save
assert should_save() is False
for name in ("save", "load_latest"):
    try:
        exec(f"from checkpointing import {name}")
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)  # noqa: S603 -- ours
    expected = "checkpointing.{} needs torch, which is not installed here: pip install torch"
    assert done.stdout.splitlines() == [expected.format(name) for name in ("save", "load_latest")]


# saving


def test_a_save_has_its_name_when_it_is_whole_and_proven(tmp_path: Path) -> None:
    path = save({"weights": torch.arange(1000.0)}, tmp_path / "new" / "ckpt", step=7)
    assert path == str(tmp_path / "new" / "ckpt" / "step-00000007.pt")
    verification = verify(path)
    assert (verification.verdict, verification.step) == (Verdict.VERIFIED, 7)
    assert names_in(tmp_path / "new" / "ckpt") == ["step-00000007.pt"]
    assert torch.equal(torch.load(path, weights_only=True)["weights"], torch.arange(1000.0))


def test_a_save_replaces_a_file_of_its_name_in_one_step(tmp_path: Path) -> None:
    target = tmp_path / "last.pt"
    save({"step": 1}, target)
    with target.open("rb") as before:
        save({"step": 2}, target)
        assert torch.load(before, weights_only=True)["step"] == 1  # it was replaced, not written over
    assert torch.load(target, weights_only=True)["step"] == 2


def test_keep_removes_the_oldest_of_what_save_named_and_nothing_else(tmp_path: Path) -> None:
    others = ["best.pt", "step-5.pt", "step-00000099.pt", "step-00000001.pt.bak", "model_step-00000001.pt"]
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
    for step in (1, 2, 3, 4):
        save({}, tmp_path, step=step, keep=2)
    assert names_in(tmp_path) == sorted([*others, "step-00000003.pt", "step-00000004.pt"])


@pytest.mark.parametrize("step", [None, 1])
def test_keep_that_makes_no_sense_is_refused_before_anything_is_written(step: int | None, tmp_path: Path) -> None:
    with pytest.raises(CheckpointingError, match="keep="):
        save({}, tmp_path / "ckpt", step=step, keep=1 if step is None else 0)
    assert names_in(tmp_path) == []


def test_a_state_that_cannot_be_saved_leaves_what_was_there(tmp_path: Path) -> None:
    save({"step": 1}, tmp_path / "last.pt")
    with pytest.raises(Exception, match="lambda"):
        save({"weights": torch.ones(10**6), "bad": lambda: 1}, tmp_path / "last.pt")
    assert names_in(tmp_path) == ["last.pt"]
    assert torch.load(tmp_path / "last.pt", weights_only=True)["step"] == 1


def test_a_sharded_save_replaces_a_directory_of_its_name(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        save({"weights": torch.full((100,), value)}, tmp_path, step=1, sharded=True)
    assert names_in(tmp_path) == ["step-00000001"]
    checkpoint = load_latest(tmp_path, into={"weights": torch.zeros(100)})
    assert checkpoint is not None
    assert float(checkpoint.state["weights"].sum()) == 200.0


@pytest.mark.process
def test_a_full_disk_is_reported_in_plain_words_and_leaves_what_was_there(tmp_path: Path) -> None:
    program = """
import ctypes, os, subprocess, sys, torch
from checkpointing import save, load_latest
from checkpointing.model import CheckpointingError
NEW_MOUNTS, disk = 0x20000, sys.argv[1]
assert ctypes.CDLL(None).unshare(NEW_MOUNTS) == 0
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], check=True)
save({"weights": torch.ones(1000)}, disk, step=1)
for sharded in (False, True):
    try:
        save({"weights": torch.ones(2_000_000)}, disk, step=2, sharded=sharded)
    except CheckpointingError as error:
        print(error.message)
    print(sorted(os.listdir(disk)), load_latest(disk).step)
"""
    (tmp_path / "disk").mkdir()
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:  # noqa: S607 -- a tool of the system
        pytest.skip("needs a mount namespace (`unshare --mount`): run as root")
    done = preloaded.run("-c", program, str(tmp_path / "disk"))
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stdout + done.stderr
    assert lines[0].startswith("checkpoint was not saved: ")
    assert lines[0].endswith("No space left on device")
    assert re.search(r"\([0-3] MiB are left there\)$", lines[2])  # DCP says "unexpected pos", whatever the disk says
    assert lines[1] == lines[3] == "['step-00000001.pt'] 1"


@pytest.mark.parametrize("name", ["run", "step-00000004", "train.py"])
def test_a_sharded_save_replaces_nothing_that_is_no_sharded_checkpoint(name: str, tmp_path: Path) -> None:
    target = tmp_path / name
    if name == "train.py":
        target.write_text("mine")
    else:
        save({"weights": torch.ones(10)}, target, sharded=True)
        (target / "notes.txt").write_text("mine")
    before = names_in(tmp_path)
    with pytest.raises(CheckpointingError, match="is not replaced"):
        save({"weights": torch.zeros(10)}, target, sharded=True)
    assert names_in(tmp_path) == before
    assert (target if target.is_file() else target / "notes.txt").read_text() == "mine"


def test_pruning_leaves_directories_that_are_no_checkpoints_of_ours(tmp_path: Path) -> None:
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "notes.txt").write_text("mine")
    for step in (2, 3):
        save({}, tmp_path, step=step, sharded=True, keep=1)
    assert names_in(tmp_path) == ["step-00000001", "step-00000003"]


def test_pruning_never_shows_half_of_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({}, tmp_path, step=1, sharded=True)
    seen: list[list[str]] = []
    monkeypatch.setattr(
        shutil, "rmtree", lambda _path, **_how: seen.append(sorted(directory.name for directory in tmp_path.glob("step-*")))
    )
    save({}, tmp_path, step=2, sharded=True, keep=1)
    assert seen == [["step-00000002"]]


@pytest.mark.parametrize("step", [-1, 10**18, 2.0, "7"])
def test_a_step_that_no_name_has_room_for_is_refused(step: Any, tmp_path: Path) -> None:  # noqa: ANN401 -- what a script counts with
    with pytest.raises(CheckpointingError, match="is not a step"):
        save({}, tmp_path / "ckpt", step=step)
    assert names_in(tmp_path) == []


def test_a_step_may_be_a_tensor_and_a_path_may_be_bytes(tmp_path: Path) -> None:
    odd = tmp_path / "a b\nü"
    path = save({"step": 5}, os.fsencode(odd), step=torch.tensor(5))  # type: ignore[arg-type] -- bytes and tensors do as well
    assert path == f"{odd}/step-00000005.pt"
    checkpoint = load_latest(odd)
    assert checkpoint is not None
    assert checkpoint.state == {"step": 5}


def test_the_hint_is_about_space_only_where_that_is_short(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointingError) as refused:
        save({}, tmp_path / "file", step=1)
    assert "Not a directory" in refused.value.message
    assert "space" not in refused.value.hint


def rename_without_flags(_old: str, _new: str, _flags: int) -> int:
    """Answer as NFS does: it knows no flags of renameat2."""
    return errno.EINVAL


def replace_and_die(target: Path, kill_at: int) -> None:
    """Replace a sharded checkpoint in a process of its own, which SIGKILL ends after its `kill_at`-th rename."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    calls = iter(range(1, 100))

    def killed_after(function: Any) -> Any:  # noqa: ANN401 -- of either shape
        def call(*paths: str) -> Any:  # noqa: ANN401 -- as above
            answer = function(*paths)
            if answer is not False and next(calls) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call

    os.rename, durable.exchange = killed_after(os.rename), killed_after(durable.exchange)
    with staging.new_directory(str(target)) as place:
        shutil.copytree(target, place.path, dirs_exist_ok=True)
        staging.put(place)
    os._exit(0)


@pytest.mark.parametrize("file_system", ["local", "nfs"])
@pytest.mark.process
def test_a_kill_at_any_rename_of_a_sharded_save_leaves_the_only_checkpoint(
    file_system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "last"
    save({"weights": torch.ones(100)}, target, sharded=True)
    if file_system == "nfs":
        monkeypatch.setattr(durable, "_renameat2", lambda: rename_without_flags)
    for kill_at in (1, 2, 3):
        replace_and_die(target, kill_at)
        checkpoint = load_latest(tmp_path, into={"weights": torch.zeros(100)})
        assert checkpoint is not None
        assert (checkpoint.path, float(checkpoint.state["weights"].sum())) == (str(target), 100.0)


# what killed writers leave


def test_leftovers_of_killed_writers_are_swept_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    old = time.time() - 60
    here = f"{leftovers.tag()}0123456789ab"
    dead, young = tmp_path / f".step-00000001.pt.tmp-{here}", tmp_path / f".step-00000002.pt.tmp-{here}"
    directory = tmp_path / f".step-00000003.tmp-{here}"
    foreign = [tmp_path / ".mine.tmp-1", tmp_path / "x.tmp-0123456789ab"]
    for path in (dead, young, *foreign):
        path.write_bytes(b"part")
    directory.mkdir()
    (directory / "__0_0.distcp").write_bytes(b"part")
    with staging.new_file(str(tmp_path / "step-00000004.pt")) as living:
        for leftover in (dead, directory / "__0_0.distcp", directory, *foreign, Path(living.path)):
            os.utime(leftover, (old, old))
        assert sorted(staging.sweep(str(tmp_path))) == sorted([str(dead), str(directory)])
        assert Path(living.path).exists()
    assert names_in(tmp_path) == sorted(path.name for path in (young, *foreign))


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Be one node or another of a file system whose locks are each node's own: the other's look free."""
    monkeypatch.setattr(fcntl, "flock", lambda _fd, _how: None)
    return lambda node: monkeypatch.setattr(leftovers, "tag", lambda: node * leftovers.TAG_DIGITS)


def test_a_save_of_another_node_is_not_swept_while_it_may_be_going_on(tmp_path: Path, two_nodes: Callable[[str], None]) -> None:
    two_nodes("a")
    final, hour_ago = str(tmp_path / "step-00000001"), time.time() - 3600
    with staging.new_directory(final) as place:
        shard = Path(place.path) / "__0_0.distcp"
        shard.write_bytes(b"part")
        for path in (shard, Path(place.path)):
            os.utime(path, (hour_ago, hour_ago))  # its files are made, and it writes slowly into one of them
        two_nodes("b")
        save({"weights": torch.ones(3)}, tmp_path, step=2)
        assert shard.exists()
        os.utime(shard, (hour_ago - 86400, hour_ago - 86400))
        assert staging.sweep(str(tmp_path)) == [], "the directory itself was changed an hour ago"
        os.utime(place.path, (hour_ago - 86400, hour_ago - 86400))
        assert staging.sweep(str(tmp_path)) == [place.path]


def test_a_node_whose_clock_is_wrong_sweeps_nothing_that_is_young(
    tmp_path: Path, two_nodes: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    two_nodes("a")
    with staging.new_file(str(tmp_path / "step-00000001.pt")) as place:
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 10 * 86400)
        assert staging.sweep(str(tmp_path)) == []
        two_nodes("b")
        assert staging.sweep(str(tmp_path)) == []
        assert Path(place.path).exists()


@pytest.mark.parametrize("sweeper", ["a", "b"])
def test_the_only_checkpoint_is_not_swept_between_the_two_renames_that_replace_it(
    tmp_path: Path, two_nodes: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, sweeper: str
) -> None:
    two_nodes("a")
    final, long_ago = tmp_path / "step-00000001", time.time() - 3 * 86400
    old = Path(staging.temporary_for(str(final), "old"))
    old.mkdir()
    (old / ".metadata").write_bytes(b"x")
    for path in (old / ".metadata", old):
        os.utime(path, (long_ago, long_ago))
    two_nodes(sweeper)
    monkeypatch.setattr(staging, "bring_back", lambda _: [])  # it had looked a moment before the first rename
    assert staging.sweep(str(tmp_path)) == []
    assert old.exists()
    monkeypatch.undo()
    assert staging.bring_back(str(tmp_path)) == [str(final)]


# loading


def test_an_empty_or_missing_directory_loads_none(tmp_path: Path) -> None:
    assert load_latest(tmp_path) is None
    assert load_latest(tmp_path / "missing") is None


def test_torn_ones_are_passed_over_and_named(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save({"step": step, "weights": torch.ones(1000)}, tmp_path, step=step)
    tear(tmp_path / "step-00000003.pt")
    (tmp_path / "notes.txt").write_text("no checkpoint")
    checkpoint = load_latest(tmp_path)
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.state["step"]) == (2, 2)
    assert [Path(path).name for path, _ in checkpoint.passed_over] == ["step-00000003.pt"]
    assert "torn" in checkpoint.passed_over[0][1]


def test_where_none_is_good_the_training_does_not_start_from_scratch_in_silence(tmp_path: Path) -> None:
    tear(Path(save({"weights": torch.ones(1000)}, tmp_path, step=1)))
    with pytest.raises(CheckpointingError, match=r"none is good: .*step-00000001.pt: torn"):
        load_latest(tmp_path)


def test_no_pickle_runs_code_unless_it_is_trusted(tmp_path: Path) -> None:
    torch.save({"path": Path("x")}, tmp_path / "step-00000001.pt")
    with pytest.raises(CheckpointingError) as refused:
        load_latest(tmp_path)
    assert "step-00000001.pt" in refused.value.message
    torch.serialization.clear_safe_globals()


def test_the_supervisors_checkpoint_comes_first_and_no_newer_one_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2, 3):
        save({"step": step}, tmp_path, step=step)
    monkeypatch.setenv("SUPERVISE_JOB_RESUME_FROM", str(tmp_path / "step-00000002.pt"))
    monkeypatch.setenv("SUPERVISE_JOB_RESUME_STEP", "2")
    checkpoint = load_latest(tmp_path)
    assert checkpoint is not None
    assert checkpoint.step == 2
    tear(tmp_path / "step-00000002.pt")
    checkpoint = load_latest(tmp_path)  # the supervisor stepped back from 3 on purpose
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert [Path(path).name for path, _ in checkpoint.passed_over] == ["step-00000002.pt"]


def test_the_supervisors_checkpoint_is_for_its_own_directory_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gen", "disc"):
        for step in (1, 2):
            save({"step": step, "of": name}, tmp_path / name, step=step)
    monkeypatch.setenv("SUPERVISE_JOB_RESUME_FROM", str(tmp_path / "gen" / "step-00000001.pt"))
    checkpoints = [load_latest(tmp_path / name) for name in ("gen", "disc")]
    assert [(checkpoint.state["of"], checkpoint.step) for checkpoint in checkpoints if checkpoint] == [("gen", 1), ("disc", 2)]
    (tmp_path / "link").symlink_to("gen")
    linked = load_latest(tmp_path / "link")
    assert linked is not None
    assert linked.step == 1


def test_a_kept_copy_is_handed_out_for_the_directory_that_it_is_a_copy_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "here" / "step-00000001.pt"
    save({"step": 1}, path.parent, step=1)
    copies = Copies(CheckpointCatalogue(tmp_path, is_writer=True), 1 << 30)
    copy = copies.keep(check.build(verify(str(path)))).copy
    assert copy is not None
    path.write_bytes(path.read_bytes()[:-100])
    monkeypatch.setenv("SUPERVISE_JOB_RESUME_FROM", copy.place)
    checkpoint = load_latest(path.parent)
    assert checkpoint is not None
    assert checkpoint.path == copy.place


@pytest.mark.parametrize("sharded", [False, True])
def test_a_checkpoint_itself_may_be_named(sharded: bool, tmp_path: Path) -> None:  # noqa: FBT001 -- a column
    path = save({"weights": torch.ones(3)}, tmp_path / "last", sharded=sharded)
    save({"weights": torch.zeros(3)}, tmp_path / "step-00000009.pt")
    checkpoint = load_latest(path, into={"weights": torch.zeros(3)})
    assert checkpoint is not None
    assert (checkpoint.path, float(checkpoint.state["weights"].sum())) == (path, 3.0)


@pytest.mark.process
def test_loading_while_another_process_saves_and_prunes_finds_one_every_time(tmp_path: Path) -> None:
    save({"step": 0}, tmp_path, step=0)
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            for step in range(1, 10**6):
                save({"step": step}, tmp_path, step=step, keep=1)
        os._exit(1)
    try:
        for _ in range(100):
            checkpoint = load_latest(tmp_path)
            assert checkpoint is not None
            assert checkpoint.state["step"] == checkpoint.step
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert checkpoint.step


@pytest.mark.parametrize(("mtime_ns", "verdicts"), [(1_700_000_000_123_456_789, (True, True)), (1_700_000_000_000_000_000, (True, False))])
def test_a_shared_file_is_known_by_size_and_time_where_each_mount_gives_it_an_inode_of_its_own(
    tmp_path: Path, mtime_ns: int, verdicts: tuple[bool, bool]
) -> None:
    shared, elsewhere = tmp_path / "step_1.pt", tmp_path / "mount" / "step_1.pt"
    elsewhere.parent.mkdir()
    torch.save({"step": 1}, shared)
    elsewhere.write_bytes(b"x" * shared.stat().st_size)  # torn: shows whether it was read
    for path in (shared, elsewhere):
        os.utime(path, ns=(mtime_ns, mtime_ns))
    seen = verify(str(shared)).identity
    proposals = [load._Proposal(str(path), 1, load._whole(seen), is_directory=False) for path in (shared, elsewhere)]  # noqa: SLF001 -- ranks of real nodes need two mounts
    assert tuple(load._have(proposal) for proposal in proposals) == verdicts  # noqa: SLF001 -- as above


def test_every_way_to_the_newest_takes_the_same_one(tmp_path: Path) -> None:
    for step, weight in ((100, 1.0), (200, 2.0), (300, float("nan")), (400, 4.0)):
        torch.save({"model": {"weight": torch.full((100,), weight)}, "step": step}, tmp_path / f"step_{step}.pt")
    os.truncate(tmp_path / "step_400.pt", 500)
    torch.save(
        {"model": {"weight": torch.ones(100)}}, tmp_path / "best.pt"
    )  # without a step: it comes last, though it is the youngest file
    loaded, chosen = load_latest(tmp_path), newest(find("*.pt", str(tmp_path))).chosen
    assert loaded is not None
    assert chosen is not None
    assert loaded.path == chosen.path == getattr(latest(tmp_path).chosen, "path", None) == str(tmp_path / "step_200.pt")
