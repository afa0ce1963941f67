"""Which Python, torch, CUDA, NCCL and driver will the job run with? Also whether the driver is new enough for torch's CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "env_versions"
NEEDS = ("environment",)
_MAIN = ("python", "torch", "cuda", "nccl", "driver", "kernel")
#: The oldest driver for each CUDA (minor version compatibility; CUDA release notes, table 2).
_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge the versions together."""
    unread = said.unread(NAME, now, "env.versions", "versions")
    if unread is not None:
        yield unread
        return
    row = now.table("env.versions")
    evidence = tuple(f"{name} {row[name]}" for name in _MAIN if row.get(name))
    cuda, driver = _major(row.get("cuda")), _major(row.get("driver"))
    oldest = _OLDEST_DRIVER.get(cuda) if cuda is not None else None
    if "torch" not in row:
        why = f"torch is not installed for {now.text('env.python')}: the job may have an interpreter of its own"
        yield CheckResult(NAME, HOST, Result.UNKNOWN, why, evidence)
    elif driver is not None and oldest is not None and driver < oldest:
        why = f"torch is built for CUDA {row['cuda']}, which needs driver {oldest} or newer, and {row['driver']} is loaded"
        compat = now.text("env.compat")
        if (_major(compat.rpartition("/libcuda.so.")[2]) or 0) >= oldest:  # on GPUs of data centres, and not with every older driver
            look = 'python -c "import torch; torch.cuda.init()"'
            yield CheckResult(NAME, HOST, Result.UNKNOWN, f"{why}; {compat} may stand in for it", evidence, command=look)
            return
        yield CheckResult(
            NAME, HOST, Result.FAILED, why, evidence, Repair.CONFIGURE, "install a newer driver, or a torch for an older CUDA"
        )
    elif driver is not None and cuda is None and not row.get("hip"):
        why = f"a GPU driver is loaded, and torch {row['torch']} is built without CUDA"
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, "pip install torch (a build with CUDA)")
    else:
        yield CheckResult(NAME, HOST, Result.OK, ", ".join(evidence), evidence)


def _major(word: object) -> int | None:
    first = str(word).partition(".")[0] if isinstance(word, str) else ""
    return int(first) if first.isdecimal() else None
