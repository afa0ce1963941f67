"""The coordinator of a job's nodes: it numbers the attempts, notices which nodes are lost, and passes one decision on to all.

`step(state, message) -> (state, outputs)`, without a clock and without IO. It lives in the supervisor of one node, the host, whose core
judges the reports. Each node has one connection to it, over which everything comes once and in order. Where `CoordinatorState.memory`
differs after a step, it is on the disk before the outputs are carried out: so a coordinator that is started again continues, once its
members are back and have posted again.

The rules:

1. *The end.* The first end holds. A member that is lost or has quit, and is not done, has ended the attempt; so have members that are all
   done, or have all saved for nodes that ask to join (MEMBERSHIP), and a member that had given up the meeting (VOID).
2. *The decision.* The reports of all members that are neither lost nor have quit are judged by the host's core, whether it takes part in
   the attempt or not, and also while it stops. Its answer is the decision.
3. *The number.* A meeting gets the next number once all its nodes are connected, and the attempt before has its decision.
4. *The loss.* A node that its guardian says is gone is lost at once. Else one whose connection is closed is lost after `closed_s`, but only
   when no other rank ends a step: while steps are made, its ranks live. One that is connected is lost after `silent_s` of silence.
5. *Who was away accuses nobody.* Where the coordinator's own ticks stand still, that time counts for nobody.
6. *A coordinator without memory*, whose host lost its disk, decides nothing about an attempt that it does not know. Its members step aside.
"""

from __future__ import annotations

from typing import assert_never

from supervisor.cluster import messages as protocol
from supervisor.cluster.losses import losses
from supervisor.cluster.messages import FromNode, FromTheCoordinator, Join, KnownNode, LookWanted, Meet, NodeClosed, Peer, Post, SendToNodes
from supervisor.cluster.model import (
    BEGAN,
    DONE,
    FAILURE,
    GATHER,
    LEFT,
    LOOK,
    MEMBERSHIP,
    PLAIN_DECISIONS,
    QUIT,
    REPORT,
    SAVED,
    STALLED,
    VOID,
    AttemptEnd,
    ClusterDecision,
    ClusterRules,
    CoordinatorMemory,
    SharedAttempt,
)
from supervisor.cluster.records import CoordinatorState, LookRound, NodeRecord
from supervisor.core.values import replace

CoordinatorInput = FromNode | NodeClosed | protocol.CoordinatorTick | protocol.DecisionProposed | protocol.LooksDue | protocol.LooksJudged
CoordinatorOutput = SendToNodes | protocol.JudgeReports | protocol.LooksGathered

_ENDS = frozenset({FAILURE, MEMBERSHIP, LEFT, VOID})


Step = tuple[CoordinatorState, tuple[CoordinatorOutput, ...]]


def new_coordinator(
    host: str, rules: ClusterRules, t: float, memory: CoordinatorMemory | None = None, *, since_t: float | None = None
) -> CoordinatorState:
    """Return the coordinator as it begins, with what an earlier one on this host kept.

    since_t: no rank that an earlier one let start on this host lives since then; by default since now.
    """
    began_t, memory = t if since_t is None else since_t, memory or CoordinatorMemory()
    looks = LookRound(int(t) if memory.attempt is not None else 0)  # members remember the numbers of the rounds of an earlier one
    return CoordinatorState(host, rules, t, began_t, memory, memory.attempt is None, {}, {}, {}, {}, ended_t=t, looks=looks)


def step(state: CoordinatorState, event: CoordinatorInput) -> Step:
    """Return the next state and the actions. Raises nothing."""
    state, outputs = _apply(state, event)
    if isinstance(event, FromNode) and isinstance(event.message, protocol.Beat):
        return state, outputs  # many come, and nothing follows from one
    is_of_a_node = isinstance(event, FromNode) and not isinstance(event.message, protocol.Gone)
    for rule in _RULES[1:] if is_of_a_node else _RULES:  # of a thousand members nobody is lost because one of them says something
        state, rule_outputs = rule(state)
        outputs = (*outputs, *rule_outputs)
    return state, outputs


