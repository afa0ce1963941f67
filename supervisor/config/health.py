"""What is looked at for a job: what a site adds to health, thresholds and packages' checks and probes, and where checkpoints are written.

In: the settings. Out: a HealthSet, directories. What can fail: a name that there is not, a value that is none, a package that cannot be
imported (SuperviseError naming the setting). Nothing is kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from health import registry
from health.model import Check
from health.thresholds import Thresholds, thresholds
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.config.settings import Settings


@dataclass(frozen=True, slots=True)
class HealthSet:
    """What a look at this node goes by. checks: ours, and those of packages behind them."""

    limits: Thresholds
    plugged: registry.Plugged
    checks: Mapping[str, Check]


def healthset(settings: Settings) -> HealthSet:
    """Return what the settings choose. Raises SuperviseError."""
    try:
        limits = thresholds(settings.health.thresholds)
    except ValueError as error:
        raise _wrong(settings, "thresholds", str(error), "Write NAME=NUMBER, with a name of health/thresholds.py.") from error
    try:
        plugged = registry.plugged(settings.health.plugins)
        for module in plugged.probes.values():
            import_module(module)
        checks = registry.checks(plugged.checks)
    except registry.NoCheckError as error:
        raise _wrong(settings, "plugins", str(error), "Repair the package, or leave it out.") from error
    except LookupError as error:
        hint = "Install the package, and name an entry point of its group supervise.checks or supervise.probes."
        raise _wrong(settings, "plugins", str(error.args[0]), hint) from error
    except Exception as error:  # whatever a package does when it is imported
        why = f"{', '.join(settings.health.plugins)}: {type(error).__name__}: {error}"
        raise _wrong(settings, "plugins", why, "Repair the package, or leave it out.") from error
    return HealthSet(limits, plugged, checks)


def directories(patterns: Iterable[str], cwd: str) -> tuple[str, ...]:
    """Return the directories to which declared checkpoints are written; those of a pattern that begins within one are not told apart."""
    beginnings = (os.path.expanduser(pattern.partition("*")[0]) for pattern in patterns)  # noqa: PTH111  patterns
    return tuple(dict.fromkeys(os.path.join(cwd, os.path.dirname(beginning)) for beginning in beginnings))  # noqa: PTH118, PTH120  patterns


def _wrong(settings: Settings, key: str, why: str, hint: str) -> SuperviseError:
    origin = settings.origin(f"health.{key}")
    return SuperviseError(f"health.{key} ({origin}): {why}", hint=hint, exit_code=origin.exit_code)
