"""Directories of torch.distributed.checkpoint, tensor by tensor, with its own reader and a planner for one item at a time.

`format_utils.dcp_to_torch_save` loads everything before it writes anything, so memory would have to hold the whole checkpoint.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata

from checkpointing.conversion.sources import torch_files
from checkpointing.conversion.trees import LazyTensor, SourceCheckpoint, placed
from checkpointing.model import CheckpointingError, first_names

if TYPE_CHECKING:
    import io

    from torch.distributed.checkpoint.planner import ReadItem


class _OneItemPlanner(DefaultLoadPlanner):
    """Plans to read one item. A value that is not a tensor comes as bytes: torch's own planner would unpickle it unguarded."""

    content: io.BytesIO | None = None

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Keep the bytes."""
        del read_item
        self.content = value


class _Directory:
    """The reader of a directory, with its metadata. torch unpickles the metadata unguarded, so `verify` has checked its opcodes before."""

    def __init__(self, path: str) -> None:
        self._reader = FileSystemReader(path)
        self.metadata: Metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self.metadata, is_coordinator=True)

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Read a tensor from all shards that hold a piece of it."""
        whole = torch.empty(shape, dtype=dtype)
        self._read({name: whole})
        return whole

    def value(self, name: str) -> io.BytesIO | None:
        """Read the bytes of a value that is not a tensor."""
        return self._read({name: object()}).content

    def _read(self, wanted: dict[str, object]) -> _OneItemPlanner:
        planner = _OneItemPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(wanted, self.metadata, is_coordinator=True)
        self._reader.read_data(planner.create_local_plan(), planner).wait()
        return planner


def open_directory(path: str) -> SourceCheckpoint:
    """Return what a directory holds, nested as it was saved. Raises OSError."""
    directory = _Directory(path)
    tree: dict[str, Any] = {}
    left_out: list[str] = []
    paths = directory.metadata.planner_data or {}
    for name, item in directory.metadata.state_dict_metadata.items():
        leaf: object
        if isinstance(item, TensorStorageMetadata):
            shape, dtype = tuple(item.size), item.properties.dtype
            leaf = LazyTensor(dtype, shape, partial(directory.tensor, name, shape, dtype))
        elif isinstance(item, BytesStorageMetadata):
            leaf = _value(directory.value(name))
        if isinstance(leaf, torch_files.Unknown):
            left_out.append(name)
            continue
        placed(tree, tuple(paths.get(name, (name,))), leaf)
    lines = [f"objects that cannot be read without running their code: {first_names(left_out)}"] if left_out else []
    return SourceCheckpoint(tree, lines)


def _value(content: io.BytesIO | None) -> object:
    """Return a plain value; Unknown if it holds anything else."""
    if content is None:
        return torch_files.Unknown()
    try:
        value, unknown = torch_files.load(content, mmap=False)
    except CheckpointingError:
        return torch_files.Unknown()
    return torch_files.Unknown() if unknown else torch_files.lazy_tree(value)
