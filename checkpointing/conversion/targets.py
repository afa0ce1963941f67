"""The formats that are written. Each writer takes one tensor at a time, so that memory holds the largest of them and no more."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import shutil
import struct
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from checkpointing.conversion.sources.safetensors_files import DTYPES
from checkpointing.conversion.trees import LazyTensor, leaves, raw, replaced, tensors_of
from checkpointing.model import CheckpointingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import IO

    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

    from checkpointing.conversion.trees import SourceCheckpoint, Tree

    #: Gives a tensor by its name, and takes note of its content.
    Read: TypeAlias = Callable[[str, LazyTensor], torch.Tensor]

#: transformers' own default: huggingface.co takes no larger files gladly.
SHARD_BYTES: Final = 5_000_000_000
_ALIGNMENT: Final = 64  # as torch.save lays out its records, so that a mapped tensor is aligned
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
_RESERVED: Final = "__metadata__"  # what a header has beside the tensors
_LARGE_BYTES: Final = 1 << 31  # from here on a record has 64-bit sizes, which zipfile must know beforehand


@dataclass(frozen=True, slots=True)
class _Storage:
    """Replaces a tensor's storage in a pickle: torch reads the record `key` there."""

    kind: Any
    key: str
    count: int


class _Pickler(pickle.Pickler):
    """Writes the objects of a checkpoint as torch.save does, each LazyTensor as a tensor in a record of its own. keys: by record."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=2)
        self.records: dict[str, LazyTensor] = {}
        self._known: dict[Any, str] = {}

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 -- pickle's
        """Rebuild a tensor by the function that torch.save names, so that torch.load with weights_only takes it."""
        if not isinstance(obj, LazyTensor):
            return NotImplemented
        content = (obj.content if obj.content is not None else id(obj), obj.dtype)
        key = self._known.setdefault(content, str(len(self.records)))
        self.records.setdefault(key, obj)
        stride = _strides(obj.shape)
        kind = torch.storage._dtype_to_storage_type_map().get(obj.dtype)  # noqa: SLF001 -- no public function names them
        if kind is not None:
            storage = _Storage(getattr(torch, kind), key, math.prod(obj.shape))
            return torch._utils._rebuild_tensor_v2, (storage, 0, obj.shape, stride, False, OrderedDict())  # noqa: SLF001 -- the name in the file
        storage = _Storage(torch.storage.UntypedStorage, key, obj.n_bytes)
        return torch._utils._rebuild_tensor_v3, (storage, 0, obj.shape, stride, False, OrderedDict(), obj.dtype)  # noqa: SLF001 -- as above

    def persistent_id(self, obj: Any) -> Any:  # noqa: ANN401 -- pickle's
        """Name the record of a storage."""
        return ("storage", obj.kind, obj.key, "cpu", obj.count) if isinstance(obj, _Storage) else None


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def write_torch(tree: Tree, path: str, read: Read) -> None:
    """Write a file as torch.save does: a zip of the objects and of one record for each tensor. Tied tensors stay tied. Raises OSError."""
    objects = io.BytesIO()
    pickler = _Pickler(objects)
    pickler.dump(tree)
    names = {id(leaf): ".".join(map(str, where)) for where, leaf in leaves(tree) if isinstance(leaf, LazyTensor)}
    with open(path, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:  # noqa: PTH123 -- strings throughout the package
        _record(archive, file, "data.pkl", objects.getbuffer())
        _record(archive, file, "byteorder", b"little")
        for key, tensor in pickler.records.items():
            _record(archive, file, f"data/{key}", raw_of := read(names[id(tensor)], tensor))
            del raw_of
        _record(archive, file, "version", b"3\n")


def _record(archive: zipfile.ZipFile, file: io.BufferedWriter, name: str, content: memoryview | bytes | torch.Tensor) -> None:
    """Write one record, its content aligned by a padding in its header."""
    info = zipfile.ZipInfo(f"archive/{name}")
    data = raw(content) if isinstance(content, torch.Tensor) else memoryview(content)
    is_large = len(data) >= _LARGE_BYTES
    header = 30 + len(info.filename) + (20 if is_large else 0)
    padding = -(file.tell() + header + 4) % _ALIGNMENT
    info.extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
    info.file_size = len(data)
    with archive.open(info, "w", force_zip64=is_large) as record:
        record.write(data)


def write_dcp(tree: Tree, path: str, read: Read) -> None:
    """Write a directory of torch.distributed.checkpoint, with its own writer of metadata. Raises OSError."""
    planner = _Planner(tree, read)
    save(_as_meta(tree), storage_writer=_Writer(path), planner=planner, no_dist=True)


def _as_meta(tree: Tree) -> Tree:
    """Return a tree with empty tensors: they have shape and type. DCP takes lists of tensors apart, and no tuples."""

    def meta(_path: object, leaf: Any) -> Any:  # noqa: ANN401 -- any leaf
        return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta") if isinstance(leaf, LazyTensor) else leaf

    return replaced(_lists(tree), meta)


def _lists(tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {key: _lists(value) for key, value in tree.items()}
    if type(tree) in (list, tuple) and any(isinstance(leaf, LazyTensor) for _, leaf in leaves(tree)):
        return [_lists(value) for value in tree]
    return tree


class _Planner(DefaultSavePlanner):
    """Reads a tensor when it is to be written."""

    def __init__(self, tree: Tree, read: Read) -> None:
        super().__init__()
        self._tensors, self._read = tensors_of(tree), read

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """Return the part of an item to write."""
        if write_item.type is WriteItemType.BYTE_IO:
            return cast("io.BytesIO", super().resolve_data(write_item))
        name = write_item.index.fqn
        return self._read(name, self._tensors[name])


class _Writer(FileSystemWriter):
    """Writes one item after the other into shards. torch's own holds every tensor until the end."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the items, and say where each lies."""
        results: list[WriteResult] = []
        name = "__0_0.distcp"
        with self.fs.create_stream(self.fs.concat_path(self.path, name), "wb") as stream:
            for item in plan.items:
                begin = stream.tell()
                data = planner.resolve_data(item)
                if isinstance(data, io.BytesIO):
                    stream.write(data.getbuffer())
                else:
                    torch.save(data, cast("IO[bytes]", stream))
                del data
                length = stream.tell() - begin
                results.append(WriteResult(index=item.index, size_in_bytes=length, storage_data=_StorageInfo(name, begin, length)))
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done


