"""How an attempt begins, and when it must not: checkpoint first, from scratch only if little is lost. Rules: core/decide.py."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from supervisor.core import detours, losses, node_health, planning, replicas, resumption, sharing
from supervisor.core.actions import (
    BeginAttempt,
    CheckHealth,
    CloseIncident,
    Finish,
    GatherNodes,
    OpenIncident,
    PrintMessage,
    ReportDecision,
    SelectCheckpoint,
    SetTimer,
)
from supervisor.core.model import Cause, JobDecision, Launcher, Phase, Plan, PlanKind, Verdict
from supervisor.core.state import Attempt, Incident, JobState, Stage
from supervisor.core.values import replace
from supervisor.strategies import propose

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.events import CheckpointSelected, HealthChecked, SelectionMoved
    from supervisor.core.model import CheckpointRef
    from supervisor.core.state import Step

RESUME_HINT = "pass it by the script's own option (--resume-args '--resume {resume}'), or give --resumes-itself if the script finds it"
TRUST_HINT = "if you wrote them, --set checkpoints.trusted=true accepts calls of your own; else move them away, and start again"
PUT_BACK_HINT = "put the kept copy back with the command of the note"
_NUMBER = re.compile(r"\d+")
#: Reasons of an attempt that follows one whose work may be lost.
RESTARTS = frozenset({"failure", "takeover"})
SCRATCH_HINT = "either permits it: --checkpoints 'DIR/*.pt' --resume-args '--resume {resume}', or --resumes-itself"
DECLARED_HINT = (
    "`supervise checkpoints verify DIR` tells what is there; correct --checkpoints, or give --resumes-itself if the script finds them"
)


def select(state: JobState, t: float) -> Step:
    """Look for the newest verified checkpoint if any were declared or may be discovered; else begin from scratch, if that is allowed.

    Meanwhile this node is examined.
    """
    known = node_health.known_findings(state)
    state = replace(state, run=replace(state.run, findings=known, next_resume=None), attempt=replace(state.attempt, awaits_agreement=False))
    beside = (CheckHealth(state.attempt.number, awaited=known is None),) if state.run.policy.health else ()
    if gathers(state):  # the checkpoint is chosen by all nodes together, once no rank of any of them lives
        state, actions = begin_on_this_node(state, t, None)
        return state, (*beside, *actions) if state.stage is not Stage.ENDED else actions
    if state.run.policy.checkpoints_declared or state.run.policy.checkpoints_learned:
        token = state.token + 1
        timer = SetTimer("select", token, state.run.policy.select_silence_s)
        order = SelectCheckpoint(
            state.attempt.number,
            state.run.rejected,
            resume_by=planning.resume_by(state),
            own_only=planning.takes_own_only(state),
            reached=resumption.reached(state),
            begun_from=state.run.begun_from,
        )
        return replace(state, stage=Stage.SELECTING, token=token), (*beside, order, timer)
    state, actions = begin_from_scratch(state, t)
    return state, (*beside, *actions) if state.stage is not Stage.ENDED else actions


def gathers(state: JobState) -> bool:
    """Whether an attempt begins with a meeting of its nodes."""
    return state.run.policy.nodes > 1 and state.run.policy.launcher is Launcher.ELASTIC


def on_checkpoint_selected(state: JobState, event: CheckpointSelected) -> Step:
    """Begin from the chosen one. If none of those that we hand over is good any more, stop (65): a person may begin from scratch.

    If the script itself chooses among discovered ones, what is known of them stops nothing.
    """
    refused = sum(map(len, (event.torn, event.dangerous, event.refused, event.not_finite)))
    state = replace(
        state, run=replace(state.run, unused=event.unused, without_tracker=event.without_tracker, known_good=max(event.found - refused, 0))
    )
    silent = dict(event.silent)
    left = "left where it is and not used" if state.run.policy.checkpoints_declared else "left where it is"
    done = {path for path, _ in event.repaired}
    torn = [(path, why) for path, why in event.torn if path not in done]
    notes: tuple[Action, ...] = tuple(PrintMessage("warning", f"{path}: {what}") for path, what in event.repaired)
    notes += tuple(PrintMessage("warning", f"checkpoint not resumed from: {path}: {why}") for path, why in event.not_finite)
    notes += tuple(PrintMessage("warning", f"checkpoint passed over: {path}: {why}") for path, why in silent.items())
    notes += tuple(PrintMessage("warning", note) for note in event.notes)
    notes += tuple(PrintMessage("warning", f"checkpoint {left}: {path}: {why}") for path, why in torn)
    unsafe = "not used" if state.run.policy.checkpoints_declared else "left to the script"
    notes += tuple(PrintMessage("warning", f"checkpoint {unsafe}: {path}: {why}") for path, why in event.dangerous)
    stop = _torn_in_use(state, event)
    if stop is not None:
        state, actions = stop_for(state, event.t, *stop)
        return state, (*notes, *actions)
    repeats = event.chosen is not None and state.attempt.resume is not None and not state.attempt.awaits_agreement
    untaken = _surely_refused(state, event.t) if repeats else None
    if untaken is not None:
        verdict = (state.run.incident and state.run.incident.verdict) or Verdict(Cause.NONE, 1.0, untaken.reason, "scratch:refused")
        return stop_for(state, event.t, verdict, untaken)
    if event.chosen is not None:
        notes += _step_back_cost(state, event.chosen)
        state, actions = begin_on_this_node(_gained(state, event.chosen, event), event.t, event.chosen)
        return state, (*notes, *actions)
    if event.silent:
        stopped, actions = stop_for(state, event.t, *_none_read(state, event))
        return stopped, (*notes, *actions)
    if _has_lost_all(state, event):
        stopped, actions = stop_for(state, event.t, *_none_usable(state, event))
        return stopped, (*notes, *actions)
    state, actions = begin_from_scratch(state, event.t, has_saved=event.has_saved)
    return state, (*notes, *actions)


def _has_lost_all(state: JobState, event: CheckpointSelected) -> bool:
    """Whether checkpoints of this training are no good any more, and the script gets one from us alone: it would begin from scratch.

    An option that we append, with a path or as a switch, is given only with a checkpoint. A torn one alone may be that of a first save; a
    whole one was saved before if one was verified, or a copy is kept. What could not be read or verified, or could run code, may be whole.
    """
    if state.run.policy.checkpoints_declared:
        return bool(event.found) or state.run.newest is not None
    if planning.resume_knob(state) is None or planning.resumes_itself(state) or not event.found:
        return False
    return bool(event.refused or event.dangerous) or (bool(event.torn) and (state.run.newest is not None or bool(event.kept_copies)))


def _none_read(state: JobState, event: CheckpointSelected) -> tuple[Verdict, Plan]:
    """Return the stop where checkpoints may be whole, and their disk gives no byte: neither resuming nor starting from scratch is right."""
    path, why = event.silent[0]
    more = f" (and {len(event.silent) - 1} more)" if len(event.silent) > 1 else ""
    summary = f"no checkpoint could be read: {path}: {why}{more}"[:600]
    verdict = (state.run.incident and state.run.incident.verdict) or Verdict(Cause.IO_ERROR, 0.9, summary, "select:silent", transient=True)
    hint = "see whether the disk answers: `stat` and `head -c 1` of that path; the scheduler's requeue continues this run"
    return verdict, Plan(PlanKind.STOP, summary, hint, "beginning", 75)


def on_selection_moved(state: JobState, _event: SelectionMoved) -> Step:
    """Wait on: a read has no limit of time while bytes come."""
    if state.stage is not Stage.SELECTING and not (state.attempt.awaits_agreement and state.attempt.members):
        return state, ()
    token = state.token + 1
    return replace(state, token=token), (SetTimer("select", token, state.run.policy.select_silence_s),)


def _none_usable(state: JobState, event: CheckpointSelected) -> tuple[Verdict, Plan]:
    """Return the stop where the script gets its checkpoints from us, and none of them can be resumed from."""
    listed = "; ".join(f"{path}: {why}" for path, why in (*event.dangerous, *event.torn, *event.refused))
    notes: tuple[str, ...] = ()
    if event.dangerous:  # these are whole, and a person can confirm that they are their own
        summary = f"no checkpoint was used ({event.found} found), because loading it could run code: {listed}"[:600]
        verdict, hint = Verdict(Cause.NONE, 1.0, summary, "checkpoint:dangerous"), TRUST_HINT
    else:
        listed = listed or (state.run.newest.path if state.run.newest else "")
        summary = f"no checkpoint is verified good any more ({event.found} found): {listed}"[:600]
        verdict = Verdict(Cause.CHECKPOINT_CORRUPT, 0.95, summary, "checkpoint_corrupt:none-good")
        knob, notes = planning.resume_knob(state), _put_back(event, *(path for path, _ in event.torn))
        again = f"start again with --set knobs.program={knob.by}" if knob is not None and not knob.seen else "start again"
        hint = f"{PUT_BACK_HINT}, then {again}" if notes else f"name a good one, or move the bad ones away, and {again}"
        if event.refused and not event.torn:
            hint += "; where no format can be verified, let the script find its checkpoint by itself (--resumes-itself)"
    return verdict, Plan(PlanKind.STOP, "starting from scratch would throw the training away", hint, "beginning", 65, notes=notes)


def _torn_in_use(state: JobState, event: CheckpointSelected) -> tuple[Verdict, Plan] | None:
    """Return the stop where the script chooses its checkpoint itself, and the last attempt died of loading a torn one that stays there."""
    verdict = state.run.incident.verdict if state.run.incident is not None else None
    if verdict is None or verdict.cause is not Cause.CHECKPOINT_CORRUPT or not event.torn_in_use or state.run.policy.checkpoints_declared:
        return None
    whole = event.chosen.path if event.chosen is not None else next((unused_checkpoints.newest for unused_checkpoints in event.unused), "")
    path, torn = event.torn_in_use, _name(event.torn_in_use)
    why = f"{path} is torn, and the script loads it: another attempt would meet the same error"
    notes = _put_back(event, path)
    away = (f"this moves it to where the script does not look: {event.advised_move}",) if event.advised_move else ()
    if notes:
        hint = f"{PUT_BACK_HINT}, then start again"
    elif _NUMBER.sub("", whole) == _NUMBER.sub("", path):  # the script takes the one of the greatest number
        notes = (f"{torn} is torn; {_name(whole)} is whole: {event.advised_move}",)
        hint = "move the torn one away with the command of the note, then start again"
    elif whole:  # it may be another part of the same save: never a copy of one over the other
        hint = (
            f"{torn} is torn; {_name(whole)} is whole: --checkpoints and --resume-args hand it over if it is a save of its own; "
            "else move the torn save away"
        )
        notes = away
    else:
        hint = f"{torn} is torn, and no whole one is known: move it away"
        notes = away
    return verdict, Plan(PlanKind.STOP, why, hint, "beginning", 65, notes=notes)


def _put_back(event: CheckpointSelected, *torn: str) -> tuple[str, ...]:
    """Return the command that puts a kept copy in the place of the first of these torn ones that has one; nothing if none has."""
    path, copy = next((row for row in event.kept_copies if row[0] in torn), ("", ""))
    return (f"a copy of {_name(path)} is kept: {shlex.join(['cp', '-p', copy, path])}",) if copy else ()


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _step_back_cost(state: JobState, chosen: CheckpointRef) -> tuple[Action, ...]:
    """Report what a step back costs, before it is paid."""
    plan = state.run.incident.plan if state.run.incident is not None else None
    if plan is None or not plan.rejected:
        return ()
    world = state.attempt.world_size
    step = state.attempt.progress.step
    reached = step if step is not None else state.run.untrusted_through_step  # it died while it loaded the suspect
    begins = chosen.shown_step
    if begins is None or reached is None:
        return (
            PrintMessage("info", f"goes back to {chosen.path}: what that costs is not known, because the steps of the checkpoints are not"),
        )
    again = max(reached - begins, 0)
    ranks = f" × {world} ranks = {again * world} rank-steps" if world else ""  # noqa: RUF001 (the sign)
    return (PrintMessage("info", f"goes back to {chosen.path}: costs {again} steps{ranks}, done again from step {begins}"),)


def _gained(state: JobState, chosen: CheckpointRef, event: CheckpointSelected) -> JobState:
    """Take over a newer checkpoint than was known: the failures of attempts before the one that wrote it no longer count.

    A checkpoint of another training is no progress: else this run's own saves would have to lie beyond it to count.
    """
    if chosen.step is not None and not event.is_foreign:
        last = state.attempt.number - state.attempt.awaits_agreement  # of several nodes the number is the next attempt's already
        state = replace(state, run=planning.with_saved(state.run, chosen.step, last))
    return planning.with_selected(replace(state, run=replace(state.run, newest=chosen)), chosen, event.older)


def on_select_overdue(state: JobState, t: float) -> Step:
    """The place of the checkpoints does not answer: neither resuming nor starting from scratch can be justified."""
    summary = f"the checkpoints could not be read: nothing came from their disk for {state.run.policy.select_silence_s:.0f} s"
    verdict = (state.run.incident and state.run.incident.verdict) or Verdict(Cause.IO_ERROR, 0.8, summary, "select:overdue", transient=True)
    return stop_for(state, t, verdict, Plan(PlanKind.STOP, summary, "the scheduler's requeue continues this run", "beginning", 75))


def begin_from_scratch(state: JobState, t: float, *, has_saved: bool = True) -> Step:
    """Restart without a checkpoint only where little is lost, or the script was seen to resume by itself (docs/explanation/design.md 7).

    has_saved: as in CheckpointSelected.
    """
    if state.attempt.awaits_agreement:
        plan = state.attempt.scratch_refusal or (state.attempt.unsaved_refusal if has_saved else None)
    else:
        plan = _surely_refused(state, t) or (_none_seen(state, t) if has_saved else None)
    if plan is not None:
        verdict = (state.run.incident and state.run.incident.verdict) or Verdict(Cause.NONE, 1.0, plan.reason, "scratch:refused")
        return stop_for(state, t, verdict, plan)
    return begin_on_this_node(state, t, None)


def _surely_refused(state: JobState, t: float) -> Plan | None:
    return scratch_refused(state, t) if state.run.reason in RESTARTS else None


def scratch_refused(state: JobState, t: float) -> Plan | None:
    """Return the stop that stands in for a restart which would lose too much; None where it is allowed, or a selection decides."""
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
    """Return the stop where checkpoints are declared, ranks saved, and none was ever seen whole: a declaration alone is no checkpoint.

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
    over_t = t if state.attempt.over_t is None else state.attempt.over_t  # what was waited for since is no lost work
    lasted = over_t - state.attempt.began_t if state.attempt.number else 0.0
    return 0.0 if lasted <= state.run.policy.restart.scratch_limit_s or planning.resumes_itself(state) else lasted


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
        token = state.token + 1
        waiting = replace(state, stage=Stage.CHECKING, token=token, run=replace(state.run, next_resume=resume))
        return waiting, (SetTimer("health", token, state.run.policy.health_deadline_s),)
    state, taken_back = detours.reviewed(state, state.run.findings)
    state, reported, stop = node_health.judged(state, t)
    actions = (*taken_back, *reported)
    if stop is None:
        state, more = begin(state, t, resume)
    elif stop[0].cause is Cause.DISK_FULL and state.attempt.number:
        state, more = _wait_for_room(state, t, stop[0])
    else:
        state, more = stop_for(state, t, *stop)
    return state, (*actions, *more)


