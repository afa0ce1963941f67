"""What the tests of conversion share: a state with every kind of tensor, a conversion in this process, and a comparison bit by bit."""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from checkpointing.conversion import trees
from checkpointing.conversion.sources import open_source
from checkpointing.conversion.work import Conversion
from checkpointing.verification import verify

if TYPE_CHECKING:
    from pathlib import Path


def weights() -> dict[str, torch.Tensor]:
    """Tensors of every kind that all formats hold."""
    torch.manual_seed(38)
    whole = torch.randn(6, 4)
    floats = {str(dtype).removeprefix("torch."): torch.randn(3, 5).to(dtype) for dtype in (torch.float64, torch.float16, torch.bfloat16)}
    eights = {str(dtype).removeprefix("torch."): torch.randn(7).to(dtype) for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)}
    whole_numbers = {str(dtype).removeprefix("torch."): torch.arange(4).to(dtype) for dtype in (torch.int64, torch.int8, torch.bool)}
    unsigned = {"uint16": torch.arange(3).to(torch.uint16), "complex64": torch.randn(2, dtype=torch.complex64)}
    odd_numbers = torch.frombuffer(bytearray(struct.pack("<4I", 0x7FC00001, 0xFF800000, 0x80000000, 1)), dtype=torch.float32)
    return {
        "layers.0.weight": whole,
        "layers.0.transposed": whole.t(),
        "layers.0.slice": whole[1:5, ::2],
        "expanded": torch.tensor([1.5]).expand(3, 2),
        "tied": whole,
        "scalar": torch.tensor(3.25),
        "count": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "nan_with_a_payload": odd_numbers,
        **floats,
        **eights,
        **whole_numbers,
        **unsigned,
    }


def training() -> dict[str, Any]:
    """A checkpoint of a training: the model nested, an optimizer, values."""
    model = OrderedDict((f"encoder.{name}", tensor) for name, tensor in weights().items())
    optimizer = {
        "state": {0: {"step": torch.tensor(4.0), "exp_avg": torch.randn(6, 4)}, 1: {"step": torch.tensor(4.0)}},
        "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0, 1]}],
    }
    return {"model": model, "optimizer": optimizer, "epoch": 3, "name": "run", "history": [torch.ones(2), torch.zeros(1)]}


def convert(source: Path, target: Path, to: str, dtype: str = "") -> dict[str, Any]:
    """Convert in this process, and have the result verified as any checkpoint is. Returns the answer."""
    answer = Conversion(lambda _row: None).run(str(source), str(target), to, dtype)
    read = target / "model.safetensors" if (target / "model.safetensors").exists() else target
    verification = verify(str(read))
    assert verification.verdict == "verified", verification
    return answer


def held(path: Path) -> dict[str, trees.TensorRow]:
    """The row of each tensor that our reader finds in a checkpoint."""
    return {name: trees.row_of(tensor.read()) for name, tensor in trees.tensors_of(open_source(str(path)).tree).items()}


def rows(tensors: dict[str, torch.Tensor]) -> dict[str, trees.TensorRow]:
    """The rows of tensors in memory."""
    return {name: trees.row_of(tensor.detach().contiguous()) for name, tensor in tensors.items()}
