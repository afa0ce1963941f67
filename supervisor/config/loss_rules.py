"""The loss rules in use: ours, which lie beside their code, and [[loss.rule]] of the settings."""

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

#: Where ours lie.
PACKAGED = Path(__file__).parents[1] / "classify" / "losses" / "rules.toml"


def packaged() -> tuple[LossRule, ...]:
    """Return our own rules."""
    return tuple(_of_table(row) for row in tomllib.loads(PACKAGED.read_text(encoding="utf-8"))["rule"])


def configured(settings: Settings) -> tuple[LossRule, ...]:
    """Return the rules in use, none if the loss is not watched. The patterns were checked when the settings were read."""
    if not settings.loss.watch:
        return ()
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
        section.after,
        section.from_step,
        section.from_s,
        origin="[[loss.rule]]",
    )
