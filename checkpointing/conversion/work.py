"""Runs one conversion: reads each tensor once, writes it, reads the target again, and names its omissions."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from checkpointing.conversion import targets, trees
from checkpointing.conversion.sources import open_source
from checkpointing.conversion.trees import LazyTensor, SourceCheckpoint, TensorRow, Tree
from checkpointing.model import CheckpointingError, count_text, first_names, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_DTYPES: Final = {"": None, "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_EMIT_S: Final = 0.2
_MOST_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of the target. left_out, notes: lines for people."""

    tree: Tree
    tensors: dict[str, LazyTensor]
    left_out: list[str]
    notes: list[str]


class Conversion:
    """One conversion: reads each tensor once, remembers its row, and reports the bytes.

    bound_memory: gets the size of the largest tensor, and None before a file is mapped.
    """

    def __init__(self, emit: Callable[[dict[str, Any]], None], bound_memory: Callable[[int | None], None] = lambda _largest: None) -> None:
        self._emit, self._emitted_at, self._bound_memory = emit, 0.0, bound_memory
        self._done = self._total = 0
        self._phase = ""
        self._rows: dict[str, TensorRow] = {}
        self._by_content: dict[Hashable, TensorRow] = {}

    def run(self, source_path: str, target: str, to: str, dtype: str) -> dict[str, Any]:
        """Convert and verify. Returns the answer. Raises CheckpointingError, OSError."""
        source = open_source(source_path)
        content = prepared(source, to, _DTYPES[dtype])
        n_bytes = sum(tensor.n_bytes for tensor in content.tensors.values())
        _require_room(os.path.dirname(target), n_bytes)  # noqa: PTH120 -- strings throughout the package
        largest = max(tensor.n_bytes for tensor in content.tensors.values())
        self._bound_memory(largest)
        self._begin("writing", n_bytes)
        self._write(content, source, target, to)
        _forget(target)
        self._begin("verifying", n_bytes)
        self._bound_memory(None)
        written = trees.tensors_of(open_source(target).tree)
        self._bound_memory(largest)
        self._verify(content, written)
        return {"tensors": len(content.tensors), "bytes": n_bytes, "left_out": content.left_out, "notes": content.notes}

    def _write(self, content: _Content, source: SourceCheckpoint, target: str, to: str) -> None:
        if to == "torch":
            targets.write_torch(content.tree, target, self._read)
        elif to == "dcp":
            targets.write_dcp(content.tree, target, self._read)
        else:
            targets.check_types(content.tensors)
            if to == "safetensors":
                targets.write_safetensors(content.tensors, target, self._read, source.texts)
            else:
                targets.write_hf(content.tensors, target, self._read, source)

    def _read(self, name: str, tensor: LazyTensor) -> torch.Tensor:
        whole = tensor.read()
        row = self._rows[name] = trees.row_of(whole)
        if tensor.content is not None:
            self._by_content[tensor.content] = row
        self._advance(tensor.n_bytes)
        return whole

    def _verify(self, content: _Content, written: dict[str, LazyTensor]) -> None:
        """Compare the written files. Raises CheckpointingError for a difference."""
        differing = sorted(content.tensors.keys() ^ written.keys())
        for name, tensor in written.items():
            if differing:
                break
            expected = self._rows.get(name) or self._by_content[content.tensors[name].content]
            differing = [] if trees.row_of(tensor.read()) == expected else [name]
            self._advance(tensor.n_bytes)
        if differing:
            raise CheckpointingError(
                f"the written checkpoint differs from its source: {', '.join(differing[:4])}",
                hint="look at the disk and its kernel log (`supervise doctor`); the target was removed",
            )

    def _begin(self, phase: str, total: int) -> None:
        self._phase, self._done, self._total, self._emitted_at = phase, 0, total, 0.0
        self._advance(0)

    def _advance(self, n_bytes: int) -> None:
        self._done += n_bytes
        now = time.monotonic()
        if now - self._emitted_at >= _EMIT_S or self._done == self._total:
            self._emitted_at = now
            self._emit({"phase": self._phase, "done": self._done, "total": self._total})


