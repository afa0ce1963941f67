"""Between the state and the strategies: makes the Situation of a failure, and applies a plan to the state."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from supervisor.classify.exits import END_SIGNALS
from supervisor.core import budget, global_batch, replicas, setups
from supervisor.core.actions import Alert, PrintMessage, Quarantine
from supervisor.core.ending import Ending
from supervisor.core.model import FROM_OUTSIDE, RESUME, Cause, Launcher, PastFailures, Phase, ResumeKind, Verdict
from supervisor.core.time_text import span_text
from supervisor.core.values import Struct, replace
from supervisor.strategies import consent
from supervisor.strategies.gpu import fewer_ranks, usable_again
from supervisor.strategies.guards import START_AGAIN
from supervisor.strategies.repetition import HANGS
from supervisor.strategies.situation import Situation, changes, with_excluded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from supervisor.core.actions import Action
    from supervisor.core.model import CheckpointRef, Evidence, Failure, Gpu, JobDecision, Knob, Plan, RankExit
    from supervisor.core.state import JobState, Run
    from supervisor.strategies.gpu import FewerRanks

KEPT_FAILURES = 50
KEPT_CHECKPOINTS = 10
KEPT_FINGERPRINTS = 100
#: Failures of a GPU by itself.
OF_ONE_GPU = frozenset({Cause.GPU_ECC, Cause.GPU_LOST, Cause.GPU_XID_OTHER})
#: `Knob.by` of a knob that the user declared.
DECLARED = "declared"
#: The exit code that asks for a requeue: the next start continues the run (docs/reference/exit-codes.md).
REQUEUE = 75
#: Exit codes of a run that HUP or TERM ended: who starts the same command again wants it to go on.
ENDED_FROM_OUTSIDE = frozenset({129, 143})


class Place(Struct, frozen=True):
    """Where in the training it failed: the absolute step, None if unknown; whether that is proven to be before the first; doing what.

    counted: how many steps after a beginning from scratch, None where it is not known to be one. trained: an earlier attempt of this run
    trained with the same program, and this one made no step. loading, loaded: as in Situation. ending: how the ranks left.
    """

    step: int | None
    before_first_step: bool
    phase: Phase
    counted: int | None = None
    trained: bool = False
    loading: bool = False
    loaded: bool = False
    ending: Ending = Ending()


def _culprits_end(deaths: tuple[RankExit, ...], rank: int | None) -> RankExit | None:
    """Return how the culprit ended; where our own stop ended it before it could end by itself, how the first of all did."""
    first = next((death for death in deaths if death.failed), None)
    end = next((d for d in deaths if d.rank == rank and d.failed), first)
    return first if end is not None and end.signal in END_SIGNALS else end


def situation(
    state: JobState, t: float, verdict: Verdict, place: Place, failed_gpus: Mapping[str, str] = MappingProxyType({})
) -> Situation:
    """Return what the strategies may look at. A failed attempt of several nodes ran with values that hold its global batch."""
    overrides = state.attempt.overrides if state.attempt.is_shared else state.run.overrides
    return Situation(
        t=t,
        verdict=verdict,
        policy=state.run.policy,
        first=_culprits_end(state.attempt.deaths, verdict.rank),
        step=place.step,
        before_first_step=place.before_first_step,
        failures=state.run.failures,
        attempts=state.attempt.number,
        charged=state.run.charged,
        jitter=state.run.jitter,
        knobs=current_knobs(state, overrides),
        overrides=overrides,
        world_size=state.attempt.world_size,
        ranks=len(state.attempt.ranks),
        pids=tuple(rank.pid for rank in state.attempt.ranks),
        gpus=state.gpus,
        gpu=culprit_gpu(state, _of_hang(verdict)),
        verified=tuple(c for c in state.run.verified if c.path not in state.run.rejected),
        known_good=state.run.known_good,
        rejected=state.run.rejected,
        steps_back=state.run.steps_back,
        resume=state.attempt.resume,
        loading=place.loading,
        loaded=place.loaded,
        phase=place.phase,
        counted=place.counted,
        lasted_s=None if state.attempt.started_t is None else (state.attempt.over_t or t) - state.attempt.started_t,
        in_vain=starts_in_vain(state),
        vain_requeues=state.run.vain_requeues,
        trained=place.trained,
        programs=state.run.programs,
        batchnorm=state.run.batchnorm,
        disputes=state.run.disputes,
        traced=state.run.traced,
        own_change=setups.own_change(state) if place.trained or (place.before_first_step and not state.run.trained_in) else None,
        unworkable=state.run.unworkable,
        failed_gpus=tuple(failed_gpus.items()),
        evidence=state.attempt.evidence or (),
        ending=place.ending,
    )


def starts_in_vain(state: JobState) -> tuple[Failure, ...]:
    """Return the failures that were answered by another start, since the run's last step and since this supervisor was requeued."""
    since = max(state.run.trained_in, state.run.requeued_after)
    return tuple(f for f in state.run.failures if f.rung == START_AGAIN and f.attempt > since)