def _wait_for_room(state: JobState, t: float, verdict: Verdict) -> Step:
    """Wait as after an attempt that found no room: this run wrote here before, and a disk that somebody filled makes no node unfit."""
    place = planning.Place(state.attempt.progress.step, before_first_step=False, phase=Phase.UNKNOWN)
    situation = planning.situation(state, t, verdict, place)
    plan = propose(situation)
    state, opening = with_incident(state, t, verdict.summary, verdict.rank, (verdict, plan))
    decision = JobDecision(verdict, plan, situation.failure(plan), situation.step, situation.gpu, situation.failed_gpus)
    state, beside = planning.folded(state, decision, t)
    state, actions = give_up(state, verdict, plan) if plan.kind is PlanKind.STOP else restart(state, t, verdict, plan)
    return state, (*opening, *beside, *actions)


def on_health_checked(state: JobState, event: HealthChecked) -> Step:
    """Store this node's findings; begin if only they were awaited."""
    state = replace(state, run=replace(state.run, findings=event.findings, command_nproc=event.command_nproc))
    return begin_on_this_node(state, event.t, state.run.next_resume) if state.stage is Stage.CHECKING else (state, ())


def on_health_overdue(state: JobState, t: float) -> Step:
    """The examination of this node does not answer: that is no reason to hold a job back."""
    text = f"this node could not be examined within {state.run.policy.health_deadline_s:.0f} s: the attempt begins without the examination"
    state, actions = begin(state, t, state.run.next_resume)
    return state, (PrintMessage("warning", text), *actions)


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
        scratch_refusal=_surely_refused(state, t) if meets else None,
        unsaved_refusal=_none_seen(state, t) if meets else None,
    )
    run = replace(state.run, findings=None, next_resume=None, reached=resumption.reached(state))
    fresh = replace(state, run=run, attempt=attempt, stage=Stage.STARTING, token=state.token + 1)
    if fresh.attempt.awaits_agreement:
        return fresh, (*_left_out(fresh), GatherNodes(number, state.run.nproc, sharing.least_nodes(state.run), policy.node_group))
    return fresh, (*_left_out(fresh), _order(fresh))


