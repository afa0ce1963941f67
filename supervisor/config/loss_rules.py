"""The loss rules in use: the built-in ones, which lie beside their code, and [[loss.rule]] of the settings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.classify.logs.user_patterns import UserPattern
from supervisor.classify.losses.rules import LossRule, RuleKind, merged

if TYPE_CHECKING:
    from supervisor.config.loss_settings import LossRuleSection
    from supervisor.config.settings import Settings

#: A jump is judged only after so many numbers: before, the loss falls steeply, and a jump up is ordinary.
_AFTER = 100
#: The file of the built-in rules.
PACKAGED = Path(__file__).parents[1] / "classify" / "losses" / "rules.toml"


def packaged() -> tuple[LossRule, ...]:
    """Return our own rules."""
    return tuple(_of_table(row) for row in tomllib.loads(PACKAGED.read_text(encoding="utf-8"))["rule"])


def configured(settings: Settings) -> tuple[LossRule, ...]:
    """Return the rules in use. The patterns were checked when the settings were read."""
    users = tuple(_of_user(section) for section in settings.loss.rules if section.enabled)
    return merged(packaged(), users, frozenset(section.id for section in settings.loss.rules if not section.enabled))


def _of_table(row: dict[str, Any]) -> LossRule:
    names = re.compile(row["names"]) if "names" in row else None
    return LossRule(**{**row, "kind": RuleKind(row["kind"]), "names": names})


def _of_user(section: LossRuleSection) -> LossRule:
    return LossRule(
        section.id,
        RuleKind(section.kind),
        section.words,
        UserPattern(section.pattern) if section.pattern else None,
        UserPattern(section.names) if section.names else None,
        section.threshold,
        section.times,
        _AFTER if section.kind == RuleKind.JUMP.value else 0,
        section.from_step,
        origin="[[loss.rule]]",
    )
