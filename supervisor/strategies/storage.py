"""The rung for a full disk, a file system that fails, or a store that does not answer: wait, longer each time.

The job is not at fault. The waits double from half a minute to ten. Nine of them last about an hour; then the guard `recurring` stops the
run with 75, and the scheduler may try elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core import budget
from supervisor.core.model import Cause, Plan, PlanKind
from supervisor.strategies.rung import Rung

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation

FIRST_S = 30.0
LONGEST_S = 600.0
_WAITS_FOR = {Cause.DISK_FULL: "space", Cause.IO_ERROR: "the file system", Cause.STORAGE_REMOTE: "the remote store"}


def wait_for_storage(situation: Situation) -> Plan | None:
    """Restart after a wait. None where the infrastructure failed too often: the next rung stops."""
    verdict = situation.verdict
    pid = situation.fact("pid")  # of a process that KILL did not end
    storage = f"the end of process {pid}" if pid else _WAITS_FOR.get(verdict.cause, "storage")
    where = f" ({path})" if (path := situation.fact("path")) else ""
    if budget.balance(situation.failures, verdict.cause, situation.t, situation.policy).refusal:
        return None
    count = sum(f.cause in _WAITS_FOR for f in budget.recent(situation.failures, verdict.cause, situation.t, situation.policy))
    # half of it fixed, half of it jitter: never at once, and not all jobs of a cluster in the same second
    delay_s = min(FIRST_S * 2 ** min(count, 10), LONGEST_S) * (0.5 + 0.5 * situation.jitter)
    return Plan(
        kind=PlanKind.RESTART,
        reason=f"wait {delay_s:.0f} s for {storage}{where}, then restart",
        next_rung="a longer wait",
        strategy="wait_for_storage",
        delay_s=delay_s,
        notes=("make room there: old checkpoints and caches are what fills it most often",) if verdict.cause is Cause.DISK_FULL else (),
        charged=False,
    )


RUNGS = (Rung("wait_for_storage", wait_for_storage, "restart after a wait that doubles from 30 s to 600 s"),)