def _apply(state: CoordinatorState, event: CoordinatorInput) -> Step:  # noqa: PLR0911  a row for each kind
    match event:
        case protocol.CoordinatorTick(t):
            pause_s = t - state.t
            return (_without_pause(state, pause_s) if pause_s > state.rules.suspension_s else replace(state, t=t)), ()
        case NodeClosed(t, node, unreachable_s):
            record = state.nodes.get(node, NodeRecord(t))
            record = replace(record, closed_t=max(record.heard_t, t - unreachable_s))  # our own pause, which moved `heard_t`, is not in it
            return replace(_out_of_meetings(state, node), nodes={**state.nodes, node: record}), ()
        case protocol.DecisionProposed(_, number, decision):
            attempt = state.open_attempt
            is_asked = attempt is not None and attempt.number == number and state.memory.end is not None
            return _decided(state, decision) if is_asked else (state, ())
        case protocol.LooksDue(_, number) | protocol.LooksJudged(_, number):
            attempt = state.running_attempt
            if attempt is None or attempt.number != number:
                return state, ()
            if isinstance(event, protocol.LooksDue):
                return replace(state, looks=replace(state.looks, is_wanted=True)), ()
            return state, (SendToNodes(attempt.members, protocol.Looked(number, event.text)),)
        case FromNode():
            return _of_node(state, event)
        case _:
            assert_never(event)


def _of_node(state: CoordinatorState, event: FromNode) -> Step:
    t, node, message = event.t, event.node, event.message
    if isinstance(message, protocol.Gone):
        return replace(state, gone_nodes=state.gone_nodes | {node}), ()
    record = state.nodes.get(node, NodeRecord(t))
    record = replace(record, heard_t=max(t, record.heard_t), closed_t=None)
    if isinstance(message, protocol.Beat):
        record = replace(record, beat_t=t, standing=message.standing, stepped_s=message.stepped_s, step_s=message.step_s)
    state = replace(state, nodes={**state.nodes, node: record})
    match message:
        case Join():
            return _joined(replace(_out_of_meetings(state, node), gone_nodes=state.gone_nodes - {node}), message)
        case protocol.Beat():
            return state, (SendToNodes((node,), protocol.BeatAnswer(message.sent_t, t)),)
        case Meet():
            state = _out_of_meetings(state, node)
            return replace(state, meetings={**state.meetings, message.token: {**state.meetings.get(message.token, {}), node: message}}), ()
        case Post():
            return _posted(state, node, message)
        case _:
            assert_never(message)


def _without_pause(state: CoordinatorState, pause_s: float) -> CoordinatorState:
    """Return the state without the time of this process's own pause. Notes since its end stay."""
    now = state.t + pause_s

    def shift(t: float) -> float:
        return min(t + pause_s, now)

    def shift_record(record: NodeRecord) -> NodeRecord:
        closed_t = None if record.closed_t is None else shift(record.closed_t)
        return replace(record, heard_t=shift(record.heard_t), beat_t=shift(record.beat_t), closed_t=closed_t)

    nodes = {node: shift_record(record) for node, record in state.nodes.items()}
    looks = replace(state.looks, t=shift(state.looks.t))
    return replace(state, t=now, nodes=nodes, looks=looks, began_t=shift(state.began_t), ended_t=shift(state.ended_t))


def _out_of_meetings(state: CoordinatorState, node: str) -> CoordinatorState:
    """Return the state in which a node takes part in no meeting: it does so in one, over one connection."""
    meetings = {token: {name: meet for name, meet in meets.items() if name != node} for token, meets in state.meetings.items()}
    return replace(state, meetings={token: meets for token, meets in meetings.items() if meets})


def _joined(state: CoordinatorState, join: Join) -> Step:
    """Send a node the state of the job, and the messages that it may have missed."""
    node, node_attempt = join.node, join.attempt
    state, outputs = _with_acted(state, join)
    attempt, memory = state.memory.attempt, state.memory
    is_newer = node_attempt is not None and node_attempt.number > (0 if attempt is None else attempt.number)
    state = replace(state, forgot=state.forgot or is_newer)
    if (
        attempt is not None
        and state.open_attempt is not None
        and node in attempt.members
        and (is_newer or (join.aside and node_attempt == attempt))
    ):
        state = replace(state, absences={node: "left: it stepped aside", **state.absences})
    answers: list[FromTheCoordinator] = [protocol.Welcome(state.host, attempt, memory.end, memory.decision, _returning(state, node))]
    running = state.running_attempt
    if running is not None and node in running.members:
        gathered = (_gathered(state, running, index) for kind, index in state.posts if kind == GATHER)
        answers += [message for message in gathered if message is not None]
        answers += [Peer(running.number, peer, text) for peer, text in state.posted(BEGAN).items() if peer != node]
        if state.looks.is_open:
            answers.append(LookWanted(running.number, state.looks.number))
    return state, (*outputs, *(SendToNodes((node,), message) for message in answers))


def _with_acted(state: CoordinatorState, join: Join) -> Step:
    """Take over what a node acted on, where this coordinator does not know it: its disk did not take it, or is another."""
    node_attempt, own_attempt, is_open = join.attempt, state.memory.attempt, state.open_attempt is not None
    if node_attempt is None or join.acted is None:
        return state, ()
    if not is_open and node_attempt.number > (0 if own_attempt is None else own_attempt.number):
        state = _with_attempt(replace(state, forgot=True), CoordinatorMemory(node_attempt))
    elif not (is_open and node_attempt == own_attempt):
        return state, ()
    end = state.memory.end or AttemptEnd(FAILURE, join.node, "it had ended before")
    return _decided(replace(state, memory=CoordinatorMemory(node_attempt, end)), join.acted)


