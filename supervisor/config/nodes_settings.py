"""The settings of jobs with several nodes. A part of the tree in settings.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from supervisor.config.setting_columns import setting


@dataclass(frozen=True, slots=True)
class NodesSection:
    """[nodes]: when a node of the job counts as lost, how long the others are waited for, and what becomes of the global batch."""

    lease_s: float = setting(
        6.0,
        "A node of the job from which nothing comes for so long counts as lost: the attempt ends on all nodes.",
        "A third of it lies between two signs of life. [More](many-nodes.md#what-is-in-the-store).",
        minimum=1.0,
    )
    wait_s: float = setting(
        120.0,
        "A node that can reach neither the others nor their decision ends with 75 after so long.",
        "A node that waits to join while the others train waits without end.",
        minimum=5.0,
    )
    gather_s: float = setting(
        0.0,
        "Where fewer nodes are there than --nnodes needs, they wait for others for so long, then stop with 75.",
        "0: for torch's `join_timeout`, 600 unless `--rdzv-conf` has another. [More](many-nodes.md#nodes-that-come-and-go).",
        minimum=0,
    )
    batch: Literal["hold", "require", "let"] = setting(
        "hold",
        "The global batch with fewer or more nodes: held where the knobs are known, required, or let go.",
        "Where it cannot be held, `hold` reports it and goes on, `require` stops with 75. [More](many-nodes.md#the-global-batch).",
    )
