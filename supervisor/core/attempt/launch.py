"""From the launcher's first word to the ranks: torch's reports, the program that will run, the ranks that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.actions import PrintMessage
from supervisor.core.attempt import start
from supervisor.core.failure import planning
from supervisor.core.nodes import replicas
from supervisor.core.state import Stage
from supervisor.core.values import replace
from supervisor.strategies.situation import overridden

if TYPE_CHECKING:
    from supervisor.core.events import LauncherFellBack, LauncherStarted
    from supervisor.core.state import JobState, Step

#: Printed if several nodes run without supervise's agents.
NO_AGREEMENT_WARNING = (
    "several nodes without supervise's agents cannot agree on a checkpoint: each node chooses for itself, and nothing compares what they"
    " resume from"
)


def on_launcher_started(state: JobState, event: LauncherStarted) -> Step:
    """Take over how torch parsed its command line."""
    cap = event.max_restarts if event.max_restarts is not None else state.run.policy.max_restarts
    size, group = state.run.policy.replica_size, state.run.policy.node_group
    of_torch = replicas.node_group(event.nproc, size) if event.nproc else group
    policy = replace(state.run.policy, max_restarts=cap, nodes=event.nodes, least_nodes=event.least_nodes, node_group=of_torch)
    # the nodes that the launcher before this one met
    state = replace(
        state.with_run(policy=policy), attempt=replace(state.attempt, members=()) if state.stage is Stage.STARTING else state.attempt
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
    state = state.with_run(nproc=fewer.nproc, overrides=overridden(state.run.overrides, fewer.changes))
    message = PrintMessage("warning", f"{fewer.nproc} of {wanted} ranks, because GPUs are out of use; {'; '.join(fewer.notes)}")
    state, actions = start.begin(state, event.t, state.attempt.resume)  # under a new number: of this one no rank was begun
    return state, (message, *actions)


def on_launcher_fell_back(state: JobState, event: LauncherFellBack) -> Step:
    """Continue with stock torchrun under us."""
    message = PrintMessage("warning", f"torchrun is run as a plain command and restarted from outside: {event.reason}")
    gathers, several = state.attempt.awaits_agreement, state.run.policy.nodes > 1
    state = state.with_run(policy=replace(state.run.policy, launcher=event.launcher)).with_attempt(awaits_agreement=False, members=())
    alone = (PrintMessage("warning", NO_AGREEMENT_WARNING),) if several else ()
    state, actions = start.select(state, event.t) if gathers else (state, ())
    return state, (message, *alone, *actions)
