"""May processes lock memory and open files as NCCL and data loaders need to? Ranks inherit the limits of who starts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

NAME = "host_limits"
NEEDS = ("host", "infiniband")
_MIB = 1 << 20


def check(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge the soft limits. Locked memory matters where there is an InfiniBand or RoCE card."""
    unread = said.unread(NAME, now, "host.limits", "limits")
    if unread is not None:
        yield unread
        return
    row = now.table("host.limits")
    evidence = tuple(f"{name} {_told(row[name])}" for name in row)
    wrong = False
    memlock, nofile = _soft(row, "memlock"), _soft(row, "nofile")
    if memlock is not None and memlock < limits.memlock_mib * _MIB and now.subjects("port:"):
        wrong = True
        why = f"only {said.mib(memlock)} of memory may be locked: registering buffers with the InfiniBand card will fail"
        command = "ulimit -l unlimited; LimitMEMLOCK=infinity in the unit; docker run --ulimit memlock=-1"
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, command)
    if nofile is not None and nofile < limits.open_files:
        wrong = True
        why = f"only {nofile} files may be open at once: loaders with many workers and NCCL's sockets need more"
        command = "ulimit -n 65536; LimitNOFILE=65536 in the unit"
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, command)
    if not wrong:
        yield CheckResult(NAME, HOST, Result.OK, "limits are wide enough", evidence)


def _soft(row: dict[str, Json], name: str) -> int | None:
    pair = row.get(name)
    soft = pair[0] if isinstance(pair, list) and pair else None
    return soft if isinstance(soft, int) else None


def _told(pair: Json) -> str:
    soft, hard = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)  # noqa: PLR2004 -- soft, hard
    return f"{'unlimited' if soft is None else soft} of {'unlimited' if hard is None else hard}"