def fewer(state: JobState, t: float, ranks: int, left: int) -> FewerRanks | str:
    """Return how an attempt of so many ranks on this node begins with fewer GPUs, or why it may not; before a rank is there."""
    if state.run.policy.nodes > 1:
        return "the other nodes would begin with another batch"
    verdict = Verdict(Cause.GPU_LOST, 1.0, "out of use", "gpu:out-of-use")
    given = situation(state, t, verdict, Place(None, before_first_step=True, phase=Phase.UNKNOWN))
    return fewer_ranks(replace(given, ranks=ranks, world_size=ranks), left)


def current_knobs(state: JobState, overrides: tuple[tuple[str, str], ...]) -> tuple[Knob, ...]:
    """Return the knobs as they stand: by `overrides`, else as the command has them, else as a rank's framework reported them.

    If a rank reports another number than the command has, the program's knob does not govern it, and is not enabled.
    """
    disputed = {name for name, _, _ in state.run.disputes}
    set_now, seen_now = dict(overrides), dict(state.run.knob_values)
    return tuple(
        replace(
            knob,
            value=set_now.get(knob.name) or knob.value or (seen_now.get(knob.name, "") if _may_be_seen(knob) else ""),
            seen=knob.by == DECLARED or ((knob.seen or knob.by in state.run.programs) and knob.name not in disputed),
        )
        for knob in state.run.policy.knobs
    )


def resume_knob(state: JobState) -> Knob | None:
    """Return the knob by which the next attempt gets its checkpoint: the declared one, or that of a program that a rank was seen to run."""
    programs = state.run.programs
    return next((k for k in state.run.policy.knobs if k.name == RESUME and (k.seen or k.by in programs)), None)


def resume_knobs(state: JobState) -> tuple[str, ...]:
    """Return whose knobs could hand a checkpoint over, the preferred one first; the user's too where the script resumes by itself."""
    itself = (DECLARED,) if state.run.policy.resumes_itself else ()
    return (*itself, *(knob.by for knob in state.run.policy.knobs if knob.name == RESUME))


def known_programs(state: JobState) -> tuple[str, ...]:
    """Return the programs that a rank was seen to run, and those that the user names."""
    named = (knob.by for knob in state.run.policy.knobs if knob.name == RESUME and knob.seen and knob.by != DECLARED)
    return tuple(dict.fromkeys((*state.run.programs, *named)))


def with_programs(state: JobState, programs: tuple[str, ...]) -> JobState:
    """Return the state in which ranks were seen to run these programs too."""
    return replace(state, run=replace(state.run, programs=tuple(dict.fromkeys((*state.run.programs, *programs)))))


def resume_by(state: JobState) -> str:
    """Return whose knob that is, "" for none."""
    knob = resume_knob(state)
    return "" if knob is None else knob.by


def resumes_at_next_start(state: JobState, code: int) -> bool:
    """Whether the same command, started again after this exit code, is known to go on from the newest verified checkpoint.

    What was loaded by a program's option does not show it: the script would not find that checkpoint by itself.
    """
    knob = resume_knob(state)
    if state.run.policy.checkpoints_declared or resumes_itself(state):
        return True
    if knob is None:
        return state.attempt.loaded is not None
    return knob.seen or code in {REQUEUE, *ENDED_FROM_OUTSIDE}


def takes_own_only(state: JobState) -> bool:
    """Whether the next attempt gets only what this run saved.

    The option of a program that only its text shows goes on with this training, and with no older one, unless this run goes on with the
    training of the last one. What the user declares (the option, the program, the checkpoints) holds for what earlier runs saved too.
    """
    policy = state.run.policy
    knob = resume_knob(state) or next((k for k in policy.knobs if k.name == RESUME), None)
    is_of_text = knob is not None and not knob.seen and knob.counts != ResumeKind.ITSELF
    return is_of_text and not state.run.goes_on and not policy.checkpoints_declared


def resumes_itself(state: JobState) -> bool:
    """Whether the script finds its checkpoint by itself: the user declares it, or it is so for the program that a rank was seen to run."""
    knob = resume_knob(state)
    return state.run.policy.resumes_itself or (knob is not None and knob.counts == ResumeKind.ITSELF)


