"""When the coordinator counts a node as lost.

| the node | is lost |
|---|---|
| its guardian says that it is gone | at once, when its connection is closed |
| its connection is closed, or leads nowhere, and the attempt has ended | after `closed_after_end_s`: nothing healthy is left to protect |
| the same while the attempt runs | after `closed_s`, but only when no other rank ends a step: while steps are made, its ranks live |
| it is connected and silent: stopped, or its disk hangs | after `silent_s` |
| it has not come back to a coordinator that began after the epoch | after `rejoin_s` |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.values import Struct

if TYPE_CHECKING:
    from supervisor.cluster.coordinator import CoordinatorState

#: A usual step may take so many times its time before it counts as missing: to the nodes, too.
USUAL_STEPS = 2.0


class NodeRecord(Struct, frozen=True):
    """What the coordinator knows of a node that joined.

    heard_t: when its last message came. closed_t: since when its connection is closed, None: it is open. beat_t, standing, stepped_s,
    step_s: of its last beat.
    """

    heard_t: float
    closed_t: float | None = None
    beat_t: float = 0.0
    standing: str = ""
    stepped_s: float | None = None
    step_s: float | None = None


def loss(state: CoordinatorState, node: str) -> str:
    """Return why a member of the open epoch is lost, "" while it is not."""
    rules, record = state.rules, state.nodes.get(node)
    if record is not None and record.closed_t is None:
        return f"silent for {rules.silent_s:g} s, though it can be reached" if state.t - record.heard_t > rules.silent_s else ""
    if node in state.gone:
        return "its supervise died, and its processes are ended"
    runs = state.running_epoch is not None
    closed_t, limit_s = state.began_t, rules.rejoin_s
    if record is not None and record.closed_t is not None:
        closed_t, limit_s = record.closed_t, rules.closed_s if runs else rules.closed_after_end_s
    closed_s = state.t - closed_t
    if closed_s <= limit_s or (runs and _steps_are_made(state, node, closed_s)):
        return ""
    return f"it cannot be reached for {limit_s:g} s"


def _steps_are_made(state: CoordinatorState, node: str, closed_s: float) -> bool:
    """Whether the ranks of a node that cannot be reached may live, as far as the other nodes know.

    A node says in each beat how long ago its ranks ended a step; what it does not say later, it does not know. The node itself stops its
    ranks by the same rule, so that what it said last counts too. Where no member can be reached nobody knows: each of them stops after
    `wait_s` without a coordinator.
    """
    epoch, rules = state.memory.epoch, state.rules
    members = () if epoch is None else state.live(epoch)
    records = {name: state.nodes[name] for name in members if name in state.nodes}
    limit_s = max((rules.closed_s, *(USUAL_STEPS * (record.step_s or 0.0) for record in records.values())))
    others = [other for name, other in records.items() if name != node and other.closed_t is None]
    if not others:
        return closed_s <= rules.wait_s + rules.silent_s
    own = records.get(node)
    own_s = None if own is None or own.stepped_s is None else state.t - own.beat_t + own.stepped_s
    return any(stepped_s is not None and stepped_s < limit_s for stepped_s in (own_s, *(other.stepped_s for other in others)))
