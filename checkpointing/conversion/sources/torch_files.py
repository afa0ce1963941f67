"""Files of torch.save: objects by torch's `weights_only` reader, tensors straight from the file.

torch maps the file, so that building the objects reads none of the numbers. Where a tensor lies in the mapping shows where it lies in the
file, and there it is read when it is wanted: memory holds one tensor at a time. A file of the format before torch 1.6 cannot be mapped, and
is loaded whole.

No class of the file is imported. A class that `weights_only` does not know is replaced by an object that does nothing.
"""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch
from torch.distributed.tensor import DTensor  # and it is a safe class from then on
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from checkpointing.conversion.trees import LazyTensor, SourceCheckpoint, Tree, leaves, replaced
from checkpointing.io.reader import FileReader
from checkpointing.model import CheckpointingError, first_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Unknown:
    """An object of a class that is not imported. It does nothing; a file that calls it gets another."""

    def __new__(cls, *_values: object, **_named: object) -> Self:
        """Take whatever the class took."""
        return object.__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Keep the attributes: FSDP's shards are read from them."""
        for values in state if isinstance(state, tuple) else (state,):
            if isinstance(values, dict):
                self.__dict__.update(values)


class ShardedTensor(torch.Tensor):
    """The part of a tensor of FSDP1 that one rank saved. torch's own class needs the process group that saved it."""

    def __setstate__(self, state: Any) -> None:  # noqa: ANN401 -- what the file says
        """Keep local shards and metadata: (shards, metadata, process group, sharding, …)."""
        self.shards, self.metadata = state[0], state[1]

    @classmethod
    def __torch_dispatch__(cls, *_call: object) -> NoReturn:
        """Refuse every operation: it is looked into, and never computed with."""
        raise NotImplementedError


def open_file(path: str) -> SourceCheckpoint:
    """Return what a file holds. Raises CheckpointingError where it cannot be loaded so, OSError."""
    tree, unknown = load(path)
    tree = lazy_tree(replaced(tree, lambda _path, leaf: _state_of(leaf)), path)
    if any(isinstance(leaf, (DTensor, ShardedTensor)) for _, leaf in leaves(tree)):
        raise CheckpointingError(
            f"the file holds one rank's shards of its tensors: {path}",
            hint="name the directory that holds the files of all ranks (model_rank0.pt, model_rank1.pt, …)",
        )
    tree, lost = without_unknown(tree, unknown)
    return SourceCheckpoint(tree if isinstance(tree, dict) else {"value": tree}, lost)


def load(path: str | io.BytesIO, *, mmap: bool | None = None) -> tuple[Any, tuple[str, ...]]:
    """Return the objects of a file, and the names of classes that were replaced. Raises CheckpointingError.

    A subclass of dict or list becomes a plain one: only the file shows what a class is, so each is tried as an object first.
    """
    is_zip = zipfile.is_zipfile(path)
    _rewind(path)
    try:
        unknown = tuple(sorted(get_unsafe_globals_in_checkpoint(path))) if is_zip else ()
    except pickle.UnpicklingError as error:  # another protocol than torch.save's own
        raise _unreadable(path, error) from error
    stand_ins: dict[str, Any] = {name: type(f"Unknown_{number}_", (Unknown,), {}) for number, name in enumerate(unknown)}
    for name in stand_ins:
        if name.endswith("sharded_tensor.api.ShardedTensor"):
            stand_ins[name] = ShardedTensor
        elif name == "builtins.getattr":  # a class within ShardedTensor
            stand_ins[name] = _unknown_class
    while True:
        try:
            known: list[Any] = [Unknown, *((stand_in, name) for name, stand_in in stand_ins.items())]
            _rewind(path)
            with safe_globals(known):
                return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip if mmap is None else mmap), unknown
        except pickle.UnpicklingError as error:
            again = next((name for name, stand_in in stand_ins.items() if getattr(stand_in, "__name__", " ") in str(error)), None)
            if again is None or stand_ins[again] in (dict, list):
                raise _unreadable(path, error) from error
            stand_ins[again] = list if "append" in str(error) or "extend" in str(error) else dict
        except UnicodeEncodeError as error:
            raise CheckpointingError(
                f"torch opens no file whose path is not UTF-8: {path}", hint="rename the file or the directory, or make a link to it"
            ) from error
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
            raise CheckpointingError(
                f"torch {torch.__version__} cannot read the file: {path}: {str(error).strip().partition(chr(10))[0][:300]}",
                hint="convert it with the version of torch that saved it",
            ) from error


def _unreadable(path: str | io.BytesIO, error: Exception) -> CheckpointingError:
    why = str(error).strip().replace("\n", " ")[:300]
    return CheckpointingError(
        f"the objects of the file cannot be read without running its code: {path}: {why}",
        hint="save it again as a dictionary of tensors and plain values, where its classes are installed",
    )


def _rewind(path: str | io.BytesIO) -> None:
    if isinstance(path, io.BytesIO):
        path.seek(0)


def _unknown_class(*_values: object) -> type[Unknown]:
    return Unknown


def lazy_tree(tree: Tree, path: str = "") -> Tree:
    """Return a tree with each dense tensor as LazyTensor; those that lie in a mapping of the file are read from it, the others held."""
    mappings = _mappings(path) if path else []

    def lazy(_path: object, leaf: Any) -> Any:  # noqa: ANN401 -- any leaf
        if type(leaf) in (torch.Tensor, torch.nn.Parameter):
            return _lazy(leaf.detach(), path, mappings)
        return leaf

    return replaced(tree, lazy)