def prepared(source: SourceCheckpoint, to: str, dtype: torch.dtype | None) -> _Content:
    """Return the content of the target, and its omissions. Raises CheckpointingError if nothing would be left.

    safetensors and hf hold the model's weights and nothing else: their loaders expect that. dtype applies to the weights alone.
    """
    tree, n_renamed = trees.without_prefixes(source.tree)
    path, others = trees.weights_of(tree)
    left_out = list(source.left_out)
    renamed = f"prefixes of wrappers (module., _orig_mod. and the like) were removed from {count_text(n_renamed, 'name')}"
    notes = [renamed] if n_renamed else []

    def change(where: trees.Path, leaf: Any) -> Any:  # noqa: ANN401 -- any leaf
        if not isinstance(leaf, LazyTensor) or where[: len(path)] != path or any(where[: len(other)] == other for other in others):
            return leaf
        return trees.cast(leaf, dtype, ".".join(map(str, where)))

    tree = trees.replaced(tree, change)
    if to in ("safetensors", "hf"):
        left_out += [_described(other, trees.at(tree, other)) for other in others]
        tree = {key: value for key, value in trees.at(tree, path).items() if (*path, key) not in others}
        values = [".".join(map(str, where)) for where, leaf in trees.leaves(tree) if not isinstance(leaf, LazyTensor)]
        left_out += [f"values that are not tensors: {first_names(values, _MOST_NAMED)}"] if values else []
    else:
        left_out += (
            ["the texts in the header: " + first_names(sorted(source.texts), _MOST_NAMED)] if source.texts.keys() - {"format"} else []
        )
    tensors = trees.tensors_of(tree)
    if not tensors:
        raise CheckpointingError("there is no tensor to write", hint="save the model's state_dict(): a dictionary of names and tensors")
    if to != "torch":
        contents = [tensor.content for tensor in tensors.values() if tensor.content is not None]
        tied = len(contents) - len(set(contents))
        notes += [f"tied weights are written once for each name: {count_text(tied, 'name')} more"] if tied else []
    if to == "dcp":
        numbers = sum(any(isinstance(key, int) for key in where) for where in _keys(tree))
        left_out += (
            [f"the type of keys that are numbers: torch.distributed.checkpoint stores keys as text ({count_text(numbers, 'table')})"]
            if numbers
            else []
        )
    if to == "hf" and not any(name.endswith(("/config.json", "/adapter_config.json")) for name in source.beside):
        notes.append("config.json is not beside the source: transformers needs the model's own in the target")
    return _Content(tree, tensors, left_out, notes)


def _keys(tree: Tree) -> list[tuple[Any, ...]]:
    """Return the keys of each dictionary in a tree."""
    if isinstance(tree, dict):
        return [tuple(tree), *(keys for value in tree.values() for keys in _keys(value))]
    return [keys for value in tree for keys in _keys(value)] if isinstance(tree, (list, tuple)) else []


def _described(path: tuple[Any, ...], tree: Tree) -> str:
    """Return a line for a part that is left out: its name and size."""
    sizes = [leaf.n_bytes for _, leaf in trees.leaves(tree) if isinstance(leaf, LazyTensor)]
    name = ".".join(map(str, path))
    return f"{name}: {count_text(len(sizes), 'tensor')}, {size_text(sum(sizes))}" if sizes else name


def _require_room(directory: str, n_bytes: int) -> None:
    disk = os.statvfs(directory)
    needed, free = n_bytes + n_bytes // 100 + (1 << 20), disk.f_bavail * disk.f_frsize
    if free < needed:
        raise CheckpointingError(
            f"not enough room for the target: {size_text(needed)} are needed, {size_text(free)} are free",
            hint="name a target on another disk, or convert to a smaller type with --dtype bf16",
        )


def _forget(path: str) -> None:
    """Make the written files durable, and drop them from the page cache: the verification then reads the disk. Raises OSError."""
    places = [(path, [], [os.path.basename(path)])] if not os.path.isdir(path) else list(os.walk(path))  # noqa: PTH112, PTH119 -- strings throughout
    for base, _, names in places:
        directory = base if os.path.isdir(base) else os.path.dirname(base)  # noqa: PTH112, PTH120 -- as above
        for name in (*names, ""):
            fd = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_CLOEXEC)  # noqa: PTH118 -- as above
            try:
                os.fsync(fd)
                if name:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
