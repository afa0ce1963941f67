"""The settings of jobs with several nodes. A part of the tree in settings.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from supervisor.core.setting_columns import setting


@dataclass(frozen=True, slots=True)
class NodesSection:
    """[nodes]: when a node of the job counts as lost, and what becomes of the global batch."""

    lease_s: float = setting(
        6.0,
        "A node of the job from which nothing comes for so long counts as lost: the attempt ends on all nodes.",
        "A third of it lies between two signs of life. [More](many-nodes.md#what-is-in-the-store).",
        minimum=1.0,
    )
    batch: Literal["hold", "require", "ignore"] = setting(
        "hold",
        "The global batch with fewer or more nodes. hold: keep it if possible; require: stop if impossible; ignore: let it change.",
        "`hold` reports where it cannot be kept; `require` stops with 75. [More](many-nodes.md#the-global-batch).",
    )
