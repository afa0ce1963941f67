"""A checkpoint as it is converted: nested dictionaries and lists, with tensors that are read only when they are written.

Everything that is done to names is here: which prefixes a wrapper put before them, which part of a checkpoint is the model's, and what
a tensor is called where a format knows no nesting (`layers.0.weight`, as torch.distributed.checkpoint joins them).
"""

from __future__ import annotations

import ctypes
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, TypeAlias

import torch

from checkpointing.manifest import digest
from checkpointing.model import CheckpointingError, is_weight

#: A nested checkpoint: dictionaries and lists, with LazyTensor and plain values as leaves.
Tree: TypeAlias = Any
Path = tuple[str | int, ...]

#: torch puts these into names where it wraps a module; nobody else uses them.
_WRAPPERS: Final = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_DDP: Final = "module."
#: Under these keys training scripts and frameworks keep the model's weights, in the order of asking.
_HOLDERS: Final = ("model", "module", "state_dict", "model_state_dict", "model_state", "net", "weights", "params")
_FLOATING: Final = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})


@dataclass(frozen=True, slots=True, eq=False)
class LazyTensor:
    """A tensor that lies in a file.

    read: returns it, contiguous and on the CPU, and keeps no reference to it. content: equal for tensors that are one and the same in the
    file (tied weights), None where that is not known. read_part: returns so many of its numbers from an offset on, where a part can be
    read alone.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]
    content: Hashable = None
    read_part: Callable[[int, int], torch.Tensor] | None = None

    @property
    def n_bytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def part(self, offset: int, count: int) -> torch.Tensor:
        """Return some of its numbers, flat, in the order of its rows."""
        if self.read_part is not None:
            return self.read_part(offset, count)
        return self.read().reshape(-1)[offset : offset + count]


@dataclass(slots=True)
class SourceCheckpoint:
    """A checkpoint that is read. left_out: its parts that cannot be converted, a line each. texts: those of a safetensors header.

    beside: small files that belong to the model (config.json, tokenizer), as absolute paths. stem: what the file of the weights is called
    in a directory of Hugging Face, so that its loader finds it (adapter_model, diffusion_pytorch_model).
    """

    tree: Tree
    left_out: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    stem: str = "model"


@dataclass(frozen=True, slots=True)
class TensorRow:
    """The facts that a conversion must keep: type, shape, and the CRC-64/NVME of the numbers."""

    dtype: str
    shape: tuple[int, ...]
    crc: int


def row_of(tensor: torch.Tensor) -> TensorRow:
    """Return the row of a contiguous tensor on the CPU."""
    return TensorRow(str(tensor.dtype), tuple(tensor.shape), digest.of_bytes(raw(tensor)))


def raw(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU; they live as long as the tensor does."""
    n_bytes = tensor.numel() * tensor.element_size()
    if not n_bytes:
        return memoryview(b"")
    return memoryview((ctypes.c_char * n_bytes).from_address(tensor.data_ptr())).cast("B")


