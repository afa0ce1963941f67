"""Files of safetensors, by our own reader of their headers: one tensor is read at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import torch

from checkpointing.conversion.sources.torch_files import read_numbers
from checkpointing.conversion.trees import LazyTensor, SourceCheckpoint
from checkpointing.formats import safetensors
from checkpointing.io.reader import FileReader
from checkpointing.model import CheckpointingError

if TYPE_CHECKING:
    from checkpointing.formats.safetensors import Tensor

#: The format's names of types. A type that this torch lacks is left out.
DTYPES: Final[dict[str, torch.dtype]] = {
    name: getattr(torch, attribute)
    for name, attribute in {
        "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64", "BOOL": "bool",
        "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
        "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
        "F8_E8M0": "float8_e8m0fnu",
    }.items()
    if hasattr(torch, attribute)
}  # fmt: skip


def open_file(path: str) -> SourceCheckpoint:
    """Return what a file holds. Raises CheckpointingError for a type that torch does not know; OSError."""
    with FileReader(path) as source:
        header = safetensors.read_header(source)
    return SourceCheckpoint({tensor.name: _lazy(path, tensor) for tensor in header.tensors}, texts=header.metadata)


def _lazy(path: str, tensor: Tensor) -> LazyTensor:
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise CheckpointingError(
            f"torch {torch.__version__} has no type for {tensor.dtype}: {path}: {tensor.name}", hint="convert it with a newer torch"
        )
    return LazyTensor(dtype, tensor.shape, partial(_read, path, tensor, dtype), (path, tensor.begin, tensor.shape, dtype))


def _read(path: str, tensor: Tensor, dtype: torch.dtype) -> torch.Tensor:
    return read_numbers(path, tensor.begin, (tensor.end - tensor.begin) // dtype.itemsize, dtype).reshape(tensor.shape)
