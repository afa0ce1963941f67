"""When the coordinator counts a node as lost.

| the node | is lost |
|---|---|
| its guardian says that it is gone | at once, when its connection is closed |
| its connection is closed, or leads nowhere, and the attempt has ended | after `closed_after_end_s`: nothing healthy is left to protect |
| the same while the attempt runs | after `closed_s`, but only when no other rank ends a step: while steps are made, its ranks live |
| the same where no member can be reached: the host takes no part in the attempt | after `wait_s`, and a minute for the end of its ranks |
| it is connected and silent: stopped, or its disk hangs | after `silent_s` |
| it has not come back to a coordinator that began after the attempt | after `rejoin_s` |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.values import Struct

if TYPE_CHECKING:
    from supervisor.cluster.model import ClusterRules, SharedAttempt
    from supervisor.cluster.records import CoordinatorState, NodeRecord

#: A usual step may take so many times its time before it is treated as missing.
_USUAL_STEPS = 2.0


class _Steps(Struct, frozen=True):
    """The members' knowledge of each other's steps.

    limit_s: so long no step ends where the ranks do not live. ago_s: for how long none has ended, by the last beats of those that are
    connected, None: they do not see any. reached: whether any is connected.
    """

    limit_s: float
    ago_s: float | None
    reached: bool


def missing_after_s(rules: ClusterRules, *step_s: float | None) -> float:
    """Return after how long no step shows that the ranks do not live, by their usual steps: the same to the coordinator and to a node."""
    return max(rules.closed_s, *(_USUAL_STEPS * (usual_s or 0.0) for usual_s in step_s))


def losses(state: CoordinatorState, attempt: SharedAttempt) -> dict[str, str]:
    """Return the members of the open attempt that are lost now, and why. The host is not lost at its own coordinator."""
    live = state.live(attempt)
    steps = _steps(state, live)
    return {node: why for node in live if node != state.host and (why := _loss(state, node, steps))}


def _steps(state: CoordinatorState, live: tuple[str, ...]) -> _Steps:
    records = [state.nodes[node] for node in live if node in state.nodes]
    connected = [record for record in records if record.closed_t is None]
    limit_s = missing_after_s(state.rules, None, *(record.step_s for record in records))
    ago_s = min((record.stepped_s for record in connected if record.stepped_s is not None), default=None)
    return _Steps(limit_s, ago_s, bool(connected))


def _loss(state: CoordinatorState, node: str, steps: _Steps) -> str:
    """Return why a member is lost, "" while it is not."""
    rules, record = state.rules, state.nodes.get(node)
    if record is not None and record.closed_t is None:
        return f"silent for {rules.silent_s:g} s, though it can be reached" if state.t - record.heard_t > rules.silent_s else ""
    if node in state.gone_nodes:
        return "its supervise died, and its processes are ended"
    runs = state.running_attempt is not None
    closed_t, limit_s = state.began_t, rules.rejoin_s
    if record is not None and record.closed_t is not None:
        closed_t, limit_s = record.closed_t, rules.closed_s if runs else rules.closed_after_end_s
    closed_s = state.t - closed_t
    if closed_s <= limit_s or (runs and _may_train(state, record, closed_s, steps)):
        return ""
    return f"it has not answered for {limit_s:g} s"


def _may_train(state: CoordinatorState, record: NodeRecord | None, closed_s: float, steps: _Steps) -> bool:
    """Whether the ranks of a node that cannot be reached may live.

    A node says in each beat how long ago its ranks ended a step; a fact that it does not repeat is no longer known. The node that cannot be
    reached ends its ranks by the same rule, so that its last message counts too. Where no member can be reached nobody knows: they may
    train on together, and each ends its ranks after `wait_s` without a coordinator.
    """
    if not steps.reached:
        return closed_s <= state.rules.wait_s + state.rules.silent_s
    own_s = None if record is None or record.stepped_s is None else state.t - record.beat_t + record.stepped_s
    return any(ago_s is not None and ago_s < steps.limit_s for ago_s in (own_s, steps.ago_s))
