"""Rungs for what a job reads from and writes to: a disk, a file system, a cache, a store or a service that does not answer.

Mostly the job is not at fault, and waits, longer each time: from half a minute to ten. Nine waits last about an hour; then the guard
`recurring` stops the run with 75, and the scheduler may try elsewhere. Nobody repairs what the job itself left: a damaged file of a cache,
the copies of killed saves on a full disk, a service of its own that answers with errors. So these are tried once more, and then named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify import caches, remedies
from supervisor.core import budget
from supervisor.core.model import Cause, Plan, PlanKind
from supervisor.core.values import replace
from supervisor.strategies.repetition import restart_within_budget
from supervisor.strategies.rung import Rung

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.core.model import CheckpointRef, Verdict
    from supervisor.strategies.situation import Situation

FIRST_S = 30.0
LONGEST_S = 600.0
_WAITS_FOR = {Cause.DISK_FULL: "space", Cause.IO_ERROR: "the file system", Cause.STORAGE_REMOTE: "the remote store"}
#: Leftovers of the job fill a disk if they are at least this share of it; of a quota the size is not known.
FILLS = 0.1
_QUOTA = "disk_full.quota"
#: The fact of a verdict that lists them (observe/host/job_files.py).
_LEFTOVERS = "leftovers"


def damaged_cache(situation: Situation) -> Plan | None:
    """Restart once where a cache's file is damaged or was replaced; stop with 65 where a damaged one is met again without progress.

    The first time another rank may still have been writing it. A file that was replaced under the rank may be again: then it waits.
    """
    cache = situation.fact(caches.CACHE)
    if not cache:
        return None
    again = situation.tried("damaged_cache") > 0
    if again and situation.verdict.cause is not Cause.CACHE_CORRUPT:
        return None
    plan = restart_within_budget(situation)
    if again or plan.kind is PlanKind.STOP:
        path = situation.fact("path")
        return Plan(
            kind=PlanKind.STOP,
            reason=f"the cache of {cache} is damaged{f' ({path})' if path else ''}, and each start meets that again",
            next_rung=remedies.before_the_next_start(situation.verdict),
            strategy="damaged_cache",
            exit_code=65,
        )
    return replace(plan, strategy="damaged_cache", notes=remedies.hints(situation.verdict))


def own_leftovers(situation: Situation) -> Plan | None:
    """Restart at once, then stop with 65, where killed saves of this job left what fills the disk: nobody else frees that space.

    The restart is for a script that clears up at its start. Leftovers count if they hold as much as the largest that the job wrote, a
    save, and are a good part of the disk.
    """
    leftovers = situation.fact(_LEFTOVERS)
    size = situation.amount("leftover_bytes")
    is_quota = any(fact.name == _QUOTA for fact in situation.verdict.because)
    if not leftovers or size < situation.amount("largest_bytes") or not (is_quota or size >= FILLS * situation.amount("disk_bytes")):
        return None
    finding = f"what killed saves of this job left fills the disk: {leftovers}"
    if situation.tried("own_leftovers"):
        return Plan(
            kind=PlanKind.STOP,
            reason=f"{finding}; a wait frees nothing of it",
            next_rung=remedies.before_the_next_start(situation.verdict),
            strategy="own_leftovers",
            exit_code=65,
        )
    return Plan(
        kind=PlanKind.RESTART,
        reason=f"{finding}; restart, in case the script clears up at its start",
        next_rung="",
        strategy="own_leftovers",
        notes=remedies.hints(situation.verdict),
        charged=False,
    )


def without_kept(verdict: Verdict, known: Iterable[CheckpointRef]) -> Verdict:
    """Return the verdict. Its leftovers are none if a checkpoint that is good, or was resumed from, lies in one of them."""
    listed = next((value for name, value in verdict.facts if name == _LEFTOVERS), "")
    paths = [text.rpartition(" (")[0] for text in listed.split(", ")]
    if not any(checkpoint.path.startswith(path) for checkpoint in known for path in paths if path):
        return verdict
    return replace(verdict, facts=tuple(fact for fact in verdict.facts if fact[0] != _LEFTOVERS))


def own_service(situation: Situation) -> Plan | None:
    """Stop with 65 where a service of the job's own met two attempts before their first step with the same error: it does not recover."""
    peer = situation.fact("peer") if situation.fact("own_service") else ""
    alike = (f for f in situation.unanswered if f.fingerprint == situation.verdict.fingerprint and f.before_first_step)
    if not peer or not situation.before_first_step or not any(alike):
        return None
    return Plan(
        kind=PlanKind.STOP,
        reason=f"{peer} meets each new attempt with the same error before its first step: that end keeps a state of its own",
        next_rung=remedies.before_the_next_start(situation.verdict),
        strategy="own_service",
        exit_code=65,
    )


def wait_for_storage(situation: Situation) -> Plan | None:
    """Restart after a wait. None where the infrastructure failed too often: the next rung stops."""
    verdict = situation.verdict
    if budget.balance(situation.failures, verdict.cause, situation.t, situation.policy).refusal:
        return None
    count = sum(f.cause in _WAITS_FOR for f in budget.recent(situation.failures, verdict.cause, situation.t, situation.policy))
    # half of it fixed, half of it jitter: never at once, and not all jobs of a cluster in the same second
    delay_s = min(FIRST_S * 2 ** min(count, 10), LONGEST_S) * (0.5 + 0.5 * situation.jitter)
    return Plan(
        kind=PlanKind.RESTART,
        reason=f"wait {delay_s:.0f} s for {_awaited(situation)}, then restart",
        next_rung="a longer wait",
        strategy="wait_for_storage",
        delay_s=delay_s,
        notes=remedies.hints(verdict) if verdict.cause is Cause.DISK_FULL else (),
        charged=False,
    )


def _awaited(situation: Situation) -> str:
    if pid := situation.fact("pid"):  # of a process that KILL did not end
        storage = f"the end of process {pid}"
    elif (peer := situation.fact("peer")) and situation.verdict.cause is Cause.STORAGE_REMOTE:
        return peer
    else:
        storage = _WAITS_FOR.get(situation.verdict.cause, "storage")
    return f"{storage} ({path})" if (path := situation.fact("path")) else storage


RUNGS = (
    Rung("damaged_cache", damaged_cache, "a file of a cache is damaged: restart once, then stop (65) with what is to be deleted"),
    Rung("own_leftovers", own_leftovers, "what killed saves of this job left fills the disk: restart once, then stop (65) and name it"),
    Rung("own_service", own_service, "stop (65): a service of the job's own met two starts with the same error before the first step"),
    Rung("wait_for_storage", wait_for_storage, "restart after a wait that doubles from 30 s to 600 s"),
)