def _may_be_seen(knob: Knob) -> bool:
    """Whether a rank's framework holds this number itself: not a declared knob, which is the user's, and not a derived one."""
    return knob.by != DECLARED and knob.counts != "derived"


def disputes(state: JobState, reported: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str, str], ...]:
    """Return (knob, value in a rank, planned value) where the two differ, once a rank has reported new values.

    Disputes of other knobs from earlier attempts stay: only a rank that trains with the planned value ends one.
    """
    overrides, seen_now = dict(state.attempt.overrides), dict(reported)
    found = {row[0]: row for row in state.run.disputes if row[0] not in seen_now}
    for knob in state.run.policy.knobs:
        planned, seen = overrides.get(knob.name) or knob.value, seen_now.get(knob.name, "")
        is_checked = _may_be_seen(knob) and knob.by in state.run.programs
        if is_checked and planned.isdigit() and seen.isdigit() and int(planned) != int(seen):
            found[knob.name] = (knob.name, seen, planned)
    return tuple(found.values())


def _of_hang(verdict: Verdict) -> Verdict:
    """Return the verdict on a hang with the rank that its diagnosis names: the rank that reports a timeout is one that waited."""
    if verdict.cause not in HANGS:
        return verdict
    named = dict(verdict.facts).get("hang_ranks", "")
    return replace(verdict, rank=int(named) if named.isdigit() else None)


def culprit_gpu(state: JobState, verdict: Verdict) -> str:
    """Return the UUID of the GPU that failed, "" if the evidence does not identify it among the listed ones.

    The evidence names it by UUID, by PCI id (without function, in any case) or by CUDA's index; else it is the one of the rank's place,
    where torchrun's agent places the ranks: how a plain command gives its ranks GPUs is not known.
    """
    visible, one_by_one = _visible(state), state.run.policy.launcher is Launcher.ELASTIC
    place = _place(state, verdict.rank)
    named = verdict.gpu
    gpu: Gpu | None = None
    if named.isdigit():
        # several ranks that each see one GPU all call it 0
        index = int(named)
        alone = len(state.attempt.ranks) == 1 if one_by_one else bool(state.attempt.ranks) and (index > 0 or len(visible) == 1)
        alone = alone or index == place
        gpu = visible[index] if alone and index < len(visible) else None
    elif named:
        gpu = _known_as(state, named)
    else:
        return gpu_of_rank(state, verdict.rank)
    return gpu.uuid if gpu else ""


def gpu_of_rank(state: JobState, rank: int | None) -> str:
    """Return the UUID of the GPU at the rank's place, "" where the place is not known: only torchrun's agent is known to give ranks one."""
    visible, place = _visible(state), _place(state, rank)
    return visible[place].uuid if place is not None and place < len(visible) and len(state.attempt.ranks) <= len(visible) else ""


def _visible(state: JobState) -> tuple[Gpu, ...]:
    return tuple(g for g in state.gpus if not state.attempt.visible_gpus or g.uuid in state.attempt.visible_gpus)


def _place(state: JobState, rank: int | None) -> int | None:
    one_by_one = state.run.policy.launcher is Launcher.ELASTIC
    return next((r.local_rank for r in state.attempt.ranks if r.rank == rank), None) if one_by_one else None


def _known_as(state: JobState, name: str) -> Gpu | None:
    """Return the GPU with this UUID or PCI address."""
    return next((g for g in state.gpus if g.uuid.lower() == name.lower() or (g.pci and _pci(g.pci) == _pci(name))), None)


def failed_gpus(state: JobState, facts: Iterable[Evidence]) -> dict[str, str]:
    """Return the GPUs in use that are proven to have failed by themselves, by UUID, with what proves it: a reading, and no log text.

    A link that is down is reported at both its ends, of which one may be well: it proves nothing here.
    """
    found: dict[str, str] = {}
    for fact in facts:
        fields, claim = dict(fact.fields), fact.claim
        name = fields.get("gpu_uuid") or fields.get("pci", "")
        if claim is None or fact.free_text or claim.cause not in OF_ONE_GPU or claim.weight < consent.SURE or not name:
            continue
        if fields.get("hardware") not in {"yes", "suspected"} or usable_again(fields.get("xid", ""), fields["hardware"]):
            continue
        gpu = _known_as(state, name)
        if gpu is not None and not gpu.quarantined:
            found.setdefault(gpu.uuid, fact.text)
    return found


def _pci(text: str) -> str:
    """Return "0000:3b:00" for 00000000:3B:00.0, PCI:0000:3b:00 and the like."""
    domain, _, rest = text.lower().removeprefix("pci:").partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest.split('.', 1)[0]}"


