"""The settings of [loss]: which numbers of the log are watched, and what a NaN does. Part of the tree of settings.py.

[[loss.rule]] is a list, so its rows are RULE_ROWS beside the table of all other settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from supervisor.core.setting_columns import SettingRow, rows_of, setting

#: The key that is a list of tables, and every setting of one of them.
RULES_KEY = "loss.rule"


@dataclass(frozen=True, slots=True)
class LossRuleSection:
    """[[loss.rule]]: one rule about a number in the log. No variable and no flag: there may be several."""

    id: str = setting("", "Name of the rule; the name of a built-in rule replaces that rule. Required.", env="")
    kind: Literal["nan", "inf", "jump", "no_progress"] = setting(
        "nan", "The strange change: NaN, an infinite number, a jump, or no progress.", "[The kinds](loss-and-pace.md#rules).", env=""
    )
    enabled: bool = setting(default=True, text="`false` switches the rule of this id off.", env="")
    words: tuple[str, ...] = setting(
        (), "Literals of which each line with the number has one. Required with `pattern`: other lines are not searched.", env=""
    )
    pattern: str = setting(
        "",
        "Regular expression that finds the number in a line, with the group `value`; empty: the losses that we know.",
        "It may have the groups `name` and `step` too. One that is not valid is an error.",
        env="",
    )
    names: str = setting("", "Regular expression that the whole name of the number must match; empty: any name.", env="")
    threshold: float = setting(
        0.0, "Of `jump` the factor above the median, of `no_progress` the share within which numbers count as equal.", env="", minimum=0
    )
    times: int = setting(2, "So many strange numbers in a row, at different steps, are reported.", env="", minimum=1)
    from_step: int = setting(0, "Judge only from this step on, if the line shows the step.", env="", minimum=0)

    @property
    def called(self) -> str:
        """The rule's name."""
        return self.id


@dataclass(frozen=True, slots=True)
class Loss:
    """[loss]: which numbers of the log are watched. `rules` is [[loss.rule]], which RULE_ROWS describes."""

    on_nan: Literal["warn", "restart"] = setting(
        "warn",
        "What a loss that is NaN does: `restart` ends the attempt, and the recovery for a NaN begins.",
        "The default ends nothing: mixed precision skips a step of NaN by itself.",
    )
    rules: tuple[LossRuleSection, ...] = ()


RULE_ROWS: tuple[SettingRow, ...] = tuple(rows_of(LossRuleSection(), f"{RULES_KEY}."))
