"""How an attempt begins, and when it must not: checkpoint first, from scratch only if little is lost. Rules: core/machine.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.actions import BeginAttempt, CheckHealth, GatherNodes, PrintMessage, SelectCheckpoint, SetTimer
from supervisor.core.attempt import finish, programs, resumption
from supervisor.core.failure import planning
from supervisor.core.health import detours, findings
from supervisor.core.model import Cause, FailureVerdict, JobDecision, Launcher, Phase, Plan, PlanKind
from supervisor.core.nodes import replicas, sharing
from supervisor.core.state import Attempt, Stage
from supervisor.core.values import replace
from supervisor.strategies import propose

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.events import AttemptStarted, RanksFound, StartCeilingPassed
    from supervisor.core.model import CheckpointRef
    from supervisor.core.state import JobState, Step

RESUME_HINT = "pass it by the script's own option (--resume-args '--resume {resume}'), or give --resumes-itself if the script finds it"
#: Reasons of an attempt that follows one whose work may be lost.
RESTARTS = frozenset({"failure", "takeover"})
SCRATCH_HINT = "either permits it: --checkpoints 'DIR/*.pt' --resume-args '--resume {resume}', or --resumes-itself"
DECLARED_HINT = (
    "`supervise checkpoints verify DIR` lists what it finds; correct --checkpoints, or give --resumes-itself if the script finds them"
)


def select(state: JobState, t: float) -> Step:
    """Look for the newest verified checkpoint if any were declared or may be discovered; else begin from scratch, if that is allowed.

    Meanwhile this node is examined.
    """
    known = findings.known_findings(state)
    state = state.with_run(findings=known, next_resume=None).with_attempt(awaits_agreement=False)
    beside = (CheckHealth(state.attempt.number, awaited=known is None),) if state.run.policy.health else ()
    if gathers(state):  # the checkpoint is chosen by all nodes together, once no rank of any of them lives
        state, actions = begin_on_this_node(state, t, None)
        return state, (*beside, *actions) if state.stage is not Stage.ENDED else actions
    if state.run.policy.checkpoints_declared or state.run.policy.checkpoints_learned:
        state = state.entering(Stage.SELECTING)
        timer = SetTimer("select", state.token, state.run.policy.select_silence_s)
        order = SelectCheckpoint(
            state.attempt.number,
            state.run.rejected,
            resume_by=programs.resume_by(state),
            own_only=programs.takes_own_only(state),
            reached=resumption.reached(state),
            begun_from=state.run.begun_from,
        )
        return state, (*beside, order, timer)
    state, actions = begin_from_scratch(state, t)
    return state, (*beside, *actions) if state.stage is not Stage.ENDED else actions


def gathers(state: JobState) -> bool:
    """Whether an attempt begins with a meeting of its nodes."""
    return state.run.policy.nodes > 1 and state.run.policy.launcher is Launcher.ELASTIC


def begin_from_scratch(state: JobState, t: float, *, has_saved: bool = True) -> Step:
    """Restart without a checkpoint only where little is lost, or the script was seen to resume by itself.

    Why: docs/explanation/design.md, "From scratch only where little is lost".

    has_saved: as in CheckpointSelected.
    """
    if state.attempt.awaits_agreement:
        plan = state.attempt.scratch_refusal or (state.attempt.unsaved_refusal if has_saved else None)
    else:
        plan = surely_refused(state, t) or (_none_seen(state, t) if has_saved else None)
    if plan is not None:
        verdict = state.run.open_verdict or FailureVerdict(Cause.NONE, 1.0, plan.reason, "scratch:refused")
        return finish.stop_for(state, t, verdict, plan)
    return begin_on_this_node(state, t, None)


def surely_refused(state: JobState, t: float) -> Plan | None:
    """Return the stop that is in for an attempt that follows a failure, where it would lose too much."""
    return scratch_refused(state, t) if state.run.reason in RESTARTS else None


def scratch_refused(state: JobState, t: float) -> Plan | None:
    """Return the stop that is in for a restart which would lose too much; None where it is allowed, or a selection decides."""
    lasted = _at_stake_s(state, t)
    if not lasted:
        return None
    if state.attempt.resume is not None:
        return _not_taken(state, lasted, state.attempt.resume)
    run = state.run
    if run.policy.checkpoints_declared or run.ever_loaded or run.newest is not None:
        return None
    why = f"attempt {state.attempt.number} ran {lasted:.0f} s and nothing shows that the script resumes: a restart would start from scratch"
    return Plan(PlanKind.STOP, why, "; ".join(map(str, run.unused)) or SCRATCH_HINT, "beginning", 65)


def _none_seen(state: JobState, t: float) -> Plan | None:
    """Return the stop where checkpoints are declared, ranks saved, and none was ever seen whole: a declaration alone is not a checkpoint.

    Where nothing was saved yet (a training that saves each half hour fails before its first save) no work is lost that could be kept.
    """
    lasted = _at_stake_s(state, t)
    if (
        state.run.reason not in RESTARTS
        or not lasted
        or not state.run.policy.checkpoints_declared
        or state.attempt.resume is not None
        or state.run.newest is not None
    ):
        return None
    why = (
        f"attempt {state.attempt.number} ran {lasted:.0f} s and no good checkpoint was seen where they are declared: "
        "a restart would start from scratch"
    )
    return Plan(PlanKind.STOP, why, DECLARED_HINT, "beginning", 65)


def _at_stake_s(state: JobState, t: float) -> float:
    """Return how long the last attempt trained, 0 where a restart from scratch loses little or the script resumes by itself."""
    over_t = t if state.attempt.over_t is None else state.attempt.over_t  # waiting since then is not a lost work
    lasted = over_t - state.attempt.began_t if state.attempt.number else 0.0
    return 0.0 if lasted <= state.run.policy.restart.scratch_limit_s or programs.resumes_itself(state) else lasted


def _not_taken(state: JobState, lasted: float, given: CheckpointRef) -> Plan | None:
    """Return the stop where the last attempt trained for long without the checkpoint that it was given: the next one would do the same.

    If no hook saw it train, the absence of a load proves nothing.
    """
    if state.attempt.steps_seen < 1 or resumption.is_shown(state):
        return None
    lasted_text = (
        f"attempt {state.attempt.number} ran {lasted:.0f} s, and nothing shows that it resumed from {given.path}, which it was given"
    )
    return Plan(PlanKind.STOP, f"{lasted_text}: another attempt would start from scratch too", RESUME_HINT, "beginning", 65)


def begin_on_this_node(state: JobState, t: float, resume: CheckpointRef | None) -> Step:
    """Begin if this node can be used, once that is known."""
    if state.attempt.awaits_agreement:  # it was examined before the nodes met
        return begin_ranks(state, t, resume)
    if not state.run.policy.health:
        return begin(state, t, resume)
    if state.run.findings is None:
        state = state.with_run(next_resume=resume).entering(Stage.CHECKING)
        return state, (SetTimer("health", state.token, state.run.policy.health_deadline_s),)
    state, taken_back = detours.reviewed(state, state.run.findings)
    state, reported, stop = findings.judged(state, t)
    actions = (*taken_back, *reported)
    if stop is None:
        state, more = begin(state, t, resume)
    elif stop[0].cause is Cause.DISK_FULL and state.attempt.number:
        state, more = _wait_for_room(state, t, stop[0])
    else:
        state, more = finish.stop_for(state, t, *stop)
    return state, (*actions, *more)


def _wait_for_room(state: JobState, t: float, verdict: FailureVerdict) -> Step:
    """Wait as after an attempt that found no room: this run wrote here before, and a disk that somebody filled makes no node unfit."""
    place = planning.Place(state.attempt.progress.step, before_first_step=False, phase=Phase.UNKNOWN)
    situation = planning.situation(state, t, verdict, place)
    plan = propose(situation)
    state, opening = finish.with_incident(state, t, verdict.summary, verdict.rank, (verdict, plan))
    decision = JobDecision(verdict, plan, situation.failure(plan), situation.step, situation.gpu, situation.failed_gpus)
    state, beside = planning.folded(state, decision, t)
    state, actions = finish.give_up(state, verdict, plan) if plan.kind is PlanKind.STOP else restart(state, t, verdict, plan)
    return state, (*opening, *beside, *actions)


def begin(state: JobState, t: float, resume: CheckpointRef | None) -> Step:
    """Ask for the next attempt."""
    left, policy = sum(not gpu.quarantined for gpu in state.gpus), state.run.policy
    has_too_few = policy.launcher is not Launcher.ELASTIC and left < min(policy.replica_size, len(state.gpus))
    if state.gpus and (not left or has_too_few):
        wanted = f": {replicas.in_words(policy.replica_size, policy.replica_source)}" if left else ""
        return stop_for_gpus(state, t, left, f"the job{wanted}")
    number, meets = state.attempt.number + 1, gathers(state)
    attempt = Attempt(
        number,
        began_t=t,
        resume=None if meets else resume,
        overrides=state.run.overrides,
        visible_gpus=planning.usable(state),
        awaits_agreement=meets,
        scratch_refusal=surely_refused(state, t) if meets else None,
        unsaved_refusal=_none_seen(state, t) if meets else None,
    )
    run = replace(state.run, findings=None, next_resume=None, reached=resumption.reached(state))
    fresh = replace(state, run=run, attempt=attempt).entering(Stage.STARTING)
    if fresh.attempt.awaits_agreement:
        return fresh, (*_left_out(fresh), GatherNodes(number, state.run.nproc, sharing.least_nodes(state.run), policy.node_group))
    return fresh, (*_left_out(fresh), _order(fresh))


def begin_ranks(state: JobState, t: float, resume: CheckpointRef | None) -> Step:
    """Have the ranks start whose nodes have met and agreed."""
    attempt = replace(state.attempt, awaits_agreement=False, resume=resume, began_t=t)
    state = replace(state.with_run(diverged_since_t=None), attempt=attempt, token=state.token + 1)
    return state, (_order(state),)


def _order(state: JobState) -> BeginAttempt:
    run, attempt = state.run, state.attempt
    by, traced = programs.resume_by(state) if attempt.resume is not None else "", run.traced or run.policy.trace
    return BeginAttempt(
        attempt.number, run.reason, attempt.resume, attempt.overrides, attempt.visible_gpus, run.nproc, traced, resume_by=by
    )


def _left_out(state: JobState) -> tuple[Action, ...]:
    """Report GPUs that a command which chooses its own ranks does not see; after a failure, exclude_gpu has reported them."""
    out = [gpu for gpu in state.gpus if gpu.quarantined]
    if not out or state.run.policy.launcher is Launcher.ELASTIC or state.run.reason not in {"start", "takeover"}:
        return ()
    names = ", ".join(f"GPU {gpu.index} ({gpu.uuid}): {gpu.quarantined}" for gpu in out)
    left = replicas.whole(len(state.gpus) - len(out), state.run.policy.replica_size)
    text = (
        f"out of use, and not shown to the command: {names}; one that uses all GPUs it sees has {left} ranks now, and another global batch"
    )
    return (PrintMessage("warning", text),)


def stop_for_gpus(state: JobState, t: float, left: int, wanted: str) -> Step:
    """Leave the node where too few of its GPUs may be used, naming one that is out of use, and what would bring it back."""
    gpu = next(gpu for gpu in state.gpus if gpu.quarantined)
    verdict = FailureVerdict(
        Cause.GPU_LOST, 1.0, f"GPU {gpu.index} ({gpu.uuid}) is out of use: {gpu.quarantined}", "gpu:out-of-use", gpu=gpu.uuid
    )
    fits = replicas.whole(left, state.run.policy.replica_size)
    fewer = f", or start with --nproc-per-node={fits}" if fits else ", or start on another node"
    hint = f"`{state.run.policy.clears} {gpu.uuid}` where it is well again{fewer}; without GPUs: CUDA_VISIBLE_DEVICES= (empty)"
    why = f"{left} of {len(state.gpus)} GPUs may be used, for {wanted}"
    return finish.stop_for(state, t, verdict, Plan(PlanKind.STOP, why, hint, "beginning", 69))


def stop_for_layout(state: JobState, t: float, misfit: str, option: str, exit_code: int = 78) -> Step:
    """Stop before a rank starts, because the ranks hold no whole number of replicas. option: torchrun's that would help, "" for none."""
    policy = state.run.policy
    why = f"{replicas.in_words(policy.replica_size, policy.replica_source)}, and {misfit}"
    hint = f"{f'start with {option}, or name' if option else 'name'} the ranks of one replica with --model-parallel N"
    return finish.stop_for(
        state, t, FailureVerdict(Cause.NONE, 1.0, why, "layout:ranks"), Plan(PlanKind.STOP, why, hint, "beginning", exit_code)
    )


