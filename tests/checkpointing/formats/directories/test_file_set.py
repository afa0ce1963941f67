"""A directory of files that ranks saved together, in layouts that no framework has: which directories are one, and which are whole."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from checkpointing.discover import find
from checkpointing.model import Verdict
from checkpointing.verification import verify
from supervisor.observe.ranks.path_patterns import checkpoint_path
from tests.checkpointing.formats.directories.test_directories import trainer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LAYOUTS = {
    "step-{}": ("model.pt", "optim.pt"),
    "epoch_{}": ("model/weights.pt", "optim/state.pt"),
    "{}": ("model.pt", "optim.pt"),
    "iter_{:07d}": ("rank0/x.pt", "rank_1/x.pt"),
    "step_{}": ("model.safetensors", "optimizer.pt"),
    "checkpoint-{}": ("model_{}.pt", "optim_{}.pt"),
    "step={}": ("meta.json", "model.pt", "scheduler.bin"),
    "global_step{}": ("0/x.pt", "1/x.pt"),
    "ckpt_step{}": ("weights.pth", "ema.pth", "rng.ckpt", "params.json"),
}


def member(path: Path, step: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        path.write_text(json.dumps({"seen": step}))
    elif path.suffix == ".safetensors":
        save_file({"w": torch.full((300,), float(step))}, path)
    else:
        torch.save({"w": torch.full((300,), float(step))}, path)


def saved(place: Path, layout: str, steps: Iterable[int] = (20, 40)) -> list[Path]:
    """Save sets of a layout below `place`/ckpt; return their directories."""
    sets = [place / "ckpt" / layout.format(step) for step in steps]
    for directory, step in zip(sets, steps, strict=True):
        for name in LAYOUTS[layout]:
            member(directory / name.format(step), step)
    return sets


def candidates(place: Path, *patterns: str) -> list[str]:
    listing = find(patterns, str(place))
    assert listing.problems == ()
    return [os.path.relpath(candidate.path, place) for candidate in listing.candidates]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_set_is_one_candidate_and_whole(tmp_path: Path, layout: str) -> None:
    sets = saved(tmp_path, layout)
    for pattern in ("ckpt/*", "ckpt", "ckpt/**/*"):
        assert candidates(tmp_path, pattern) == [f"ckpt/{set_path.name}" for set_path in sets], pattern
    for step, directory in zip((20, 40), sets, strict=True):
        verification = verify(str(directory))
        assert (verification.verdict, verification.format) == (Verdict.VERIFIED, "file_set")
        assert verification.files == tuple(sorted(name.format(step) for name in LAYOUTS[layout]))
        assert verification.step == (None if "epoch" in layout else step)


@pytest.mark.parametrize(("layout", "name"), [(layout, name) for layout, names in LAYOUTS.items() for name in names])
def test_a_set_lacks_what_the_set_before_it_has(tmp_path: Path, layout: str, name: str) -> None:
    _, newest = saved(tmp_path, layout)
    (newest / name.format(40)).unlink()
    verification = verify(str(newest))
    assert verification.verdict is Verdict.INCOMPLETE
    assert name.format(40) in verification.reason


@pytest.mark.parametrize(("layout", "name"), [(layout, name) for layout, names in LAYOUTS.items() for name in names])
@pytest.mark.parametrize("size", [0, 70])
def test_a_torn_member_makes_the_set_bad(tmp_path: Path, layout: str, name: str, size: int) -> None:
    _, newest = saved(tmp_path, layout)
    os.truncate(newest / name.format(40), size)
    verification = verify(str(newest))
    assert verification.verdict is Verdict.BAD
    assert name.format(40) in verification.reason


def test_the_first_set_of_all_is_complete(tmp_path: Path) -> None:
    [first] = saved(tmp_path, "step-{}", [20])
    (first / "optim.pt").unlink()
    assert verify(str(first)).verdict is Verdict.VERIFIED


def test_a_member_that_has_only_its_temporary_name_is_missing(tmp_path: Path) -> None:
    [first] = saved(tmp_path, "step-{}", [20])
    (first / "optim.pt").rename(first / "optim.pt.tmp-77")
    verification = verify(str(first))
    assert (verification.verdict, verification.files) == (Verdict.INCOMPLETE, ("model.pt",))
    member(first / "optim.pt", 20)
    assert verify(str(first)).verdict is Verdict.VERIFIED, "the rest of an earlier try does no harm"


def test_two_sets_that_lost_the_same_member_do_not_vouch_for_each_other(tmp_path: Path) -> None:
    sets = saved(tmp_path, "step-{}", [10, 20, 37, 41])
    for torn in sets[2:]:
        (torn / "optim.pt").unlink()
    assert [verify(str(set_path)).verdict for set_path in sets] == [Verdict.VERIFIED] * 2 + [Verdict.INCOMPLETE] * 2


def test_a_file_that_few_sets_have_is_not_needed(tmp_path: Path) -> None:
    sets = saved(tmp_path, "step-{}", [10, 20, 30, 40])
    member(sets[2] / "best.pt", 30)
    (sets[2] / "samples.png").write_bytes(b"picture")
    assert [verify(str(set_path)).verdict for set_path in sets] == [Verdict.VERIFIED] * 4


@pytest.mark.parametrize("name", ["eval_results.json", "metrics.json", "evaluation/scores.json", "val_samples.npy", "validation.yaml"])
def test_a_file_that_an_evaluation_writes_later_is_not_needed(tmp_path: Path, name: str) -> None:
    sets = saved(tmp_path, "step-{}", [10, 20, 30])
    for evaluated in sets[:2]:
        (evaluated / name).parent.mkdir(exist_ok=True)
        (evaluated / name).write_text("{}")
    assert [verify(str(set_path)).verdict for set_path in sets] == [Verdict.VERIFIED] * 3


def test_after_a_change_of_the_number_of_ranks_the_second_set_is_whole_again(tmp_path: Path) -> None:
    sets = saved(tmp_path, "iter_{:07d}", [10, 20, 30, 40])
    for smaller in sets[2:]:
        shutil.rmtree(smaller / "rank_1")
    assert verify(str(sets[3])).verdict is Verdict.VERIFIED


def test_files_that_count_the_steps_of_the_run_differently_are_of_two_saves(tmp_path: Path) -> None:
    torch.save({"global_step": 40}, tmp_path / "model.pt")
    torch.save({"global_step": 20}, tmp_path / "optim.pt")
    verification = verify(str(tmp_path))
    assert (verification.verdict, verification.reason) == (Verdict.BAD, "its files are of steps 20 and 40: of two saves")


def test_the_step_of_the_content_is_the_sets(tmp_path: Path) -> None:
    (tmp_path / "last").mkdir()
    torch.save({"global_step": 40}, tmp_path / "last/model.pt")
    torch.save({"w": torch.ones(3)}, tmp_path / "last/optimizer.pt")
    verification = verify(str(tmp_path / "last"))
    assert (verification.verdict, verification.step, verification.format) == (Verdict.VERIFIED, 40, "file_set")


def test_a_directory_of_single_checkpoints_stays_several(tmp_path: Path) -> None:
    for name in ("ckpt/step-1.pt", "ckpt/step-2.pt", "ckpt/latest.pt", "epoch_1/step-100.pt", "epoch_1/step-200.pt", "epoch_2/100.pt"):
        member(tmp_path / name, 1)
    member(tmp_path / "epoch_2/200.pt", 1)
    assert candidates(tmp_path, "ckpt") == ["ckpt/latest.pt", "ckpt/step-1.pt", "ckpt/step-2.pt"]
    assert candidates(tmp_path, "epoch_*") == ["epoch_1/step-100.pt", "epoch_1/step-200.pt", "epoch_2/100.pt", "epoch_2/200.pt"]


@pytest.mark.parametrize("directory", ["checkpoints/3", "epoch_3", "it2"])
def test_the_best_and_the_last_save_are_two_checkpoints(tmp_path: Path, directory: str) -> None:
    for name, step in (("best.ckpt", 300), ("last.ckpt", 500)):
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
        torch.save({"global_step": step, "w": torch.ones(3)}, tmp_path / directory / name)
    assert candidates(tmp_path, f"{directory}/*.ckpt") == [f"{directory}/best.ckpt", f"{directory}/last.ckpt"]
    assert [verify(str(tmp_path / directory / name)).verdict for name in ("best.ckpt", "last.ckpt")] == [Verdict.VERIFIED] * 2


@pytest.mark.parametrize("name", ["last.ckpt", "best.pt", "last-v1.ckpt"])
def test_a_single_member_is_a_file_wherever_its_path_comes_from(tmp_path: Path, name: str) -> None:
    member(tmp_path / "checkpoints/3" / name, 1)
    assert candidates(tmp_path, "checkpoints/*") == [f"checkpoints/3/{name}"]
    saved_path = str(tmp_path / "checkpoints/3" / name)
    assert checkpoint_path(saved_path) == saved_path, "a rank that saves it"


def test_the_best_weights_beside_a_set_may_be_of_an_earlier_step(tmp_path: Path) -> None:
    for name, step in (("model.pt", 500), ("optim.pt", 500), ("best.pt", 300)):
        torch.save({"global_step": step, "w": torch.ones(3)}, tmp_path / name)
    verification = verify(str(tmp_path))
    assert (verification.verdict, verification.step) == (Verdict.VERIFIED, 500)
    os.truncate(tmp_path / "best.pt", 70)
    assert verify(str(tmp_path)).verdict is Verdict.BAD


def test_the_directories_of_two_runs_are_not_compared(tmp_path: Path) -> None:
    for name in ("exp_1/model.pt", "exp_1/optim.pt", "exp_1/ema.pt", "exp_1/config.json", "exp_2/model.pt", "exp_2/optim.pt"):
        member(tmp_path / name, 1)
    assert candidates(tmp_path, "*/*.pt") == ["exp_1", "exp_2"]
    assert [verify(str(tmp_path / run)).verdict for run in ("exp_1", "exp_2")] == [Verdict.VERIFIED] * 2


@pytest.mark.parametrize(
    "layout", ["ckpts/step-{}.pt", "ckpts/{}.pt", "saved/epoch_{}.ckpt", "ckpts/step-{}/model.pt", "a/b/step-{}/model.pt"]
)
def test_a_last_state_above_the_saves_of_a_run_hides_no_save(tmp_path: Path, layout: str) -> None:
    saves = [f"exp/{layout.format(step)}" for step in (20, 40)]
    for name in ("exp/model.pt", "exp/optim.pt", *saves):
        member(tmp_path / name, 1)
    os.truncate(tmp_path / "exp/optim.pt", 70)
    seen = candidates(tmp_path, "exp/**/*.*t")
    assert [path for path in seen if verify(str(tmp_path / path)).verdict is Verdict.VERIFIED] == sorted([*saves, "exp/model.pt"])


def test_a_directory_of_weights_below_is_a_part_of_the_set(tmp_path: Path) -> None:
    for name in ("last/model.pt", "last/optim.pt", "last/ema/weights.pt", "last/shards/0.pt", "last/shards/1.pt"):
        member(tmp_path / name, 1)
    assert candidates(tmp_path, "last") == ["last"]


@pytest.mark.parametrize("run", ["max_steps1000", "lr3_epochs50", "exp_step2", "max_step_100", "the_epochs1"])
def test_a_directory_of_a_run_that_counts_something_is_no_save(tmp_path: Path, run: str) -> None:
    for name in ("model_10.pt", "model_20.pt", "latest.pt"):
        member(tmp_path / run / name, 1)
    assert candidates(tmp_path, f"{run}/*.pt") == [f"{run}/latest.pt", f"{run}/model_10.pt", f"{run}/model_20.pt"]


def test_sets_without_a_directory_of_their_own_stay_single_files(tmp_path: Path) -> None:
    for name in ("step-20-model.pt", "step-20-optim.pt", "model_40.pt", "optim_40.pt"):
        member(tmp_path / "ckpt" / name, 1)
    assert len(candidates(tmp_path, "ckpt")) == 4


def test_a_pattern_that_names_a_file_of_each_set_means_the_file(tmp_path: Path) -> None:
    saved(tmp_path, "step-{}")
    assert candidates(tmp_path, "ckpt/step-*/model.pt") == ["ckpt/step-20/model.pt", "ckpt/step-40/model.pt"]
    assert candidates(tmp_path, "ckpt/step-*/m*.pt") == ["ckpt/step-20/model.pt", "ckpt/step-40/model.pt"]
    (tmp_path / "ckpt/step-40/optim.pt").unlink()
    assert candidates(tmp_path, "ckpt/step-*/*.pt") == ["ckpt/step-20", "ckpt/step-40"], "several files of one set: the set is meant"


def test_a_directory_of_another_format_keeps_it_and_so_does_one_within_a_set(tmp_path: Path) -> None:
    trainer(tmp_path / "out/checkpoint-500")
    trainer(tmp_path / "out/checkpoint-1000")
    assert verify(str(tmp_path / "out/checkpoint-500")).format == "hf_trainer"
    shutil.copytree(tmp_path / "out/checkpoint-500", tmp_path / "c/step-500/trainer/checkpoint-500")
    begun = tmp_path / "out/checkpoint-1500"
    begun.mkdir()
    shutil.copy(tmp_path / "out/checkpoint-500/model.safetensors", begun)
    assert verify(str(begun)).verdict is Verdict.INCOMPLETE, "the trainer was killed after its weights"
    shutil.rmtree(tmp_path / "out/checkpoint-500")
    shutil.rmtree(tmp_path / "out/checkpoint-1000")
    assert candidates(tmp_path, "out/checkpoint-*") == [], "weights alone under a framework's name are the beginning of its checkpoint"


def test_a_nested_directory_is_examined_by_its_own_format(tmp_path: Path) -> None:
    for step in (20, 40):
        with pytest.warns(UserWarning, match="single process"):
            dcp.save({"w": torch.ones(8)}, checkpoint_id=tmp_path / f"step-{step}/model")
        member(tmp_path / f"step-{step}/optim/state.pt", step)
    whole = verify(str(tmp_path / "step-40"))
    assert (whole.verdict, whole.format) == (Verdict.VERIFIED, "file_set")
    assert "model/.metadata" in whole.files
    (tmp_path / "step-40/model/.metadata").unlink()
    assert verify(str(tmp_path / "step-40")).verdict is Verdict.INCOMPLETE


def test_a_directory_without_a_save_is_no_set(tmp_path: Path) -> None:
    for name in ("step-20/notes.txt", "data/epoch_1/images/1.png", "step-30/.hidden.pt", "step-40/x.pt.tmp"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("x")
    listing = find(["step-*", "data/epoch_*"], str(tmp_path))
    assert listing.candidates == ()
    assert [pattern for pattern, _ in listing.without] == ["step-*", "data/epoch_*"], "matched, and nothing found"
