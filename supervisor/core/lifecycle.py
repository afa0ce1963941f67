"""The healthy path: a job starts, an attempt runs, progress is seen, it ends. See core/decide.py for the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.classify.engine import classify
from supervisor.core import budget, losses, planning, pointers, replicas, resumption, setups, sharing, start
from supervisor.core import failure as core_failure
from supervisor.core.actions import (
    SIGTERM,
    Alert,
    CloseIncident,
    FindSave,
    Finish,
    PrintMessage,
    ReportDecision,
    SetTimer,
)
from supervisor.core.model import RESUME, Cause, Plan, PlanKind, Progress, Verdict
from supervisor.core.state import NOTICES, JobState, Run, Stage
from supervisor.core.values import replace
from supervisor.strategies import guards, network
from supervisor.strategies.situation import overridden

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.events import (
        AttemptEnded,
        AttemptStarted,
        CheckpointVerified,
        GpusListed,
        JournalDegraded,
        JournalRecovered,
        LauncherFellBack,
        LauncherStarted,
        ProgramIdentified,
        ProgramSeen,
        ProgressObserved,
        RanksFound,
        StartCeilingPassed,
        SupervisorStarted,
    )
    from supervisor.core.model import Policy
    from supervisor.core.state import Incident, Step, StopRequest

#: Printed if several nodes run without supervise's agents.
NO_AGREEMENT_WARNING = (
    "several nodes without supervise's agents cannot agree on a checkpoint: each node chooses for itself, and nothing compares what they"
    " resume from"
)
#: Why a rank's failure is not answered, and how a person makes the command pass it on.
HIDDEN = "the command left with 0 all the same: nothing is started again"
UNHIDE = "have the command pass the failure on: `set -eo pipefail` in a shell script, no `|| true`, a wrapper that returns the rank's code"
SIGINT = 2
#: The least time for a search for a save, and what the supervisor reserves of the time left for its own end.
LEAST_SEARCH_S = 1.0
OUR_END_S = 3.0


def on_supervisor_started(state: JobState, event: SupervisorStarted) -> Step:
    """A person's start opens a run with fresh budgets; a successor goes on where its predecessor left, whose ranks are gone."""
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
    state = replace(state, run=replace(state.run, overrides=overrides))
    over_t = event.last_alive_t if state.attempt.over_t is None and event.last_alive_t is not None else state.attempt.over_t
    state = replace(
        state,
        run=replace(state.run, policy=event.policy, reason="takeover", stop=None, exit_code=None),
        attempt=replace(state.attempt, over_t=over_t),
    )
    ended_t = event.t if over_t is None else over_t
    if not died_with_us:
        run = replace(state.run, losses=losses.until(state.run.losses, ended_t))  # the wait since then, in a queue, is no cost of a failure
        vain = run.vain_requeues + 1 if guards.started_in_vain(run.failures, run.trained_in) else 0
        state = replace(state, run=replace(run, requeued_after=state.attempt.number, vain_requeues=vain))
    actions: tuple[Action, ...] = ()
    summary = "supervise died, and its attempt with it" if state.attempt.number else "supervise died before its first attempt"
    hang = state.attempt.hang
    if died_with_us and state.attempt.is_shared:  # the others decide about it with what is known here
        is_new = state.run.incident is None
        state, opening = start.with_incident(state, event.t, summary)
        state = replace(state, run=replace(state.run, losses=losses.since(state.run.losses, ended_t))) if is_new else state
        state, reporting = sharing.take_over(state, event.t, "its supervise died, and its ranks with it")
        return state, (*opening, *reporting)
    if died_with_us and state.run.incident is None:
        seen = () if hang is None else (hang.evidence(state.attempt.over_t or event.t),)
        verdict = Verdict(Cause.KILLED_UNKNOWN, 0.9, summary, "supervisor:died", because=seen)
        plan = Plan(PlanKind.RESTART, "the job is taken over", "the same again", "takeover")
        state, opening = start.with_incident(state, event.t, verdict.summary, decision=(verdict, plan))
        state = replace(state, run=replace(state.run, losses=losses.since(state.run.losses, ended_t)))
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


