"""The settings of hangs, pace and networks: what is watched, and what may be done. A part of the tree in settings.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from supervisor.config.setting_columns import setting


@dataclass(frozen=True, slots=True)
class HangSection:
    """[hang]: when a job counts as standing still, and what is done then (docs/explanation/hangs.md)."""

    action: Literal["warn", "restart", "auto"] = setting(
        "auto",
        "What is done about a job that stands still; auto restarts what cannot go on by itself.",
        "Where GPUs are visible the default is warn ([when auto restarts](hangs.md#what-is-done)).",
        flag="--on-hang",
    )
    train_s: float = setting(
        60.0, "The least time without a step before the ranks are examined, once 20 steps showed how long a step takes.", minimum=1
    )
    phase_s: float = setting(
        600.0,
        "The same before that, and while a rank imports, loads, evaluates or saves.",
        'A script that needs longer says so: `worker.phase("eval", at_most_s=3600)`.',
        minimum=1,
    )
    confirm_s: float = setting(30.0, "Between the two looks that must show the same; half the limit if that is shorter.", minimum=0.1)


@dataclass(frozen=True, slots=True)
class NetworkSection:
    """[network]: what may be changed about how the ranks reach each other."""

    allow: tuple[str, ...] = setting(
        (),
        "Allow a rung for networks that fail: longer_timeout, interface, p2p_disable, ib_disable, shm_disable.",
        "Several may be named with commas between them ([what each does](recovery.md#networks-and-collectives)).",
        flag="--allow-network",
        env="SUPERVISE_ALLOW_NETWORK",
    )


@dataclass(frozen=True, slots=True)
class PaceSection:
    """[pace]: when a training counts as slow (docs/explanation/loss-and-pace.md)."""

    straggler: float = setting(
        1.3,
        "Warn of a rank that computes this many times as long per step as the others, which wait for it; 0: never.",
        "[What is measured](loss-and-pace.md#the-pace).",
        minimum=0,
    )
    drop: float = setting(
        2.0, "Warn if a step takes this many times as long as in the best earlier stretch of the attempt; 0: never.", minimum=0
    )
    gpu_floor: float = setting(
        0.0,
        "Warn of a GPU that is busy for less than this share of the time, such as 0.3; 0: never.",
        "The mean of ten samples, one in `health.sample_s`. A collective that waits counts as busy.",
        minimum=0,
        maximum=1,
    )
    window_s: float = setting(60.0, "Over how long the pace is judged; the first two of these windows are left out.", minimum=1)
