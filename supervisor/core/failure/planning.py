"""Between the state and the strategies: makes the Situation of a failure, and applies a plan to the state."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from supervisor.core.actions import Alert, PrintMessage, Quarantine
from supervisor.core.attempt import known_checkpoints, programs, setups
from supervisor.core.failure import culprit
from supervisor.core.failure.rank_endings import Ending
from supervisor.core.health import detours
from supervisor.core.model import FROM_OUTSIDE, Cause, FailureVerdict, Launcher, PastFailures, Phase
from supervisor.core.nodes import global_batch, replicas
from supervisor.core.units import span_text
from supervisor.core.values import Struct, replace
from supervisor.strategies.gpu import fewer_ranks
from supervisor.strategies.guards import START_AGAIN
from supervisor.strategies.situation import Situation, changes, with_excluded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisor.core.actions import Action
    from supervisor.core.model import Failure, Gpu, JobDecision, Plan
    from supervisor.core.state import JobState
    from supervisor.strategies.gpu import FewerRanks

KEPT_FAILURES = 50
KEPT_FINGERPRINTS = 100


class Place(Struct, frozen=True):
    """Where in the training it failed."""

    step: int | None  # absolute, None: unknown
    before_first_step: bool  # that is proven
    phase: Phase  # doing what
    counted: int | None = None  # how many steps after a beginning from scratch, None where it is not known to be one
    trained: bool = False  # an earlier attempt of this run trained with the same program, and this one made no step
    loading: bool = False  # as in Situation
    loaded: bool = False  # likewise
    saved: bool = False  # likewise
    ending: Ending = Ending()  # how the ranks left


def situation(
    state: JobState, t: float, verdict: FailureVerdict, place: Place, failed_gpus: Mapping[str, str] = MappingProxyType({})
) -> Situation:
    """Return what the strategies may look at. A failed attempt of several nodes ran with values that hold its global batch."""
    overrides = state.attempt.overrides if state.attempt.is_shared else state.run.overrides
    return Situation(
        t=t,
        verdict=verdict,
        policy=state.run.policy,
        first=culprit.end_of_culprit(state.attempt.deaths, verdict.rank),
        step=place.step,
        before_first_step=place.before_first_step,
        failures=state.run.failures,
        attempts=state.attempt.number,
        charged=state.run.charged,
        jitter=state.run.jitter,
        knobs=programs.current_knobs(state, overrides),
        overrides=overrides,
        world_size=state.attempt.world_size,
        ranks=len(state.attempt.ranks),
        pids=tuple(rank.pid for rank in state.attempt.ranks),
        gpus=state.gpus,
        gpu=culprit.culprit_gpu(state, culprit.of_hang(verdict)),
        verified=tuple(c for c in state.run.verified if c.path not in state.run.rejected),
        known_good=state.run.known_good,
        rejected=state.run.rejected,
        steps_back=state.run.steps_back,
        resume=state.attempt.resume,
        loading=place.loading,
        loaded=place.loaded,
        saved=place.saved,
        phase=place.phase,
        counted=place.counted,
        lasted_s=None if state.attempt.started_t is None else (state.attempt.over_t or t) - state.attempt.started_t,
        in_vain=starts_in_vain(state),
        vain_requeues=state.run.vain_requeues,
        trained=place.trained,
        programs=state.run.programs,
        batchnorm=state.run.batchnorm,
        disputes=state.run.disputes,
        traced=state.run.traced or state.run.policy.trace,
        own_change=setups.own_change(state) if place.trained or (place.before_first_step and not state.run.trained_in) else None,
        resized=setups.resized(state, verdict),
        gpus_now=state.attempt.gpus_now,
        all_ranks=state.run.all_ranks,
        unworkable=state.run.unworkable,
        failed_gpus=tuple(failed_gpus.items()),
        evidence=state.attempt.evidence or (),
        ending=place.ending,
    )


def starts_in_vain(state: JobState) -> tuple[Failure, ...]:
    """Return the failures that were answered by another start, since the run's last step and since this supervisor was requeued."""
    since = max(state.run.trained_in, state.run.requeued_after)
    return tuple(f for f in state.run.failures if f.ladder_step == START_AGAIN and f.attempt > since)


