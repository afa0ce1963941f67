"""The formats that are read, one file for each. `open_source` finds the one that a checkpoint has."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Final

from checkpointing.conversion.sources import deepspeed, rank_files, safetensors_files, torch_files
from checkpointing.conversion.trees import SourceCheckpoint
from checkpointing.formats import safetensors, tree_format_of
from checkpointing.formats.directories import weights
from checkpointing.io.tree import Tree
from checkpointing.model import CheckpointingError

if TYPE_CHECKING:
    from collections.abc import Iterable

_DCP_METADATA: Final = ".metadata"
#: FSDP's (accelerate, transformers), and DeepSpeed's.
_FRAMEWORKS: Final = re.compile(r"(pytorch_model_fsdp|optimizer)_\d+|global_step\d+")
#: Files that transformers reads beside the weights: configuration, tokenizer, processor.
_BESIDE: Final = re.compile(
    r"(generation_|preprocessor_|processor_|adapter_)?config\.json|tokenizer.*\.(json|model)|vocab\.(json|txt)|merges\.txt"
    r"|(special_tokens_map|added_tokens)\.json|chat_template.*|.*\.tiktoken|sentencepiece.*\.model|spiece\.model"
)


def open_source(path: str) -> SourceCheckpoint:  # noqa: PLR0911 -- each is another format
    """Return what a file or a directory holds, no tensor of it read. Raises CheckpointingError where it cannot be converted, OSError."""
    if not os.path.isdir(path):  # noqa: PTH112 -- strings throughout the package
        return _open_file(path)
    tree = Tree(path)
    if _DCP_METADATA in tree.entries:
        from checkpointing.conversion.sources import dcp  # noqa: PLC0415 -- torch imports sympy for it, and the other formats need neither

        return dcp.open_directory(path)
    claimant = tree_format_of(tree)
    name = claimant[0] if claimant is not None else ""
    if name == "deepspeed":
        return deepspeed.open_directory(path)
    if name == "fsdp":
        return rank_files.open_directory(path)
    if name == "megatron":
        return _open_megatron(tree)
    if name in ("hf_trainer", "accelerate", "safetensors_index") or weights.singles(tree):
        return _open_weights(tree)
    if name == "file_set":
        return _open_set(tree)
    raise CheckpointingError(
        f"no format that can be converted: {path}", hint="name a checkpoint: `supervise checkpoints verify PATH` shows the format of each"
    )


def _open_file(path: str) -> SourceCheckpoint:
    if path.endswith(weights.INDEX):
        return _open_weights(Tree(os.path.dirname(path) or "."))  # noqa: PTH120 -- strings throughout the package
    with open(path, "rb") as file:  # noqa: PTH123 -- as above
        head = file.read(64)
    suffix = os.path.splitext(path)[1]  # noqa: PTH122 -- as above
    return safetensors_files.open_file(path) if safetensors.claims(head, b"", suffix) else torch_files.open_file(path)


def _below(tree: Tree, name: str) -> str:
    return os.path.join(tree.path, name)  # noqa: PTH118 -- strings throughout the package


def _open_weights(tree: Tree) -> SourceCheckpoint:
    """Return the weights that an index names, or of the one file; under FSDP and DeepSpeed those of the framework's own directory."""
    top = sorted(name for name in tree.entries if "/" not in name)
    files = [name for name in top if name.endswith(weights.INDEX)]
    if files:
        document = json.loads(tree.read_small(files[0]).decode("utf-8"))
        files = sorted(set(document["weight_map"].values()))
    files = files or _of_one_suffix(weights.singles(tree)) or weights.shards(tree)
    frameworks = sorted(name for name in tree.directories if _FRAMEWORKS.fullmatch(name))
    if not files and frameworks:
        parts = {name: open_source(_below(tree, name)) for name in frameworks}
        source = SourceCheckpoint(_without_numbers(parts), [line for part in parts.values() for line in part.left_out])
        files = frameworks
    else:
        source = _merged([(name, _open_file(_below(tree, name))) for name in files])
    beside = [name for name in top if _BESIDE.fullmatch(name)]
    used = {*files, *beside, *(name for name in top if name.endswith(weights.INDEX))}
    stem = weights.SINGLE.fullmatch(files[0]) if files else None
    source.stem = stem[1].removeprefix("pytorch_") if stem is not None else source.stem
    source.beside = tuple(_below(tree, name) for name in beside)
    source.left_out += [f"the file {name}" for name in top if name not in used]
    source.left_out += [f"the directory {name}" for name in sorted(tree.directories) if "/" not in name and name not in used]
    return source


def _of_one_suffix(files: list[str]) -> list[str]:
    """Return the files of safetensors, where the same weights lie beside them as torch saves them."""
    return [name for name in files if name.endswith(safetensors.SUFFIX)] or files


def _without_numbers(parts: dict[str, SourceCheckpoint]) -> dict[str, object]:
    """Return the trees below "model" and "optimizer" as FSDP's directories are called, or the one tree of DeepSpeed's."""
    if len(parts) == 1 and not any(name.startswith("optimizer") for name in parts):
        return dict(next(iter(parts.values())).tree)
    whole = {}
    for name, part in parts.items():
        key = "optimizer" if name.startswith("optimizer") else "model"
        whole[key] = part.tree[key] if set(part.tree) == {key} else part.tree
    return whole


def _merged(parts: Iterable[tuple[str, SourceCheckpoint]]) -> SourceCheckpoint:
    """Return the tensors of several files as those of one. Raises CheckpointingError where two files have a name."""
    whole = SourceCheckpoint({})
    places: dict[str, str] = {}
    for file, part in parts:
        for key, value in part.tree.items():
            if key in places:
                raise CheckpointingError(
                    f"{key} is in {places[key]} and in {file}: pieces of a tensor, or two saves in one directory",
                    hint="name one of the files as the source; pieces of tensors need the reader of the framework that cut them",
                )
            places[key], whole.tree[key] = file, value
        whole.left_out += part.left_out
        whole.texts.update(part.texts)
    return whole


def _open_megatron(tree: Tree) -> SourceCheckpoint:
    """Return the one file of a model that was not split."""
    files = [name for name in tree.entries if name.endswith((".pt", ".pth"))]
    if len(files) != 1:
        raise CheckpointingError(
            f"the model is split over the ranks of Megatron, which this command cannot join: {tree.path}",
            hint="convert it with Megatron-LM's tools/checkpoint/convert.py, or save with --ckpt-format torch_dist and convert that",
        )
    return torch_files.open_file(_below(tree, files[0]))


def _open_set(tree: Tree) -> SourceCheckpoint:
    """Return the files of one save, each below its name without the suffix."""
    whole, trees = SourceCheckpoint({}), {}
    for name in sorted(tree.entries):
        if not name.endswith((".pt", ".pth", ".ckpt", ".bin", ".safetensors")):
            whole.left_out.append(f"the file {name}")
            continue
        part = _open_file(_below(tree, name))
        trees[os.path.splitext(name)[0]] = part.tree  # noqa: PTH122 -- strings throughout the package
        whole.left_out += part.left_out
    whole.tree = trees if len(trees) != 1 else next(iter(trees.values()))
    return whole
