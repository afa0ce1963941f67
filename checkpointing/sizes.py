"""How many bytes a checkpoint's tensors have, and what they are for, out of its headers alone: no tensor is read, and no torch needed.

It knows torch's zip files, safetensors files, and directories of these. Files of other formats (DCP's shards) are counted as unread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from checkpointing.formats import safetensors, torch_pickle, torch_zip
from checkpointing.io.reader import FileReader, NotRegular, Short
from checkpointing.io.tree import Tree
from checkpointing.model import is_weight

_SMALL: tuple[str, ...] = (".json", ".txt", ".yaml", ".yml", ".model", ".md")


@dataclass(frozen=True, slots=True)
class TensorSizes:
    """weights, beside: bytes of the model's own tensors, and of all others (optimizer states). unread: files of other formats."""

    weights: int
    beside: int
    unread: tuple[str, ...] = ()


def of_checkpoint(path: str) -> TensorSizes:
    """Return the sizes of a file's tensors, or of all files in a directory. Raises OSError."""
    is_directory = os.path.isdir(path)  # noqa: PTH112 -- strings throughout the package
    files = Tree(path).files if is_directory else ("",)
    names = [os.path.join(path, name) if name else path for name in files]  # noqa: PTH118 -- as above
    weights, beside, unread = 0, 0, []
    for name in names:
        tensors = None if name.endswith(_SMALL) else _tensors(name)
        if tensors is None:
            unread += [] if name.endswith(_SMALL) else [name]
            continue
        weights += sum(size for tensor, size in tensors if is_weight(tensor))
        beside += sum(size for tensor, size in tensors if not is_weight(tensor))
    return TensorSizes(weights, beside, tuple(unread))


def _tensors(path: str) -> list[tuple[str, int]] | None:
    """Return (name, bytes) of each tensor in a file; None for another format. In a file named for an optimizer, all are the optimizer's."""
    try:
        with FileReader(path) as source:
            head = source.read(0, min(64, source.size))
            if safetensors.claims(head, b"", os.path.splitext(path)[1]):  # noqa: PTH122 -- as above
                return [(tensor.name, tensor.end - tensor.begin) for tensor in safetensors.read_header(source).tensors]
            scan = torch_zip.scan_of(source)
    except (NotRegular, Short, safetensors.HeaderDamaged):
        return None
    if scan is None:
        return None
    whose = os.path.basename(path) if not is_weight(os.path.basename(path)) else ""  # noqa: PTH119 -- as above
    sizes = ((storage, storage.count * torch_pickle.item_bytes(storage.kind)) for storage in scan.storages)
    return [(f"{whose}.{torch_pickle.name_of(tensor_key)}", size) for tensor_key, size in sizes]
