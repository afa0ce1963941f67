"""A directory with weights that an index names, or with a model as transformers' save_pretrained writes it (checks: weights.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from checkpointing.formats import combine
from checkpointing.formats.directories import weights

if TYPE_CHECKING:
    from checkpointing.formats import Examination
    from checkpointing.io.tree import Tree

_CONFIGS: Final = ("config.json", "adapter_config.json")


def claims(tree: Tree) -> bool:
    """Claim a directory with an index or a shard of weights, or with a model's weights beside its configuration."""
    top = tree.top()
    if any(name.startswith("checkpoint-") for name in tree.directories):
        return False  # an output directory of transformers: its checkpoints are below
    return bool(weights.indexes(tree) or weights.shards(tree) or (weights.singles(tree) and any(name in top for name in _CONFIGS)))


def examine(tree: Tree, *, bulk: bool) -> Examination:
    """Check index and files. Raises OSError and Interrupted."""
    parts = weights.examine(tree, bulk=bulk)
    places = [shard.place for shard in parts if shard.place.step is not None]
    return combine(parts, *places[:1], format="" if weights.indexes(tree) or weights.shards(tree) else "safetensors")
