"""A directory that torch.distributed.checkpoint wrote: `.metadata` and `__<rank>_<n>.distcp` files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpointing.formats import Examination
from checkpointing.model import Verdict

if TYPE_CHECKING:
    from checkpointing.tree import Tree


def claims(tree: Tree) -> bool:
    """Claim a directory with the metadata, or with a shard."""
    return any(name == ".metadata" or name.endswith(".distcp") for name in tree.top())


def examine(tree: Tree, *, bulk: bool) -> Examination:  # noqa: ARG001 -- the interface of every format
    """Say whether its metadata is there. Raises OSError and source.Interrupted."""
    if tree.file(".metadata") is None:
        return Examination(Verdict.INCOMPLETE, ".metadata is missing: the save did not end")
    return Examination(Verdict.UNVERIFIABLE, "a DCP directory")
