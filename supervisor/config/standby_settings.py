"""The settings of standbys: interpreters that wait to become the ranks of the next attempt. A part of the tree in settings.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from supervisor.core.setting_columns import setting


@dataclass(frozen=True, slots=True)
class StandbySection:
    """[standby]: whether a restart finds interpreters that have imported already (docs/explanation/restarts.md)."""

    mode: Literal["auto", "on", "off"] = setting(
        "auto",
        "Keep an interpreter beside each rank that has imported what the rank imports and takes its place at a restart.",
        "`auto`: where no GPU is visible. [When a restart is cold](restarts.md#when-a-restart-is-cold).",
        flag="--standby",
    )