def begin_ranks(state: JobState, t: float, resume: CheckpointRef | None) -> Step:
    """Have the ranks start whose nodes have met and agreed."""
    attempt = replace(state.attempt, awaits_agreement=False, resume=resume, began_t=t)
    state = replace(state, run=replace(state.run, diverged_since_t=None), attempt=attempt, token=state.token + 1)
    return state, (_order(state),)


def _order(state: JobState) -> BeginAttempt:
    run, attempt = state.run, state.attempt
    by = planning.resume_by(state) if attempt.resume is not None else ""
    return BeginAttempt(
        attempt.number, run.reason, attempt.resume, attempt.overrides, attempt.visible_gpus, run.nproc, run.traced, resume_by=by
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
    verdict = Verdict(Cause.GPU_LOST, 1.0, f"GPU {gpu.index} ({gpu.uuid}) is out of use: {gpu.quarantined}", "gpu:out-of-use", gpu=gpu.uuid)
    fits = replicas.whole(left, state.run.policy.replica_size)
    fewer = f", or start with --nproc-per-node={fits}" if fits else ", or start on another node"
    hint = f"`{state.run.policy.clears} {gpu.uuid}` where it is well again{fewer}; without GPUs: CUDA_VISIBLE_DEVICES= (empty)"
    why = f"{left} of {len(state.gpus)} GPUs may be used, for {wanted}"
    return stop_for(state, t, verdict, Plan(PlanKind.STOP, why, hint, "beginning", 69))


def stop_for_layout(state: JobState, t: float, misfit: str, option: str, exit_code: int = 78) -> Step:
    """Stop before a rank starts, because the ranks hold no whole number of replicas. option: torchrun's that would help, "" for none."""
    policy = state.run.policy
    why = f"{replicas.in_words(policy.replica_size, policy.replica_source)}, and {misfit}"
    hint = f"{f'start with {option}, or name' if option else 'name'} the ranks of one replica with --model-parallel N"
    return stop_for(state, t, Verdict(Cause.NONE, 1.0, why, "layout:ranks"), Plan(PlanKind.STOP, why, hint, "beginning", exit_code))


def restart(state: JobState, t: float, verdict: Verdict, plan: Plan, *beside: Action) -> Step:
    """Report the plan and begin the next attempt when its wait is over."""
    assert state.run.incident is not None  # noqa: S101 (callers opened one)
    report = _decision_report(state, state.run.incident, verdict, plan)
    state = replace(state, run=replace(state.run, reason="failure"))
    if plan.delay_s > 0:
        token = state.token + 1
        return replace(state, stage=Stage.WAITING, token=token), (report, *beside, SetTimer("backoff", token, plan.delay_s))
    state, actions = select(state, t)
    return state, (report, *beside, *actions)


def with_incident(state: JobState, t: float, summary: str, rank: int | None = None, decision: tuple[Verdict, Plan] | None = None) -> Step:
    """Open an incident on the current attempt. If one is open, it goes on with this attempt."""
    opening: tuple[Action, ...] = ()
    incident = state.run.incident
    if incident is None:
        incident = Incident(state.incidents + 1, t, state.attempt.number)
        opening = (OpenIncident(incident.number, state.attempt.number, rank, summary),)
        state = replace(state, run=replace(state.run, losses=losses.with_incident(state.run.losses, t)))
    verdict, plan = decision or (None, None)
    job_decision = None if verdict is None else _made_by_nodes(state, verdict)
    alerts = job_decision is None or planning.alerts_here(state, job_decision)
    incident = replace(incident, attempt=state.attempt.number, verdict=verdict, plan=plan, alerts=alerts)
    return replace(state, incidents=incident.number, run=replace(state.run, incident=incident)), opening


def stop_for(state: JobState, t: float, verdict: Verdict, plan: Plan) -> Step:
    """Give the run up with an incident of its own, so that a card shows why."""
    state, actions = with_incident(state, t, verdict.summary, verdict.rank, (verdict, plan))
    state, more = give_up(state, verdict, plan)
    return state, (*actions, *more)


def give_up(state: JobState, verdict: Verdict, plan: Plan) -> Step:
    """End the run with the plan's exit code and its card. Nodes that have met, and none of whose ranks was begun, end together."""
    if state.stage is Stage.STARTING and state.attempt.is_shared:
        return sharing.want_stop(state, verdict, plan)
    return leave(state, verdict, plan)


def leave(state: JobState, verdict: Verdict, plan: Plan) -> Step:
    """End the run of this node, whatever the others do."""
    assert state.run.incident is not None  # noqa: S101 (callers opened one)
    report = _decision_report(state, state.run.incident, verdict, plan)
    actions: tuple[Action, ...] = (
        report,
        CloseIncident(report.incident, report.attempt, "given_up", report.step),
        Finish(plan.exit_code, plan.reason, for_all=_made_by_nodes(state, verdict) is not None),
    )
    run = replace(state.run, incident=None, exit_code=plan.exit_code)
    return replace(state, run=run, attempt=replace(state.attempt, awaits_agreement=False), stage=Stage.ENDED), actions


def _made_by_nodes(state: JobState, verdict: Verdict) -> JobDecision | None:
    """Return the decision of the nodes about the last attempt, if the verdict is theirs: this node may stop by itself after it."""
    job_decision = state.attempt.decision
    return job_decision if job_decision is not None and job_decision.verdict == verdict else None


def _decision_report(state: JobState, incident: Incident, verdict: Verdict, plan: Plan) -> ReportDecision:
    """Return the report of a decision. Where the nodes made it, its step is the one of the node that failed, and one of them alerts."""
    decision = _made_by_nodes(state, verdict)
    step = state.attempt.progress.step if decision is None else decision.step
    return ReportDecision(incident.number, state.attempt.number, verdict, plan, step, alerts=incident.alerts)
