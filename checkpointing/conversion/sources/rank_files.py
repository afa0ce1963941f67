"""Reads the sharded state dict of an FSDP script, one torch file for each rank, and joins the pieces of each tensor.

FSDP1 saves ShardedTensor, which says where its pieces lie. FSDP2, and FSDP1 with a device mesh, save DTensor: its mesh and placements say
where the pieces lie. Plain tensors are the same in every file. A *local* state dict cannot be joined: it holds flat pieces without the
names and shapes of the parameters, and only the model knows these.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import DTensor, Replicate, Shard

from checkpointing.conversion.sources import torch_files
from checkpointing.conversion.sources.torch_files import ShardedTensor
from checkpointing.conversion.trees import LazyTensor, SourceCheckpoint, Tree, leaves, replaced, row_of
from checkpointing.formats.directories import fsdp_rank_files
from checkpointing.io.tree import Tree as Directory
from checkpointing.model import CheckpointingError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FLAT = "flat_param"
_ONE_OF_ALL = "load it with FSDP on as many ranks as saved it, then save a full or a sharded state dict (torch.distributed.checkpoint)"


def open_directory(path: str) -> SourceCheckpoint:
    """Return the joined content of all ranks' files. With several rows of files, each is below its name. Raises CheckpointingError."""
    rows, left_out, trees = fsdp_rank_files.rows_of(Directory(path, levels=1)), [], {}
    for (before, _), files in rows.items():
        places = {rank: os.path.join(path, name) for rank, name in files.items()}  # noqa: PTH118 -- strings throughout the package
        loaded = {rank: torch_files.load(place) for rank, place in places.items()}
        lazy = {rank: torch_files.lazy_tree(tree, places[rank]) for rank, (tree, _) in loaded.items()}
        names = tuple(
            dict.fromkeys(name for _, unknown in loaded.values() for name in unknown if not name.startswith("torch.distributed."))
        )
        tree, lost = torch_files.without_unknown(_joined(lazy, places), tuple(name for name in names if name != "builtins.getattr"))
        left_out += lost
        trees[before.strip("-_. ") or "model"] = tree
    return SourceCheckpoint(next(iter(trees.values())) if len(trees) == 1 else trees, left_out)


def _joined(ranks: Mapping[int, Tree], places: Mapping[int, str]) -> Tree:
    """Return the tree of the first rank, with each tensor joined from the pieces of all ranks."""
    by_path = {rank: {path: leaf for path, leaf in leaves(tree) if _is_tensor(leaf)} for rank, tree in ranks.items()}
    first = min(ranks)

    def whole(path: tuple[Any, ...], leaf: Any) -> Any:  # noqa: ANN401 -- any leaf
        if not _is_tensor(leaf):
            return leaf
        return _whole(".".join(map(str, path)), {rank: by_path[rank].get(_key(path)) for rank in ranks}, places)

    return replaced(ranks[first], whole)


def _key(path: tuple[Any, ...]) -> tuple[str | int, ...]:
    return tuple(key if isinstance(key, int) else str(key) for key in path)


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, (LazyTensor, DTensor, ShardedTensor))


def _whole(name: str, of_rank: dict[int, Any], places: Mapping[int, str]) -> LazyTensor:
    """Return one tensor, joined from the ranks' pieces."""
    if _FLAT in name:
        raise CheckpointingError(
            f"the files hold a local state dict of FSDP ({name}): flat pieces, without the parameters' names and shapes", hint=_ONE_OF_ALL
        )
    absent = [str(rank) for rank, leaf in of_rank.items() if leaf is None]
    if absent:
        raise CheckpointingError(f"{name} is not in the file of rank {', '.join(absent[:4])}", hint=_ONE_OF_ALL)
    leaf = of_rank[min(of_rank)]
    if isinstance(leaf, ShardedTensor):
        pieces = [
            (tuple(shard.metadata.shard_offsets), torch_files.lazy_tree(shard.tensor, places[rank]))
            for rank, leaf_of_rank in of_rank.items()
            for shard in leaf_of_rank.shards
        ]
        return torch_files.together(pieces, tuple(leaf.metadata.size), name)
    if isinstance(leaf, DTensor):
        parts = [_piece(name, rank, leaf_of_rank, places[rank]) for rank, leaf_of_rank in of_rank.items()]
        return torch_files.together([piece for piece in parts if piece is not None], tuple(leaf.shape), name)
    return _same(name, of_rank)


def _piece(name: str, rank: int, tensor: DTensor, place: str) -> tuple[tuple[int, ...], LazyTensor] | None:
    """Return the offsets of a rank's piece, and the piece; None if the rank has none. As with torch.chunk, the last ones may be shorter."""
    mesh, sizes, offsets = tensor.device_mesh.mesh, list(tensor.shape), [0] * tensor.dim()
    coordinates = (mesh == rank).nonzero()
    if not len(coordinates):
        raise CheckpointingError(f"{name}: the mesh of the file of rank {rank} has no such rank", hint=_ONE_OF_ALL)
    for n_parts, coordinate, placement in zip(mesh.shape, coordinates[0].tolist(), tensor.placements, strict=True):
        if type(placement) is Shard:
            size = sizes[placement.dim]
            each = -(-size // n_parts)
            begin = min(each * coordinate, size)
            offsets[placement.dim] += begin
            sizes[placement.dim] = min(each, size - begin)
        elif type(placement) is not Replicate:
            raise CheckpointingError(f"{name} has the placement {placement}, which this command cannot join", hint=_ONE_OF_ALL)
    local = tensor._local_tensor  # noqa: SLF001 -- to_local() needs the process group
    if tuple(local.shape) != tuple(sizes):
        raise CheckpointingError(f"{name}: rank {rank} holds {tuple(local.shape)}, and its part has {tuple(sizes)}", hint=_ONE_OF_ALL)
    return (tuple(offsets), torch_files.lazy_tree(local, place)) if local.numel() else None


def _same(name: str, of_rank: dict[int, Any]) -> LazyTensor:
    """Return a plain tensor. A read of it raises CheckpointingError if the ranks hold different values."""
    first: LazyTensor = of_rank[min(of_rank)]

    def read() -> Any:  # noqa: ANN401 -- a tensor
        tensor = first.read()
        row = row_of(tensor)
        differs = next((rank for rank, other in of_rank.items() if other is not first and row_of(other.read()) != row), None)
        if differs is not None:
            raise CheckpointingError(
                f"{name} differs between rank {min(of_rank)} and rank {differs}, and nothing in the files says how to join them",
                hint=_ONE_OF_ALL,
            )
        return tensor

    return LazyTensor(first.dtype, first.shape, read, first.content)