def write_safetensors(tensors: Mapping[str, LazyTensor], path: str, read: Read, texts: Mapping[str, str]) -> None:
    """Write a file of safetensors: the length of a header, the header, and the tensors in its order. Raises OSError."""
    ordered = sorted(tensors.items(), key=lambda row: (-row[1].dtype.itemsize, row[0]))  # as the library: every tensor is aligned
    header: dict[str, Any] = {_RESERVED: {**texts, "format": "pt"}}
    begin = 0
    for name, tensor in ordered:
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, begin + tensor.n_bytes]}
        begin += tensor.n_bytes
    content = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    content += b" " * (-len(content) % 8)
    with open(path, "wb") as file:  # noqa: PTH123 -- strings throughout the package
        file.write(len(content).to_bytes(8, "little") + content)
        for name, tensor in ordered:
            whole = read(name, tensor)
            file.write(raw(whole))
            del whole


def write_hf(tensors: Mapping[str, LazyTensor], path: str, read: Read, source: SourceCheckpoint) -> None:
    """Write a directory as transformers' save_pretrained does: model.safetensors, or shards and their index. Raises OSError."""
    os.mkdir(path)  # noqa: PTH102 -- strings throughout the package
    shards = shards_of(tensors)
    numbers = [f"-{n + 1:05d}-of-{len(shards):05d}" for n in range(len(shards))] if len(shards) > 1 else [""]
    files = [f"{source.stem}{number}.safetensors" for number in numbers]
    for file, shard in zip(files, shards, strict=True):
        write_safetensors(shard, os.path.join(path, file), read, source.texts)  # noqa: PTH118 -- as above
    if len(shards) > 1:
        places = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        index = {"metadata": {"total_size": sum(tensor.n_bytes for tensor in tensors.values())}, "weight_map": dict(sorted(places.items()))}
        with open(os.path.join(path, f"{source.stem}.safetensors.index.json"), "w", encoding="utf-8") as out:  # noqa: PTH118, PTH123 -- as above
            out.write(json.dumps(index, indent=2) + "\n")
    for name in source.beside:
        shutil.copyfile(name, os.path.join(path, os.path.basename(name)))  # noqa: PTH118, PTH119 -- as above


def shards_of(tensors: Mapping[str, LazyTensor], most_bytes: int | None = None) -> list[dict[str, LazyTensor]]:
    """Return the tensors in groups of at most SHARD_BYTES, in their order; a larger tensor is alone."""
    limit = SHARD_BYTES if most_bytes is None else most_bytes
    shards: list[dict[str, LazyTensor]] = [{}]
    held = 0
    for name, tensor in tensors.items():
        if shards[-1] and held + tensor.n_bytes > limit:
            shards.append({})
            held = 0
        shards[-1][name] = tensor
        held += tensor.n_bytes
    return shards


def check_types(tensors: Mapping[str, LazyTensor]) -> None:
    """Raise CheckpointingError where safetensors has no type or no name for a tensor."""
    name = next((name for name, tensor in tensors.items() if tensor.dtype not in _NAMES), None)
    if name is not None:
        raise CheckpointingError(
            f"safetensors has no type for {str(tensors[name].dtype).removeprefix('torch.')}: {name}",
            hint="convert to torch or dcp, or change the tensor's type in the checkpoint first",
        )
    name = next((name for name in tensors if name == _RESERVED or not _is_text(name)), None)
    if name is not None:
        raise CheckpointingError(
            f"safetensors has no tensor with this name: {name!r}",
            hint="convert to torch or dcp, or rename the tensor in the checkpoint first",
        )


def _is_text(name: str) -> bool:
    """Return whether UTF-8 has the name: half of a surrogate pair has no bytes there."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)