def on_launcher_started(state: JobState, event: LauncherStarted) -> Step:
    """Take over how torch parsed its command line."""
    cap = event.max_restarts if event.max_restarts is not None else state.run.policy.max_restarts
    size, group = state.run.policy.replica_size, state.run.policy.node_group
    of_torch = replicas.node_group(event.nproc, size) if event.nproc else group
    policy = replace(state.run.policy, max_restarts=cap, nodes=event.nodes, least_nodes=event.least_nodes, node_group=of_torch)
    # whoever the launcher before this one met
    state = replace(
        state,
        run=replace(state.run, policy=policy),
        attempt=replace(state.attempt, members=()) if state.stage is Stage.STARTING else state.attempt,
    )
    if state.stage is Stage.STARTING and (misfit := replicas.misfit(size, event.nproc, event.least_nodes, event.nodes)) is not None:
        return start.stop_for_layout(state, event.t, *misfit)
    # torch alone knows for sure how many nodes there are, and how many ranks of each
    meets_otherwise = state.attempt.awaits_agreement is not start.gathers(state) or (start.gathers(state) and of_torch != group)
    if state.stage is Stage.STARTING and meets_otherwise:
        return start.select(state, event.t)  # under a new number: of this one no rank was begun
    left, wanted = sum(not gpu.quarantined for gpu in state.gpus), state.run.nproc or event.nproc
    if state.stage is not Stage.STARTING or not left < wanted <= len(state.gpus):
        return state, ()
    fewer = planning.fewer(state, event.t, wanted, left)
    if isinstance(fewer, str):
        return start.stop_for_gpus(state, event.t, left, f"{wanted} ranks: {fewer}")
    state = replace(state, run=replace(state.run, nproc=fewer.nproc, overrides=overridden(state.run.overrides, fewer.changes)))
    message = PrintMessage("warning", f"{fewer.nproc} of {wanted} ranks, because GPUs are out of use; {'; '.join(fewer.notes)}")
    state, actions = start.begin(state, event.t, state.attempt.resume)  # under a new number: of this one no rank was begun
    return state, (message, *actions)


def on_launcher_fell_back(state: JobState, event: LauncherFellBack) -> Step:
    """Go on with stock torchrun under us."""
    message = PrintMessage("warning", f"torchrun is run as a plain command and restarted from outside: {event.reason}")
    gathers, several = state.attempt.awaits_agreement, state.run.policy.nodes > 1
    state = replace(
        state,
        run=replace(state.run, policy=replace(state.run.policy, launcher=event.launcher)),
        attempt=replace(state.attempt, awaits_agreement=False, members=()),
    )
    alone = (PrintMessage("warning", NO_AGREEMENT_WARNING),) if several else ()
    state, actions = start.select(state, event.t) if gathers else (state, ())
    return state, (message, *alone, *actions)


def on_attempt_started(state: JobState, event: AttemptStarted) -> Step:
    """The ranks exist."""
    return replace(
        state,
        stage=Stage.RUNNING,
        attempt=replace(state.attempt, ranks=event.ranks, world_size=event.world_size, started_t=event.t),
    ), ()


def on_ranks_found(state: JobState, event: RanksFound) -> Step:
    """Take the ranks of a plain command, in place of those that were known."""
    return replace(state, attempt=replace(state.attempt, ranks=event.ranks, world_size=event.world_size)), ()


def on_program_seen(state: JobState, event: ProgramSeen) -> Step:
    """Record the framework that trains: its knobs become enabled, and their values are known."""
    values = tuple((dict(state.run.knob_values) | dict(event.values)).items())
    state = planning.with_programs(state, event.programs)
    state = replace(state, run=replace(state.run, knob_values=values, batchnorm=state.run.batchnorm or event.batchnorm))
    disputes = planning.disputes(state, event.values)
    planned = dict(state.attempt.overrides)
    new = [row for row in disputes if row[0] in planned and row not in state.run.disputes]
    texts = (f"a rank trains with {name} {seen} instead of {value}" for name, seen, value in new)
    alerts = tuple(Alert("change_ignored", state.attempt.number, text) for text in texts)
    return replace(state, run=replace(state.run, disputes=disputes)), alerts


