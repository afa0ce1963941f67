"""Changes by supervise, or by the nodes that met, since an attempt that is known to start: they are suspected before the user's program.

`Run.starts_with` is what the newest attempt ran with that made a step; until one did, what the run's first attempt ran with, which is the
user's own command. strategies/own_change.py answers a failure before the first step of an attempt that differs from it. What its plan
takes back is not tried again in this run, and neither are fewer nodes than it waits for, or fewer ranks than it gave back.

A loader that says that another number of ranks saved proves it (`resized`): then it does not matter how many attempts lie between, what
else failed in them, and whether it failed before the first step or at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.remedies import says_other_ranks
from supervisor.core.model import Change, Launcher
from supervisor.core.setup_model import OwnChange, Setup
from supervisor.core.values import replace
from supervisor.strategies.own_change import NAME
from supervisor.strategies.situation import BATCH_KNOBS, UNSET

if TYPE_CHECKING:
    from supervisor.core.model import FailureVerdict, Plan
    from supervisor.core.state import JobState, Run


def of(state: JobState) -> Setup:
    """Return the setup of the attempt. A change that only holds the global batch with other ranks is not a change of its own."""
    run, attempt = state.run, state.attempt
    nodes = max(len(attempt.members), 1)
    return Setup(attempt.number, run.overrides, nodes, attempt.world_size or attempt.met_ranks, attempt.visible_gpus, attempt.program)


def own_change(state: JobState) -> OwnChange | None:
    """Return how the attempt differs from a setup that is known to start; None where nothing does, or the program may be another one."""
    before, now = state.run.starts_with, of(state)
    if not 0 < before.attempt < now.attempt or not state.attempt.same_program:
        return None
    back = _back(state, dict(before.overrides), dict(now.overrides))
    other_ranks = (before.nodes, before.ranks) != (now.nodes, now.ranks) and bool(before.ranks and now.ranks)
    other_gpus = now.nodes == 1 and now.gpus != before.gpus
    if not back and not other_ranks and not other_gpus:
        return None
    return OwnChange(before, now, trained=state.run.trained_in > 0, changes=back)


def _back(state: JobState, before: dict[str, str], now: dict[str, str]) -> tuple[Change, ...]:
    """Return the changes that take back what plans set since then: to the earlier plan's value, else to the command's own."""
    rows = []
    knobs = {knob.name: knob for knob in state.run.policy.knobs}
    for name in dict.fromkeys((*now, *before)):
        knob = knobs.get(name)
        own, how = ("", name.removeprefix("env:")) if knob is None else (knob.value, knob.how)
        old, new = now.get(name) or own, before.get(name) or own
        if old != new:
            rows.append(Change(name, old, new or UNSET, how))
    return tuple(rows)


def resized(state: JobState, verdict: FailureVerdict) -> OwnChange | None:
    """Return how the attempt's ranks differ from those that saved, if its loader says that they do, and this is not the user's doing.

    How many saved: what the loader names, which may count ranks or replicas; else as many as trained last, else as the command has.
    """
    now = of(state)
    known = _ranks_before(state, now)
    if not says_other_ranks(verdict) or not now.ranks or (known.nodes, known.ranks) == (now.nodes, now.ranks):
        return None
    facts = dict(verdict.facts)
    saved, current = (int(text) if (text := facts.get(name, "")).isdigit() else 0 for name in ("saved", "current"))
    ranks = saved * now.ranks // current if current and now.ranks % current == 0 else known.ranks
    nodes = -(-ranks * known.nodes // known.ranks)
    back = _back(state, dict(known.overrides), dict(now.overrides))
    changes = tuple(change for change in back if change.knob in BATCH_KNOBS)
    return OwnChange(replace(known, ranks=ranks, nodes=nodes), now, trained=state.run.trained_in > 0, changes=changes)


def _ranks_before(state: JobState, now: Setup) -> Setup:
    """Return what ran before GPUs or nodes were taken from the run, or given back to it; `now` where none was."""
    run, started = state.run, state.run.starts_with
    trained = run.trained_in > 0 and 0 < started.attempt < now.attempt and started.ranks > 0
    if trained and (started.nodes, started.ranks) != (now.nodes, now.ranks):
        return started
    if run.policy.launcher is Launcher.ELASTIC:
        lacking = (run.command_nproc or len(state.gpus)) - run.nproc if run.nproc else 0
    else:  # the command has a rank for each GPU that it sees
        lacking = len(state.gpus) - len(state.attempt.visible_gpus) if state.attempt.visible_gpus else 0
    nodes = max(run.policy.nodes, now.nodes)
    return replace(now, overrides=started.overrides, nodes=nodes, ranks=(now.ranks + max(lacking, 0)) * nodes // now.nodes)


def forgotten(run: Run) -> Run:
    """Return the run whose user changed what plans may change: its setup must prove its start again. Its program stays known."""
    return replace(run, starts_with=Setup(program=run.starts_with.program), unworkable=(), least_nodes=0, all_ranks=False)


def learned(run: Run, verdict: FailureVerdict, plan: Plan) -> Run:
    """Return the run with what a failure and its plan show of the changes before it.

    The same failure without a change shows that the change was not its cause: it may be tried again.
    """
    if plan.strategy == NAME:
        # a batch that was shared anew among fewer ranks is not at fault
        taken_back = () if plan.all_ranks else tuple((change.knob, change.old) for change in plan.changes)
        unworkable = (*run.unworkable, *((taken_back,) if taken_back else ()))
        least_nodes = max(run.least_nodes, plan.least_nodes)
        return replace(run, unworkable=unworkable, least_nodes=least_nodes, all_ranks=run.all_ranks or plan.all_ranks)
    if run.unworkable and any(f.ladder_step == NAME and f.fingerprint == verdict.fingerprint for f in run.failures):
        return replace(run, unworkable=())
    return run
