"""The health settings, resolved: the thresholds, and the directories that checkpoints are written to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from health.thresholds import Thresholds
from health.thresholds import thresholds as parsed_thresholds
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.config.settings import Settings


def thresholds(settings: Settings) -> Thresholds:
    """Return the thresholds of the checks, with those of `health.thresholds` in place of the defaults. Raises SuperviseError."""
    try:
        return parsed_thresholds(settings.health.thresholds)
    except ValueError as error:
        origin = settings.origin("health.thresholds")
        raise SuperviseError(
            f"health.thresholds ({origin}): {error}",
            hint="Write NAME=NUMBER, with a name of health/thresholds.py.",
            exit_code=origin.exit_code,
        ) from error


def directories(patterns: Iterable[str], cwd: str) -> tuple[str, ...]:
    """Return the directories that declared checkpoints are written to; a pattern counts up to its first `*`."""
    beginnings = (os.path.expanduser(pattern.partition("*")[0]) for pattern in patterns)  # noqa: PTH111  patterns
    return tuple(dict.fromkeys(os.path.join(cwd, os.path.dirname(beginning)) for beginning in beginnings))  # noqa: PTH118, PTH120  patterns
