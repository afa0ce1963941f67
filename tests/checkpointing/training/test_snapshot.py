"""Snapshots in shared memory: what is in them, when they go to disk, who frees the memory, and the error if there is none."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from checkpointing import Snapshotter, load_latest, save
from checkpointing.model import CheckpointingError, Verdict
from checkpointing.training import snapshot_layout, snapshot_writer
from checkpointing.verification import verify
from tests.checkpointing.mounts import tmpfs
from tests.support import preloaded
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))"


@pytest.fixture
def shm(tmp_path: Path) -> Iterator[str]:
    """Give a directory for segments that is nobody else's; it is on disk, which makes no difference but in speed."""
    (tmp_path / "shm").mkdir()
    yield str(tmp_path / "shm")
    assert os.listdir(tmp_path / "shm") == []  # noqa: PTH208 -- names


def state_of(step: int, count: int = 1000) -> dict[str, Any]:
    base = torch.full((count,), float(step))
    return {
        "step": step,
        "weights": base,
        "view": base[10:20],
        "half": torch.full((7, 3), step, dtype=torch.bfloat16).t(),
        "empty": torch.empty(0),
        "parameter": torch.nn.Parameter(torch.full((5,), float(step))),
        "small": {"lr": 0.1, "name": "größe", "betas": (0.9, 0.99)},
    }


def assert_equal(found: Any, expected: dict[str, Any]) -> None:  # noqa: ANN401 -- a state
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value)
        else:
            assert found[name] == value
    assert found["view"].untyped_storage().data_ptr() == found["weights"].untyped_storage().data_ptr()


