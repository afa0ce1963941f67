"""Small sound checkpoints of every format, as the frameworks write them, and where the bytes are that a corruption is done to.

Each fills an empty directory and returns a `SoundCheckpoint`: the path that a person would give to `verify`, the file to damage, and how
the format keeps its steps. Where the framework is at hand it writes the checkpoint itself; DeepSpeed, Megatron, Lightning and the Trainer
by their layouts.
"""

from __future__ import annotations

import argparse
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed.checkpoint as dcp

if TYPE_CHECKING:
    from collections.abc import Callable

STEP: Final = 500


@dataclass(frozen=True, slots=True)
class SoundCheckpoint:
    """A checkpoint. `path` is what is verified, `victim` one of its files, `pickled` one that holds a pickle (None: none does).

    `shard`: a file that must be there; None where the checkpoint is one file. `pointer`: the framework's own note of the latest.
    """

    path: Path
    victim: Path
    pickled: Path | None
    shard: Path | None = None
    pointer: Path | None = None
    other: Path | None = None  # the victim's counterpart in a checkpoint of another step


def weights(seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {"a.weight": torch.randn(64, 61, generator=generator), "b.weight": torch.randn(64, 61, generator=generator)}


def training(step: int = STEP, **more: object) -> dict[str, Any]:
    state = {0: {"step": torch.tensor(float(step)), "exp_avg": torch.randn(64, 61)}}
    return {"model": weights(step), "optimizer": {"state": state, "param_groups": []}, "global_step": step, **more}


def torch_zip(root: Path, step: int = STEP) -> SoundCheckpoint:
    path = root / f"step_{step}.pt"
    torch.save(training(step, args=argparse.Namespace(lr=0.1)), path)
    return SoundCheckpoint(path, path, path)


def torch_legacy(root: Path, step: int = STEP) -> SoundCheckpoint:
    path = root / f"step_{step}.pt"
    torch.save(training(step), path, _use_new_zipfile_serialization=False)
    return SoundCheckpoint(path, path, path)


def lightning(root: Path, step: int = STEP) -> SoundCheckpoint:
    path = root / f"epoch=1-step={step}.ckpt"
    keys = {"pytorch-lightning_version": "2.5.0", "epoch": 1, "loops": {}, "callbacks": {}, "lr_schedulers": [], "hyper_parameters": {}}
    torch.save({**keys, "global_step": step, "state_dict": weights(step), "optimizer_states": []}, path)
    return SoundCheckpoint(path, path, path)


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write the format's header and data: 8 bytes of length, JSON, and the tensors behind one another."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def safetensors(root: Path, step: int = STEP) -> SoundCheckpoint:
    path = root / f"model-step_{step}.safetensors"
    write_safetensors(path, weights(step))
    return SoundCheckpoint(path, path, None)


def safetensors_index(root: Path, step: int = STEP) -> SoundCheckpoint:
    path = root / f"model_{step}"
    path.mkdir()
    names = {f"model-0000{number}-of-00002.safetensors": key for number, key in enumerate(weights(), 1)}
    for name, key in names.items():
        write_safetensors(path / name, {key: weights(step)[key]})
    total = sum(tensor.nbytes for tensor in weights().values())
    index = {"metadata": {"total_size": total}, "weight_map": {key: name for name, key in names.items()}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text("{}")
    shard = path / "model-00002-of-00002.safetensors"
    return SoundCheckpoint(path, shard, None, shard)


def dcp_directory(root: Path, step: int = STEP) -> SoundCheckpoint:
    path = root / f"step_{step}"
    dcp.save({"model": weights(step), "step": torch.tensor(step)}, checkpoint_id=path, no_dist=True)
    (shard,) = path.glob("*.distcp")
    return SoundCheckpoint(path, shard, path / ".metadata", shard)


def hf_trainer(root: Path, step: int = STEP) -> SoundCheckpoint:
    path = root / f"checkpoint-{step}"
    path.mkdir()
    write_safetensors(path / "model.safetensors", weights(step))
    torch.save({"state": {}, "param_groups": []}, path / "optimizer.pt")
    torch.save({"last_epoch": step}, path / "scheduler.pt")
    torch.save({"cpu": torch.get_rng_state()}, path / "rng_state.pth")
    torch.save(argparse.Namespace(output_dir=str(root)), path / "training_args.bin")
    (path / "config.json").write_text("{}")
    (path / "trainer_state.json").write_text(json.dumps({"epoch": 1.0, "global_step": step, "log_history": [], "max_steps": 1000}))
    return SoundCheckpoint(path, path / "optimizer.pt", path / "optimizer.pt", path / "model.safetensors")


def deepspeed(root: Path, step: int = STEP, ranks: int = 2) -> SoundCheckpoint:
    path = root / f"global_step{step}"
    path.mkdir()
    state = {"module": weights(step), "optimizer": None, "param_shapes": [{"a.weight": torch.Size([64, 61])}], "skipped_steps": 0}
    torch.save(
        {**state, "global_steps": step, "dp_world_size": ranks, "mp_world_size": 1, "ds_config": {}}, path / "mp_rank_00_model_states.pt"
    )
    for rank in range(ranks):
        inner = {
            "zero_stage": 2,
            "partition_count": ranks,
            "base_optimizer_state": {"state": {0: {"step": step, "exp_avg": torch.randn(64, 61)}}},
        }
        torch.save({"optimizer_state_dict": inner, "ds_version": "0.16"}, path / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (root / "latest").write_text(path.name)
    (root / "zero_to_fp32.py").write_text("")
    shard = path / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    return SoundCheckpoint(root, shard, shard, shard, root / "latest")


def megatron(root: Path, step: int = STEP) -> SoundCheckpoint:
    path = root / f"iter_{step:07d}"
    for rank in range(2):
        directory = path / f"mp_rank_{rank:02d}"
        directory.mkdir(parents=True)
        args = argparse.Namespace(tensor_model_parallel_size=2, pipeline_model_parallel_size=1, iteration=step)
        state = {"args": args, "checkpoint_version": 3.0, "iteration": step, "model": weights(step), "optimizer": {}}
        torch.save(state, directory / "model_optim_rng.pt")
    pointer = root / "latest_checkpointed_iteration.txt"
    pointer.write_text(str(step))
    shard = path / "mp_rank_01" / "model_optim_rng.pt"
    return SoundCheckpoint(root, shard, shard, shard, pointer)


FORMATS: Final[dict[str, Callable[..., SoundCheckpoint]]] = {
    "torch_zip": torch_zip,
    "torch_legacy": torch_legacy,
    "lightning": lightning,
    "safetensors": safetensors,
    "safetensors_index": safetensors_index,
    "dcp": dcp_directory,
    "hf_trainer": hf_trainer,
    "deepspeed": deepspeed,
    "megatron": megatron,
}
#: Those whose bytes no checksum of their own protects: a changed number is another number.
WITHOUT_CHECKSUMS: Final = ("torch_legacy", "safetensors", "safetensors_index")
