"""Do the job's variables do what they seem to? Those that nothing reads are named, and those that were renamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "env_variables"
NEEDS = ("environment",)
_TIMEOUT = "init_process_group(timeout=...) sets the time after which a collective is given up"
#: Neither torch nor NCCL reads these; people set them all the same.
NOTHING = {
    "NCCL_TIMEOUT": _TIMEOUT,
    "TORCH_DISTRIBUTED_TIMEOUT": _TIMEOUT,
}
#: torch reads the old name with a warning (ProcessGroupNCCL.hpp), until it does not.
RENAMED = ("NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING")


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge what is set."""
    unread = said.unread(NAME, now, "env.variables", "variables")
    if unread is not None:
        yield unread
        return
    row = now.table("env.variables")
    found: list[CheckResult] = []
    for key, instead in NOTHING.items():
        if key in row:
            why = f"{key}={row[key]} does nothing: neither torch nor NCCL reads it; {instead}"
            found.append(CheckResult(NAME, HOST, Result.DEGRADED, why, (), Repair.CONFIGURE, f"unset {key}"))
    for key in RENAMED:
        if key in row:
            why = f"{key}={row[key]} has an old name: torch's is TORCH_{key}"
            found.append(CheckResult(NAME, HOST, Result.DEGRADED, why, (), Repair.CONFIGURE, f"export TORCH_{key}={row[key]}; unset {key}"))
    told = tuple(f"{key}={value}" for key, value in row.items())
    yield from found or [CheckResult(NAME, HOST, Result.OK, f"{len(told)} variables of NCCL, torch and their like are set", told)]
