"""From a failed rank to the plan: stop the ranks, wait for their end and the evidence, judge, plan. See core/machine.py for the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.engine import classify
from supervisor.core import deadlines, stop
from supervisor.core.actions import FindSave, SetTimer
from supervisor.core.attempt import finish, known_checkpoints, start
from supervisor.core.failure import culprit, planning, rank_endings, teardown
from supervisor.core.health import findings
from supervisor.core.model import BEFORE_FIRST_STEP, Beginning, Cause, Claim, Evidence, JobDecision, Phase, PlanKind
from supervisor.core.nodes import sharing
from supervisor.core.state import Stage
from supervisor.core.units import bytes_text
from supervisor.core.values import replace
from supervisor.strategies import propose
from supervisor.strategies.storage import without_kept

if TYPE_CHECKING:
    from supervisor.core.events import EvidenceCollected
    from supervisor.core.model import CheckpointRef, FailureVerdict
    from supervisor.core.state import Attempt, JobState, Step

#: For the verification of the last save, if the last step that was named is made; and where other nodes wait for this one's report.
LAST_SAVE_S, LAST_SAVE_FOR_ALL_S = 300.0, 30.0
#: Two, because one save may be of the state before the first step.
_SAVES_OF_A_TRAINING = 2
#: Verdicts about a rank that does not come: what the looks showed of it belongs to them.
OF_HANGS = frozenset({Cause.HANG_NO_ERROR, Cause.NCCL_TIMEOUT, Cause.GLOO_ERROR, Cause.EXIT_STUCK})
#: Exceptions of an import, or of a file that is not Python.
_OF_IMPORTS = frozenset({"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError"})
#: Signatures of a command that cannot be started as it is written.
_OF_COMMANDS = frozenset({"user_code.usage", "user_code.no_script", "user_code.no_program"})
#: A disk with less room than this is full: a checkpoint is larger.
_FULL_BYTES = 64 << 20
#: Why nobody else can tell a rank that left too early from one that is done.
LEFT_WITH_0 = "an exit code of 0 says that all went well: leave with another one where it did not (a handler of TERM: sys.exit(143))"


def on_evidence_collected(state: JobState, event: EvidenceCollected) -> Step:
    """The observers have answered."""
    if state.stage is Stage.STOPPING:
        return stop.take_evidence(state, event.evidence)
    return judge_if_ready(state.with_attempt(evidence=event.evidence, gpus_now=event.gpus).with_run(jitter=event.jitter), event.t)


def on_evidence_overdue(state: JobState, t: float) -> Step:
    """The observers do not answer: judge by the evidence without them. A stop does not wait for them."""
    if state.stage is Stage.STOPPING:
        return stop.take_evidence(state, ())
    if state.attempt.evidence is not None:
        return state, ()
    ends = (("signal", d.signal, d) if d.signal is not None else ("exit_code", d.code, d) for d in state.attempt.deaths if d.failed)
    facts = (Evidence("exit", name, str(n), d.rank if d.rank != teardown.NO_RANK else None, d.at_ns / 1e9) for name, n, d in ends)
    return judge_if_ready(state.with_attempt(evidence=tuple(facts)), t)


def on_own_signal_overdue(state: JobState, t: float) -> Step:
    """The supervisor got no TERM: only the rank was killed by it."""
    return judge_if_ready(state.with_attempt(awaits_own_signal=False), t)


def judge_if_ready(state: JobState, t: float) -> Step:
    """Judge when the ranks are gone, the evidence is in, and our own signal had its chance to arrive. Several nodes judge together."""
    if not state.attempt.ended or state.attempt.evidence is None or state.attempt.awaits_own_signal or state.run.incident is None:
        return state, ()
    if rank_endings.lacks_last_save(state) and not state.attempt.last_save_searched:
        return _find_last_save(state)
    if state.attempt.is_shared:
        return sharing.report(state)
    decision = judged(state, t, classify(facts_of(state.attempt, t)))
    return act_on(state, t, decision)


def _find_last_save(state: JobState) -> Step:
    """Have the last save looked for: who died a moment after it may have been faster than its verification."""
    if state.attempt.last_save_search:
        return state, ()
    state = replace(state.with_attempt(last_save_search=True), token=state.token + 1)
    deadline_s = LAST_SAVE_FOR_ALL_S if state.attempt.is_shared else LAST_SAVE_S
    search = FindSave(state.attempt.number, state.attempt.began_t, deadline_s)
    return state, (search, SetTimer("find", state.token, deadline_s + deadlines.EVIDENCE_MARGIN_S))


def take_last_save(state: JobState, t: float, newest_save: CheckpointRef | None) -> Step:
    """The disk was searched for the last save: judge, with it if it is whole."""
    if not state.attempt.last_save_search:
        return state, ()
    state = state.with_attempt(last_save_searched=True)
    if newest_save is not None and newest_save.step is not None:
        saved_steps = state.attempt.saved_steps.including(newest_save.step)
        state = known_checkpoints.with_verified(state, newest_save, is_own=True)
        state = state.with_attempt(saved_steps=saved_steps)
    return judge_if_ready(state, t)


def facts_of(attempt: Attempt, t: float, node: str = "") -> tuple[Evidence, ...]:
    """Return all that was seen of an attempt on one node, which `node` names where there are several."""
    over_t = attempt.over_t or t
    facts = (*(attempt.evidence or ()), *findings.evidence(attempt.eviction, over_t), *_differing(attempt, t), *attempt.ended_for)
    return tuple(replace(fact, node=fact.node or node) for fact in facts) if node else facts


def judged(state: JobState, t: float, verdict: FailureVerdict) -> JobDecision:
    """Return the decision on a verdict, with the facts of the node that the state is of."""
    evicted = findings.evidence(state.attempt.eviction, state.attempt.over_t or t)
    resumed = (state.attempt.resume,) if state.attempt.resume is not None else ()
    left = rank_endings.of(state)
    verdict = rank_endings.explained(state, _with_disk(state, _with_hang(state, verdict)), left)
    verdict = without_kept(verdict, (*state.run.verified, *resumed))
    failed_gpus = culprit.failed_gpus(state, (*(state.attempt.evidence or ()), *evicted))
    failed_gpu = culprit.culprit_gpu(state, verdict)
    # two readings of GPUs do not dispute each other, and what ended the attempt is proof of itself
    if failed_gpu in culprit.failed_gpus(state, evicted) or (failed_gpu in failed_gpus and verdict.runner_up in culprit.OF_ONE_GPU):
        verdict = replace(verdict, confidence=max(verdict.confidence, findings.SURE))
    facts = _last_heartbeat(state.attempt, verdict.rank)
    step = left.step if left.is_over else rank_endings.reached_step(state, verdict.rank)
    before = before_first_step(state, t, verdict, facts)
    phase = Phase(facts["phase"]) if "phase" in facts else Phase.UNKNOWN
    place = planning.Place(
        step,
        before,
        phase,
        _counted(state, verdict),
        trained=_trained_before(state, verdict),
        loading=_died_loading(state, verdict, phase),
        loaded=_is_of_given(state, _of_culprit(state, verdict, "loaded")),
        saved=_has_saved(state),
        ending=left,
    )
    situation = planning.situation(state, t, verdict, place, failed_gpus)
    plan = propose(situation)
    if left.early is not None and left.early.rank == verdict.rank:
        plan = replace(plan, notes=(*plan.notes, LEFT_WITH_0))
    if plan.kind is PlanKind.RESTART:
        plan = start.scratch_refused(state, t) or plan  # now, so that no restart is announced that is not made
    return JobDecision(verdict, plan, situation.failure(plan), step, situation.gpu, situation.failed_gpus)


def _last_heartbeat(attempt: Attempt, rank: int | None) -> dict[str, str]:
    """Return what the rank's heartbeat held last. A plain command alone is rank 0 to us, and may be another by its own RANK."""
    beats = [fact for fact in attempt.evidence or () if fact.source == "heartbeat"]
    is_alone = attempt.world_size == 1 and len({fact.rank for fact in beats}) == 1
    return {fact.name: fact.text for fact in beats if is_alone or fact.rank == rank}