def on_gpus_listed(state: JobState, event: GpusListed) -> Step:
    """Store this node's GPUs with their ledger entries."""
    return replace(state, gpus=event.gpus), ()


def on_progress_observed(state: JobState, event: ProgressObserved) -> Step:
    """Take the step over; the first one of a restarted attempt closes the incident.

    While an attempt is stopped, also because another node's rank failed, its ranks train on, up to their last step.
    """
    run, attempt, resume = state.run, state.attempt, state.attempt.resume
    follows = state.stage is Stage.TEARDOWN and bool(attempt.ended_by)
    is_last = follows or state.stage is Stage.STOPPING
    if state.stage not in {Stage.RUNNING, Stage.STARTING} and not is_last:
        return state, ()
    step, relative = event.step, False
    if step is None and event.steps_seen >= 0 and resume is not None and resume.shown_step is not None:
        step, relative = resume.shown_step + event.steps_seen, True
    elif step is None and event.steps_seen > 0:
        step, relative = event.steps_seen, True
    news: dict[str, Any] = {}  # of the run: it is copied once
    if step is not None and not relative and (run.high_water is None or step > run.high_water):
        news["high_water"] = step
        if run.failures and (run.high_water is not None or event.steps_seen > 0):
            passed, counts = step - run.policy.same_place_steps, not run.saved_high_water
            news["failures"] = budget.past_step(run.failures, step, passed, is_progress=counts)
    loaded = event.loaded or attempt.loaded
    if not run.ever_loaded and (loaded is not None or event.read is not None):
        news["ever_loaded"] = True
    first_step = attempt.first_step if event.first_step is None else event.first_step
    if first_step is None and step is not None and not relative:
        first_step = step - max(event.steps_seen, 0)
    # what shows how the attempt began is judged once, and again where it is another than before
    shown = (attempt.loaded, attempt.first_step, attempt.steps_seen > 0)
    is_same = attempt.began_as is not None and shown == (loaded, first_step, event.steps_seen > 0)
    progress = Progress(step, relative, event.phase)
    total = event.total or attempt.total
    attempt = replace(attempt, progress=progress, steps_seen=event.steps_seen, loaded=loaded, first_step=first_step, total=total)
    if attempt.trains and run.trained_in != attempt.number:
        news |= {"trained_in": attempt.number, "starts_with": setups.of(state), "vain_requeues": 0}
    if attempt.trains and not is_last:
        news["losses"] = losses.with_progress(run, event.t, event.step)
    state = replace(state, run=replace(run, **news) if news else run, attempt=attempt)
    return (state, ()) if is_last or is_same else _begun(state, event.t)


def _begun(state: JobState, t: float) -> Step:
    """Report how the attempt began, and end it if its framework did not find this run's checkpoints."""
    state, reported = resumption.reported(state)
    state, actions = pointers.ended(state, t)
    return state, (*reported, *actions)


def on_program_identified(state: JobState, event: ProgramIdentified) -> Step:
    """Compare what is about to run with what trained last."""
    trained, now = state.run.starts_with.program, dict(event.program)
    same = bool(trained) and all(now.get(name, digest) == digest for name, digest in trained)
    return replace(state, attempt=replace(state.attempt, program=event.program, same_program=same)), ()


def on_checkpoint_verified(state: JobState, event: CheckpointVerified) -> Step:
    """A verified checkpoint beyond any before in this run is progress: it clears the budget of what failed before it was made.

    One that is verified between two attempts counts when it is chosen (core/start.py): then it is known which failures came before it.
    """
    found, is_own = event.checkpoint, event.made_in == state.attempt.number > 0
    state = planning.with_verified(state, found, is_own=is_own)
    report: tuple[Action, ...] = ()
    if is_own:
        state, report = resumption.reported(resumption.with_save(state, found))
    if state.run.verified[-1].path != found.path:
        return state, report
    run = state.run
    if state.stage is not Stage.RUNNING:
        return replace(state, run=replace(run, newest=found)), report
    if found.step is not None:
        run = planning.with_saved(run, found.step, event.made_in or state.attempt.number)
    return replace(state, run=replace(run, newest=found)), report


