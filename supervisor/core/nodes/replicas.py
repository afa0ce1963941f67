"""Counts ranks in whole replicas. A *replica* is the ranks that hold one copy of the model together.

Tensor, pipeline and context parallelism multiply to the ranks of a replica, and data parallelism (DDP, FSDP, HSDP) to the number of
replicas. Ranks beyond a whole number of replicas cannot train: a job of 8 ranks whose replica has 4 of them continues with 4 after the loss
of a GPU, and not with 7. Where a node has no whole number of replicas, several nodes have one: nodes then count in groups.

    replica   ranks of a node   a GPU fails there                        nodes that may begin
    4         8                 4 ranks, and 3 spare GPUs                any number
    8         8                 none: the run stops (69)                 any number
    16        8                 none: the run stops (69)                 2, 4, 6 ...
"""

from __future__ import annotations

from math import gcd

from supervisor.core.values import Struct


class Replica(Struct, frozen=True):
    """The size of a job's replicas."""

    size: int = 1  # in ranks
    source: str = ""  # the flags or the setting that give it, "" for none
    unread: str = ""  # a factor that is not a number, "" for none


#: Each rank holds the whole model: data parallelism alone, as far as is known.
ONE_RANK = Replica()


def whole(count: int, size: int) -> int:
    """Return how many of `count` ranks, or nodes, are in whole replicas, or groups, of `size`; 0: none is."""
    return count - count % size


def up(count: int, size: int) -> int:
    """Return the least number of whole groups of `size` that is not less than `count`; 0 stays 0, which means unknown."""
    return count + -count % size


def on_node(left: int, ranks: int, size: int) -> int:
    """Return how many ranks a node that had `ranks` of them (0: unknown) has with `left` GPUs; 0: none.

    A node with whole replicas loses whole ones. A node with a part of one has all of its ranks or none: other nodes hold the rest.
    """
    if 0 < ranks <= left:
        return ranks
    return whole(left, size) if ranks % size == 0 else 0


def node_group(per_node: int, size: int) -> int:
    """Return in groups of how many nodes those with `per_node` ranks count (0: unknown), so that a group holds whole replicas."""
    return size // gcd(size, per_node) if per_node else 1


def left_text(gpus: int) -> str:
    """Return how many GPUs of a node are left: `1 GPU is left`."""
    return f"{gpus} GPU{'s are' if gpus > 1 else ' is'} left"


def in_words(size: int, source: str) -> str:
    """Return what a replica is, for people. source: the flags or the setting that give its size, "" for none."""
    return f"a replica, one copy of the model, has {size} ranks" + (f" ({source})" if source else "")


def misfit(size: int, per_node: int, least: int, most: int) -> tuple[str, str] | None:
    """Return why no number of nodes from `least` to `most` with `per_node` ranks each holds whole replicas, and torchrun's option for one.

    None: one does, or a number is not known (0).
    """
    group = node_group(per_node, size)
    if size == 1 or not per_node or not most or up(max(least, 1), group) <= most:
        return None
    nodes = f"{least} to {most} nodes" if 0 < least < most else f"{most} node{'s' * (most > 1)}"
    ranks, hold = ("rank", "holds") if per_node == 1 else ("ranks", "hold")
    why = f"the {per_node} {ranks}{f' of each of {nodes}' * (most > 1)} {hold}"
    fits, more = whole(per_node, size), f"--nnodes={up(most, group)}"
    option = f"--nproc-per-node={fits}" if fits else more if most > 1 else f"--nproc-per-node={up(per_node, size)} or {more}"
    return f"{why} no whole number of replicas", option