def _posted(state: CoordinatorState, node: str, post: Post) -> Step:  # noqa: PLR0911  a row for each kind
    """Take what a member says about the open attempt."""
    attempt, kind = state.open_attempt, post.kind
    if attempt is None or post.number != attempt.number or node not in attempt.members:
        return state, ()
    if kind in _ENDS:
        return _ended(state, AttemptEnd(kind, node, post.text))
    if kind == QUIT:
        return replace(state, absences={node: f"left: {post.text}", **state.absences}), ()
    if kind == STALLED:
        looks = state.looks
        return (state if looks.is_open else replace(state, looks=replace(looks, is_wanted=True))), ()
    texts = state.posted(kind, post.index)
    if node in texts:
        return state, ()
    state = replace(state, posts={**state.posts, (kind, post.index): {**texts, node: post.text}})
    if kind == GATHER:
        gathered = _gathered(state, attempt, post.index)
        return state, () if gathered is None else (SendToNodes(attempt.members, gathered),)
    if kind == BEGAN:
        return state, (SendToNodes(tuple(name for name in attempt.members if name != node), Peer(attempt.number, node, post.text)),)
    return state, ()


def _gathered(state: CoordinatorState, attempt: SharedAttempt, index: int) -> protocol.Gathered | None:
    """Return the texts of an all-gather, None while one is missing."""
    texts = state.posted(GATHER, index)
    return (
        protocol.Gathered(attempt.number, index, tuple(texts[node] for node in attempt.members))
        if len(texts) == len(attempt.members)
        else None
    )


def _with_attempt(state: CoordinatorState, memory: CoordinatorMemory) -> CoordinatorState:
    """Return the state with another newest attempt, of which nothing is known yet, and without the nodes that went for good."""
    present = {node: record for node, record in state.nodes.items() if record.closed_t is None}
    nodes = {node: replace(record, stepped_s=None, step_s=None) for node, record in present.items()}
    return replace(state, memory=memory, nodes=nodes, posts={}, absences={}, gone_nodes=frozenset(), is_judged=False, looks=LookRound())


def _ended(state: CoordinatorState, end: AttemptEnd) -> Step:
    """Note the first end of the attempt, and tell all."""
    attempt = state.running_attempt
    if attempt is None:
        return state, ()
    state = replace(state, memory=CoordinatorMemory(attempt, end), ended_t=state.t)
    return state, (SendToNodes(attempt.members, protocol.Ended(attempt.number, end)),)


def _decided(state: CoordinatorState, decision: ClusterDecision) -> Step:
    """Note the decision about the attempt, and tell all: also those that wait to join, for whom the job may be over."""
    attempt = state.open_attempt
    if attempt is None:
        return state, ()
    state = replace(state, memory=CoordinatorMemory(attempt, state.memory.end, decision))
    live = dict.fromkeys(state.live(attempt))
    recipients = ((tuple(live), len(live)), (tuple(node for node in state.nodes if node not in live), 0))
    return state, tuple(SendToNodes(nodes, protocol.Decided(attempt.number, decision, count)) for nodes, count in recipients if nodes)


def _returning(state: CoordinatorState, node: str) -> int:
    """Return how many members come to the next meeting. 0 to one that was lost: it is not among them, and would begin with one too few."""
    attempt = state.memory.attempt
    live = () if attempt is None else state.live(attempt)
    return len(live) if node in live and set(live) <= state.nodes.keys() else 0


# the rules


def _losing(state: CoordinatorState) -> Step:
    """Note the members that are lost; close an attempt that has none left."""
    attempt = state.open_attempt
    if attempt is None:
        return state, ()
    new_losses = {node: f"lost: {why}" for node, why in losses(state, attempt).items()}
    state = replace(state, absences={**state.absences, **new_losses}) if new_losses else state
    if state.live(attempt):
        return state, ()
    node = attempt.members[0]
    state, ending = _ended(state, AttemptEnd(FAILURE, node, state.absences[node].partition(": ")[2]))
    state, deciding = _decided(state, PLAIN_DECISIONS[VOID])
    return state, (*ending, *deciding)


