"""The control store: rows that are written once, the numbers of the epochs, and which members are lost.

`step(state, message) -> (state, answers)`, without a clock and without IO. The caller carries the answers out in their order: `KeepRows`
comes first. One store serves one job.

A member of the newest epoch is lost if its lease runs out: no message for `lease_s`, or its connection closed for
`disconnect_timeout_s`. Only the store counts, by one clock. Where its own ticks stand still for longer than `suspension_s`, it was
suspended itself, and that time counts for nobody.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import assert_never

from supervisor.cluster.messages import (
    KnownNode,
    KnownNodes,
    MeetNodes,
    NodeBeat,
    NodeHello,
    ReadReports,
    StoreReports,
    StoreRows,
    ToNode,
    ToStore,
    WriteRow,
)
from supervisor.cluster.model import PLAIN_DECISIONS, VOID, ClusterDecision, ClusterRules, Epoch, newest_epoch, nodes_of

#: Meetings that are remembered: nodes whose agents fail again and again meet under a new token each time.
_KEPT_MEETINGS = 16
#: Epochs whose rows are kept, besides the newest.
_KEPT_EPOCHS = 1
#: Kinds of the newest epoch's rows that outlive the store. Not who is lost: the next store gives all members time to come back.
_KEPT_KINDS = ("epoch", "end", "decision")


@dataclass(frozen=True, slots=True)
class FromNode:
    """A message of a node."""

    t: float
    message: ToStore


@dataclass(frozen=True, slots=True)
class NodeClosed:
    """The connection of a node has ended."""

    t: float
    node: str


@dataclass(frozen=True, slots=True)
class StoreTick:
    """Time has passed: several times in a second."""

    t: float


@dataclass(frozen=True, slots=True)
class SendToNode:
    """Send this to a node."""

    node: str
    message: ToNode


@dataclass(frozen=True, slots=True)
class KeepRows:
    """Keep these rows for good, in place of those kept so far, before what follows is sent."""

    rows: tuple[tuple[str, str], ...]


StoreInput = FromNode | NodeClosed | StoreTick
StoreOutput = SendToNode | KeepRows


@dataclass(frozen=True)
class StoreState:
    """All that a store knows.

    name: of this start of it. rows: in the order of their revision, of which the first is `first`. connected: the revision that was sent to
    each connected node. last_message: when the last message of each node came. closed: when the connection of each ended. began_t: since
    when the newest epoch is known here, or the store is. young: that epoch is older than this start of the store. meetings: by token, the
    message of each node that takes part; numbered: the tokens of those that got their number. standings: of each node's last beat.
    """

    name: str
    host: str
    rules: ClusterRules
    t: float
    rows: Mapping[str, str]
    connected: Mapping[str, int]
    last_message: Mapping[str, float]
    closed: Mapping[str, float]
    standings: Mapping[str, str]
    first: int = 0
    epoch: Epoch | None = None
    began_t: float = 0.0
    young: bool = False
    meetings: tuple[tuple[str, tuple[MeetNodes, ...]], ...] = ()
    numbered: tuple[str, ...] = ()

    @property
    def revision(self) -> int:
        """How many rows there were so far."""
        return self.first + len(self.rows)

    @property
    def is_open(self) -> bool:
        """Whether nothing is decided about the newest epoch."""
        return self.epoch is not None and f"decision/{self.epoch.number}" not in self.rows

    @property
    def is_over(self) -> bool:
        """Whether the job is over."""
        return self.epoch is not None and not self.is_open and ClusterDecision.read(self.rows[f"decision/{self.epoch.number}"]).is_final


def new_store(  # noqa: PLR0913  who serves it, since when, with what
    name: str, host: str, rules: ClusterRules, t: float, kept: tuple[tuple[str, str], ...] = (), *, since_t: float | None = None
) -> StoreState:
    """Return the store as it begins, with the rows that an earlier one kept.

    since_t: no earlier store on this host, and so no rank that it let start, lives since then; by default since now.
    """
    state = StoreState(name, host, rules, t, {}, {}, {}, {}, {}, began_t=t if since_t is None else since_t)
    state = _with_epoch(changed(state, rows=dict(kept)), young=True)
    return state if state.epoch is None else _with_row(state, f"kept/{state.epoch.number}", "")


def step(state: StoreState, message: StoreInput) -> tuple[StoreState, tuple[StoreOutput, ...]]:
    """Return the next state and what is to be done. Raises nothing."""
    before = state
    state, answers = _taken(state, message)
    state = _with_number(_with_lost(state))
    if state.rows is before.rows:
        return state, answers
    kept = _kept(state)
    state, rows = _with_rows_sent(state)
    return state, (*((KeepRows(kept),) if kept != _kept(before) else ()), *answers, *rows)


def _with_rows_sent(state: StoreState) -> tuple[StoreState, tuple[StoreOutput, ...]]:
    """Send every connected node the rows that it was not sent."""
    count = state.revision
    behind = [node for node, sent in state.connected.items() if sent < count]
    rows = tuple(SendToNode(node, _rows_since(state, state.connected[node])) for node in behind)
    return changed(state, connected={**state.connected, **dict.fromkeys(behind, count)}), rows


def _taken(state: StoreState, given: StoreInput) -> tuple[StoreState, tuple[StoreOutput, ...]]:  # noqa: PLR0911  a row for each kind
    if isinstance(given, StoreTick):
        pause_s = given.t - state.t
        state = changed(state, t=given.t)
        return (_without_pause(state, pause_s) if pause_s > state.rules.suspension_s else state), ()
    if isinstance(given, NodeClosed):
        connected = {node: sent for node, sent in state.connected.items() if node != given.node}
        return changed(state, connected=connected, closed={**state.closed, given.node: given.t}), ()
    message = given.message
    node = message.node
    newest_t = max(given.t, state.last_message.get(node, given.t))
    closed = {name: t for name, t in state.closed.items() if name != node}
    state = changed(state, last_message={**state.last_message, node: newest_t}, closed=closed)
    match message:
        case NodeHello():
            state = changed(state, connected={**state.connected, node: state.revision})
            return state, (SendToNode(node, _rows_since(state, 0)),)
        case NodeBeat(_, have, sent_t, standing):
            answer = _rows_since(state, min(have, state.revision), beat_t=sent_t, store_t=given.t)
            state = changed(state, connected={**state.connected, node: state.revision}, standings={**state.standings, node: standing})
            return state, (SendToNode(node, answer),)
        case WriteRow(_, key, value):
            is_new = key not in state.rows and _epoch_of(key) >= newest_epoch(state.rows) - _KEPT_EPOCHS and _may_write(state, node, key)
            return (_with_row(state, key, value) if is_new else state), ()
        case MeetNodes():
            return _with_meeting(state, message), ()
        case ReadReports(_, number):
            prefix = f"report/{number}/"
            reports = tuple((key[len(prefix) :], value) for key, value in state.rows.items() if key.startswith(prefix))
            return state, (SendToNode(node, StoreReports(state.name, number, reports)),)
        case _:
            assert_never(message)


def _may_write(state: StoreState, node: str, key: str) -> bool:
    """Whether a node takes part in the epoch of a row. Of an epoch that this store does not know its row comes first."""
    number = _epoch_of(key)
    row = state.rows.get(f"epoch/{number}")
    return key.startswith("epoch/") if row is None else node in Epoch.read(number, row).members


def _without_pause(state: StoreState, pause_s: float) -> StoreState:
    """Return the state in which the time of our own pause has not passed."""
    last_message = {node: t + pause_s for node, t in state.last_message.items()}
    closed = {node: t + pause_s for node, t in state.closed.items()}
    return changed(state, last_message=last_message, closed=closed, began_t=state.began_t + pause_s)


def _rows_since(state: StoreState, since: int, beat_t: float = 0.0, store_t: float = 0.0) -> StoreRows:
    newer = itertools.islice(state.rows.items(), max(since - state.first, 0), None)
    rows = tuple((key, "" if key.startswith("report/") else value) for key, value in newer)
    return StoreRows(state.name, state.host, since, state.revision, rows, beat_t, store_t)


def _with_row(state: StoreState, key: str, value: str) -> StoreState:
    state = changed(state, rows={**state.rows, key: value})
    return _with_epoch(state, young=True) if key.startswith("epoch/") else state  # a node knows it from an earlier store


def _with_epoch(state: StoreState, *, young: bool) -> StoreState:
    number = newest_epoch(state.rows)
    if number == (0 if state.epoch is None else state.epoch.number):
        return state
    return changed(state, epoch=Epoch.read(number, state.rows[f"epoch/{number}"]), began_t=state.t, young=young)


def _with_lost(state: StoreState) -> StoreState:
    """Write the members of the open epoch whose lease has run out; close it where nobody is left to decide."""
    epoch = state.epoch
    if epoch is None or not state.is_open:
        return state
    number = epoch.number
    out = nodes_of(state.rows, "lost", number) | nodes_of(state.rows, "left", number)
    for node in epoch.members:
        why = "" if node in out or node == state.host else _silence(state, node)
        if why:
            state, out = _with_row(state, f"lost/{number}/{node}", why), out | {node}
    if out.issuperset(epoch.members):
        return _with_row(state, f"decision/{number}", PLAIN_DECISIONS[VOID].value())
    return state


def _silence(state: StoreState, node: str) -> str:
    """Return why the lease of a node has run out, "" while it has not."""
    rules = state.rules
    answered_t = max(state.last_message.get(node, state.began_t), state.began_t)
    lease_s = rules.rejoin_window_s if state.young and node not in state.last_message else rules.lease_s
    if state.t - answered_t > lease_s:
        return f"silent for {lease_s:g} s"
    closed_t = state.closed.get(node)
    if closed_t is not None and state.t - max(closed_t, state.began_t) > rules.disconnect_timeout_s:
        return f"its supervise is gone for {rules.disconnect_timeout_s:g} s"
    return ""


def _with_meeting(state: StoreState, message: MeetNodes) -> StoreState:
    """Return the state in which a node takes part in this meeting, and in no other. A message that comes late starts none again."""
    if message.token in state.numbered:
        return state
    meetings = {token: tuple(member for member in members if member.node != message.node) for token, members in state.meetings}
    others = (member for member in meetings.get(message.token, ()) if member.index != message.index)
    meetings[message.token] = tuple(sorted((*others, message), key=lambda member: member.index))
    return changed(state, meetings=tuple((token, members) for token, members in meetings.items() if members)[-_KEPT_MEETINGS:])


def _with_number(state: StoreState) -> StoreState:
    """Give the next number to a meeting in which all nodes take part, once the newest epoch that one of them knows is over."""
    for token, messages in state.meetings:
        epoch, newest = state.epoch, 0 if state.epoch is None else state.epoch.number
        if len(messages) < messages[0].count or state.is_open or state.is_over or any(message.epoch > newest for message in messages):
            continue
        members = tuple(message.node for message in messages)
        if epoch is None and len(members) < state.rules.nodes and state.t - state.began_t < state.rules.rejoin_window_s:
            continue  # an earlier store on another machine may have numbered epochs, and their members are on their way
        number = max(newest + 1, *(message.number for message in messages))
        key, value = Epoch(number, members, state.host, token).row()
        rows = {name: kept for name, kept in state.rows.items() if _epoch_of(name) >= newest + 1 - _KEPT_EPOCHS}
        first = state.first + len(state.rows) - len(rows)
        others = tuple(row for row in state.meetings if row[0] != token)
        numbered = (*state.numbered, token)[-_KEPT_MEETINGS:]
        return _with_epoch(changed(state, rows={**rows, key: value}, first=first, meetings=others, numbered=numbered), young=False)
    return state


def known_nodes(state: StoreState, t: float) -> KnownNodes:
    """Return the members of the newest epoch, and the nodes that are connected and wait to join, for people."""
    members = () if state.epoch is None else state.epoch.members
    number = 0 if state.epoch is None else state.epoch.number

    def out(node: str) -> str:
        texts = (f"{why}: {state.rows[key]}" for why in ("lost", "left") if (key := f"{why}/{number}/{node}") in state.rows)
        return next(texts, "done" if f"done/{number}/{node}" in state.rows else "")

    def known(node: str, index: int) -> KnownNode:
        message_t = state.last_message.get(node)
        return KnownNode(node, index, None if message_t is None else max(0.0, t - message_t), out(node), state.standings.get(node, ""))

    waiting = (node for node in state.connected if node not in members)
    nodes = (*(known(node, index) for index, node in enumerate(members)), *(known(node, -1) for node in waiting))
    return KnownNodes(state.host, number, nodes)


def _epoch_of(key: str) -> int:
    return int(key.split("/", 2)[1])


def _kept(state: StoreState) -> tuple[tuple[str, str], ...]:
    """Return the rows with which the next store on this host begins."""
    if state.epoch is None:
        return ()
    keys = (f"{kind}/{state.epoch.number}" for kind in _KEPT_KINDS)
    return tuple((key, state.rows[key]) for key in keys if key in state.rows)