def die_after(shm: str, directory: Path, body: str) -> str:
    """Run a trainer that takes snapshots as `body` says, and end it by SIGKILL there; return its segment's path."""
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from checkpointing import Snapshotter
from checkpointing.training import snapshot_layout
from tests.checkpointing.training.test_snapshot import state_of
s = Snapshotter({str(directory)!r}, shm={shm!r})
{body}
s._finish()
print(s._memory.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = preloaded.run("-c", program)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.split()[-1]


def test_a_snapshot_of_a_killed_trainer_is_a_file_as_torch_writes_it(tmp_path: Path, shm: str) -> None:
    directory = tmp_path / "ckpt"
    die_after(shm, directory, "for step in (1, 2, 3): s.snapshot(state_of(step), step=step)")
    (rescued,) = snapshot_writer.rescue(str(directory), shm=shm)
    assert (rescued.path, rescued.step, rescued.problem) == (str(directory / "step-00000003.snapshot.pt"), 3, "")
    assert_equal(torch.load(rescued.path, weights_only=True), state_of(3))
    assert_equal(torch.load(rescued.path, weights_only=True, mmap=True), state_of(3))
    found = verify(rescued.path)
    assert (found.verdict, found.step, found.level) == (Verdict.VERIFIED, 3, "structure")
    torch.save(state_of(3), tmp_path / "torch.pt")  # every record is where torch would put it: aligned alike
    ours, theirs = (torch._C.PyTorchFileReader(str(path)) for path in (rescued.path, tmp_path / "torch.pt"))  # noqa: SLF001
    assert set(theirs.get_all_records()) - {".data/serialization_id"} == set(ours.get_all_records()) - {".data/serialization_id"}
    assert all(ours.get_record_offset(f"data/{number}") % 64 == 0 for number in range(3))


def test_load_latest_finds_what_a_killed_trainer_left_in_shared_memory(tmp_path: Path) -> None:
    directory = tmp_path / "ckpt"
    save({"step": 1}, directory, step=1)
    die_after(snapshot_layout.SHM, directory, "s.snapshot(state_of(5), step=5)")
    found = load_latest(directory)
    assert found is not None
    assert found.step == 5
    assert_equal(found.state, state_of(5))
    assert list(snapshot_layout.find(str(directory))) == []


def test_a_slot_whose_bytes_are_not_what_was_put_there_gives_way_to_the_other(tmp_path: Path, shm: str) -> None:
    directory = tmp_path / "ckpt"
    path = die_after(shm, directory, "for step in (1, 2):\n    s.snapshot(state_of(step), step=step)\n    s._finish()")
    memory = bytearray(Path(path).read_bytes())
    layout = snapshot_layout.Layout.decode(bytes(memory[: 2 * snapshot_layout.PAGE]))
    slot = snapshot_layout.read_slot(memoryview(memory), layout, 1)
    assert slot is not None
    assert slot.step == 2
    assert slot.crcs is not None
    memory[layout.slots[1] + layout.data + 100] ^= 1
    Path(path).write_bytes(memory)
    (rescued,) = snapshot_writer.rescue(str(directory), shm=shm)
    assert rescued.step == 1
    assert_equal(torch.load(rescued.path, weights_only=True), state_of(1))
    assert sorted(one.name for one in directory.iterdir()) == ["step-00000001.snapshot.pt"]


def test_a_damaged_segment_is_reported_and_freed_and_nothing_is_made_of_it(tmp_path: Path, shm: str) -> None:
    directory = tmp_path / "ckpt"
    path = Path(die_after(shm, directory, "s.snapshot(state_of(1), step=1)"))
    sound = path.read_bytes()
    for at in (0, 9, 20, 8192 + 3, 8192 + 9, 8192 + 40):
        memory = bytearray(sound)
        memory[at] ^= 0x55
        path.write_bytes(memory)
        (rescued,) = snapshot_writer.rescue(str(directory), shm=shm)
        assert rescued.path == "", at
        assert rescued.problem, at
        assert not os.listdir(directory), at  # noqa: PTH208 -- names
        assert not path.exists(), at
    memory = bytearray(sound)
    memory[5000] ^= 0x55  # between head and slots there is nothing
    path.write_bytes(memory)
    (rescued,) = snapshot_writer.rescue(str(directory), shm=shm)
    assert rescued.step == 1
    assert not path.exists()


def test_a_living_trainers_memory_is_left_alone(tmp_path: Path, shm: str) -> None:
    directory = tmp_path / "ckpt"
    with Snapshotter(directory, shm=shm) as snapshotter:
        snapshotter.snapshot(state_of(1), step=1)
        told = f"{str(directory)!r}, shm={shm!r}"
        program = (
            f"from checkpointing.training import snapshot_writer; print(snapshot_writer.rescue({told}), snapshot_writer.discard({told}))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 -- ours
        assert done.stdout == "[] []\n"
        assert snapshot_writer.rescue(str(directory), shm=shm) == []  # in the trainer itself as well
        snapshotter.snapshot(state_of(2), step=2)


def test_what_a_killed_trainer_left_for_a_directory_that_is_gone_is_dropped(tmp_path: Path, shm: str) -> None:
    directory = tmp_path / "ckpt"
    die_after(shm, directory, "s.snapshot(state_of(1), step=1)")
    directory.rename(tmp_path / "elsewhere")
    directory.mkdir()
    (rescued,) = snapshot_writer.rescue(str(directory), shm=shm)
    assert "its directory is gone" in rescued.problem
    assert list(directory.iterdir()) == list((tmp_path / "elsewhere").iterdir()) == []


def test_a_new_directory_of_the_same_name_is_another_one_though_it_has_the_same_inode(tmp_path: Path, shm: str) -> None:
    directory = tmp_path / "ckpt"
    die_after(shm, directory, "s.snapshot(state_of(1), step=1)")
    directory.rmdir()
    directory.mkdir()
    (rescued,) = snapshot_writer.rescue(str(directory), shm=shm)
    assert "its directory is gone" in rescued.problem
    assert list(directory.iterdir()) == []


def test_a_directory_that_is_not_mounted_keeps_the_memory(tmp_path: Path, shm: str) -> None:
    with tmpfs(tmp_path / "disk", 1 << 20) as disk:
        path = die_after(shm, disk / "ckpt", "s.snapshot(state_of(1), step=1)")
    (rescued,) = snapshot_writer.rescue(str(disk / "ckpt"), shm=shm)
    assert ("is not mounted" in rescued.problem, os.path.exists(path)) == (True, True)  # noqa: PTH110 -- a string
    (disk / "ckpt").mkdir()  # somebody begins anew without it
    (rescued,) = snapshot_writer.rescue(str(disk / "ckpt"), shm=shm)
    assert "its directory is gone" in rescued.problem


def test_a_snapshot_of_another_version_is_left_to_that_one(tmp_path: Path, shm: str) -> None:
    directory = tmp_path / "ckpt"
    path = Path(die_after(shm, directory, "s.snapshot(state_of(1), step=1)"))
    memory = bytearray(path.read_bytes())
    memory[8] = 2
    path.write_bytes(memory)
    (rescued,) = snapshot_writer.rescue(str(directory), shm=shm)
    assert ("version 2" in rescued.problem, path.exists()) == (True, True)
    assert snapshot_writer.discard(str(directory), shm=shm) == [str(path)]


def test_a_directory_that_cannot_be_looked_at_keeps_the_memory(tmp_path: Path, shm: str) -> None:
    disk, away = tmp_path / "disk", tmp_path / "away"
    die_after(shm, disk / "ckpt", "s.snapshot(state_of(1), step=1)")
    disk.rename(away)
    disk.symlink_to(disk)  # a loop: not an answer like "it is not there"
    (rescued,) = snapshot_writer.rescue(None, shm=shm)
    assert "could not be written to disk" in rescued.problem
    disk.unlink()
    away.rename(disk)
    (rescued,) = snapshot_writer.rescue(str(disk / "ckpt"), shm=shm)
    assert rescued.step == 1


def test_what_a_trainer_of_the_same_process_number_left_in_another_container_is_found(tmp_path: Path, shm: str) -> None:
    directory = tmp_path / "ckpt"
    path = die_after(shm, directory, "s.snapshot(state_of(1), step=1)")
    stem, _, token = path.rpartition("-")
    Path(path).rename(f"{stem.rpartition('-')[0]}-{os.getpid()}-{token}")
    (rescued,) = snapshot_writer.rescue(str(directory), shm=shm)
    assert rescued.step == 1


def test_a_step_that_an_earlier_run_came_to_as_well_is_replaced(tmp_path: Path, shm: str) -> None:
    directory = tmp_path / "ckpt"
    path = save({"step": 0, "run": "earlier"}, directory / "step-00000007.snapshot.pt")
    die_after(shm, directory, "s.snapshot(state_of(7), step=7)")
    (rescued,) = snapshot_writer.rescue(str(directory), shm=shm)
    assert rescued.path == path
    assert_equal(torch.load(path, weights_only=True), state_of(7))


@pytest.mark.parametrize("step", [-1, 10**18, 2**63, 2.5])
def test_what_is_no_step_is_refused_and_the_snapshot_before_it_stays(step: Any, tmp_path: Path, shm: str) -> None:  # noqa: ANN401 -- what a script counts with
    with Snapshotter(tmp_path / "ckpt", persist_every=1, shm=shm) as snapshotter:
        snapshotter.snapshot(state_of(1), step=1)
        with pytest.raises(CheckpointingError, match="is no step"):
            snapshotter.snapshot(state_of(2), step=step)
    assert_equal(torch.load(tmp_path / "ckpt" / "step-00000001.snapshot.pt", weights_only=True), state_of(1))


def test_what_makes_no_sense_or_has_no_place_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointingError, match="keep=0 leaves none"):
        Snapshotter(tmp_path / "ckpt", keep=0)
    with pytest.raises(CheckpointingError, match=r"of shared memory: .*missing has 0\.00 GiB left"):
        Snapshotter(tmp_path / "ckpt", shm=str(tmp_path / "missing")).snapshot(state_of(1), step=1)


def test_a_forked_child_leaves_its_parents_memory_alone(tmp_path: Path, shm: str) -> None:
    with Snapshotter(tmp_path / "ckpt", shm=shm) as snapshotter:
        snapshotter.snapshot(state_of(1), step=1)
        pid = os.fork()
        if pid == 0:
            snapshotter.snapshot({"step": -1}, step=9)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        (path,) = (tmp_path / "shm").iterdir()
        assert snapshot_writer.persist(str(path)).step == 1


def test_a_disk_that_is_full_keeps_the_memory_for_another_try(tmp_path: Path, shm: str) -> None:
    directory = tmp_path / "ckpt"
    path = die_after(shm, directory, "s.snapshot(state_of(1), step=1)")
    program = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
    program += (
        f"from checkpointing.training import snapshot_writer; print(snapshot_writer.rescue({str(directory)!r}, shm={shm!r})[0].problem)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 -- ours
    assert done.stdout.startswith("it could not be written to disk: File too large")
    assert list(directory.iterdir()) == []
    assert Path(path).exists()
    (rescued,) = snapshot_writer.rescue(str(directory), shm=shm)
    assert rescued.step == 1


def test_every_nth_goes_to_disk_while_the_training_goes_on_and_two_of_them_stay(tmp_path: Path, shm: str) -> None:
    directory = tmp_path / "ckpt"
    with Snapshotter(directory, persist_every=2, shm=shm) as snapshotter:
        for step in range(1, 9):
            snapshotter.snapshot(state_of(step), step=step)
            if step % 2 == 0:
                wait_for((directory / f"step-{step:08d}.snapshot.pt").exists, "the snapshot on disk", 30)
            assert snapshotter.problem == ""
    assert sorted(path.name for path in directory.iterdir()) == ["step-00000006.snapshot.pt", "step-00000008.snapshot.pt"]
    assert_equal(torch.load(directory / "step-00000008.snapshot.pt", weights_only=True), state_of(8))


def test_snapshots_faster_than_the_disk_never_replace_what_is_being_written(tmp_path: Path, shm: str) -> None:
    directory = tmp_path / "ckpt"
    with Snapshotter(directory, persist_every=1, keep=100, shm=shm) as snapshotter:
        step = 0
        while len(list(directory.glob("step-*"))) < 3:
            step += 1
            snapshotter.snapshot(state_of(step, 300_000), step=step)
            assert snapshotter.problem == ""
    for path in directory.glob("step-*"):
        found = torch.load(path, weights_only=True)
        assert_equal(found, state_of(found["step"], 300_000))


def test_a_state_that_grows_gets_more_room(tmp_path: Path, shm: str) -> None:
    directory = tmp_path / "ckpt"
    die_after(
        shm, directory, "s.snapshot(state_of(1), step=1); s.snapshot(state_of(2, 100_000), step=2); s.snapshot(state_of(3, 9), step=3)"
    )
    assert len(os.listdir(shm)) == 1  # noqa: PTH208 -- names
    (rescued,) = snapshot_writer.rescue(str(directory), shm=shm)
    assert rescued.step == 3


def test_no_room_is_reported_before_anything_is_made(tmp_path: Path) -> None:
    small = tmp_path / "shm"
    small.mkdir()
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from checkpointing import Snapshotter
from checkpointing.training import snapshot_writer
from tests.checkpointing.training.test_snapshot import state_of
s = Snapshotter({str(tmp_path / "ckpt")!r}, shm={str(small)!r})
s.snapshot(state_of(1, 250_000), step=1)
path = s._memory.path
try:
    s.snapshot(state_of(2, 2_000_000), step=2)
except Exception as error:
    print(type(error).__name__, error.message, error.hint)
s._finish()
print(snapshot_writer.persist(path).step)
"""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:  # noqa: S607 -- a tool of the system
        pytest.skip("no mount namespaces here")
    words = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size=4m none {small} && exec "$0" -c "$1"', sys.executable, program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 -- ours
    assert done.stdout.startswith("CheckpointingError snapshot was not made: "), done.stdout + done.stderr
    assert re.search(r"two slots need 0\.02 GiB of shared memory: \S+ has 0\.00 GiB left", done.stdout)
    assert "--shm-size" in done.stdout
    assert done.stdout.endswith("\n1\n")  # the one that was there still is
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("end", "left", "on_disk"),
    [
        pytest.param("", 0, True, id="forgotten"),
        pytest.param("s.close()", 0, False, id="closed", marks=pytest.mark.slow),
        pytest.param("raise ValueError", 1, False, id="died"),
        pytest.param("sys.exit(3)", 0, True, id="exited", marks=pytest.mark.slow),
        pytest.param(FULL_DISK, 1, False, id="full disk", marks=pytest.mark.slow),
    ],
)
def test_the_memory_goes_with_a_training_that_ends_by_itself(end: str, left: int, on_disk: bool, tmp_path: Path, shm: str) -> None:  # noqa: FBT001 -- a column
    directory = tmp_path / "ckpt"
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from checkpointing import Snapshotter
from tests.checkpointing.training.test_snapshot import state_of
s = Snapshotter({str(directory)!r}, shm={shm!r})
s.snapshot(state_of(4), step=4)
{end}
"""
    preloaded.run("-c", program)
    assert len(os.listdir(shm)) == left  # noqa: PTH208 -- names
    assert (directory / "step-00000004.snapshot.pt").exists() == on_disk
    snapshot_writer.discard(str(directory), shm=shm)


def test_the_training_may_change_its_state_as_soon_as_the_snapshot_is_taken(tmp_path: Path, shm: str) -> None:
    directory = tmp_path / "ckpt"
    state = state_of(1, 100_000)
    with Snapshotter(directory, persist_every=1, shm=shm) as snapshotter:
        snapshotter.prepare(state)
        snapshotter.snapshot(state, step=1)
        state["weights"].fill_(-1.0)
        wait_for((directory / "step-00000001.snapshot.pt").exists, "the snapshot on disk", 30)
    assert_equal(torch.load(directory / "step-00000001.snapshot.pt", weights_only=True), state_of(1, 100_000))
    assert not [thread for thread in threading.enumerate() if thread.name == "checkpointing-snapshot"]


def test_the_command_writes_and_drops(tmp_path: Path) -> None:
    directory = tmp_path / "ckpt"
    die_after(snapshot_layout.SHM, directory, "s.snapshot(state_of(1), step=1)")
    command = [sys.executable, "-m", "checkpointing.training.snapshot_writer"]
    done = subprocess.run([*command, str(directory)], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 -- ours
    assert done.stdout == f"{directory}/step-00000001.snapshot.pt\n"
    path = die_after(snapshot_layout.SHM, directory, "s.snapshot(state_of(2), step=2)")
    done = subprocess.run([*command, "--discard", str(directory)], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    assert done.stdout == f"freed {path}\n"
    assert subprocess.run([*command, "--discard"], capture_output=True, timeout=60, check=False).returncode == 64  # noqa: S603 -- ours