def on_start_ceiling_passed(state: JobState, event: StartCeilingPassed) -> Step:
    """Ranks without a heartbeat have no step and no phase; report that once."""
    names = ", ".join(str(r) for r in event.uninstrumented)
    return state, (
        PrintMessage(
            "info",
            f"rank {names}: no heartbeat, so its progress is unknown and a hang of it is not seen (docs/explanation/instrumentation.md)",
        ),
    )


def on_attempt_ended(state: JobState, event: AttemptEnded) -> Step:
    """No rank is left."""
    over_t = event.t if state.attempt.over_t is None else state.attempt.over_t
    state = replace(state, attempt=replace(state.attempt, ended=True, over_t=over_t))
    if state.stage is Stage.STOPPING:
        return finish_stopped(state, event.outcome)
    if state.stage is Stage.TEARDOWN:
        # one that was to be ended for its node's health may have come to its own end first; who leaves with 0 at our stop has not
        well = not state.attempt.ended_for and event.outcome == "succeeded" and not any(death.failed for death in state.attempt.deaths)
        return done(state) if well else core_failure.judge_if_ready(state, event.t)
    if state.stage is Stage.ADMITTING:
        return start.select(replace(state, run=replace(state.run, reason="membership")), event.t)
    runs = state.stage in {Stage.STARTING, Stage.RUNNING}
    if runs and event.outcome == "succeeded":
        return _hidden(state, event) if event.hidden else done(state)
    return core_failure.tear_down(state, event.t, None, "the attempt ended without a reason") if runs else (state, ())  # a second report


def done(state: JobState) -> Step:
    """End the run well."""
    closing: tuple[Action, ...] = ()
    if state.attempt.number > 1 and state.attempt.began_as is None:  # no step was ever seen: it is over before that could be reported
        state, closing = resumption.reported(state, over=True)
    if state.run.incident is not None:
        withdrawn = bool(state.attempt.eviction) and state.run.incident.opened_t > state.attempt.began_t
        state, over = _closed(state, state.run.incident, "withdrawn" if withdrawn else "resolved")
        closing += over
    return replace(state, stage=Stage.ENDED, run=replace(state.run, incident=None, exit_code=0)), (*closing, Finish(0, "done"))


def _hidden(state: JobState, event: AttemptEnded) -> Step:
    """End the run with the command's 0, and report the rank that failed: the command hid it (EndKind.HIDDEN)."""
    verdict = classify(event.hidden)
    state = replace(state, attempt=replace(state.attempt, evidence=event.hidden), run=replace(state.run, hidden=verdict.summary))
    plan = Plan(PlanKind.STOP, HIDDEN, UNHIDE, "hidden", 0)
    message = PrintMessage("warning", f"the command left with 0, but {verdict.summary}, and nothing trained after that")
    state, opening = start.with_incident(state, event.t, verdict.summary, verdict.rank, (verdict, plan))
    state, actions = start.give_up(state, verdict, plan)
    return state, (*opening, message, *actions)


def _closed(state: JobState, incident: Incident, outcome: str) -> Step:
    """Close the incident of a run that ends. One that is withdrawn was no failure, so it is no loss."""
    if outcome == "withdrawn":
        state = replace(state, run=replace(state.run, losses=losses.withdrawn(state.run.losses, incident.opened_t)))
    return state, (CloseIncident(incident.number, state.attempt.number, outcome, state.attempt.progress.step),)


