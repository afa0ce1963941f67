"""The faults of this node: its GPUs, system, disks and network, and their repair. Usable without the supervisor.

    from health import Ask, examine

    found = examine(Ask(paths=("/data/checkpoints",)))
    for result in found.results:
        print(result.result, result.check, result.reason, result.command)

`python -m health` prints the same. docs/reference/library-health.md explains each name. Each is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from health.doctor import Diagnosis, Doctor, examine
    from health.model import Ask, CheckResult, Reading, Readings, Repair, Result
    from health.thresholds import Thresholds

__all__ = [
    "Ask",
    "CheckResult",
    "Diagnosis",
    "Doctor",
    "Reading",
    "Readings",
    "Repair",
    "Result",
    "Thresholds",
    "examine",
]

_MODULES: Final = {
    "Diagnosis": "health.doctor",
    "Doctor": "health.doctor",
    "examine": "health.doctor",
    "Thresholds": "health.thresholds",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 -- the interface of a module
    """Import a public name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES.get(name, "health.model")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return all names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