def act_on(state: JobState, t: float, decision: JobDecision) -> Step:
    """Count the failure, change what the plan changes, and restart or stop. On several nodes each does this with the same decision."""
    verdict, plan = decision.verdict, decision.plan
    state, opening = finish.with_incident(state, t, verdict.summary, verdict.rank, (verdict, plan))
    state, beside = planning.folded(state, decision, t)
    state, actions = finish.give_up(state, verdict, plan) if plan.kind is PlanKind.STOP else start.restart(state, t, verdict, plan)
    return state, (*opening, *beside, *actions)


def _differing(attempt: Attempt, t: float) -> tuple[Evidence, ...]:
    """Return that the nodes of the attempt began differently, as evidence."""
    claim = Claim(Cause.CHECKPOINT_MISMATCH, 0.97, transient=True)
    differs = attempt.start_mismatch
    return (Evidence("checkpoint", "nodes_differ", differs, t=attempt.over_t or t, claim=claim),) if differs else ()


def _with_hang(state: JobState, verdict: FailureVerdict) -> FailureVerdict:
    """Return the verdict with what the looks showed, where it is one that a rank which does not come leads to."""
    hang = state.attempt.hang
    if hang is None or verdict.cause not in OF_HANGS:
        return verdict
    facts = {"hang_kind": hang.kind.value, "hang_phase": hang.phase.value, "hang_ranks": ",".join(map(str, hang.ranks))}
    facts |= {"hang_code": hang.code} if hang.code else {}
    facts |= {"reason": hang.reason} if hang.reason else {}
    facts |= {"hang_left_file": hang.left_file} if hang.left_file else {}
    if hang.group_timeout_s is not None:
        facts["hang_group_timeout_s"] = f"{hang.group_timeout_s:g}"
    seen = any(fact.source == "hang" for fact in verdict.because)
    t = state.attempt.over_t or 0.0
    because = verdict.because if seen else (*verdict.because, hang.evidence(t))
    because = (*because, Evidence("hang", "devices", hang.devices, t=t)) if hang.devices else because
    rank = verdict.rank if verdict.rank is not None or len(hang.ranks) != 1 else hang.ranks[0]
    return replace(verdict, rank=rank, facts=(*verdict.facts, *facts.items()), because=because)