def folded(state: JobState, decision: JobDecision, t: float) -> tuple[JobState, tuple[Action, ...]]:
    """Return the state that remembers the failure and what the plan changes, and the actions for it.

    On several nodes the GPUs and the number of ranks of the culprit's node alone change, and the node that decided alone alerts.
    """
    verdict, plan, failed = decision.verdict, decision.plan, decision.failure
    out_of_use = {gpu.uuid: gpu for gpu in state.gpus if gpu.uuid in plan.exclude}
    is_here = not decision.by or bool(out_of_use) or not plan.exclude
    count = dict(state.run.recurrences).get(verdict.fingerprint, 0) + (not changes(plan))
    if failed is not None:
        state = remembered(state, replace(failed, t=t if decision.by else failed.t, incident=state.incidents))
    state = replace(state, run=replace(setups.learned(state.run, verdict, plan), traced=state.run.traced or plan.trace))
    if changes(plan):
        state = with_rejected(state, plan.rejected, decision.step)
        state = replace(
            state,
            gpus=with_excluded(state.gpus, plan, verdict.summary or "failed"),
            run=replace(
                global_batch.with_changes(state, plan),
                nproc=state.run.nproc if plan.nproc is None or not is_here else plan.nproc,
            ),
        )
    alerts = _alerts(state, plan, verdict, count) if alerts_here(state, decision) else ()
    return state, (*_quarantined(state, out_of_use, decision), *alerts)


def alerts_here(state: JobState, decision: JobDecision) -> bool:
    """Whether this node alerts to a decision: of several nodes the one that made it."""
    return not decision.by or decision.by == state.attempt.me


def remembered(state: JobState, failure: Failure) -> JobState:
    """Return the state that counts a failure: of this node's, or of the node that decided."""
    count = dict(state.run.recurrences).get(failure.fingerprint, 0) + (not failure.changed)
    others = tuple(row for row in state.run.recurrences if row[0] != failure.fingerprint)
    return replace(
        state,
        run=replace(
            state.run,
            failures=(*state.run.failures, failure)[-KEPT_FAILURES:],
            failed=state.run.failed + 1,
            charged=state.run.charged + failure.charged,
            recurrences=(*others, (failure.fingerprint, count))[-KEPT_FINGERPRINTS:],
            starts_with=state.run.starts_with if state.run.starts_with.attempt else setups.of(state),
        ),
        attempt=replace(state.attempt, progress=replace(state.attempt.progress, step=failure.step)),
    )


def with_saved(run: Run, step: int, made_in: int) -> Run:
    """Return the run whose attempt `made_in` saved a checkpoint of `step` that is verified: beyond any before it is progress."""
    if step <= run.saved_high_water:
        return run
    return replace(run, saved_high_water=step, failures=budget.past_checkpoint(run.failures, step, made_in))


def past_failures(state: JobState) -> PastFailures:
    """Return the failures that still count, for a node that joins."""
    run = state.run
    counting = tuple(f for f in run.failures if not (f.progressed_since and f.passed_since))
    return PastFailures(counting, run.failed, run.charged, run.recurrences, run.least_nodes, run.unworkable)


def _quarantined(state: JobState, out_of_use: dict[str, Gpu], decision: JobDecision) -> tuple[Action, ...]:
    verdict, proofs = decision.verdict, dict(decision.failed_gpus)
    proof = verdict.because[0].text if verdict.because else verdict.summary
    texts = {uuid: (verdict.summary, proof) if uuid == decision.gpu else (proofs.get(uuid, proof),) * 2 for uuid in out_of_use}
    return tuple(Quarantine(state.attempt.number, gpu, *texts[uuid]) for uuid, gpu in out_of_use.items())


def _alerts(state: JobState, plan: Plan, verdict: Verdict, count: int) -> tuple[Action, ...]:
    """Return the alerts beside the incident."""
    found: list[Action] = []
    if plan.exclude:
        found.append(Alert("gpu_quarantined", state.attempt.number, f"{plan.reason}: {verdict.summary}", plan.exclude[0]))
    changed = [c for c in plan.changes if c.knob in {"batch_size", "grad_accum"}]
    if changed:
        found.append(Alert("batch_changed", state.attempt.number, "; ".join(f"{c.how} {c.old} → {c.new}" for c in changed)))
    elif plan.nproc is not None:
        found.append(Alert("batch_changed", state.attempt.number, "; ".join((f"{plan.nproc} ranks on this node", *plan.notes[:1]))))
    if plan.alert_kind:
        found.append(Alert(plan.alert_kind, state.attempt.number, plan.alert))
    elif plan.alert:
        found.append(PrintMessage("warning", plan.alert))
    if count == state.run.policy.recurring_alert and not changes(plan) and verdict.cause not in FROM_OUTSIDE:
        text = f"failed {count} times in the same way {_within(state, verdict, count)}: {verdict.summary}"
        found.append(Alert("recurring_failure", state.attempt.number, text))
    return tuple(found)