def _lazy(tensor: torch.Tensor, path: str, mappings: Sequence[tuple[int, int, int]]) -> LazyTensor:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        kind = "quantised" if tensor.is_quantized else str(tensor.layout if tensor.device.type == "cpu" else tensor.device)
        raise CheckpointingError(
            f"a tensor is {kind}, and only dense tensors of plain types are converted: {path}",
            hint="save its dense form (to_dense(), dequantize())",
        )
    begin = tensor.data_ptr()
    within = next(((start, offset) for start, end, offset in mappings if start <= begin < end), None)
    shape, stride, dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
    view = (tensor.is_conj(), tensor.is_neg())  # of a lazy conj() the numbers lie in the file as they were, and a bit says the rest
    if within is None or not tensor.numel():
        content = (begin, shape, stride, dtype, view) if tensor.numel() else None
        return LazyTensor(dtype, shape, lambda: tensor.resolve_conj().resolve_neg().contiguous().clone(), content)
    at = begin - within[0] + within[1]
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))

    def read() -> torch.Tensor:
        whole = read_numbers(path, at, span, dtype).as_strided(shape, stride)
        whole = whole.conj_physical() if view[0] else whole
        return (whole.neg() if view[1] else whole).contiguous()

    def read_part(offset: int, count: int) -> torch.Tensor:
        return read_numbers(path, at + offset * dtype.itemsize, count, dtype)

    is_part = tensor.is_contiguous() and not any(view)
    return LazyTensor(dtype, shape, read, (path, at, shape, stride, dtype, view), read_part if is_part else None)


def read_numbers(path: str, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return `count` numbers that lie at an offset of a file, as a flat tensor. Raises Short, OSError."""
    content = bytearray(count * dtype.itemsize)
    if not content:
        return torch.empty(0, dtype=dtype)
    view, done = memoryview(content), 0
    with FileReader(path, drop_cache=True) as source:
        for piece in source.stream(offset, len(content)):
            view[done : done + len(piece)] = piece
            done += len(piece)
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype)


def _mappings(path: str) -> list[tuple[int, int, int]]:
    """Return (begin, end, offset in the file) of each place in memory where a file is mapped."""
    inode = os.stat(path).st_ino  # noqa: PTH116 -- strings throughout the package
    places = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:  # noqa: PTH123 -- as above
        for line in maps:
            columns = line.split(None, 5)
            if len(columns) > 5 and columns[4] == str(inode):  # noqa: PLR2004 -- with a name
                begin, end = (int(number, 16) for number in columns[0].split("-"))
                places.append((begin, end, int(columns[2], 16)))
    return places


def _state_of(leaf: Any) -> Any:  # noqa: ANN401 -- any leaf
    """Return the state of a module that was saved as an object, with the names that state_dict() gives; any other leaf as it is."""
    if not isinstance(leaf, Unknown) or "_parameters" not in leaf.__dict__:
        return leaf
    own = leaf.__dict__
    passing = own.get("_non_persistent_buffers_set") or ()
    buffers = {name: tensor for name, tensor in own.get("_buffers", {}).items() if name not in passing}
    state = {name: tensor for name, tensor in {**own["_parameters"], **buffers}.items() if tensor is not None}
    for name, module in own.get("_modules", {}).items():
        below = _state_of(module)
        state |= {f"{name}.{key}": tensor for key, tensor in below.items()} if isinstance(below, dict) else {}
    return state


def without_unknown(tree: Tree, unknown: Sequence[str]) -> tuple[Tree, list[str]]:
    """Return a tree without the objects whose class was replaced, and lines that name them."""
    paths: list[str] = []

    def kept(below: Tree, path: tuple[Any, ...]) -> Tree:
        if isinstance(below, dict):
            pairs = {key: kept(value, (*path, key)) for key, value in below.items() if not _is_unknown(value)}
            paths.extend(".".join(map(str, (*path, key))) for key, value in below.items() if _is_unknown(value))
            return type(below)(pairs) if type(below) is not dict else pairs
        if type(below) in (list, tuple):
            paths.extend(".".join(map(str, (*path, number))) for number, value in enumerate(below) if _is_unknown(value))
            return type(below)(None if _is_unknown(value) else kept(value, (*path, number)) for number, value in enumerate(below))
        return below

    tree = None if _is_unknown(tree) else kept(tree, ())
    if not unknown:
        return tree, []
    classes = f"classes {first_names(unknown)}"
    return tree, [f"objects of {classes}: {first_names(paths)}" if paths else f"{classes}: their values are kept as plain tables"]


def _is_unknown(value: object) -> bool:
    return isinstance(value, (Unknown, type, torch.Tensor))


def together(pieces: Sequence[tuple[tuple[int, ...], LazyTensor]], shape: tuple[int, ...], name: str) -> LazyTensor:
    """Return the tensor that pieces make up, each at its offsets. Raises CheckpointingError where they do not make up all of it."""
    unique = dict(pieces)
    dtype = next(iter(unique.values())).dtype
    n_numbers = sum(piece.n_bytes for piece in unique.values()) // dtype.itemsize
    whole = LazyTensor(dtype, shape, _joined(unique, shape, dtype))
    if n_numbers * dtype.itemsize != whole.n_bytes:
        raise CheckpointingError(
            f"the shards of {name} do not make up all of it: {n_numbers} of {whole.n_bytes // dtype.itemsize} numbers",
            hint="bring the files of all ranks together, then convert",
        )
    return whole


def _joined(pieces: dict[tuple[int, ...], LazyTensor], shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    def read() -> torch.Tensor:
        whole = torch.empty(shape, dtype=dtype)
        for offsets, piece in pieces.items():
            place = tuple(slice(begin, begin + size) for begin, size in zip(offsets, piece.shape, strict=True))
            whole[place] = piece.read()
        return whole

    return read