def _with_disk(state: JobState, verdict: FailureVerdict) -> FailureVerdict:
    """Return the verdict on a full disk with the disk that is full, as it was measured: a library's own text rarely names it."""
    if verdict.cause is not Cause.DISK_FULL:
        return verdict
    disks = [f for f in state.attempt.evidence or () if (f.source, f.name) == ("host", "disk_free")]
    rows = [(int(dict(f.fields)["free"]), dict(f.fields)["path"], f) for f in disks]
    named = dict(verdict.facts).get("path", "")
    full = [row for row in rows if named.startswith(row[1])] if named else [row for row in rows if row[0] < _FULL_BYTES]
    if not full:
        return verdict
    free, path, fact = min(full, key=lambda row: row[0] if not named else -len(row[1]))
    failed_write = f"rank {verdict.rank} could not write" if verdict.rank is not None else "a write failed"
    return replace(
        verdict,
        summary=f"{named or path} is full ({bytes_text(free)} free): {failed_write}" if free < _FULL_BYTES else verdict.summary,
        because=(*verdict.because, *(() if fact in verdict.because else (fact,))),
        facts=verdict.facts if named else (*verdict.facts, ("path", path)),
    )


def _counted(state: JobState, verdict: FailureVerdict) -> int | None:
    """The steps that were counted until it failed, if the attempt was reported to begin from scratch; None where that is not known."""
    counted = rank_endings.beats(state, verdict.rank, "steps") if state.attempt.began_as is Beginning.FROM_SCRATCH else []
    return min(counted, default=None)


