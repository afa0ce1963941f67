"""DeepSpeed's and Megatron's directories: as many files as there were ranks, none of another world, and pointers that lead somewhere."""

from __future__ import annotations

import argparse
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from checkpointing import examine
from checkpointing.discover import find
from checkpointing.formats import pointer_files
from tests.support.few import few

if TYPE_CHECKING:
    from pathlib import Path


def deepspeed(  # noqa: PLR0913 -- each is a thing that a test varies
    root: Path, step: int = 10, *, dp: int = 2, mp: int = 1, prefix: str = "", stage: int = 2
) -> Path:
    path = root / f"global_step{step}"
    path.mkdir(parents=True)
    shapes = [{"w": torch.Size([8])}] if stage else None
    state: dict[str, Any] = {"module": {"w": torch.randn(8)}, "optimizer": None if stage else {"state": {}}, "param_shapes": shapes}
    state |= {"global_steps": step, "dp_world_size": dp, "mp_world_size": mp}
    for tensor_rank in range(mp):
        if stage < 3:
            torch.save(state, path / f"mp_rank_{tensor_rank:02d}_model_states.pt")
        for rank in range(dp) if stage else ():
            end = f"zero_pp_rank_{rank}_mp_rank_{tensor_rank:02d}"
            if stage == 3:
                torch.save(state, path / f"{end}_model_states.pt")
            optimizer = {"optimizer_state_dict": {"partition_count": dp, "base_optimizer_state": {"step": step}}}
            torch.save(optimizer, path / f"{prefix}{end}_optim_states.pt")
    (root / "latest").write_text(path.name)
    return path


def megatron(  # noqa: PLR0913 -- as above
    root: Path, iteration: int = 10, *, tp: int = 2, pp: int = 1, distributed: bool = False, name: str = ""
) -> Path:
    path = root / (name or f"iter_{iteration:07d}")
    for tensor_rank in range(tp):
        for stage in range(pp):
            rank = path / (f"mp_rank_{tensor_rank:02d}" + (f"_{stage:03d}" if pp > 1 else ""))
            rank.mkdir(parents=True)
            args = argparse.Namespace(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp)
            torch.save({"args": args, "iteration": iteration, "model": {"w": torch.randn(8)}}, rank / "model_optim_rng.pt")
            if distributed:
                torch.save({"w": torch.randn(8)}, rank / "distrib_optim.pt")
    (root / "latest_checkpointed_iteration.txt").write_text(name or str(iteration))
    return path


def seen(path: Path) -> list[tuple[str, str, int | None]]:
    return [(examine.word(verification.verdict), verification.format, verification.step) for verification in examine.look(str(path))]


@pytest.mark.parametrize("stage", few([0, 2, 3], 2))
@pytest.mark.parametrize("mp", [1, 2])
@pytest.mark.parametrize("prefix", few(["", "bf16_"]))
def test_each_layout_of_deepspeed_is_good_and_lacks_each_of_its_files(stage: int, mp: int, prefix: str, tmp_path: Path) -> None:
    path = deepspeed(tmp_path, dp=3, mp=mp, prefix=prefix, stage=stage)
    assert seen(tmp_path) == seen(path) == [("good", "deepspeed", 10)]
    for file in sorted(path.iterdir()):
        aside = file.rename(tmp_path / "aside")
        if list(path.iterdir()):
            assert seen(path)[0][:2] == ("incomplete", "deepspeed"), file.name
        aside.rename(file)
    assert seen(path) == [("good", "deepspeed", 10)]


def test_a_shard_of_a_larger_world_is_of_another_save(tmp_path: Path) -> None:
    path = deepspeed(tmp_path / "a", dp=2)
    other = deepspeed(tmp_path / "b", dp=3)
    shutil.copy(other / "zero_pp_rank_2_mp_rank_00_optim_states.pt", path)
    assert seen(path) == [("bad", "deepspeed", 10)]


@pytest.mark.parametrize("name", ["mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt"])
def test_a_shard_of_another_step_is_seen(name: str, tmp_path: Path) -> None:
    path, other = deepspeed(tmp_path / "a", 10), deepspeed(tmp_path / "b", 20)
    shutil.copy(other / name, path)
    assert seen(path)[0][0] == "bad"


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("distributed", [False, True])
def test_each_layout_of_megatron_is_good_and_lacks_each_of_its_files(pp: int, distributed: bool, tmp_path: Path) -> None:  # noqa: FBT001 -- a parameter
    path = megatron(tmp_path, pp=pp, distributed=distributed)
    assert seen(tmp_path) == seen(path) == [("good", "megatron", 10)]
    for file in sorted(path.rglob("*.pt")):
        aside = file.rename(tmp_path / "aside")
        assert seen(path)[0][:2] == ("incomplete", "megatron"), file
        aside.rename(file)
    shutil.rmtree(max(path.iterdir()))
    assert seen(path) == [("incomplete", "megatron", 10)]


def test_a_release_is_good(tmp_path: Path) -> None:
    megatron(tmp_path, 0, name="release")
    assert seen(tmp_path)[0][:2] == ("good", "megatron")


@pytest.mark.parametrize("name", ["mp_rank_02", "mp_rank_00_001"])
def test_a_rank_that_there_was_not_is_of_another_save(name: str, tmp_path: Path) -> None:
    path = megatron(tmp_path)
    shutil.copytree(path / "mp_rank_00", path / name)
    assert seen(path) == [("bad", "megatron", 10)]


def test_an_iteration_of_another_name_is_seen(tmp_path: Path) -> None:
    path = megatron(tmp_path)
    path = path.rename(tmp_path / "iter_0000020")
    assert seen(path)[0][0] == "bad"


@pytest.mark.parametrize(
    ("text", "problem"),
    [("global_step10", ""), ("global_step99", "not there"), ("", "empty"), ("../x", "no name"), ("\0\0\0", "no name")],
)
def test_pointers_of_deepspeed(text: str, problem: str, tmp_path: Path) -> None:
    deepspeed(tmp_path)
    (tmp_path / "latest").write_text(text)
    pointer = pointer_files.read(str(tmp_path))
    assert pointer is not None
    assert problem in pointer.problem
    assert bool(problem) == bool(pointer.problem)
    assert (seen(tmp_path)[0][0] == "good") == (not problem)


def test_a_broken_pointer_over_several_steps_is_a_row_of_its_own(tmp_path: Path) -> None:
    deepspeed(tmp_path, 10)
    deepspeed(tmp_path, 20)
    assert [row[0] for row in seen(tmp_path)] == ["good", "good"]
    (tmp_path / "latest").write_text("global_step30")
    assert [row[0] for row in seen(tmp_path)] == ["incomplete", "good", "good"]


def test_a_link_or_directory_named_latest_is_no_pointer(tmp_path: Path) -> None:
    path = deepspeed(tmp_path)
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to(path.name)
    assert pointer_files.read(str(tmp_path)) is None


def test_each_step_of_a_root_is_a_candidate(tmp_path: Path) -> None:
    steps = [deepspeed(tmp_path, 10), deepspeed(tmp_path, 20)]
    assert [candidate.path for candidate in find([str(tmp_path)], "/").candidates] == [str(step) for step in steps]
