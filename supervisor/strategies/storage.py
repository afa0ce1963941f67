"""Steps for what a job reads from and writes to: a disk, a file system, a cache, a store or a service that does not answer.

Mostly the job is not at fault, and waits, longer each time: from half a minute to ten. Nine waits last about an hour; then the guard
`recurring` stops the run with 75, and the scheduler may try elsewhere. Nobody repairs what the job itself left: a damaged file of a cache,
the copies of killed saves on a full disk, a service of its own that answers with errors. So these are tried once more, and then named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify import caches, remedies
from supervisor.core import budget
from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.model import Cause, Plan, PlanKind
from supervisor.core.values import replace
from supervisor.strategies import plans
from supervisor.strategies.ladder_step import ladder_step
from supervisor.strategies.repetition import restart_within_budget

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.core.model import CheckpointRef, FailureVerdict
    from supervisor.strategies.situation import Situation

LONGEST_S = 600.0
#: Leftovers of the job fill a disk if they are at least this share of it; of a quota the size is not known.
FILLS = 0.1
_QUOTA = "disk_full.quota"
#: The fact of a verdict that lists them (observe/host/job_files.py).
_LEFTOVERS = "leftovers"


@ladder_step(
    "a file of a cache is damaged: restart once, then stop (65) and name the file to delete", tried="a restart with the damaged cache"
)
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
        return plans.stop(
            "damaged_cache",
            65,
            f"the cache of {cache} is damaged{f' ({path})' if path else ''}, and each start meets that again",
            remedies.remedy(situation.verdict),
        )
    return replace(plan, strategy="damaged_cache", todo=remedies.remedy(situation.verdict))


@ladder_step(
    "what killed saves of this job left fills the disk: restart once, then stop (65) and name it",
    tried="a restart with what killed saves left",
)
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
        return plans.stop("own_leftovers", 65, f"{finding}; a wait frees nothing of it", remedies.remedy(situation.verdict))
    return plans.restart(
        "own_leftovers",
        f"{finding}; the script may clear up at its start",
        todo=remedies.remedy(situation.verdict),
        charged=False,
    )


def without_kept(verdict: FailureVerdict, known: Iterable[CheckpointRef]) -> FailureVerdict:
    """Return the verdict, without its leftovers if a checkpoint that is good, or was resumed from, lies in one of them."""
    listed = next((value for name, value in verdict.facts if name == _LEFTOVERS), "")
    paths = [text.rpartition(" (")[0] for text in listed.split(", ")]
    if not any(checkpoint.path.startswith(path) for checkpoint in known for path in paths if path):
        return verdict
    return replace(verdict, facts=tuple(fact for fact in verdict.facts if fact[0] != _LEFTOVERS))


@ladder_step("stop (65): a service of the job's own met two starts with the same error before the first step")
def own_service(situation: Situation) -> Plan | None:
    """Stop with 65 where a service of the job's own met two attempts before their first step with the same error: it does not recover."""
    peer = situation.fact("peer") if situation.fact("own_service") else ""
    alike = (f for f in situation.unanswered if f.fingerprint == situation.verdict.fingerprint and f.before_first_step)
    if not peer or not situation.before_first_step or not any(alike):
        return None
    return plans.stop(
        "own_service",
        65,
        f"{peer} meets each new attempt with the same error before its first step: that end keeps a state of its own",
        remedies.remedy(situation.verdict),
    )


@ladder_step("restart after a wait that doubles from 30 s to 600 s", tried="a wait for the storage")
def wait_for_storage(situation: Situation) -> Plan | None:
    """Restart after a wait. None where the infrastructure failed too often: the next step stops."""
    verdict = situation.verdict
    if budget.balance(situation.failures, verdict.cause, situation.t, situation.policy).refusal:
        return None
    earlier = budget.recent(situation.failures, verdict.cause, situation.t, situation.policy)
    count = sum(bool(CAUSE_TABLE[f.cause].waits_for) for f in earlier)
    delay_s = plans.wait_s(situation, count, LONGEST_S)
    return plans.restart(
        "wait_for_storage",
        f"waits for {_awaited(situation)}",
        delay_s=delay_s,
        todo=remedies.remedy(verdict) if CAUSE_TABLE[verdict.cause].needs_person else "",
        charged=False,
    )


def _awaited(situation: Situation) -> str:
    if pid := situation.fact("pid"):  # of a process that KILL did not end
        storage = f"the end of process {pid}"
    elif (peer := situation.fact("peer")) and situation.verdict.cause is Cause.STORAGE_REMOTE:
        return peer
    else:
        storage = CAUSE_TABLE[situation.verdict.cause].waits_for or "storage"
    return f"{storage} ({path})" if (path := situation.fact("path")) else storage
