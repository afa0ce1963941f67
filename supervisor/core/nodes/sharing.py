"""The ends of a shared attempt on this node: sent to the others, and reported. core/nodes/joint_decision.py has the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core import deadlines
from supervisor.core.actions import EndForAll, ReportAttempt, SetTimer
from supervisor.core.model import Evidence, JobDecision
from supervisor.core.nodes import replicas
from supervisor.core.state import Stage

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.model import FailureVerdict, Plan
    from supervisor.core.state import JobState, Run, Step

#: The evidence of a node whose supervisor came back after its ranks had died with it.
SUPERVISE_DIED = "supervise_died"


def node_name(node: str, members: tuple[str, ...]) -> str:
    """Return what people call a node: its host, and its number among those that met."""
    host = node.partition("/")[0]
    return f"{host}:{members.index(node)}" if node in members else host


def end(state: JobState, kind: str, text: str) -> tuple[Action, ...]:
    """Return the action that ends the attempt on the other nodes too; nothing where another one did, or there are none."""
    attempt = state.attempt
    return (EndForAll(attempt.number, kind, text),) if attempt.is_shared and not attempt.ended_by else ()


def least_nodes(run: Run) -> int:
    """Return with how many nodes an attempt may begin: as the command says, and not with so few as are known not to start. 0: unknown.

    They are in whole groups where a replica has several nodes (core/nodes/replicas.py).
    """
    return replicas.up(max(run.policy.least_nodes, min(run.least_nodes, run.policy.nodes)), run.policy.node_group)


def needed_nodes(run: Run) -> int:
    """Return how many nodes an attempt waits for: `least_nodes`, else as many as the command names."""
    return least_nodes(run) or run.policy.nodes


def report(state: JobState) -> Step:
    """Send what this node saw, and await the decision."""
    state = state.entering(Stage.FOLLOWING)
    wait = SetTimer("decision", state.token, state.run.policy.node_rules.wait_s)
    return state, (ReportAttempt(state.attempt.number), wait)


def take_over(state: JobState, t: float, text: str) -> Step:
    """End and report an attempt whose ranks died with the supervisor before this one."""
    ending = end(state, "failure", text)
    over_t = t if state.attempt.over_t is None else state.attempt.over_t
    hang = () if state.attempt.hang is None else (state.attempt.hang.evidence(over_t),)
    evidence = (*(state.attempt.evidence or ()), *hang, Evidence("launcher", SUPERVISE_DIED, text, t=over_t))
    state = state.with_attempt(ended=True, evidence=evidence, awaits_agreement=False, awaits_own_signal=False)
    state, reporting = report(state)
    return state, (*ending, *reporting)


def want_stop(state: JobState, verdict: FailureVerdict, plan: Plan) -> Step:
    """End a shared attempt that this node cannot begin: a person has to act, on all nodes."""
    wanted = JobDecision(verdict, plan, step=state.attempt.progress.step)
    ending = end(state, "failure", verdict.summary)
    state = state.with_attempt(stop_wanted=wanted, evidence=(), awaits_agreement=False).entering(Stage.TEARDOWN)
    stop = deadlines.stop_ranks(state, "failure", verdict.summary)
    return state, (*ending, stop, deadlines.teardown_timer(state))