def _trained_before(state: JobState, verdict: FailureVerdict) -> bool:
    """Whether an earlier attempt of this run made steps with the same program, and this one made none."""
    attempt, steps = state.attempt, rank_endings.beats(state, verdict.rank, "steps")
    starts = not attempt.trains and max(steps, default=0) <= 0 and not _has_saved(state)
    return starts and 0 < state.run.trained_in < attempt.number and attempt.same_program


def _died_loading(state: JobState, verdict: FailureVerdict, phase: Phase) -> bool:
    """Whether it failed within the load of the checkpoint that the attempt got. A death of another file is not proof against that one."""
    of_load = phase is Phase.LOAD or verdict.cause is Cause.CHECKPOINT_CORRUPT
    read = _of_culprit(state, verdict, "loading")
    return of_load and (read is None or _is_of_given(state, read))


def _of_culprit(state: JobState, verdict: FailureVerdict, name: str) -> Evidence | None:
    """Return the fact of this name about the culprit's last load (observe/ranks/load_logs.py)."""
    facts = (f for f in state.attempt.evidence or () if (f.source, f.name, f.rank) == ("heartbeat", name, verdict.rank))
    return next(facts, None)


def _is_of_given(state: JobState, read: Evidence | None) -> bool:
    """Whether what a rank read is the checkpoint that the attempt got, or a part of it."""
    given = state.attempt.resume
    if given is None or read is None:
        return False
    fields = dict(read.fields)
    whole = fields.get("checkpoint") or read.text
    return any(f"{path}/".startswith(f"{given.path}/") for path in (read.text, fields.get("real", ""))) or given.path.startswith(
        f"{whole}/"
    )


def before_first_step(state: JobState, t: float, verdict: FailureVerdict, facts: dict[str, str]) -> bool:
    """Whether it is proven that the culprit never made a training step in this attempt; UNKNOWN proves nothing.

    `facts` are the culprit's own last heartbeat. An optimizer that was made and has not stepped proves it. Without one it may be a script
    that trains with a rule of its own, evaluates or plays: nothing is proven once more than imports ran (a process group, data, an
    evaluation, a checkpoint), or its own output tells of steps, or after `start_window_s`, from when the ranks were started: the nodes may
    have waited long for each other.
    A failed import, or arguments that the script refuses, prove it at any time: no second try meets anything else. So does the first
    meeting of the ranks (init_process_group), whose time-out alone is longer than that window.
    """
    if not state.attempt.world_size and verdict.rank is None:
        return True  # the launcher never came as far as a rank
    if "phase" not in facts or state.attempt.steps_seen > 0 or int(facts.get("steps", "0")) > 0 or _has_saved(state):
        return False
    if Phase(facts["phase"]) not in BEFORE_FIRST_STEP:
        return False
    if "optimizer" in facts or dict(verdict.facts).get("exception") in _OF_IMPORTS:
        return True
    if any(evidence.name in _OF_COMMANDS for evidence in verdict.because):
        return True
    first_meeting = verdict.cause is Cause.RENDEZVOUS and Phase(facts["phase"]) is Phase.INIT
    in_window = t - (state.attempt.started_t or state.attempt.began_t) <= state.run.policy.start_window_s
    return (first_meeting or in_window) and "ran" not in facts and not _told_steps(state, verdict)


def _told_steps(state: JobState, verdict: FailureVerdict) -> bool:
    """Whether the culprit's own output has lines of training: JAX and a loop of one's own answer no heartbeat."""
    return any(f.name == "recent_progress" and f.rank in {None, verdict.rank} for f in state.attempt.evidence or ())


def _has_saved(state: JobState) -> bool:
    """Whether this attempt saved as only a training does: twice to one place, or a checkpoint beyond the step at which it began."""
    began_at = (state.attempt.resume.step if state.attempt.resume is not None else None) or 0
    high = state.attempt.saved_steps.highest
    seen = (int(f.text) for f in state.attempt.evidence or () if (f.source, f.name) == ("heartbeat", "saves"))
    return max(seen, default=0) >= _SAVES_OF_A_TRAINING or (high is not None and high > began_at)
