"""A node's part: what it writes into the control store, and what it reports to its core from the rows there.

`step(state, message) -> (state, outputs)`, without a clock and without IO. Rows are written once, so the node acts on what it has of them,
in whichever order it came. What it wrote and has not seen as a row is written again with each beat. `NodeMemory` is what a node must not
forget: it is on the node's disk (kept.py) before what comes with it is carried out.

The rules, each from rows alone:

1. *The end.* The first row `end/E` stands. A member that is lost or left, and not done, has ended the epoch; so have members that are all
   done, or have all saved for nodes that ask to join (MEMBERSHIP), and a member that had given up the meeting (VOID).
2. *The leader* is the first member that is neither lost nor left. It has the reports of the others judged, and writes the decision.
3. *The decision* is the row `decision/E`, whoever wrote it. Every node acts on it.
4. *A store without memory*, whose host lost its disk, decides nothing about an epoch that is older than itself before all members but that
   host are there, which wrote again what they had acted on.
5. *A newer epoch* than its own shows a node that it missed the rest of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import assert_never

from supervisor.cluster.messages import (
    ActOn,
    ClosedWithoutUs,
    DecisionProposed,
    EndEpoch,
    EpochBegan,
    EpochEnded,
    EpochReport,
    FromStore,
    GiveUp,
    JudgeReports,
    MeetingFailed,
    MeetingGivenUp,
    MeetNodes,
    NodeBeat,
    NodeHello,
    NodeInput,
    NodeOutput,
    NodesTogether,
    NodeText,
    NodeTick,
    PeerText,
    RanksDone,
    RanksSaved,
    ReadReports,
    SendToStore,
    StepAside,
    StoreClosed,
    StoreOpened,
    StoreReports,
    StoreRows,
    StoreSilent,
    TextsGathered,
    WriteRow,
)
from supervisor.cluster.model import (
    DONE,
    FAILURE,
    LEFT,
    MEMBERSHIP,
    PLAIN_DECISIONS,
    VOID,
    ClusterDecision,
    ClusterRules,
    Epoch,
    EpochEnd,
    newest_epoch,
    nodes_of,
)

#: What was done about one store.
_OF_A_STORE = frozenset({"returned", "here", "read"})


@dataclass(frozen=True)
class NodeMemory:
    """What a node keeps for good: the newest epoch in which it took part, and what it did there.

    store: name of the store that numbered it. acted: the decision, None: none yet. returning: how many members come to the next meeting, 0:
    not known. aside: this node takes no part in the rest of the epoch. over: it ended as the job did without it, in a newer epoch.
    """

    node: str
    epoch: Epoch | None = None
    store: str = ""
    acted: ClusterDecision | None = None
    aside: bool = False
    over: bool = False
    returning: int = 0


@dataclass(frozen=True)
class MemberState:
    """All that a node knows.

    store: name of the store that its rows are of. have: the revision up to which all rows are here, revision: the greatest that any of them
    has. own: what this node wrote of the newest epoch; unseen: rows that no message of the store showed yet. reports: those that were
    read. noted: what was done about the newest epoch. meeting: the one that waits for its number. beat_t, answered_t: of the last beat,
    and of the last message of the store. end: of the epoch, the first that was seen, at ended_t.
    """

    memory: NodeMemory
    rules: ClusterRules
    t: float
    rows: Mapping[str, str]
    own: Mapping[str, str]
    unseen: Mapping[str, str]
    reports: Mapping[str, str]
    store: str = ""
    connected: bool = False
    have: int = 0
    revision: int = 0
    noted: frozenset[str] = frozenset()
    meeting: NodesTogether | None = None
    beat_t: float = 0.0
    answered_t: float = 0.0
    end: EpochEnd | None = None
    ended_t: float = 0.0

    @property
    def is_young(self) -> bool:
        """Whether the store is younger than the epoch."""
        return self.store != self.memory.store

    @property
    def open_epoch(self) -> Epoch | None:
        """The epoch that this node takes part in, and that is not over for it."""
        return self.memory.epoch if self.memory.acted is None and not self.memory.aside else None

    @property
    def is_renumbered(self) -> bool:
        """Whether a store that knew nothing gave the number of the epoch to another meeting: its rows of that number are not ours."""
        epoch = self.memory.epoch
        row = None if epoch is None else self.rows.get(f"epoch/{epoch.number}")
        return epoch is not None and row is not None and Epoch.read(epoch.number, row).token != epoch.token


Step = tuple[MemberState, tuple[NodeOutput, ...]]


def new_node(memory: NodeMemory, rules: ClusterRules, t: float) -> MemberState:
    """Return the state of a node whose supervisor begins, or takes over."""
    return MemberState(memory, rules, t, {}, {}, {}, {}, answered_t=t)


def step(state: MemberState, message: NodeInput) -> Step:
    """Return the next state and what is to be done. Raises nothing."""
    state, outputs = _taken(changed(state, t=message.t), message)
    rules = _TIMED_RULES if isinstance(message, NodeTick) and not outputs else _RULES
    while True:  # what one rule does may be the ground of another
        for rule in rules:
            found = rule(state)
            if found is not None:
                state, more = found
                outputs, rules = (*outputs, *more), _RULES
                break
        else:
            return state, outputs


def _taken(state: MemberState, given: NodeInput) -> Step:  # noqa: PLR0911  a row for each kind
    match given:
        case StoreOpened():
            return changed(state, connected=True, beat_t=given.t), (SendToStore(NodeHello(state.memory.node)),)
        case StoreClosed():
            return changed(state, connected=False), ()
        case FromStore(_, message):
            return _with_rows(state, message) if isinstance(message, StoreRows) else _with_reports(state, message), ()
        case NodeTick():
            return _ticked(state, given.standing)
        case NodesTogether():
            return _with_meeting_sent(changed(state, meeting=given))
        case MeetingGivenUp():
            return changed(state, meeting=None), ()
        case _:
            return _of_core(state, given)


def _of_core(  # noqa: PLR0911  as above
    state: MemberState, given: DecisionProposed | EndEpoch | RanksDone | RanksSaved | EpochReport | NodeText | GiveUp
) -> Step:
    """Write what the core reports of the epoch in which this node takes part."""
    epoch, me = state.open_epoch, state.memory.node
    number = 0 if epoch is None else epoch.number
    match given:
        case GiveUp(_, text):
            if "over" in state.noted:
                state = changed(state, memory=changed(state.memory, over=True))
            return _aside(state, text) if epoch is not None else (state, ())
        case DecisionProposed(_, of, decision):
            return _written(state, f"decision/{of}", decision.value())
        case EndEpoch(_, kind, text):
            return _written(state, f"end/{number}", EpochEnd(kind, me, text).value())
        case RanksDone():
            return _written(state, f"done/{number}/{me}", "")
        case RanksSaved():
            return _written(state, f"saved/{number}/{me}", "")
        case EpochReport(_, text):
            return _written(state, f"report/{number}/{me}", text)
        case NodeText(_, gather, text):
            return _written(state, f"gather/{number}/{gather}/{me}" if gather else f"began/{number}/{me}", text)
        case _:
            assert_never(given)


def _written(state: MemberState, key: str, value: str) -> Step:
    """Write a row of the newest epoch, again and again until it is seen."""
    epoch = state.memory.epoch
    if epoch is None or int(key.split("/", 2)[1]) != epoch.number:
        return state, ()
    state = changed(state, own={**state.own, key: value})
    if key in state.rows:
        return state, ()
    state = changed(state, unseen={**state.unseen, key: value})
    return state, (SendToStore(WriteRow(state.memory.node, key, value)),) if state.connected else ()


def _aside(state: MemberState, text: str) -> Step:
    """Take no part in the rest of the epoch."""
    epoch, memory = state.memory.epoch, state.memory
    assert epoch is not None  # noqa: S101 (callers did; this is for the type checker)
    return _written(changed(state, memory=changed(memory, aside=True)), f"left/{epoch.number}/{memory.node}", text)


def _with_reports(state: MemberState, message: StoreReports) -> MemberState:
    epoch = state.memory.epoch
    if epoch is None or message.number != epoch.number or message.store != state.store:
        return state
    return changed(state, answered_t=state.t, reports={**state.reports, **dict(message.reports)})


def _with_rows(state: MemberState, message: StoreRows) -> MemberState:
    """Return the state with rows of the store; those of another store replace all that are known."""
    if message.store != state.store:
        if message.since:
            return state  # of a store that was not greeted yet, or is not any more
        state = changed(state, store=message.store, have=0, revision=0, rows={}, noted=state.noted - _OF_A_STORE)
    state = changed(state, answered_t=state.t, revision=max(state.revision, message.revision))
    if message.since <= state.have < message.revision:
        state = changed(state, have=message.revision)
    new = {key: value for key, value in message.rows if key not in state.rows}
    if not new:
        return state
    unseen = {key: value for key, value in state.unseen.items() if key not in new}
    return changed(state, rows={**state.rows, **new}, unseen=unseen)


def _ticked(state: MemberState, standing: str) -> Step:
    """Send a beat if it is time for one, and with it all that the store has not shown yet."""
    meeting, rules = state.meeting, state.rules
    if meeting is not None and state.t - meeting.t > rules.meeting_s:
        text = f"the meeting of {meeting.count} nodes got no number within {rules.meeting_s:g} s"
        return changed(state, meeting=None), (MeetingFailed(meeting.token, text),)
    if not state.connected or state.t - state.beat_t < rules.beat_s:
        return state, ()
    me = state.memory.node
    hello = () if state.store else (SendToStore(NodeHello(me)),)
    writes = (SendToStore(WriteRow(me, key, value)) for key, value in state.unseen.items())
    state = changed(state, beat_t=state.t, noted=state.noted - {"read"})  # the answer may have been lost
    state, met = _with_meeting_sent(state)
    return state, (*hello, *writes, SendToStore(NodeBeat(me, state.have, state.t, standing)), *met)


def _with_meeting_sent(state: MemberState) -> Step:
    meeting, epoch = state.meeting, state.memory.epoch
    if meeting is None or not state.connected:
        return state, ()
    known = 0 if epoch is None else epoch.number
    message = MeetNodes(state.memory.node, meeting.token, meeting.index, meeting.count, meeting.number, known)
    return state, (SendToStore(message),)


# the rules: each returns None where it has nothing to do


def _returning(state: MemberState) -> Step | None:
    """Write again into a store that is younger than the epoch what this node wrote, and what it acted on."""
    epoch, memory = state.memory.epoch, state.memory
    if epoch is None or not state.store or not state.is_young or "returned" in state.noted or newest_epoch(state.rows) > epoch.number:
        return None
    if state.is_renumbered:
        return None
    number = epoch.number
    again = dict([epoch.row()]) | dict(state.own)
    if state.end is not None:
        again[f"end/{number}"] = state.end.value()
    if memory.acted is not None:
        again[f"decision/{number}"] = memory.acted.value()
    unseen = {key: value for key, value in again.items() if key not in state.rows}
    sent = tuple(SendToStore(WriteRow(memory.node, key, value)) for key, value in unseen.items()) if state.connected else ()
    return changed(state, unseen=unseen, noted=state.noted | {"returned"}), sent


def _standing_aside(state: MemberState) -> Step | None:
    """Have it in the store that this node left: the row may be lost with the supervisor that wrote it, or with the store."""
    epoch, memory = state.memory.epoch, state.memory
    if epoch is None or not memory.aside or memory.acted is not None or not state.store or newest_epoch(state.rows) > epoch.number:
        return None
    if state.is_renumbered:
        return None
    key = f"left/{epoch.number}/{memory.node}"
    return None if key in state.rows or key in state.unseen else _written(state, key, "it stepped aside")


def _standing_here(state: MemberState) -> Step | None:
    """What this node acted on is in the younger store."""
    epoch = state.memory.epoch
    if epoch is None or "returned" not in state.noted or "here" in state.noted:
        return None
    if state.unseen.keys() & {f"epoch/{epoch.number}", f"decision/{epoch.number}"}:
        return None
    return _written(changed(state, noted=state.noted | {"here"}), f"here/{epoch.number}/{state.memory.node}", "")


def _ended(state: MemberState) -> Step | None:
    """Report the end that stands."""
    epoch = state.open_epoch
    if epoch is None or state.end is not None or f"end/{epoch.number}" not in state.rows:
        return None
    end = EpochEnd.read(state.rows[f"end/{epoch.number}"])
    return changed(state, end=end, ended_t=state.t), (EpochEnded(epoch.number, end),)


def _ending(state: MemberState) -> Step | None:
    """End an epoch of which a member is lost or has left before it was done, or whose members are all done, or have saved."""
    epoch = state.open_epoch
    if epoch is None or f"end/{epoch.number}" in state.rows or f"end/{epoch.number}" in state.unseen or not state.connected:
        return None
    number, rows = epoch.number, state.rows
    done = nodes_of(rows, "done", number)
    if done.issuperset(epoch.members):
        return _written(state, f"end/{number}", EpochEnd(DONE, state.memory.node, "all ranks exited 0").value())
    if (done | nodes_of(rows, "saved", number)).issuperset(epoch.members):
        return _written(state, f"end/{number}", EpochEnd(MEMBERSHIP, state.memory.node, "all have saved, and nodes are admitted").value())
    for kind, why in ((LEFT, "left"), (FAILURE, "lost")):
        for node in epoch.members:
            if node not in done and f"{why}/{number}/{node}" in rows:
                return _written(state, f"end/{number}", EpochEnd(kind, node, rows[f"{why}/{number}/{node}"]).value())
    return None


def _judging(state: MemberState) -> Step | None:
    """As the leader, have the reports judged once all are there, or those that come are."""
    epoch = state.open_epoch
    if epoch is None or f"end/{epoch.number}" not in state.rows or "judge" in state.noted or not _leads(state, epoch):
        return None
    number = epoch.number
    kind = EpochEnd.read(state.rows[f"end/{number}"]).kind
    if kind in PLAIN_DECISIONS:
        return _written(changed(state, noted=state.noted | {"judge"}), f"decision/{number}", PLAIN_DECISIONS[kind].value())
    written = nodes_of(state.rows, "report", number)
    if not written.issuperset(_live(state, epoch)) and state.t - state.ended_t < state.rules.report_s:
        return None
    if not written <= state.reports.keys():
        return _with_reports_asked(state, number)
    reports = tuple((node, state.reports[node]) for node in epoch.members if node in written)
    missing = tuple((node, _why_missing(state, number, node)) for node in epoch.members if node not in written)
    return changed(state, noted=state.noted | {"judge"}), (JudgeReports(number, reports, missing),)


def _live(state: MemberState, epoch: Epoch) -> tuple[str, ...]:
    out = nodes_of(state.rows, "lost", epoch.number) | nodes_of(state.rows, "left", epoch.number)
    return tuple(node for node in epoch.members if node not in out)


def _count_returning(state: MemberState, epoch: Epoch) -> int:
    """Return how many members come to the next meeting. 0 to one that was lost: it is none of them, and would begin with one too few."""
    live = _live(state, epoch)
    return len(live) if state.memory.node in live else 0


def _leads(state: MemberState, epoch: Epoch) -> bool:
    """Return whether this node is the leader, and may decide: nothing is decided that this store does not hold."""
    live, key = _live(state, epoch), f"decision/{epoch.number}"
    if key in state.rows or key in state.unseen or not live or live[0] != state.memory.node:
        return False
    here = nodes_of(state.rows, "here", epoch.number)
    return _remembers(state, epoch) or here.issuperset(set(epoch.members) - {epoch.host})


def _remembers(state: MemberState, epoch: Epoch) -> bool:
    return not state.is_young or f"kept/{epoch.number}" in state.rows


def _with_reports_asked(state: MemberState, number: int) -> Step | None:
    if "read" in state.noted:
        return None
    return changed(state, noted=state.noted | {"read"}), (SendToStore(ReadReports(state.memory.node, number)),)


def _why_missing(state: MemberState, number: int, node: str) -> str:
    for why in ("left", "lost"):
        if f"{why}/{number}/{node}" in state.rows:
            return f"{why}: {state.rows[f'{why}/{number}/{node}']}"
    return f"no report within {state.rules.report_s:g} s"


def _acting(state: MemberState) -> Step | None:
    """Act on the decision that stands. Who stands aside only takes note of it.

    A store without memory closes the epoch as VOID when all members are out. One that is not back may have acted on another decision, so
    this node steps aside.
    """
    epoch, memory = state.memory.epoch, state.memory
    value = None if epoch is None or memory.acted is not None else state.rows.get(f"decision/{epoch.number}")
    if epoch is None or value is None or state.is_renumbered:
        return None
    decision = ClusterDecision.read(value)
    is_certain = decision.kind != VOID or _remembers(state, epoch)
    aside = memory.aside or not is_certain
    returning = 0 if aside or decision.is_final else _count_returning(state, epoch)
    state = changed(state, memory=changed(memory, acted=decision, aside=aside, returning=returning))
    if memory.aside:
        return state, ()
    return state, (ActOn(epoch, decision, returning) if is_certain else StepAside(epoch),)


def _passed(state: MemberState) -> Step | None:
    """Step aside where the job went on without this node, and the store does not hold any more what was decided about its epoch."""
    epoch = state.open_epoch
    if epoch is None:
        return None
    is_newer = state.have >= state.revision and newest_epoch(state.rows) > epoch.number
    if not (is_newer or state.is_renumbered):
        return None
    return changed(state, memory=changed(state.memory, aside=True)), (StepAside(epoch),)


def _beginning(state: MemberState) -> Step | None:
    """Take part in the epoch of our meeting; void one of a meeting that was given up."""
    number, memory = newest_epoch(state.rows), state.memory
    if state.open_epoch is not None or number <= (0 if memory.epoch is None else memory.epoch.number):
        return None
    epoch = Epoch.read(number, state.rows[f"epoch/{number}"])
    if memory.node not in epoch.members:
        return None
    met = state.meeting is not None and state.meeting.token == epoch.token
    memory = NodeMemory(memory.node, epoch, state.store)
    state = changed(state, memory=memory, own={}, unseen={}, reports={}, noted=frozenset(), end=None)
    if met:
        return changed(state, meeting=None), (EpochBegan(epoch),)
    return _written(state, f"end/{number}", EpochEnd(VOID, memory.node, f"node {memory.node} had given the meeting up").value())


def _waiting(state: MemberState) -> Step | None:
    """Report the end of the job to a node that takes no part in its last epoch."""
    number, epoch = newest_epoch(state.rows), state.memory.epoch
    value = state.rows.get(f"decision/{number}")
    known = 0 if epoch is None else epoch.number - state.memory.aside
    if value is None or number <= known or "over" in state.noted:
        return None
    decision = ClusterDecision.read(value)
    return (changed(state, noted=state.noted | {"over"}), (ClosedWithoutUs(number, decision),)) if decision.is_final else None


def _texting(state: MemberState) -> Step | None:
    """Report the texts of the other members."""
    epoch, me = state.open_epoch, state.memory.node
    if epoch is None or state.end is not None:
        return None
    prefix = f"gather/{epoch.number}/"
    for number in sorted({int(key[len(prefix) :].split("/", 1)[0]) for key in state.own if key.startswith(prefix)}):
        keys = [f"{prefix}{number}/{node}" for node in epoch.members]
        if f"gather/{number}" not in state.noted and all(key in state.rows for key in keys):
            texts = tuple(state.rows[key] for key in keys)
            return changed(state, noted=state.noted | {f"gather/{number}"}), (TextsGathered(number, texts),)
    for node in epoch.members:
        key = f"began/{epoch.number}/{node}"
        if node != me and key in state.rows and key not in state.noted:
            return changed(state, noted=state.noted | {key}), (PeerText(node, state.rows[key]),)
    return None


def _falling_silent(state: MemberState) -> Step | None:
    """Report that the store is silent, as long as nobody ended the epoch."""
    epoch = state.open_epoch
    if epoch is None or state.end is not None or "silent" in state.noted or state.t - state.answered_t <= state.rules.lease_s:
        return None
    return changed(state, noted=state.noted | {"silent"}), (StoreSilent(epoch.number),)


_RULES = (
    _returning,
    _standing_aside,
    _standing_here,
    _acting,
    _passed,
    _ended,
    _ending,
    _judging,
    _beginning,
    _waiting,
    _texting,
    _falling_silent,
)
#: Those that time alone can give something to do.
_TIMED_RULES = (_judging, _falling_silent)
