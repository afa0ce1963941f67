"""Steps for a failure that may come again: stop if nothing is left to change or nothing differs, else restart within the budget.

core/budget.py decides whether the budget allows one more restart. Progress (a verified checkpoint beyond any before; a step beyond any
before where none was ever verified) clears it: a job that makes progress may fail every night for a month. The first restart is immediate.
Later ones back off with full jitter: a hundred jobs that share a file server must not return to it in the same second.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from supervisor.classify.remedies import hints, remedy
from supervisor.core import budget
from supervisor.core.causes import CAUSE_TABLE, causes_where
from supervisor.core.model import Cause, HangKind, Plan, PlanKind
from supervisor.core.units import bytes_text
from supervisor.strategies import consent, plans
from supervisor.strategies.ladder_step import LADDER_STEPS, ladder_step
from supervisor.strategies.situation import enabling_options, exit_code_after, exit_code_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.core.model import Failure
    from supervisor.strategies.situation import Situation

#: Causes that show themselves as a job in which nothing moves.
HANGS = causes_where(lambda row: row.stands_still)
#: An attempt that failed so soon after the start of its ranks did so at once.
AT_ONCE_S = 10.0
#: An attempt that ran so many times as long as another one got further than it, even if no step shows that.
LONGER = 1.5
#: A cause that may pass is deterministic after so many failures at one step, of which the first and the last are so far apart.
_SURE_AFTER, _SURE_AFTER_S = 3, 900.0
#: The attempts where no step answered, in words.
_TRIED_ELSEWHERE = {"coordinator": "what the coordinator decided", "takeover": "a takeover"}


@ladder_step("stop (65): nothing that would make the next attempt differ is left or enabled")
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
    happened = CAUSE_TABLE[verdict.cause].meaning.partition(":")[0]
    tried = ", ".join(dict.fromkeys(_tried_text(f.ladder_step) for f in past if f.ladder_step)) or "nothing was enabled"
    return plans.stop(
        "exhausted",
        65,
        (
            f"{happened[:1].lower()}{happened[1:]} again, and supervise may change nothing more (tried: {tried})"
            if past
            else "the memory does not suffice for the first step, and supervise may change nothing that needs less"
        ),
        f"{_enabling(situation)}{_untried(situation)}",
        notes=_consumers(situation),
        options=enabling_options(situation),
    )


def _untried(situation: Situation) -> str:
    """Return what a person does about the failure, but for what the attempt that failed ran with already."""
    variables = [f"{name.removeprefix('env:')}={value}" for name, value in situation.overrides if name.startswith("env:")]
    return "; ".join(hint for hint in hints(situation.verdict) if not any(variable in hint for variable in variables))


def _tried_text(answered_by: str) -> str:
    """Return what the step, or whatever else answered a failure, has tried."""
    step = LADDER_STEPS.get(answered_by)
    return (step.tried if step is not None else _TRIED_ELSEWHERE.get(answered_by, "")) or answered_by


def _enabling(situation: Situation) -> str:
    """Return that a knob could be enabled, where one of this cause would help: of main memory, fewer workers of a loader that is there."""
    options = enabling_options(situation)
    return f"start it again with {' '.join(options)}: then supervise makes it need less memory by itself; or " if options else ""


def _consumers(situation: Situation) -> tuple[str, ...]:
    """Name the memory limit and its users, as far as the evidence shows them."""
    parts = [
        f"{words} {situation.fact(name)}"
        for name, words in (("cgroup", "the limit is of cgroup"), ("oom_memcg", "the limit is of cgroup"), ("process", "killed:"))
        if situation.fact(name)
    ]
    parts += [f"{words} {bytes_text(n)}" for name, words in (("anon", "it held"),) if (n := situation.amount(name))]
    return ("; ".join(parts),) if parts else ()


@ladder_step("stop (65; 124 where it hangs): the same failure at the same place, no progress between")
def same_place(situation: Situation) -> Plan | None:
    """Stop if the run already failed like this, here, without progress since: it is deterministic (65; 124 where it hangs).

    *Same place*: same fingerprint, and absolute steps within `same_place_steps`, or both proven to be before the first step. Of attempts
    that began from scratch the counted steps do as well. An unknown step on either side proves nothing, and the budget decides. Forty
    equal restarts in a night are what this rule is for (NVIDIA/Megatron-LM #5281). A damaged checkpoint is a place of its own: with another
    one it is another place. A failure that may pass by itself, a flapping link say, is deterministic after three attempts at one step, of
    which the first and the last failure are 15 minutes apart. Where neither attempt shows a step (a script that only evaluates), the same
    exception at the same line counts, unless this attempt ran on for much longer.
    """
    since = takewhile(lambda f: not _counted_past(situation, f), reversed(situation.failures))
    twins = [f for f in since if _same_place(situation, f)]
    twin = next(iter(twins), None)
    if twin is None or (_may_pass(situation) and not _lasts(situation, twins)):
        return None
    return plans.stop(
        "same_place",
        CAUSE_TABLE[situation.verdict.cause].exit_code,
        _again_text(situation, twin),
        remedy(situation.verdict),
    )


def _again_text(situation: Situation, twin: Failure) -> str:
    here, there = _place_text(situation), _place_text(twin)
    if here == there or (_is_stepless(situation) and _is_stepless(twin)):
        return f"the same error came again {here} (attempts {twin.attempt} and {situation.attempts})"
    return f"the same error came again: {there} in attempt {twin.attempt}, {here} in attempt {situation.attempts}"


def _may_pass(situation: Situation) -> bool:
    """Whether the same failure at the same place may be one outage. Ranks that wait in different collectives are the program's fault."""
    verdict = situation.verdict
    later = CAUSE_TABLE[verdict.cause].may_pass and (situation.trained or not situation.before_first_step)
    outside = later or budget.family(verdict.cause) == "infrastructure"
    return outside and verdict.transient and situation.fact("hang_kind") != HangKind.MISMATCH


def _lasts(situation: Situation, twins: Sequence[Failure]) -> bool:
    """Whether failures at one step, the newest first, continue for longer than an outage, and no attempt between them got past it."""
    same = [f for f in twins if _steps_further(situation, f) == 0]
    if len(same) + 1 < _SURE_AFTER or situation.t - same[-1].t < _SURE_AFTER_S:
        return False
    return all((_steps_further(situation, f) or 0) <= 0 for f in situation.failures if f.t >= same[-1].t)


def _place_text(failed: Situation | Failure) -> str:
    if failed.before_first_step:
        return "before the first step"
    if failed.step is not None:
        return f"at step {failed.step}"
    if failed.counted is not None:
        return f"{failed.counted} steps from scratch"
    return f"{failed.lasted_s or 0:.0f} s after the start"


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


@ladder_step("stop with the program's own exit code: it ended with it within 10 s, twice in a row")
def own_code_at_once(situation: Situation) -> Plan | None:
    """Stop with the program's own exit code where it left with it at once, twice in a row: that is an answer, and no accident.

    An attempt that saved as a training does came further than the one before, though no step of it is seen.
    """
    first, past = situation.first, situation.failures[-1] if situation.failures else None
    if past is None or first is None or first.code is None or situation.verdict.transient or situation.fact("file"):
        return None
    if situation.saved:
        return None
    equal = past.fingerprint == situation.verdict.fingerprint and _is_stepless(situation) and _is_stepless(past)
    if not equal or past.is_over or past.changed or not (_at_once(situation) and _at_once(past)):
        return None
    return plans.stop(
        "own_code_at_once",
        exit_code_of(first),
        f"attempt {past.attempt} ended with the same exit code within {AT_ONCE_S:.0f} s too: it is the program's own answer",
        "see what the code means to the program",
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
    """Whether two attempts found two checkpoints damaged. Another death with both (segfault, say) is the same with each."""
    now = situation.resume.path if situation.resume else ""
    damaged = situation.verdict.cause is Cause.CHECKPOINT_CORRUPT and situation.loading and past.loading
    return damaged and bool(now and past.resumed) and now != past.resumed


@ladder_step("restart with backoff, within the budget of the cause's family", tried="a plain restart")
def restart_within_budget(situation: Situation) -> Plan:
    """Restart within the budget, else stop with the code of that kind of end."""
    policy, cause, t = situation.policy, situation.verdict.cause, situation.t
    balance = budget.balance(situation.failures, cause, t, policy)
    if balance.refusal:
        return _budget_spent(situation, balance.refusal)
    restarts = f": {balance.left} more restart{'s' * (balance.left != 1)}, then" if balance.left else ","
    return Plan(
        kind=PlanKind.RESTART,
        reason=_start_text(situation),
        next_ladder_step=f"if the same error comes again without progress{restarts} supervise stops",
        strategy="restart_within_budget",
        delay_s=budget.backoff_s(len(budget.recent(situation.failures, cause, t, policy)), situation.jitter, policy),
        charged=balance.charged,
    )


def _start_text(situation: Situation) -> str:
    """Return where the next attempt begins, as far as that is known before a checkpoint is selected."""
    policy = situation.policy
    if policy.checkpoints_declared:
        is_known = bool(situation.verified or situation.known_good or situation.resume is not None)
        return "from the newest verified checkpoint" + ("" if is_known else ", if there is one")
    return "the same command again; " + ("the script resumes itself" if policy.resumes_itself else "no checkpoint is declared")


def _budget_spent(situation: Situation, why: str) -> Plan:
    earlier = max(situation.policy.restart.intensity - 1, 1)  # this one is the last of them
    code, kind = exit_code_after(situation, situation.failures[-earlier:])
    return plans.stop("restart_within_budget", code, f"{why}, {kind}", remedy(situation.verdict))
