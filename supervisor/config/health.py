"""The health settings, resolved: thresholds, packages' checks and probes, and the directories that checkpoints are written to."""

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
    """What an examination of this node uses. checks: ours first, then those of packages."""

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
    """Return the directories that declared checkpoints are written to; a pattern counts up to its first `*`."""
    beginnings = (os.path.expanduser(pattern.partition("*")[0]) for pattern in patterns)  # noqa: PTH111  patterns
    return tuple(dict.fromkeys(os.path.join(cwd, os.path.dirname(beginning)) for beginning in beginnings))  # noqa: PTH118, PTH120  patterns


def _wrong(settings: Settings, key: str, why: str, hint: str) -> SuperviseError:
    origin = settings.origin(f"health.{key}")
    return SuperviseError(f"health.{key} ({origin}): {why}", hint=hint, exit_code=origin.exit_code)
