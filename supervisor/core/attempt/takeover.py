"""A run begins, or a successor continues with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.actions import ReportDecision
from supervisor.core.attempt import finish, setups, start
from supervisor.core.failure import losses
from supervisor.core.model import RESUME, Cause, FailureVerdict, Plan, PlanKind
from supervisor.core.nodes import sharing
from supervisor.core.state import JobState, Run, Stage
from supervisor.core.values import replace
from supervisor.strategies import guards, network

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.events import SupervisorStarted
    from supervisor.core.model import Policy
    from supervisor.core.state import Step


def on_supervisor_started(state: JobState, event: SupervisorStarted) -> Step:
    """A person's start opens a run with fresh budgets; a successor continues where its predecessor left, whose ranks are gone."""
    if not event.continues:
        before = event.programs_seen
        run = Run(event.run_id, event.policy, unfinished_before=event.unfinished_before, goes_on=bool(before), programs=before)
        fresh = JobState(run, incidents=state.incidents, gpus=state.gpus, journal_degraded=state.journal_degraded)
        return start.select(fresh, event.t)
    died_with_us = state.stage not in {Stage.ENDED, Stage.NEW}
    if _terms(event.policy) != _terms(state.run.policy):  # the changes were of other knobs, or permitted by other options
        run = replace(
            setups.forgotten(state.run),
            overrides=(),
            batch_ranks=0,
            last_ranks=0,
            nproc=None,
            programs=(),
            knob_values=(),
            disputes=(),
            batchnorm=False,
        )
        state = replace(state, run=run)
    overrides = network.still_permitted(state.run.overrides, event.policy)
    state = state.with_run(overrides=overrides)
    over_t = event.last_alive_t if state.attempt.over_t is None and event.last_alive_t is not None else state.attempt.over_t
    state = state.with_run(policy=event.policy, reason="takeover", stop=None, exit_code=None).with_attempt(over_t=over_t)
    ended_t = event.t if over_t is None else over_t
    if not died_with_us:
        run = replace(state.run, losses=losses.until(state.run.losses, ended_t))  # the wait in a queue since then is not a failure's cost
        vain = run.vain_requeues + 1 if guards.started_in_vain(run.failures, run.trained_in) else 0
        state = replace(state, run=replace(run, requeued_after=state.attempt.number, vain_requeues=vain))
    actions: tuple[Action, ...] = ()
    summary = "supervise died, and its attempt with it" if state.attempt.number else "supervise died before its first attempt"
    hang = state.attempt.hang
    if died_with_us and state.attempt.is_shared:  # the others decide about it with this node's facts
        is_new = state.run.incident is None
        state, opening = finish.with_incident(state, event.t, summary)
        state = state.with_run(losses=losses.since(state.run.losses, ended_t)) if is_new else state
        state, reporting = sharing.take_over(state, event.t, "its supervise died, and its ranks with it")
        return state, (*opening, *reporting)
    if died_with_us and state.run.incident is None:
        seen = () if hang is None else (hang.evidence(state.attempt.over_t or event.t),)
        verdict = FailureVerdict(Cause.KILLED_UNKNOWN, 0.9, summary, "supervisor:died", because=seen)
        plan = Plan(PlanKind.RESTART, "the job is taken over", "the same again", "takeover")
        state, opening = finish.with_incident(state, event.t, verdict.summary, decision=(verdict, plan))
        state = state.with_run(losses=losses.since(state.run.losses, ended_t))
        actions = (
            *opening,
            ReportDecision(
                state.incidents, state.attempt.number, verdict, plan, state.attempt.progress.step, at_least=not event.heartbeats_read
            ),
        )
    state, more = start.select(state, event.t)
    return state, (*actions, *more)


def _terms(policy: Policy) -> tuple[object, ...]:
    """Return the conditions of a change of the job: the knobs, and the options that permit it. Another command is another run."""
    knobs = tuple((knob.name, knob.value, knob.how, knob.counts) for knob in policy.knobs if knob.name != RESUME)
    return (
        knobs,
        policy.batch_change,
        policy.restart.batch_drift,
        policy.gpus.minimum,
        policy.allocator,
        policy.recover,
        policy.replica_size,
    )
