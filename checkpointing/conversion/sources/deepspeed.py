"""Reads one step of a DeepSpeed training as the full fp32 weights of the model.

Layout (deepspeed/utils/zero_to_fp32.py, deepspeed/checkpoint/constants.py): each rank's `*_optim_states.pt` holds its part of the weights
in flat tensors of fp32, one for each group of parameters, under `optimizer_state_dict`. The model's states name the parameters of each
group with their shapes, in the order of the flat tensors (`param_shapes`).

    ZeRO 1, 2   single_partition_of_fp32_groups     a group is the ranks' parts in a row, and its parameters follow one another;
                                                    its end is padded to a multiple of twice the number of ranks
    ZeRO 3      fp32_flat_groups                    each parameter by itself is padded at its end and cut into equal parts

Further keys: `buffer_names` (their values are in `module`), `shared_params` (tied weights: name to name), and `frozen_param_shapes` with
`frozen_param_fragments`. Without ZeRO, `module` is the whole model.

DeepSpeed's own converter loads everything with unguarded pickle. Here `weights_only` reads the objects, one tensor at a time.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from typing import TYPE_CHECKING, Any, Final

import torch

from checkpointing.conversion.sources import torch_files
from checkpointing.conversion.trees import LazyTensor, SourceCheckpoint
from checkpointing.model import CheckpointingError, first_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_RANK: Final = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_MODEL: Final = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
_PARALLEL: Final = "convert it with the tools of the framework that split it (DeepSpeed's ds_to_universal, Megatron's converters)"
_DAMAGED: Final = "compare the files of all ranks with those of an earlier step: they seem to be of different trainings"


def open_directory(path: str) -> SourceCheckpoint:
    """Return the model's weights in fp32. Raises CheckpointingError where the model was split by more than ZeRO."""
    names = sorted(os.listdir(path))  # noqa: PTH208 -- strings throughout the package
    models = {int(match[1] or 0): name for name in names if (match := _MODEL.fullmatch(name)) and not int(match[2])}
    optimizers = {int(match[1]): name for name in names if (match := _RANK.fullmatch(name)) and not int(match[2])}
    n_own = sum(bool(_MODEL.fullmatch(name) or _RANK.fullmatch(name)) for name in names)
    parallel = [name for name in names if name.startswith(("layer_", "expp_rank_"))]
    if n_own != len(models) + len(optimizers) or parallel or not models:
        split = parallel or [name for name in names if re.search(r"mp_rank_0*[1-9]", name)] or ["no file of model-parallel rank 0"]
        raise CheckpointingError(
            f"the model is split by model, pipeline or expert parallelism, which this command cannot join: {path}: {split[0]}",
            hint=_PARALLEL,
        )
    states = {rank: _load(path, name) for rank, name in sorted(models.items())}
    model = states[min(states)]
    left_out = ["the optimizer's states of all ranks", *(f"{key}" for key in model if key not in ("module", "param_shapes"))]
    if not optimizers:
        return SourceCheckpoint(dict(model["module"]), left_out[1:])
    shards = [_load(path, name)["optimizer_state_dict"] for _, name in sorted(optimizers.items())]
    buffers = {name: _as_fp32(model["module"][name]) for name in model.get("buffer_names") or () if name in model["module"]}
    weights = {**buffers, **_frozen(states), **dict(_stage3(shards, model) if "fp32_flat_groups" in shards[0] else _stage2(shards, model))}
    for name, partner in dict(model.get("shared_params") or {}).items():
        if partner in weights:
            weights[name] = weights[partner]
    lacking = [name for name in model["module"] if name not in weights and isinstance(model["module"][name], LazyTensor)]
    lines = [f"no fp32 weights of {first_names(lacking)}"] if lacking else []
    return SourceCheckpoint(weights, [*lines, *left_out])


