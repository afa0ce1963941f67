"""The settings that decisions depend on: sections of the tree in supervisor/config/settings.py, which the core's Policy holds as they are.

A setting that is added to one of these sections is part of the policy, and so of the journal, without another line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from supervisor.core.setting_columns import setting

#: For a wait with poll(2), which counts milliseconds in 31 bits.
_MOST_POLLED_S = 1e6


@dataclass(frozen=True, slots=True)
class Restart:
    """[restart]: when another attempt is worth it."""

    max_attempts: int = setting(
        0,
        "Most attempts in one run, by its charged failures; 0: no limit.",
        "Attempts after a requeue, a takeover or a failure that is not charged to a budget do not count. "
        "A `--max-restarts` given to torchrun is a limit too, and counts the same.",
        minimum=0,
    )
    intensity: int = setting(3, "The restart budget: most restarts per cause family within one hour without progress.", minimum=0)
    scratch_limit_s: float = setting(
        900.0,
        "After an attempt longer than this, we restart without a checkpoint only if there is evidence that the script resumes by itself.",
        "The same holds for an attempt that trained longer and did not take the checkpoint that it got.",
        minimum=0,
    )
    batch_drift: bool = setting(
        default=False,
        text="Allow a smaller or the nearest global batch where the same one is impossible.",
        more="The nearest with fewer GPUs; half of it where a GPU's memory does not suffice and only `batch_size` is declared.",
        flag="--allow-batch-drift",
    )


@dataclass(frozen=True, slots=True)
class Gpus:
    """[gpus]: whether a job runs with fewer GPUs."""

    minimum: int = setting(0, "Continue with at least this many GPUs on a node; 0: never with fewer.", flag="--min-gpus", minimum=0)


@dataclass(frozen=True, slots=True)
class Stop:
    """[stop]: how long processes get to end by themselves."""

    grace_s: float = setting(5.0, "Seconds from TERM to KILL for the peers of a dead rank.", minimum=0, maximum=_MOST_POLLED_S)
    deadline_s: float = setting(
        30.0,
        "Seconds between the first INT or TERM and KILL.",
        "A second signal shortens it, a third ends it.",
        minimum=0,
        maximum=_MOST_POLLED_S,
    )
    left_s: float = setting(
        0.0, "Seconds from the environment's TERM or HUP to its KILL, if we cannot find the number out ourselves; 0: unknown.", minimum=0
    )
    notice_s: float = setting(0.0, "Seconds from a notice (USR1, USR2) to the KILL, if Slurm does not report it; 0: unknown.", minimum=0)


@dataclass(frozen=True, slots=True)
class NodesSection:
    """[nodes]: how long a node waits for the coordinator, and what becomes of the global batch."""

    wait_s: float = setting(
        600.0,
        "Seconds that a node waits for the decision of the coordinator about an attempt that has ended, before it stops with 75.",
        "Under a scheduler its requeue continues the run. [More](many-nodes.md#when-the-coordinator-is-lost).",
        minimum=1.0,
        maximum=_MOST_POLLED_S,
    )
    batch: Literal["hold", "require", "ignore"] = setting(
        "hold",
        "The global batch with fewer or more nodes. hold: keep it if possible; require: stop if impossible; ignore: let it change.",
        "`hold` reports where it cannot be kept; `require` stops with 75. [More](global-batch.md).",
    )


@dataclass(frozen=True, slots=True)
class NetworkSection:
    """[network]: what may be changed about how the ranks reach each other."""

    allow: tuple[str, ...] = setting(
        (),
        "Allow a recovery step for networks that fail: longer_timeout, interface, p2p_disable, ib_disable, shm_disable.",
        "Several may be named with commas between them ([what each does](recovery.md#networks-and-collectives)).",
        env="SUPERVISE_ALLOW_NETWORK",
    )