def _within(state: JobState, verdict: Verdict, count: int) -> str:
    """Return the time within which it failed so often, in words; "in this run" if the first of those failures is no longer kept."""
    times = [f.t for f in state.run.failures if f.fingerprint == verdict.fingerprint and not f.changed][-count:]
    return f"in {span_text(times[-1] - times[0])}" if len(times) == count else "in this run"


def with_rejected(state: JobState, paths: tuple[str, ...], reached: int | None) -> JobState:
    """Return the state that rejects these checkpoints, until one is written beyond the step that the run has reached."""
    new = tuple(path for path in paths if path not in state.run.rejected)
    if not new:
        return state
    known = (state.run.untrusted_through_step, reached, *(c.step for c in state.run.verified if c.path in new))
    until = max((step for step in known if step is not None), default=None)
    rejected, steps_back = (*state.run.rejected, *new), state.run.steps_back + len(new)
    return replace(state, run=replace(state.run, rejected=rejected, steps_back=steps_back, untrusted_through_step=until))


def with_verified(state: JobState, found: CheckpointRef, *, is_own: bool) -> JobState:
    """Return the state that knows a good checkpoint. `is_own`: the current attempt saved it.

    `run.verified` is in the order of checkpointing/ordering.py, oldest first. The step alone does not give it: an attempt that went back
    from step 100 to 60 saves 65 later. So what this attempt saves stands behind what it resumed from, and a save of an earlier attempt
    stands before that. The step orders each part, because the watcher reports several in one scan newest first.
    """
    known, resume = state.run.verified, state.attempt.resume
    resumed = next((at + 1 for at, c in enumerate(known) if resume is not None and c.path == resume.path), 0)
    before, after = known[:resumed], known[resumed:]
    if is_own or resume is None:
        verified = (*_without(before, found), *_by_step(after, found))
    elif any(c.path == found.path for c in known):
        verified = tuple(found if c.path == found.path else c for c in known)
    else:
        verified = (*_by_step(before[:-1], found), *before[-1:], *after)
    return _with_verified(state, verified, found)


def with_selected(state: JobState, chosen: CheckpointRef, older: tuple[CheckpointRef, ...]) -> JobState:
    """Return the state in which the chosen checkpoint is the newest good one, behind `older`, or behind those known where none is given."""
    known, rejected = state.run.verified, state.run.rejected
    place = next((at for at, c in enumerate(known) if c.path == chosen.path), len(known))
    # the selection passed over what is newer than the chosen one: it is good no more, unless the selection only avoided it
    older = older or tuple(c for at, c in enumerate(known) if at < place or c.path in rejected)
    return _with_verified(state, (*_without(older, chosen), chosen), chosen)


def _without(known: tuple[CheckpointRef, ...], found: CheckpointRef) -> tuple[CheckpointRef, ...]:
    return tuple(c for c in known if c.path != found.path)


def _by_step(known: tuple[CheckpointRef, ...], found: CheckpointRef) -> tuple[CheckpointRef, ...]:
    others = _without(known, found)
    greater = (at for at, c in enumerate(others) if c.step is not None and found.step is not None and c.step > found.step)
    place = next(greater, len(others))
    return (*others[:place], found, *others[place:])


def _with_verified(state: JobState, verified: tuple[CheckpointRef, ...], found: CheckpointRef) -> JobState:
    """Return the state with the newest of these. `found` is trusted again if it was saved at a rejected path, beyond the trouble."""
    run = replace(state.run, verified=verified[-KEPT_CHECKPOINTS:])
    until = run.untrusted_through_step
    if found.path in run.rejected and (until is None or (found.step is not None and found.step > until)):
        run = replace(run, rejected=tuple(path for path in run.rejected if path != found.path))
    return replace(state, run=run)


def usable(state: JobState) -> tuple[str, ...]:
    """Return the UUIDs that the ranks may see; empty, and so the user's own choice, where none is out of use.

    A command that has a rank for each GPU which it sees is shown as many as hold whole replicas.
    """
    left = tuple(g.uuid for g in state.gpus if not g.quarantined)
    if len(left) == len(state.gpus):
        return ()
    policy = state.run.policy
    return left if policy.launcher is Launcher.ELASTIC else left[: replicas.whole(len(left), policy.replica_size)]