def _load(path: str, name: str) -> Any:  # noqa: ANN401 -- what the file says
    file = os.path.join(path, name)  # noqa: PTH118 -- strings throughout the package
    tree, _ = torch_files.load(file)
    return torch_files.lazy_tree(tree, file)


def _stage2(shards: Sequence[Any], model: Any) -> Iterator[tuple[str, LazyTensor]]:  # noqa: ANN401 -- what the file says
    groups = [shard["single_partition_of_fp32_groups"] for shard in shards]
    for number, shapes in enumerate(model["param_shapes"]):
        flat, offset = [group[number] for group in groups], 0
        n_held = sum(math.prod(tensor.shape) for tensor in flat)
        for name, shape in shapes.items():
            count = math.prod(shape)
            yield name, _cut(name, tuple(shape), _parts(flat, offset, count))
            offset += count
        aligned = 2 * len(flat)
        if -(-n_held // aligned) != -(-offset // aligned):
            raise CheckpointingError(f"group {number} has {n_held} numbers, and its parameters need {offset}", hint=_DAMAGED)


def _parts(flat: Sequence[LazyTensor], offset: int, count: int) -> list[tuple[LazyTensor, int, int]]:
    """Return the parts of the ranks' flat tensors that make up a range of them all in a row: (tensor, offset in it, count)."""
    parts, begin = [], 0
    for tensor in flat:
        size = math.prod(tensor.shape)
        low, high = max(offset, begin), min(offset + count, begin + size)
        if low < high:
            parts.append((tensor, low - begin, high - low))
        begin += size
    return parts


def _stage3(shards: Sequence[Any], model: Any) -> Iterator[tuple[str, LazyTensor]]:  # noqa: ANN401 -- what the file says
    ranks, offset = [shard["fp32_flat_groups"] for shard in shards], 0
    for name, shape in itertools.chain.from_iterable(shapes.items() for shapes in model["param_shapes"]):
        count = math.prod(shape)
        each = -(-count // len(ranks))
        yield name, _cut(name, tuple(shape), [piece for flat in ranks for piece in _parts(flat, offset, each)])
        offset += each
    n_held = sum(math.prod(piece.shape) for piece in ranks[0])
    if n_held != offset:
        raise CheckpointingError(f"each rank has {n_held} numbers, and its parts of the parameters need {offset}", hint=_DAMAGED)


def _frozen(states: dict[int, Any]) -> dict[str, LazyTensor]:
    """Return the parameters that are not trained: each whole from one file, or joined from the ranks' parts."""
    first = states[min(states)]
    shapes, fragments = first.get("frozen_param_shapes") or {}, [state.get("frozen_param_fragments") or {} for state in states.values()]
    frozen = {}
    for name, shape in shapes.items():
        parts = [fragment[name] for fragment in fragments if name in fragment]
        if parts:
            frozen[name] = _cut(name, tuple(shape), [(part, 0, math.prod(part.shape)) for part in parts])
    return frozen


def _cut(name: str, shape: tuple[int, ...], parts: Sequence[tuple[LazyTensor, int, int]]) -> LazyTensor:
    """Return a parameter, joined from parts of flat tensors. Numbers after its last one are padding."""
    count = math.prod(shape)
    if sum(size for _, _, size in parts) < count:
        raise CheckpointingError(f"{name} has {count} numbers, and the ranks hold fewer", hint=_DAMAGED)
    dtype = parts[0][0].dtype if parts else torch.float32

    def read() -> torch.Tensor:
        whole, done = torch.empty(count, dtype=dtype), 0
        for tensor, offset, size in parts:
            taken = min(size, count - done)
            whole[done : done + taken] = tensor.part(offset, taken)
            done += taken
        return whole.reshape(shape)

    return LazyTensor(dtype, shape, read)


def _as_fp32(buffer: LazyTensor) -> LazyTensor:
    if buffer.dtype not in (torch.float16, torch.bfloat16):
        return buffer
    return LazyTensor(torch.float32, buffer.shape, lambda: buffer.read().float())
