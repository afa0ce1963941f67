"""The settings of hangs: the subjects of the watch, and the permitted actions. A part of the tree in settings.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from supervisor.core.setting_columns import setting


@dataclass(frozen=True, slots=True)
class HangSection:
    """[hang]: the time after which a job makes no progress, and the action (docs/explanation/hangs.md)."""

    action: Literal["warn", "restart", "auto"] = setting(
        "auto",
        "The action about a job that makes no progress; auto restarts one that cannot continue by itself.",
        "Where GPUs are visible the default is warn ([when auto restarts](hangs.md#what-is-done)).",
        flag="--on-hang",
    )
    train_s: float = setting(
        60.0,
        "Seconds without a step before the ranks are examined during training; longer where 20 steps showed that a step takes long.",
        minimum=1,
    )
    phase_s: float = setting(
        600.0,
        "Seconds without progress before the ranks are examined while one imports, loads, evaluates or saves, and in its first 20 steps.",
        'A script that needs longer says so: `worker.phase("eval", at_most_s=3600)`.',
        minimum=1,
    )
