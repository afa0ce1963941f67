"""Directories of torch.distributed.checkpoint: what the library writes is whole, each kind of damage is reported, and no pickle runs."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import planner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from checkpointing.discover import find
from checkpointing.formats.directories import dcp_metadata
from checkpointing.io.reader import Interrupted
from checkpointing.model import Verdict
from checkpointing.verification import verify
from tests.support import preloaded
from tests.support.damaged_files import flip_bit

if TYPE_CHECKING:
    from collections.abc import Callable

SHARD = "__0_0.distcp"


def state(step: object = 40, seed: int = 1) -> dict[str, object]:
    generator = torch.Generator().manual_seed(seed)
    model = {"w": torch.randn(40, 30, generator=generator), "b": torch.ones(9, dtype=torch.bfloat16), "empty": torch.empty(0)}
    return {"model": model, "step": step, "epoch": 2, "note": "text", "optimizer": {"state": {"0": {"step": torch.tensor(3.0)}}}}


def save(directory: Path, held: dict[str, object] | None = None) -> Path:
    with pytest.warns(UserWarning, match="assuming the intent is to save in a single process"):
        dcp.save(held or state(), checkpoint_id=str(directory))
    return directory


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("dcp") / "step_40")


@pytest.fixture(scope="session")
def of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fsdp") / "step_7"
    job = Path(__file__).with_name("sharded_job.py")
    done = preloaded.run(str(job), str(directory), "7", ranks=2)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture
def directory(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "step_40"))


def test_a_checkpoint_written_by_torch_dcp_is_whole(directory: Path) -> None:
    verification = verify(str(directory))
    assert (verification.verdict, verification.level, verification.format, verification.reasons) == (
        Verdict.VERIFIED,
        "structure",
        "dcp",
        (),
    )
    assert (verification.step, verification.files) == (40, (".metadata", SHARD))
    assert [candidate.path for candidate in find(["**"], str(directory.parent)).candidates] == [str(directory)]


@pytest.mark.process
def test_shards_of_two_ranks(of_two_ranks: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(of_two_ranks, tmp_path / "moved"))
    verification = verify(str(directory))
    assert (verification.verdict, verification.level, verification.step, verification.reasons) == (Verdict.VERIFIED, "structure", 7, ())
    (directory / "__1_0.distcp").unlink()
    verification = verify(str(directory))
    assert (verification.verdict, verification.reason, verification.step) == (Verdict.INCOMPLETE, "shard __1_0.distcp is missing", None)


@pytest.mark.parametrize("step", [40, torch.tensor(40), torch.tensor(40, dtype=torch.int32)], ids=["int", "int64", "int32"])
def test_the_step_is_read_out_of_a_shard(tmp_path: Path, step: object) -> None:
    save(tmp_path / "x", {"train_state": {"step": step}, "optimizer": {"step": 9}})
    assert verify(str(tmp_path / "x")).step == 40


@pytest.mark.parametrize(
    "held", [{"step": 2.5}, {"step": torch.tensor([1, 2])}, {"step": "4"}, {"step": True}, {"w": torch.ones(2)}], ids=str
)
def test_a_checkpoint_without_a_step_has_none(tmp_path: Path, held: dict[str, object]) -> None:
    save(tmp_path / "x", held)
    verification = verify(str(tmp_path / "x"))
    assert (verification.verdict, verification.step, verification.reasons) == (Verdict.VERIFIED, None, ())


def test_several_files_of_one_rank(tmp_path: Path) -> None:
    directory = tmp_path / "x"
    with pytest.warns(UserWarning, match="single process"):
        dcp.save(state(), storage_writer=dcp.FileSystemWriter(str(directory), single_file_per_rank=False, thread_count=2))
    assert len(list(directory.glob("*.distcp"))) > 3
    verification = verify(str(directory))
    assert (verification.verdict, verification.reasons) == (Verdict.VERIFIED, ())


def zero(path: Path, begin: int, count: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[begin : begin + count] = bytes(count)
    path.write_bytes(raw)


def weight_at(directory: Path) -> int:
    """Where the numbers of the weight are in the shard."""
    return (directory / SHARD).read_bytes().index(torch.randn(40, 30, generator=torch.Generator().manual_seed(1)).numpy().tobytes()[:64])


DAMAGE: dict[str, tuple[Callable[[Path], object], Verdict, str]] = {
    "metadata_missing": (lambda d: (d / ".metadata").unlink(), Verdict.INCOMPLETE, ".metadata is missing: the save did not end"),
    "metadata_tmp": (lambda d: (d / ".metadata").rename(d / ".metadata.tmp"), Verdict.INCOMPLETE, ".metadata is missing"),
    "metadata_empty": (lambda d: os.truncate(d / ".metadata", 0), Verdict.BAD, ".metadata: torn: it is empty"),
    "metadata_torn": (lambda d: os.truncate(d / ".metadata", 900), Verdict.BAD, "it is not a whole pickle"),
    "metadata_zeros": (lambda d: zero(d / ".metadata", 0, 4096), Verdict.BAD, "it begins with zeros"),
    "metadata_other": (lambda d: (d / ".metadata").write_bytes(pickle.dumps({"a": 1})), Verdict.BAD, "it holds no DCP metadata"),
    "metadata_fifo": (lambda d: ((d / ".metadata").unlink(), os.mkfifo(d / ".metadata")), Verdict.UNVERIFIABLE, ".metadata is a FIFO"),
    "shard_missing": (lambda d: (d / SHARD).unlink(), Verdict.INCOMPLETE, f"shard {SHARD} is missing"),
    "shard_empty": (lambda d: os.truncate(d / SHARD, 0), Verdict.BAD, "torn: 0 of"),
    "shard_short": (lambda d: os.truncate(d / SHARD, (d / SHARD).stat().st_size - 1), Verdict.BAD, "torn:"),
    "shard_long": (lambda d: (d / SHARD).write_bytes((d / SHARD).read_bytes() + b"junk"), Verdict.BAD, "4 bytes after its last item"),
    "shard_shifted": (
        lambda d: (d / SHARD).write_bytes(b"1234" + (d / SHARD).read_bytes()[:-4]),
        Verdict.BAD,
        "it does not begin as torch",
    ),
    "shard_fifo": (lambda d: ((d / SHARD).unlink(), os.mkfifo(d / SHARD)), Verdict.UNVERIFIABLE, "is a FIFO"),
    "shard_directory": (lambda d: ((d / SHARD).unlink(), (d / SHARD).mkdir()), Verdict.UNVERIFIABLE, "is missing"),
    "flip": (lambda d: flip_bit(d / SHARD, weight_at(d) + 100), Verdict.BAD, "its CRC is"),
    "page": (lambda d: zero(d / SHARD, weight_at(d), 4096), Verdict.BAD, "its CRC is"),
    "tail": (lambda d: zero(d / SHARD, (d / SHARD).stat().st_size - 3000, 3000), Verdict.BAD, SHARD),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_reported(directory: Path, name: str) -> None:
    change, verdict, reason = DAMAGE[name]
    change(directory)
    verification = verify(str(directory))
    assert verification.verdict is verdict
    assert reason in " | ".join(verification.reasons)


def test_every_truncation_of_the_metadata_is_seen(directory: Path) -> None:
    raw = (directory / ".metadata").read_bytes()
    for size in range(0, len(raw), 7):
        with pytest.raises(dcp_metadata.MetadataDamaged):
            dcp_metadata.read(raw[:size])


def test_a_metadata_of_too_many_opcodes_is_not_built_and_a_long_one_can_be_given_up(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / ".metadata").write_bytes(b"\x80\x04" + b"]" * 100_000 + b".")
    asked: list[bool] = []
    with pytest.raises(Interrupted):
        dcp_metadata.read((directory / ".metadata").read_bytes(), lambda: bool(asked.append(True)) or len(asked) > 1)
    monkeypatch.setattr(dcp_metadata, "MOST_OPCODES", 50_000)
    verification = verify(str(directory))
    assert (verification.verdict, verification.reason) == (
        Verdict.UNVERIFIABLE,
        ".metadata: it has more than 50000 opcodes: it was not read",
    )


def rewritten(directory: Path, change: Callable[[dcp.Metadata], object]) -> None:
    metadata = pickle.loads((directory / ".metadata").read_bytes())  # noqa: S301 -- made above
    change(metadata)
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))


def test_the_plans_that_megatron_core_adds_are_part_of_a_metadata(directory: Path) -> None:
    metadata = pickle.loads((directory / ".metadata").read_bytes())  # noqa: S301 -- made above
    chunk = metadata.state_dict_metadata["model.w"].chunks[0]
    data = planner.TensorWriteData(chunk, metadata.state_dict_metadata["model.w"].properties, torch.Size([80, 20]))
    items = [planner.WriteItem(index, planner.WriteItemType.TENSOR, tensor_data=data) for index in metadata.storage_data]
    metadata.all_local_plans = [planner.SavePlan(items)]
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))
    assert verify(str(directory)).verdict is Verdict.VERIFIED


def drop_place(metadata: dcp.Metadata) -> None:
    del metadata.storage_data[next(index for index in metadata.storage_data if index.fqn == "model.w")]


def shrink(metadata: dcp.Metadata) -> None:
    metadata.state_dict_metadata["model.w"].size = torch.Size([80, 30])


def overlap(metadata: dcp.Metadata) -> None:
    info = next(info for index, info in metadata.storage_data.items() if index.fqn == "model.w")
    info.offset -= 1


def other_size(metadata: dcp.Metadata) -> None:
    metadata.state_dict_metadata["model.b"].size = torch.Size([9000])
    metadata.state_dict_metadata["model.b"].chunks[0].sizes = torch.Size([9000])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (drop_place, "gives no place for model.w"),
        (shrink, "do not make up the whole of model.w"),
        (overlap, "where"),
        (other_size, "its numbers alone take 18000"),
        (lambda m: m.state_dict_metadata.update(more=BytesStorageMetadata()), "gives no place for more"),
    ],
    ids=["place", "shrunk", "overlap", "size", "item"],
)
def test_a_metadata_that_contradicts_itself(directory: Path, change: Callable[[dcp.Metadata], object], reason: str) -> None:
    rewritten(directory, change)
    verification = verify(str(directory))
    assert (verification.verdict, reason in verification.reason) == (Verdict.BAD, True), verification.reason


def test_leftovers_of_another_save_are_a_note(directory: Path) -> None:
    shutil.copy(directory / SHARD, directory / "__5_0.distcp")
    (directory / ".metadata.tmp").write_bytes(b"torn")
    verification = verify(str(directory))
    assert verification.verdict is Verdict.VERIFIED
    assert verification.reasons == (
        "__5_0.distcp belongs to another save: nothing refers to it",
        ".metadata.tmp was left by a save that did not end",
    )
    assert verification.files == (".metadata", SHARD)


@pytest.mark.parametrize("how", ["in_place", "kept_times"])
def test_shards_of_a_later_save_are_recognised_by_their_times(directory: Path, tmp_path: Path, how: str) -> None:
    later = save(tmp_path / "later", state(seed=2))
    metadata = (directory / ".metadata").stat()
    if how == "in_place":
        fresh = save(tmp_path / "fresh")
        begun = (fresh / ".metadata").stat().st_mtime_ns
        (fresh / SHARD).write_bytes((later / SHARD).read_bytes())
        os.utime(fresh / SHARD, ns=(begun, begun + 61_000_000_000))
        directory = fresh
    else:
        shutil.copy(later / SHARD, directory / SHARD)
        os.utime(directory / SHARD, ns=(0, metadata.st_mtime_ns - 3600_000_000_000))
        os.utime(directory / ".metadata", ns=(0, metadata.st_mtime_ns - 7200_000_000_000))
    verification = verify(str(directory))
    assert (verification.verdict, verification.reason.startswith("files of two saves")) == (Verdict.BAD, True)


def stepped(steps: tuple[float, float]) -> dict[str, object]:
    """Parameters of two kinds, each with its own count of steps."""
    return {"optimizer": {"state": {str(n): {"step": torch.tensor(steps[n // 4]), "exp_avg": torch.randn(50)} for n in range(8)}}}


def test_shards_of_another_step_are_recognised_by_the_optimizers_counts(tmp_path: Path) -> None:
    shards = []
    for name, steps in (("old", (10.0, 10.0)), ("new", (20.0, 20.0)), ("uneven", (10.0, 20.0))):
        writer = dcp.FileSystemWriter(str(tmp_path / name), thread_count=2)
        with pytest.warns(UserWarning, match="single process"):
            dcp.save(stepped(steps), storage_writer=writer)
        assert verify(str(tmp_path / name)).verdict is Verdict.VERIFIED, name
        shards.append(sorted((tmp_path / name).glob("*.distcp")))
    metadata = (tmp_path / "old/.metadata").stat()
    shards[0][1].write_bytes(shards[1][1].read_bytes())
    os.utime(shards[0][1], ns=(0, metadata.st_mtime_ns))
    verification = verify(str(tmp_path / "old"))
    assert (verification.verdict, verification.reason) == (
        Verdict.BAD,
        "files of two saves: __0_0.distcp of optimizer step 10, __0_1.distcp of optimizer step 20",
    )


def test_a_copy_that_keeps_no_times_is_whole(original: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (".metadata", SHARD):  # as most copying goes: by name
        shutil.copyfile(original / name, copy / name)
    later = (copy / ".metadata").stat().st_mtime_ns + 60_000_000_000
    os.utime(copy / SHARD, ns=(later, later))
    assert verify(str(copy)).verdict is Verdict.VERIFIED


class _Bomb:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
        return (os.mkdir, ("ran",))


def test_a_pickle_that_runs_code_is_dangerous_and_does_not_run(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    (directory / ".metadata").write_bytes(pickle.dumps(_Bomb()))
    verification = verify(str(directory))
    assert verification.verdict is Verdict.DANGEROUS
    assert "mkdir" in verification.reason
    assert not (directory / "ran").exists()


def test_pickles_that_explode_do_not(directory: Path) -> None:
    laughs = b"\x80\x04}\x8c\x01a" + b"2\x86" * 60 + b"K\x01s."  # a nested key that takes 2**60 steps to hash
    huge_memo = b"\x80\x04Nr\xff\xff\xff\xff."
    for raw in (laughs, huge_memo, b"\x80\x04\x96" + b"\xff" * 7 + b"\x00.", b"\x80\x04" + b"(" * 1_000_000):
        (directory / ".metadata").write_bytes(raw)
        assert verify(str(directory)).verdict is Verdict.BAD
    (directory / ".metadata").write_bytes(b"\x80\x04\x82\x01.")  # a number in copyreg's registry: it may stand for any function
    assert verify(str(directory)).verdict is Verdict.DANGEROUS
