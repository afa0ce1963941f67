"""What supervise, or the nodes that met, changed since an attempt that is known to start: that is suspected before the user's program.

`Run.starts_with` is what the newest attempt ran with that made a step; until one did, what the run's first attempt ran with, which is the
user's own command. strategies/own_change.py answers a failure before the first step of an attempt that differs from it. What its plan
takes back is not tried again in this run, and neither is a smaller number of nodes than the one that it waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Change, OwnChange, Setup
from supervisor.core.values import replace
from supervisor.strategies.own_change import NAME
from supervisor.strategies.situation import UNSET

if TYPE_CHECKING:
    from supervisor.core.model import Plan, Verdict
    from supervisor.core.state import JobState, Run


def of(state: JobState) -> Setup:
    """Return what the attempt runs with. What only holds the global batch with other ranks is no change of its own."""
    run, attempt = state.run, state.attempt
    nodes = max(len(attempt.members), 1)
    return Setup(attempt.number, run.overrides, nodes, attempt.world_size or attempt.met_ranks, attempt.visible_gpus, attempt.program)


def own_change(state: JobState) -> OwnChange | None:
    """Return how the attempt differs from what is known to start; None where nothing does, or the program may be another one."""
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


def forgotten(run: Run) -> Run:
    """Return the run whose user changed what plans may change: what it starts with is to be seen again. Its program stays known."""
    return replace(run, starts_with=Setup(program=run.starts_with.program), unworkable=(), least_nodes=0)


def learned(run: Run, verdict: Verdict, plan: Plan) -> Run:
    """Return the run with what a failure and its plan show of the changes before it.

    The same failure without a change shows that the change was not its cause: it may be tried again.
    """
    if plan.strategy == NAME:
        taken_back = tuple((change.knob, change.old) for change in plan.changes)
        unworkable = (*run.unworkable, *((taken_back,) if taken_back else ()))
        return replace(run, unworkable=unworkable, least_nodes=max(run.least_nodes, plan.least_nodes))
    if run.unworkable and any(f.rung == NAME and f.fingerprint == verdict.fingerprint for f in run.failures):
        return replace(run, unworkable=())
    return run