def finish_stopped(state: JobState, outcome: str = "") -> Step:
    """Leave with 75 where the job is to go on later, else with 128+n: nothing failed, a stop was requested.

    It goes on later after a scheduler's notice, and where the ranks saved on request, or ended well by themselves after one; never where a
    person ended it by INT, before or after that. A job that came to its own end before any request is done.
    """
    stop = state.run.stop
    if stop is not None and stop.ranks_not_yet_signalled and not stop.save_requested and outcome == "succeeded":
        return done(state)
    if stop is not None and stop.count == 1 and _may_have_saved(state, stop, outcome):
        return _find_save(state, stop)
    unanswered = stop is not None and (
        (stop.rank_failed and state.attempt.evidence is None) or (stop.save_search and not stop.save_search_done)
    )
    if stop is not None and stop.count == 1 and unanswered:
        return state, ()  # awaited: why a rank failed, and whether one saved
    signum = stop.signum if stop else SIGTERM
    saved = state.attempt.saved or (stop is not None and stop.save_requested and outcome == "succeeded")
    code = planning.REQUEUE if signum != SIGINT and (saved or signum in NOTICES) else 128 + signum
    reason = (
        "stopped by a signal" + (", to go on later" if code == planning.REQUEUE else "") + ("; the checkpoint is made" if saved else "")
    )
    closing: tuple[Action, ...] = ()
    if stop is not None and stop.rank_failed and state.run.incident is not None:
        verdict = classify(state.attempt.evidence or ())
        what = f"a rank failed while it was asked to {'save' if stop.save_requested else 'train on'}"
        why = f"{reason}; {what}" if saved else f"{reason}; {what}, and nothing newer is saved"
        plan = Plan(PlanKind.STOP, why, "the next start goes on from the last good checkpoint", "stop", code)
        closing = (
            ReportDecision(state.run.incident.number, state.attempt.number, verdict, plan, state.attempt.progress.step),
            CloseIncident(
                state.run.incident.number, state.attempt.number, "resolved" if saved else "given_up", state.attempt.progress.step
            ),
        )
    elif state.run.incident is not None:
        # ranks that died of the same signal a moment before it came to us have not failed
        withdrawn = state.attempt.awaits_own_signal and state.run.incident.opened_t > state.attempt.began_t
        state, closing = _closed(state, state.run.incident, "withdrawn" if withdrawn else "given_up")
    return replace(state, stage=Stage.ENDED, run=replace(state.run, incident=None, exit_code=code)), (*closing, Finish(code, reason))


def _may_have_saved(state: JobState, stop: StopRequest, outcome: str) -> bool:
    """Whether the disk may hold a save that no rank reported: a script that saves on request may save by itself at TERM too."""
    saves = state.attempt.save_on_request and stop.signum != SIGINT and (stop.save_requested or state.attempt.awaits_own_signal)
    return saves and not state.attempt.saved and outcome != "succeeded" and not stop.save_search


def _find_save(state: JobState, stop: StopRequest) -> Step:
    over_t = stop.first_t if state.attempt.over_t is None else state.attempt.over_t
    left_s = state.run.policy.stop.deadline_s if stop.left_s is None else stop.left_s
    left_s -= max(0.0, over_t - (stop.left_from_t or stop.first_t))
    deadline_s = max(LEAST_SEARCH_S, left_s - OUR_END_S)
    state = replace(state, token=state.token + 1, run=replace(state.run, stop=replace(stop, save_search=True)))
    search = FindSave(state.attempt.number, min(stop.first_t, over_t), deadline_s)
    return state, (search, SetTimer("find", state.token, deadline_s + LEAST_SEARCH_S))


def on_journal_degraded(state: JobState, event: JournalDegraded) -> Step:
    """Go on in memory, and report it."""
    if state.journal_degraded:
        return state, ()
    return replace(state, journal_degraded=True), (
        PrintMessage("warning", f"journal degraded: {event.text}; decisions are kept in memory until it answers"),
    )


def on_journal_recovered(state: JobState, event: JournalRecovered) -> Step:
    """All of it is on disk again."""
    del event
    return replace(state, journal_degraded=False), (
        PrintMessage("info", "journal recovered: everything is on disk"),
    ) if state.journal_degraded else ()