def leaves(tree: Tree, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield path and value of everything that is not a dictionary, list or tuple."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, (*path, key if isinstance(key, int) else str(key)))
    elif isinstance(tree, (list, tuple)):
        for number, value in enumerate(tree):
            yield from leaves(value, (*path, number))
    else:
        yield path, tree


def tensors_of(tree: Tree) -> dict[str, LazyTensor]:
    """Return the tensors by their joined names. Raises CheckpointingError where two have the same name."""
    named: dict[str, LazyTensor] = {}
    for path, leaf in leaves(tree):
        if isinstance(leaf, LazyTensor):
            name = ".".join(map(str, path))
            if name in named:
                raise CheckpointingError(
                    f"two tensors would be called {name}: the name joins the keys that lead to a tensor",
                    hint="rename one of them in the checkpoint before it is converted",
                )
            named[name] = leaf
    return named


def replaced(tree: Tree, change: Callable[[Path, Any], Any], path: Path = ()) -> Tree:
    """Return a tree of the same shape, each leaf as `change` gives it."""
    if isinstance(tree, Mapping):
        return rebuilt(tree, {key: replaced(value, change, (*path, key)) for key, value in tree.items()})
    if type(tree) in (list, tuple):
        return type(tree)(replaced(value, change, (*path, number)) for number, value in enumerate(tree))
    return change(path, tree)


def rebuilt(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    """Return the items as a mapping of the same type: a state_dict() is an OrderedDict, and has the versions of its modules beside them."""
    if type(mapping) is not OrderedDict:
        return items
    ordered = OrderedDict(items)
    ordered.__dict__.update(mapping.__dict__)
    return ordered


def placed(tree: Tree, path: Path, leaf: Any) -> None:  # noqa: ANN401 -- any leaf
    """Put a leaf into a tree of dictionaries and lists; a number in the path means a place in a list."""
    for key, following in pairwise(path):
        beneath: Tree = [] if isinstance(following, int) else {}
        if isinstance(tree, list):
            tree.extend([None] * (int(key) + 1 - len(tree)))
            tree[int(key)] = beneath if tree[int(key)] is None else tree[int(key)]
            tree = tree[int(key)]
        else:
            tree = tree.setdefault(key, beneath)
    if isinstance(tree, list):
        tree.extend([None] * (int(path[-1]) + 1 - len(tree)))
    tree[path[-1]] = leaf


def without_prefixes(tree: Tree) -> tuple[Tree, int]:
    """Return a tree without the prefixes of wrappers in its keys, and how many keys had one.

    `module.` is DDP's where every neighbour key has it. Raises CheckpointingError where two keys become the same.
    """
    n_changed = 0

    def renamed(below: Tree) -> Tree:
        nonlocal n_changed
        if type(below) in (list, tuple):
            return type(below)(map(renamed, below))
        if not isinstance(below, Mapping):
            return below
        names = {key: _unwrapped(key) for key in below}
        if names and all(isinstance(name, str) and name.startswith(_DDP) and name != _DDP for name in names.values()):
            names = {key: name.removeprefix(_DDP) for key, name in names.items()}
        if len(set(names.values())) != len(names):
            raise CheckpointingError(
                "two names become the same without the prefixes of wrappers (module., _orig_mod.)",
                hint="the checkpoint holds a model twice, wrapped and unwrapped: convert one of them",
            )
        n_changed += sum(key != name for key, name in names.items())
        return rebuilt(below, {names[key]: renamed(value) for key, value in below.items()})

    return renamed(tree), n_changed


def _unwrapped(key: Hashable) -> Any:  # noqa: ANN401 -- a key of any type stays as it is
    if not isinstance(key, str):
        return key
    return ".".join(name for name in key.split(".") if name not in _WRAPPERS) or key


def weights_of(tree: Tree) -> tuple[Path, list[Path]]:
    """Return the path of the model's weights in a tree, () for all of it, and the paths of the other entries beside or in it."""
    path: Path = ()
    while isinstance(tree, Mapping):
        holder = next((key for key in _HOLDERS if isinstance(tree.get(key), Mapping) and _has_tensors(tree[key])), None)
        if holder is not None:
            return (*path, holder), [(*path, key) for key in tree if key != holder]
        below = next(iter(tree), "")
        if len(tree) != 1 or not isinstance(tree[below], Mapping) or not any(isinstance(value, Mapping) for value in tree[below].values()):
            break
        path, tree = (*path, below), tree[below]
    if not isinstance(tree, Mapping):
        return (), []
    return path, [(*path, key) for key, value in tree.items() if isinstance(value, (Mapping, list)) and not is_weight(str(key))]


def at(tree: Tree, path: Path) -> Tree:
    """Return what a path leads to."""
    for key in path:
        tree = tree[key]
    return tree


def _has_tensors(tree: Tree) -> bool:
    return any(isinstance(leaf, LazyTensor) for _, leaf in leaves(tree))


def cast(tensor: LazyTensor, dtype: torch.dtype | None, name: str) -> LazyTensor:
    """Return a tensor that is read in another floating type; integers, booleans and 8-bit floats stay as they are.

    Reading it raises CheckpointingError where a finite number does not fit into the type.
    """
    if dtype is None or tensor.dtype not in _FLOATING or tensor.dtype is dtype:
        return tensor

    def read() -> torch.Tensor:
        before = tensor.read()
        after = before.to(dtype)
        if dtype.itemsize < before.element_size() and int(torch.isinf(after).sum()) > int(torch.isinf(before).sum()):
            raise CheckpointingError(
                f"{name} holds numbers that are too large for {str(dtype).removeprefix('torch.')}: they would become infinite",
                hint="use --dtype bf16, which has the range of fp32, or leave --dtype out",
            )
        return after

    return LazyTensor(dtype, tensor.shape, read, None if tensor.content is None else (tensor.content, dtype))
