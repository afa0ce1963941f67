"""Keeps the global batch of a run when nodes come or go, and with them ranks (docs/explanation/global-batch.md).

`Run.batch_ranks` are those with which the values of the command, and of the plans of the run, make its global batch: those of its first
attempt, with the nodes that left it for the node check, or of the one that a plan about the batch was made for. An attempt with other
ranks gets values of its own (HeldBatch.values), computed from these each time. So they come back with the nodes, and no micro-batch is
greater than one that the run had before:

    3 ranks × 8 × 1 = 24     as the command says                         batch_ranks 3
    2 ranks × 6 × 2 = 24     a node is lost
    2 ranks × 4 × 3 = 24     CUDA out of memory: a plan of the run        batch_ranks 2
    3 ranks × 4 × 2 = 24     the node is back

The batch is computed by replicas (core/nodes/replicas.py): ranks that hold one copy of the model together count as one.
The node that hands the run's state to the others decides, for all of them, what the ranks that have met are given.
"""  # noqa: RUF002 (the sign)

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.setup_model import HeldBatch
from supervisor.core.values import replace
from supervisor.knobs import batch
from supervisor.strategies.memory import BATCHNORM, batch_options
from supervisor.strategies.situation import BATCH_KNOBS, enabled_knob, overridden

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.core.model import Knob, Plan, Policy
    from supervisor.core.state import JobState, Run

#: nodes.batch: the global batch is left to the script; no attempt begins with another one.
IGNORE, REQUIRE = "ignore", "require"


def held(state: JobState, knobs: Iterable[Knob]) -> HeldBatch:
    """Return how the ranks that have met keep the global batch of the run. `knobs`: with the run's own values."""
    run, ranks = state.run, state.attempt.met_ranks
    base, known = run.batch_ranks or ranks, tuple(knobs)
    if run.policy.node_rules.batch == IGNORE or ranks == run.last_ranks == base:
        return HeldBatch(base)
    size, accum = (enabled_knob(known, name, run.policy) for name in ("batch_size", "grad_accum"))
    asked = _asked(run.policy, size, accum, base)
    if asked is None:
        return HeldBatch(base)
    if ranks == base:
        return HeldBatch(base, text=_again(base, asked) if run.last_ranks else "")
    if size is None or accum is None or isinstance(asked, str):
        return _other(state, base, str(asked))
    return _with_others(state, base, size, accum, asked)


def _asked(policy: Policy, size: Knob | None, accum: Knob | None, base: int) -> batch.Batch | str | None:
    """Return the global batch of the run, or why it is not known; None where the program itself divides it by its ranks."""
    is_derived = accum is not None and accum.counts == "derived"
    if size is not None and size.counts == "global" and (accum is None or is_derived):
        return None
    if size is None or accum is None:
        how = f"{batch_options(policy.likely)} holds it" if policy.batch_change else "--no-batch-change forbids to hold it"
        return f"it changes with the ranks, unless the script divides a fixed one: {how}"
    asked = batch.read(size, accum, base // policy.replica_size)
    return None if isinstance(asked, batch.Batch) and asked.total is None else asked


def _with_others(state: JobState, base: int, size: Knob, accum: Knob, asked: batch.Batch) -> HeldBatch:
    """Return how another number of ranks makes the batch that is asked for, or comes nearest to it."""
    run, ranks = state.run, state.attempt.met_ranks
    new = batch.for_world(asked, ranks // run.policy.replica_size, drift=True)
    if isinstance(new, str):
        return _other(state, base, new)
    changed = batch.changes(new, size, accum)
    values, figures = tuple((change.knob, change.new) for change in changed), "; ".join(f"{c.how} {c.old} → {c.new}" for c in changed)
    figures = f" ({figures})" if figures else ""
    if new.total != asked.total:
        return _other(state, base, f"{asked} is not a multiple of them; the nearest is {new}{figures}", values)
    norm = f"; {BATCHNORM}" if run.batchnorm and new.micro != asked.micro else ""
    text = f"the global batch stays: {asked}, now {new}{figures}{norm}"
    return HeldBatch(base, values, text if ranks != run.last_ranks else "")


def _again(base: int, asked: batch.Batch | str) -> str:
    """Return that the nodes are back, and the values that the run had with them."""
    figures = f": {asked}" if isinstance(asked, batch.Batch) else ""
    return f"{base} ranks again, with the global batch and the values that they had{figures}"


def _other(state: JobState, base: int, why: str, values: tuple[tuple[str, str], ...] = ()) -> HeldBatch:
    """Return that the attempt would train with another global batch. It is reported once for a number of ranks."""
    run, ranks = state.run, state.attempt.met_ranks
    is_refused = run.policy.node_rules.batch == REQUIRE
    text = f"the global batch is not held, {base} → {ranks} ranks: {why}" if is_refused or ranks != run.last_ranks else ""
    return HeldBatch(base, values, text, kept=False, refused=is_refused)


def with_changes(state: JobState, plan: Plan) -> Run:
    """Return the run with the changes of a plan. Its change of the batch holds with the ranks of the attempt that it is about.

    How the batch is made with another number of ranks is computed once these have met, and not by the plan that leaves a rank out.
    """
    run, attempt = state.run, state.attempt
    of_batch = [change for change in plan.changes if change.knob in BATCH_KNOBS]
    if not of_batch or not attempt.members or not attempt.met_ranks or run.policy.node_rules.batch == IGNORE:
        return replace(run, overrides=overridden(run.overrides, plan.changes))
    if plan.nproc is not None:
        return replace(run, overrides=overridden(run.overrides, tuple(c for c in plan.changes if c not in of_batch)))
    as_run = dict(run.overrides) | {knob: value for knob, value in attempt.overrides if knob in BATCH_KNOBS}
    return replace(run, overrides=overridden(tuple(as_run.items()), plan.changes), batch_ranks=attempt.met_ranks)