def restart(state: JobState, t: float, verdict: FailureVerdict, plan: Plan, *beside: Action) -> Step:
    """Report the plan and begin the next attempt when its wait is over."""
    assert state.run.incident is not None  # noqa: S101 (callers opened one)
    report = finish.decision_report(state, state.run.incident, verdict, plan)
    state = state.with_run(reason="failure")
    if plan.delay_s > 0:
        state = state.entering(Stage.WAITING)
        return state, (report, *beside, SetTimer("backoff", state.token, plan.delay_s))
    state, actions = select(state, t)
    return state, (report, *beside, *actions)


def on_attempt_started(state: JobState, event: AttemptStarted) -> Step:
    """The ranks exist. Where this node became ill before that, they are ended."""
    state = state.with_attempt(ranks=event.ranks, world_size=event.world_size, started_t=event.t)
    if not state.run.nproc and not state.run.command_nproc:  # the examination of this node, which names it, did not answer in time
        state = state.with_run(command_nproc=len(event.ranks))
    state = replace(state, stage=Stage.RUNNING)
    return findings.evict(state, event.t) if state.attempt.eviction else (state, ())


def on_ranks_found(state: JobState, event: RanksFound) -> Step:
    """Take the ranks of a plain command, in place of those that were known."""
    return state.with_attempt(ranks=event.ranks, world_size=event.world_size), ()


def on_start_ceiling_passed(state: JobState, event: StartCeilingPassed) -> Step:
    """Ranks without a heartbeat have no step and no phase; report that once."""
    names = ", ".join(str(r) for r in event.uninstrumented)
    return state, (
        PrintMessage(
            "info",
            f"rank {names}: no heartbeat, so its progress is unknown and a hang of it stays unseen (docs/explanation/instrumentation.md)",
        ),
    )