def fewer(state: JobState, t: float, ranks: int, left: int) -> FewerRanks | str:
    """Return how an attempt of so many ranks on this node begins with fewer GPUs, or why it may not; before a rank is there."""
    if state.run.policy.nodes > 1:
        return "the other nodes would begin with another batch"
    verdict = FailureVerdict(Cause.GPU_LOST, 1.0, "out of use", "gpu:out-of-use")
    given = situation(state, t, verdict, Place(None, before_first_step=True, phase=Phase.UNKNOWN))
    return fewer_ranks(replace(given, ranks=ranks, world_size=ranks), left)


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
        state = known_checkpoints.with_rejected(state, plan.rejected, decision.step)
        nproc = None if plan.all_ranks else state.run.nproc if plan.nproc is None or not is_here else plan.nproc
        gpus = state.attempt.gpus_now if plan.all_ranks and state.attempt.gpus_now else state.gpus
        state = replace(
            state,
            gpus=with_excluded(gpus, plan, verdict.summary or "failed"),
            run=replace(global_batch.with_changes(state, plan), nproc=nproc, detours=detours.caused(state.run, plan.changes)),
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
    return state.with_run(
        failures=(*state.run.failures, failure)[-KEPT_FAILURES:],
        failed=state.run.failed + 1,
        charged=state.run.charged + failure.charged,
        recurrences=(*others, (failure.fingerprint, count))[-KEPT_FINGERPRINTS:],
        starts_with=state.run.starts_with if state.run.starts_with.attempt else setups.of(state),
    ).with_attempt(progress=replace(state.attempt.progress, step=failure.step))


def past_failures(state: JobState) -> PastFailures:
    """Return the failures that still count, for a node that joins."""
    run = state.run
    counting = tuple(f for f in run.failures if not (f.progressed_since and f.passed_since))
    return PastFailures(counting, run.failed, run.charged, run.recurrences, run.least_nodes, run.unworkable, run.all_ranks)


def _quarantined(state: JobState, out_of_use: dict[str, Gpu], decision: JobDecision) -> tuple[Action, ...]:
    verdict, proofs = decision.verdict, dict(decision.failed_gpus)
    proof = verdict.because[0].text if verdict.because else verdict.summary
    texts = {uuid: (verdict.summary, proof) if uuid == decision.gpu else (proofs.get(uuid, proof),) * 2 for uuid in out_of_use}
    return tuple(Quarantine(state.attempt.number, gpu, *texts[uuid]) for uuid, gpu in out_of_use.items())


def _alerts(state: JobState, plan: Plan, verdict: FailureVerdict, count: int) -> tuple[Action, ...]:
    """Return the alerts beside the incident."""
    alerts: list[Action] = []
    if plan.exclude:
        alerts.append(Alert("gpu_quarantined", state.attempt.number, f"{plan.reason}: {verdict.summary}", plan.exclude[0]))
    changed = [c for c in plan.changes if c.knob in {"batch_size", "grad_accum"}]
    if changed:
        alerts.append(Alert("batch_changed", state.attempt.number, "; ".join(f"{c.how} {c.old} → {c.new}" for c in changed)))
    elif plan.nproc is not None:
        alerts.append(Alert("batch_changed", state.attempt.number, "; ".join((f"{plan.nproc} ranks on this node", *plan.notes[:1]))))
    if plan.alert_kind:
        alerts.append(Alert(plan.alert_kind, state.attempt.number, plan.alert))
    elif plan.alert:
        alerts.append(PrintMessage("warning", plan.alert))
    if count == state.run.policy.recurring_alert and not changes(plan) and verdict.cause not in FROM_OUTSIDE:
        text = f"failed {count} times in the same way {_within(state, verdict, count)}: {verdict.summary}"
        alerts.append(Alert("recurring_failure", state.attempt.number, text))
    return tuple(alerts)


def _within(state: JobState, verdict: FailureVerdict, count: int) -> str:
    """Return the time within which it failed so often, in words; "in this run" if the first of those failures is no longer kept."""
    times = [f.t for f in state.run.failures if f.fingerprint == verdict.fingerprint and not f.changed][-count:]
    return f"in {span_text(times[-1] - times[0])}" if len(times) == count else "in this run"


def usable(state: JobState) -> tuple[str, ...]:
    """Return the UUIDs that the ranks may see; empty, and so the user's own choice, where none is out of use.

    A command that has a rank for each GPU which it sees is shown as many as hold whole replicas.
    """
    left = tuple(g.uuid for g in state.gpus if not g.quarantined)
    if len(left) == len(state.gpus):
        return ()
    policy = state.run.policy
    return left if policy.launcher is Launcher.ELASTIC else left[: replicas.whole(len(left), policy.replica_size)]
