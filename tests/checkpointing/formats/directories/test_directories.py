"""Checkpoints of several files: transformers' Trainer, accelerate, one file for each rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from checkpointing.discover import find
from checkpointing.io.tree import ReadOptions
from checkpointing.model import Verdict
from checkpointing.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable


def trainer(directory: Path, step: int = 500, ranks: int = 1) -> Path:
    """What transformers 5.23 leaves, as seen from a real one; see the last test."""
    directory.mkdir(parents=True)
    model = torch.nn.Linear(30, 30)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    model(torch.randn(2, 30)).sum().backward()
    optimizer.step()
    schedule.last_epoch = step
    save_file(model.state_dict(), directory / "model.safetensors", metadata={"format": "pt"})
    torch.save(optimizer.state_dict(), directory / "optimizer.pt")
    torch.save(schedule.state_dict(), directory / "scheduler.pt")
    for rank in range(ranks):
        torch.save({"cpu": torch.get_rng_state()}, directory / ("rng_state.pth" if ranks == 1 else f"rng_state_{rank}.pth"))
    torch.save({"args": 1}, directory / "training_args.bin")
    (directory / "config.json").write_text('{"model_type": "gpt2"}')
    (directory / "trainer_state.json").write_text(json.dumps({"epoch": 1.5, "global_step": step, "log_history": []}))
    return directory


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return trainer(tmp_path / "out/checkpoint-500")


def test_a_trainers_checkpoint_is_whole(checkpoint: Path) -> None:
    verification = verify(str(checkpoint))
    assert (verification.verdict, verification.level, verification.format, verification.step, verification.reasons) == (
        Verdict.VERIFIED,
        "layout",
        "hf_trainer",
        500,
        (),
    )
    assert len(verification.files) == 7


def test_the_output_directory_holds_several(checkpoint: Path) -> None:
    out = checkpoint.parent
    trainer(out / "checkpoint-1000")
    trainer(out / "tmp-checkpoint-1500")
    for name in ("model.safetensors", "config.json", "trainer_state.json"):  # what trainer.save_model and save_state leave there
        (out / name).write_bytes((checkpoint / name).read_bytes())
    both = [str(out / "checkpoint-1000"), str(checkpoint)]
    for pattern in ("out", "out/*", "out/checkpoint-*", "out/"):
        paths = [candidate.path for candidate in find([pattern], str(out.parent)).candidates if candidate.is_directory]
        assert paths == both, pattern


def rename(directory: Path) -> None:
    directory.rename(directory.with_name("checkpoint-600"))


def one_of_several(directory: Path) -> None:
    (directory / "rng_state.pth").rename(directory / "rng_state_0.pth")
    (directory / "rng_state_2.pth").write_bytes((directory / "rng_state_0.pth").read_bytes())


def of_a_later_step(directory: Path) -> None:
    other = trainer(directory.with_name("checkpoint-1000"), 1000)
    (directory / "scheduler.pt").write_bytes((other / "scheduler.pt").read_bytes())


DAMAGE: dict[str, tuple[Callable[[Path], object], Verdict, str]] = {
    "state_missing": (lambda d: (d / "trainer_state.json").unlink(), Verdict.INCOMPLETE, "trainer_state.json is missing"),
    "state_torn": (lambda d: os.truncate(d / "trainer_state.json", 20), Verdict.BAD, "trainer_state.json: torn or damaged"),
    "state_empty": (lambda d: os.truncate(d / "trainer_state.json", 0), Verdict.BAD, "trainer_state.json: torn: it is empty"),
    "state_fifo": (lambda d: ((d / "trainer_state.json").unlink(), os.mkfifo(d / "trainer_state.json")), Verdict.UNVERIFIABLE, "a FIFO"),
    "state_without_step": (lambda d: (d / "trainer_state.json").write_text("{}"), Verdict.BAD, "it has no global_step"),
    "state_is_a_list": (lambda d: (d / "trainer_state.json").write_text("[1]"), Verdict.BAD, "it has no global_step"),
    "step_swapped": (lambda d: (d / "trainer_state.json").write_text('{"global_step": 7}'), Verdict.BAD, "is of step 7"),
    "weights_missing": (lambda d: (d / "model.safetensors").unlink(), Verdict.INCOMPLETE, "the model's weights are missing"),
    "weights_torn": (lambda d: os.truncate(d / "model.safetensors", 900), Verdict.BAD, "model.safetensors: torn"),
    "optimizer_missing": (lambda d: (d / "optimizer.pt").unlink(), Verdict.INCOMPLETE, "optimizer.pt is missing"),
    "scheduler_missing": (lambda d: (d / "scheduler.pt").unlink(), Verdict.INCOMPLETE, "scheduler.pt is missing"),
    "random_missing": (lambda d: (d / "rng_state.pth").unlink(), Verdict.INCOMPLETE, "rng_state.pth is missing"),
    "random_of_one_rank_missing": (one_of_several, Verdict.INCOMPLETE, "rng_state_1.pth is missing"),
    "optimizer_torn": (lambda d: os.truncate(d / "optimizer.pt", 999), Verdict.BAD, "optimizer.pt: torn"),
    "optimizer_empty": (lambda d: os.truncate(d / "optimizer.pt", 0), Verdict.BAD, "optimizer.pt: torn"),
    "arguments_empty": (lambda d: os.truncate(d / "training_args.bin", 0), Verdict.BAD, "training_args.bin: "),
    "config_torn": (lambda d: os.truncate(d / "config.json", 5), Verdict.BAD, "config.json: torn"),
    "other_save": (of_a_later_step, Verdict.BAD, "scheduler.pt is of step 1000"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_reported(checkpoint: Path, name: str) -> None:
    change, verdict, reason = DAMAGE[name]
    change(checkpoint)
    verification = verify(str(checkpoint))
    assert (verification.verdict, verification.format) == (verdict, "hf_trainer")
    assert reason in " | ".join(verification.reasons)


def test_a_directory_renamed_to_another_step_is_bad(checkpoint: Path) -> None:
    rename(checkpoint)
    assert verify(str(checkpoint.with_name("checkpoint-600"))).verdict is Verdict.BAD


def test_a_leftover_is_incomplete_however_whole_it_looks(checkpoint: Path) -> None:
    left = checkpoint.rename(checkpoint.with_name("tmp-checkpoint-500"))
    verification = verify(str(left))
    assert (verification.verdict, verification.reason) == (Verdict.INCOMPLETE, "its name is that of a save that did not end")


@pytest.mark.parametrize("left", [(), ("scheduler.pt",)], ids=["no scheduler", "no random state"])
def test_a_script_that_saves_under_the_trainers_names_needs_no_more_than_it_saves(checkpoint: Path, left: tuple[str, ...]) -> None:
    for name in {"training_args.bin", "scheduler.pt", "rng_state.pth"} - set(left):
        (checkpoint / name).unlink()
    assert verify(str(checkpoint)).verdict is Verdict.INCOMPLETE  # the Trainer's log is there
    (checkpoint / "trainer_state.json").write_text('{"global_step": 500}')
    verification = verify(str(checkpoint))
    assert (verification.verdict, verification.level, verification.step) == (Verdict.VERIFIED, "layout", 500)
    os.truncate(checkpoint / "optimizer.pt", 999)
    assert verify(str(checkpoint)).verdict is Verdict.BAD


def test_the_model_alone_may_be_saved(checkpoint: Path) -> None:
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (checkpoint / name).unlink()
    assert verify(str(checkpoint)).verdict is Verdict.VERIFIED


def test_the_second_nodes_share_of_the_rank_files_may_be_missing(tmp_path: Path) -> None:
    directory = trainer(tmp_path / "checkpoint-500", ranks=4)
    assert verify(str(directory)).verdict is Verdict.VERIFIED
    for rank in (0, 1):
        (directory / f"rng_state_{rank}.pth").unlink()
    assert verify(str(directory)).verdict is Verdict.VERIFIED


def test_a_directory_that_changes_during_the_read_is_being_written(checkpoint: Path) -> None:
    asked = 0

    def write_meanwhile() -> bool:
        nonlocal asked
        asked += 1
        if asked == 9:
            (checkpoint / "more.json").write_text("{}")
        return False

    verification = verify(str(checkpoint), reading=ReadOptions(interrupted=write_meanwhile))
    assert (verification.verdict, verification.reason) == (Verdict.WRITING, "it changed while it was read")
    assert verify(str(checkpoint), reading=ReadOptions(interrupted=lambda: True)).verdict is Verdict.UNKNOWN


def fsdp(directory: Path) -> Path:
    """What accelerate and the Trainer write under FSDP with sharded states."""
    directory.mkdir()
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        with pytest.warns(UserWarning, match="single process"):
            dcp.save({"w": torch.randn(20, 20)}, checkpoint_id=str(directory / name))
    return directory


def test_a_trainer_under_fsdp(tmp_path: Path, checkpoint: Path) -> None:
    for name in ("model.safetensors", "optimizer.pt"):
        (checkpoint / name).unlink()
    for name in fsdp(tmp_path / "sharded").iterdir():
        name.rename(checkpoint / name.name)
    verification = verify(str(checkpoint))
    assert (verification.verdict, verification.format, verification.step, verification.reasons) == (Verdict.VERIFIED, "hf_trainer", 500, ())
    (checkpoint / "optimizer_0/.metadata").unlink()
    verification = verify(str(checkpoint))
    assert (verification.verdict, verification.reason) == (Verdict.INCOMPLETE, "optimizer_0: .metadata is missing: the save did not end")


def test_accelerates_state_under_fsdp(tmp_path: Path) -> None:
    directory = fsdp(tmp_path / "checkpoint_3")
    torch.save({"last_epoch": 3}, directory / "scheduler.bin")
    assert verify(str(directory)).reason == "random_states_0.pkl is missing: it is written last"
    for rank in (0, 1):
        torch.save({"cpu": torch.get_rng_state()}, directory / f"random_states_{rank}.pkl")
    verification = verify(str(directory))
    assert (verification.verdict, verification.format, verification.reasons) == (Verdict.VERIFIED, "fsdp", ())
    assert verify(str(directory / "pytorch_model_fsdp_0")).format == "fsdp"
    (directory / "pytorch_model_fsdp_0/__0_0.distcp").unlink()
    assert verify(str(directory)).verdict is Verdict.INCOMPLETE


def test_accelerates_own_library_writes_what_is_whole(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: pip install -e .[dev]")
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(30, 30)
    prepared = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    prepared[0](torch.randn(2, 30)).sum().backward()
    prepared[1].step()
    directory = Path(accelerator.save_state(str(tmp_path / "state")))
    verification = verify(str(directory))
    assert (verification.verdict, verification.format, verification.reasons) == (Verdict.VERIFIED, "accelerate", ())
    os.truncate(directory / "optimizer.bin", 500)
    assert verify(str(directory)).verdict is Verdict.BAD


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    directory = tmp_path / "global_step_30"
    directory.mkdir()
    for rank in range(3):
        for content in ("model", "optim"):
            torch.save({"w": torch.randn(9), "step": 30}, directory / f"{content}_world_size_3_rank_{rank}.pt")
    return directory


def test_one_file_for_each_rank(ranks: Path) -> None:
    verification = verify(str(ranks))
    assert (verification.verdict, verification.level, verification.format, verification.step, verification.reasons) == (
        Verdict.VERIFIED,
        "structure",
        "fsdp",
        30,
        (),
    )
    assert [candidate.path for candidate in find(["**"], str(ranks.parent)).candidates] == [str(ranks)]


def test_a_rank_is_missing_torn_or_of_another_step(ranks: Path) -> None:
    last = ranks / "model_world_size_3_rank_2.pt"
    torch.save({"w": torch.randn(9), "step": 20}, last)
    verification = verify(str(ranks))
    assert (verification.verdict, verification.reason.startswith("its files were saved at different steps")) == (Verdict.BAD, True)
    os.truncate(last, 300)
    assert verify(str(ranks)).verdict is Verdict.BAD
    last.unlink()
    verification = verify(str(ranks))
    assert (verification.verdict, verification.reason) == (
        Verdict.INCOMPLETE,
        "of 3 ranks, the file of rank 2 is missing: model_world_size_3_rank….pt",
    )


def test_files_of_several_steps_are_not_one_checkpoint(tmp_path: Path) -> None:
    for step in (1, 2):
        for rank in range(2):
            torch.save({"step": step}, tmp_path / f"step_{step}_rank_{rank}.pt")
    assert len(find(["**"], str(tmp_path)).candidates) == 4


_TRAINING = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
class Data(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, index): return {"input_ids": torch.arange(16), "labels": torch.arange(16)}
model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=32, n_embd=32, n_layer=2, n_head=2))
arguments = TrainingArguments(sys.argv[1], max_steps=2, save_steps=1, per_device_train_batch_size=2, use_cpu=True, report_to=[])
Trainer(model=model, args=arguments, train_dataset=Data()).train()
"""


@pytest.mark.slow
@pytest.mark.process
def test_a_checkpoint_written_by_transformers_is_whole(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", _TRAINING, str(tmp_path)], check=True, env=environment, capture_output=True)  # noqa: S603 -- our own job
    verifications = [verify(candidate.path) for candidate in find([str(tmp_path)], "/").candidates]
    assert [(verification.verdict, verification.format, verification.step, verification.reasons) for verification in verifications] == [
        (Verdict.VERIFIED, "hf_trainer", 1, ()),
        (Verdict.VERIFIED, "hf_trainer", 2, ()),
    ]