def _ending(state: CoordinatorState) -> Step:
    """End an attempt of which a member is lost or has quit before it was done, or whose members are all done, or have saved."""
    attempt = state.running_attempt
    if attempt is None:
        return state, ()
    done_nodes = state.posted(DONE).keys()
    if done_nodes >= set(attempt.members):
        return _ended(state, AttemptEnd(DONE, state.host, "all ranks exited 0"))
    if done_nodes | state.posted(SAVED).keys() >= set(attempt.members):
        return _ended(state, AttemptEnd(MEMBERSHIP, state.host, "all have saved, and nodes are admitted"))
    absence = next(((node, state.absences[node]) for node in attempt.members if node in state.absences and node not in done_nodes), None)
    if absence is None:
        return state, ()
    how, _, why = absence[1].partition(": ")
    return _ended(state, AttemptEnd(LEFT if how == "left" else FAILURE, absence[0], why))


def _judging(state: CoordinatorState) -> Step:
    """Have the reports judged once all are there, or those that come are."""
    attempt, end = state.open_attempt, state.memory.end
    if attempt is None or end is None or state.is_judged:
        return state, ()
    if end.kind in PLAIN_DECISIONS:
        return _decided(state, PLAIN_DECISIONS[end.kind])
    posted, rules = state.posted(REPORT), state.rules
    if any(node not in posted for node in state.live(attempt)) and state.t - state.ended_t < rules.report_s:
        return state, ()
    reports = tuple((node, posted[node]) for node in attempt.members if node in posted)
    silent = tuple(
        (node, state.absences.get(node, f"no report within {rules.report_s:g} s")) for node in attempt.members if node not in posted
    )
    return replace(state, is_judged=True), (protocol.JudgeReports(attempt.number, reports, silent),)


def _numbering(state: CoordinatorState) -> Step:
    """Give the next number to a meeting in which all nodes take part, once the attempt before is over."""
    memory, rules = state.memory, state.rules
    if state.open_attempt is not None or (memory.decision is not None and memory.decision.is_final):
        return state, ()
    for token, meets in state.meetings.items():
        if len(meets) < next(iter(meets.values())).count:
            continue
        if state.forgot and len(meets) < rules.nodes and state.t - state.began_t < rules.rejoin_s:
            continue  # ranks of an attempt that is not known here may live, and their nodes are on their way
        members = tuple(sorted(meets, key=lambda node: meets[node].index))
        newest = 0 if memory.attempt is None else memory.attempt.number
        attempt = SharedAttempt(max(newest + 1, *(meet.number for meet in meets.values())), members, state.host, token)
        other_meetings = {name: other_meets for name, other_meets in state.meetings.items() if name != token}
        state = _with_attempt(replace(state, meetings=other_meetings, forgot=False), CoordinatorMemory(attempt))
        return state, (SendToNodes(members, protocol.Began(attempt)),)
    return state, ()


def _looking(state: CoordinatorState) -> Step:
    """Have all nodes look at their ranks where one asks for it, and hand over what they saw: one round at a time."""
    attempt, looks, rules = state.running_attempt, state.looks, state.rules
    if attempt is None or not (looks.is_open or looks.is_wanted):
        return state, ()
    live, age_s = state.live(attempt), state.t - looks.t
    if not looks.is_open:
        if age_s < rules.looks_apart_s:
            return state, ()
        looks = LookRound(looks.number + 1, state.t, is_open=True)
        return replace(state, looks=looks), (SendToNodes(live, LookWanted(attempt.number, looks.number)),)
    posted = state.posted(LOOK, looks.number)
    silent = tuple((node, f"no look within {rules.look_s:g} s") for node in live if node not in posted)
    if silent and age_s < rules.look_s:
        return state, ()
    texts = tuple((node, posted[node]) for node in attempt.members if node in posted)
    posts = {key: nodes for key, nodes in state.posts.items() if key[0] != LOOK}
    return replace(state, looks=replace(looks, is_open=False), posts=posts), (
        protocol.LooksGathered(attempt.number, looks.number, texts, silent),
    )


_RULES = (_losing, _ending, _judging, _numbering, _looking)


# for people


def known_nodes(state: CoordinatorState, t: float) -> protocol.KnownNodes:
    """Return the members of the newest attempt, and the nodes that are connected and wait to join."""
    attempt = state.memory.attempt
    members, done_nodes = () if attempt is None else attempt.members, state.posted(DONE)

    def known_node(node: str, index: int) -> KnownNode:
        record = state.nodes.get(node)
        absence = state.absences.get(node, "done" if node in done_nodes else "")
        if record is None:
            return KnownNode(node, index, None, absence, "", reached=False)
        return KnownNode(node, index, max(0.0, t - record.heard_t), absence, record.standing, record.closed_t is None)

    waiting = (node for node, record in state.nodes.items() if node not in members and record.closed_t is None)
    nodes = (*(known_node(node, index) for index, node in enumerate(members)), *(known_node(node, -1) for node in waiting))
    return protocol.KnownNodes(state.host, 0 if attempt is None else attempt.number, nodes)
