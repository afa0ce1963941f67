"""Rungs for a failure that may come again: stop if nothing is left to change or nothing differs, else restart within the budget.

core/budget.py decides whether the budget allows one more restart. Progress (a verified checkpoint beyond any before; a step beyond any
before where none was ever verified) clears it: a job that makes progress may fail every night for a month. The first restart is immediate.
Later ones back off with full jitter: a hundred jobs that share a file server must not return to it in the same second.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from supervisor.classify.remedies import before_the_next_start
from supervisor.core import budget
from supervisor.core.model import Cause, HangKind, Plan, PlanKind
from supervisor.strategies import consent
from supervisor.strategies.rung import Rung
from supervisor.strategies.situation import WORKER_CAUSES, exit_code_after, exit_code_of, may_halve_workers, memory_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.core.model import Failure
    from supervisor.strategies.situation import Situation

#: Causes that show themselves as a job in which nothing moves.
HANGS = frozenset({Cause.NCCL_TIMEOUT, Cause.HANG_NO_ERROR})
#: An attempt that failed so soon after the start of its ranks did so at once.
AT_ONCE_S = 10.0
#: An attempt that ran so many times as long as another one got further than it, even if no step shows that.
LONGER = 1.5
#: Causes that may pass by themselves: beside the infrastructure's, a hang, and a host's memory, which others use too.
_MAY_PASS = frozenset({Cause.HANG_NO_ERROR, Cause.HOST_OOM})
#: A cause that may pass is deterministic after so many failures at one step, of which the first and the last are so far apart.
_SURE_AFTER, _SURE_AFTER_S = 3, 900.0
#: What a rung that restarts has tried, in words.
TRIED = {
    "training_over": "one more attempt after the last step",
    "restart_within_budget": "a plain restart",
    "memory_held_by_others": "a wait for the GPU's memory",
    "expandable_segments": "expandable segments",
    "halve_batch": "a smaller micro-batch",
    "memory_knobs": "activation checkpointing, CPU offload or mixed precision",
    "halve_workers": "fewer loader workers",
    "raced": "a restart after a race",
    "clear_way": "a restart with what was in the way set aside",
    "step_back": "an older checkpoint",
    "skip_window": "other data",
    "wait_for_storage": "a wait for the storage",
    "damaged_cache": "a restart with the damaged cache",
    "own_leftovers": "a restart with what killed saves left",
    "exclude_gpu": "other GPUs",
    "same_gpu_twice": "other GPUs",
    "trace_collectives": "a restart with traced collectives",
    "longer_timeout": "a longer timeout",
    "interface": "another interface",
    "p2p_disable": "no P2P between GPUs",
    "ib_disable": "no InfiniBand",
    "shm_disable": "no shared memory between ranks",
    "wait_for_network": "a wait for the network",
    "same_gpu_hangs": "other GPUs",
    "name_unsynced": "a restart in which torch names what differs",
    "start_again": "another start",
    "users_row": "your own row",
    "coordinator": "what the coordinator decided",
    "takeover": "a takeover",
}


def exhausted(situation: Situation) -> Plan | None:
    """Stop with 65 if the cause is sure and came again without progress, or a GPU's memory does not suffice for the first steps.

    Every change that would make the next attempt differ is used up, or was never enabled. A host's memory that others use up comes back: in
    a job that has a checkpoint, `same_place` and the budget decide. A failure that came late for the first time gets a plain restart:
    memory in pieces, one rare long batch, one cosmic ray.
    """
    if consent.objection(situation):
        return None
    verdict, past = situation.verdict, situation.unanswered
    if situation.resume is not None and _may_pass(situation):
        return None  # `same_place` and the budget show whether it passes
    early = situation.before_first_step or (situation.step is not None and situation.resume is None and situation.step < 1)
    if not past and not (verdict.cause is Cause.CUDA_OOM and early):
        return None
    tried = ", ".join(dict.fromkeys(TRIED.get(f.rung, f.rung) for f in past if f.rung)) or "nothing was enabled"
    return Plan(
        kind=PlanKind.STOP,
        reason=f"{verdict.cause} again, and nothing is left to try (tried: {tried})"
        if past
        else "the memory does not suffice for the first step, and no change that needs less is left or enabled",
        next_rung=f"{_enabling(situation)}{before_the_next_start(situation.verdict)}",
        strategy="exhausted",
        exit_code=65,
        notes=_consumers(situation),
    )


def _enabling(situation: Situation) -> str:
    """Return that a knob could be enabled, where one of this cause would help: of main memory, fewer workers of a loader that is there."""
    of_host = situation.verdict.cause in WORKER_CAUSES and not may_halve_workers(situation)
    return "" if of_host else "enable what `supervise plan -- CMD` names, or "


def _consumers(situation: Situation) -> tuple[str, ...]:
    """Name the memory limit and its users, as far as the evidence shows them."""
    parts = [
        f"{words} {situation.fact(name)}"
        for name, words in (("cgroup", "the limit is of cgroup"), ("oom_memcg", "the limit is of cgroup"), ("process", "killed:"))
        if situation.fact(name)
    ]
    parts += [
        f"{words} {memory_text(n)}"
        for name, words in (("anon", "it held"), ("asked", "it asked for"), ("capacity", "the GPU has"))
        if (n := situation.amount(name))
    ]
    return ("; ".join(parts),) if parts else ()


def same_place(situation: Situation) -> Plan | None:
    """Stop if the run already failed like this, here, without progress since: it is deterministic (65; 124 where it hangs).

    *Same place*: same fingerprint, and absolute steps within `same_place_steps`, or both proven to be before the first step. Of attempts
    that began from scratch the counted steps do as well. An unknown step on either side proves nothing, and the budget decides. Forty
    equal restarts in a night are what this rule is for (NVIDIA/Megatron-LM #5281). A damaged checkpoint is a place of its own: with another
    one it is another place. What may pass by itself, a link that flaps say, is deterministic after three attempts at one step, of which
    the first and the last failure are 15 minutes apart. Where neither attempt shows a step (a script that only evaluates), the same
    exception at the same line counts, unless this attempt ran on for much longer.
    """
    since = takewhile(lambda f: not _counted_past(situation, f), reversed(situation.failures))
    twins = [f for f in since if _same_place(situation, f)]
    twin = next(iter(twins), None)
    if twin is None or (_may_pass(situation) and not _lasts(situation, twins)):
        return None
    return Plan(
        kind=PlanKind.STOP,
        reason=f"attempt {twin.attempt} failed in the same way {_place_text(twin)}, and this one {_place_text(situation)}, "
        "with no progress in between: it is deterministic",
        next_rung=before_the_next_start(situation.verdict),
        strategy="same_place",
        exit_code=124 if situation.verdict.cause in HANGS else 65,
    )


def _may_pass(situation: Situation) -> bool:
    """Whether the same failure at the same place may be one outage. Ranks that wait in different collectives are the program's fault."""
    verdict = situation.verdict
    later = verdict.cause in _MAY_PASS and (situation.trained or not situation.before_first_step)
    outside = later or budget.family(verdict.cause) == "infrastructure"
    return outside and verdict.transient and situation.fact("hang_kind") != HangKind.MISMATCH


def _lasts(situation: Situation, twins: Sequence[Failure]) -> bool:
    """Whether failures at one step, the newest first, go on for longer than an outage, and no attempt between them got past it."""
    same = [f for f in twins if _steps_further(situation, f) == 0]
    if len(same) + 1 < _SURE_AFTER or situation.t - same[-1].t < _SURE_AFTER_S:
        return False
    return all((_steps_further(situation, f) or 0) <= 0 for f in situation.failures if f.t >= same[-1].t)


def _place_text(failed: Situation | Failure) -> str:
    if failed.before_first_step:
        return "before its first step"
    if failed.step is not None:
        return f"at step {failed.step}"
    if failed.counted is not None:
        return f"{failed.counted} steps after it began from scratch"
    return f"{failed.lasted_s or 0:.0f} s after the start of its ranks"


def _same_place(situation: Situation, past: Failure) -> bool:
    if past.passed_since or past.fingerprint != situation.verdict.fingerprint:
        return False
    if situation.before_first_step and past.before_first_step:
        return not _read_another_checkpoint(situation, past)
    further = _steps_further(situation, past)
    if further is None:
        return _same_line(situation, past)
    return abs(further) <= situation.policy.same_place_steps


def _same_line(situation: Situation, past: Failure) -> bool:
    """Whether both raised the same at one line of the program (the fingerprint has it), both without a step, this one not much later."""
    stepless = _is_stepless(situation) and _is_stepless(past) and not past.progressed_since and not past.changed
    return stepless and bool(situation.fact("file")) and not situation.verdict.transient and not _ran_longer(situation, past)


def _is_stepless(failed: Situation | Failure) -> bool:
    return failed.step is None and failed.counted is None and not failed.before_first_step


def _ran_longer(situation: Situation, past: Failure) -> bool:
    """Whether this attempt ran so much longer that it got further; also where that is not known."""
    if situation.lasted_s is None or past.lasted_s is None:
        return True
    return situation.lasted_s > LONGER * past.lasted_s + AT_ONCE_S


def own_code_at_once(situation: Situation) -> Plan | None:
    """Stop with the program's own exit code where it left with it at once, twice in a row: that is an answer, and no accident."""
    first, past = situation.first, situation.failures[-1] if situation.failures else None
    if past is None or first is None or first.code is None or situation.verdict.transient or situation.fact("file"):
        return None
    equal = past.fingerprint == situation.verdict.fingerprint and _is_stepless(situation) and _is_stepless(past)
    if not equal or past.is_over or past.changed or not (_at_once(situation) and _at_once(past)):
        return None
    return Plan(
        kind=PlanKind.STOP,
        reason=f"attempt {past.attempt} ended with the same exit code within {AT_ONCE_S:.0f} s too: it is the program's own answer",
        next_rung="see what the code means to the program, then start again",
        strategy="own_code_at_once",
        exit_code=exit_code_of(first),
    )


def _at_once(failed: Situation | Failure) -> bool:
    return failed.lasted_s is not None and failed.lasted_s < AT_ONCE_S


def _counted_past(situation: Situation, past: Failure) -> bool:
    """Whether an earlier attempt got past this place by counted steps: they are progress only once it fails (absolute: `passed_since`)."""
    return situation.step is None and (_steps_further(situation, past) or 0) > situation.policy.same_place_steps


def _steps_further(situation: Situation, past: Failure) -> int | None:
    """Return by how many steps an earlier attempt came further than this one: by absolute steps, else from scratch; None if unknown."""
    if situation.step is not None and past.step is not None:
        return past.step - situation.step
    return past.counted - situation.counted if situation.counted is not None and past.counted is not None else None


def _read_another_checkpoint(situation: Situation, past: Failure) -> bool:
    """Whether two attempts found two checkpoints damaged. What dies of both otherwise (segfault, say) is the same with each."""
    now = situation.resume.path if situation.resume else ""
    damaged = situation.verdict.cause is Cause.CHECKPOINT_CORRUPT and situation.loading and past.loading
    return damaged and bool(now and past.resumed) and now != past.resumed


def restart_within_budget(situation: Situation) -> Plan:
    """Restart within the budget, else stop with the code of that kind of end."""
    policy, cause, t = situation.policy, situation.verdict.cause, situation.t
    balance = budget.balance(situation.failures, cause, t, policy)
    if balance.refusal:
        return _budget_spent(situation, balance.refusal)
    return Plan(
        kind=PlanKind.RESTART,
        reason=_start_text(situation),
        next_rung=f"{balance.left} more restart{'s' * (balance.left != 1)} of this kind without progress, then stop"
        if balance.left
        else "stop, if it fails again without progress",
        strategy="restart_within_budget",
        delay_s=budget.backoff_s(len(budget.recent(situation.failures, cause, t, policy)), situation.jitter, policy),
        charged=balance.charged,
    )


def _start_text(situation: Situation) -> str:
    """Return where the next attempt begins, as far as that is known before a checkpoint is selected."""
    policy = situation.policy
    if policy.checkpoints_declared:
        return "from the newest verified checkpoint, if any"
    return "the same command again; " + ("the script resumes itself" if policy.resumes_itself else "no checkpoint is declared")


def _budget_spent(situation: Situation, why: str) -> Plan:
    earlier = max(situation.policy.restart.intensity - 1, 1)  # this one is the last of them
    code, kind = exit_code_after(situation, situation.failures[-earlier:])
    return Plan(
        kind=PlanKind.STOP,
        reason=f"the budget is spent: {why}, {kind}",
        next_rung=before_the_next_start(situation.verdict),
        strategy="restart_within_budget",
        exit_code=code,
    )


RUNGS = (
    Rung("exhausted", exhausted, "stop (65): nothing that would make the next attempt differ is left or enabled"),
    Rung("same_place", same_place, "stop (65; 124 where it hangs): the same failure at the same place, no progress between"),
    Rung("own_code_at_once", own_code_at_once, "stop with the program's own exit code: it ended with it within 10 s, twice in a row"),
    Rung("restart_within_budget", restart_within_budget, "restart with backoff, within the budget of the cause's family"),
)
