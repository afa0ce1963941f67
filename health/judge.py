"""Judges readings by every check whose probes were asked.

A check that raises gives an UNKNOWN result: an error of a check is not a fault of the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from health import registry
from health.model import HOST, CheckResult, Result, worst
from health.probing.runner import asked
from health.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from health.model import Check, Readings

_DEFAULT = Thresholds()

#: The beginning of the reason if the check raised an exception.
FAILED_ITSELF = "the check itself failed"


def judge(
    now: Readings, before: Readings | None = None, limits: Thresholds = _DEFAULT, checks: Mapping[str, Check] | None = None
) -> tuple[CheckResult, ...]:
    """Return the results of all checks, worst first. before: the readings at the job's start. checks: default those of the registry.

    A check gives no result unless this sweep asked all its probes.
    """
    there = asked(now)
    results: list[CheckResult] = []
    for name, row in (registry.checks() if checks is None else checks).items():
        if not there.issuperset(row.needs):
            continue
        try:
            results += row(now, before, limits)
        except Exception as error:  # noqa: BLE001  a check that trips over a reading costs its own row only
            why = f"{FAILED_ITSELF}: {type(error).__name__}: {error}"
            results.append(CheckResult(name, HOST, Result.UNKNOWN, why[:300]))
    return worst(results)


def blocking(results: tuple[CheckResult, ...]) -> tuple[CheckResult, ...]:
    """Return the results that should block an attempt."""
    return tuple(result for result in results if result.blocks)
