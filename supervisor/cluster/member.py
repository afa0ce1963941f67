"""A node's side: its messages to the coordinator, and its reports to its core about the coordinator's answers.

`step(state, message) -> (state, outputs)`, without a clock and without IO. Over one connection everything comes once and in order. Over the
next one the node sends its name and its memory again (Join), and, once the coordinator has shown that it knows the attempt
(Welcome), all that it posted about it. `MemberState.memory` is what a node must not forget: where it differs after a step, it is on the
node's disk (kept.py) before the outputs are carried out.

The rules:

1. *The coordinator's word.* The node acts on the end and the decision that the coordinator sends, and on nothing else.
2. *Another attempt* than its open one in a Welcome shows that the job continued without this node, or that the coordinator lost its memory:
   the node steps aside. Its ranks are stopped, and nothing is counted.
3. *A meeting that it had given up* when its number came is void.
4. *No coordinator.* Where none can be reached for `closed_s`, or one that can be reached is silent for `silent_s`, and no own rank ends a
   step, the others may have continued. After `wait_s` without a word they may have in any case.
5. *Who was away accuses nobody.* Where the node's own ticks stand still, that time counts for nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as changed
from typing import assert_never

from supervisor.cluster import messages as protocol
from supervisor.cluster.losses import missing_after_s
from supervisor.cluster.messages import FromTheCoordinator, Post, SendToCoordinator
from supervisor.cluster.model import (
    BEGAN,
    DONE,
    GATHER,
    LOOK,
    QUIT,
    REPORT,
    SAVED,
    STALLED,
    VOID,
    AttemptEnd,
    ClusterDecision,
    ClusterRules,
    NodeMemory,
    SharedAttempt,
)
from supervisor.core.values import Struct, replace

MemberInput = (
    protocol.LinkOpened
    | protocol.LinkClosed
    | protocol.FromCoordinator
    | protocol.NodeTick
    | protocol.NodesTogether
    | protocol.MeetingGivenUp
    | protocol.GiveUp
    | protocol.EndAttempt
    | protocol.RanksDone
    | protocol.RanksSaved
    | protocol.AttemptReport
    | protocol.NodeText
    | protocol.AskLooks
    | protocol.LookTaken
)
MemberOutput = (
    SendToCoordinator
    | protocol.Began
    | protocol.Ended
    | protocol.ActOn
    | protocol.StepAside
    | protocol.ClosedWithoutUs
    | protocol.CoordinatorSilent
    | protocol.CoordinatorGone
    | protocol.MeetingFailed
    | protocol.Gathered
    | protocol.Peer
    | protocol.LookWanted
    | protocol.Looked
)


class MemberState(Struct, frozen=True):
    """All that a node knows.

    connected: to a coordinator; welcomed: by it, or by the last one. closed_t: since when there is no connection. answered_t: when the last
    message came. tick_t, beat_t: of the last tick and the last beat. woke_t: when a pause of this process ended. meeting: the one that
    waits for its number. posts: those about the newest attempt, by kind and index. end: of that attempt. reported: the reports about it.
    stalls: how often its ranks stalled.
    """

    memory: NodeMemory
    rules: ClusterRules
    t: float
    closed_t: float
    answered_t: float
    woke_t: float
    posts: Mapping[tuple[str, int], Post]
    tick_t: float | None = None
    beat_t: float = float("-inf")
    connected: bool = False
    welcomed: bool = False
    meeting: protocol.NodesTogether | None = None
    end: AttemptEnd | None = None
    reported: frozenset[str] = frozenset()
    stalls: int = 0

    @property
    def open_attempt(self) -> SharedAttempt | None:
        """The attempt that this node takes part in, and that is not over for it."""
        return self.memory.attempt if self.memory.acted is None and not self.memory.aside else None

    @property
    def running_attempt(self) -> SharedAttempt | None:
        """The open attempt, as long as it has no end."""
        return self.open_attempt if self.end is None else None


Step = tuple[MemberState, tuple[MemberOutput, ...]]


def new_member(memory: NodeMemory, rules: ClusterRules, t: float) -> MemberState:
    """Return the state of a node whose supervisor begins, or takes over."""
    return MemberState(memory, rules, t, closed_t=t, answered_t=t, woke_t=t, posts={})


def step(state: MemberState, event: MemberInput) -> Step:  # noqa: PLR0911  a row for each kind
    """Return the next state and the actions. Raises nothing."""
    if isinstance(event, protocol.NodeTick):
        return _ticked(state, event)
    state = replace(state, t=event.t)
    match event:
        case protocol.LinkOpened():
            # a stopped host accepts every connection, and sends nothing
            state = replace(state, answered_t=state.t) if state.welcomed else state
            memory = state.memory
            join = protocol.Join(memory.node, memory.attempt, memory.acted, memory.aside)
            return replace(state, connected=True, welcomed=False, beat_t=float("-inf")), (SendToCoordinator(join),)
        case protocol.LinkClosed(t, unreachable_s):
            closed_t = max(state.answered_t, t - unreachable_s)  # our own pause, which moved `answered_t`, is not in it
            return (replace(state, connected=False, closed_t=closed_t) if state.connected else state), ()
        case protocol.FromCoordinator(_, message):
            return _of_coordinator(replace(state, answered_t=state.t), message)
        case protocol.NodesTogether():
            state = replace(state, meeting=event)
            return state, _meeting_sent(state)
        case protocol.MeetingGivenUp():
            return replace(state, meeting=None), ()
        case _:
            return _of_core(state, event)


# what the core says


def _of_core(  # noqa: PLR0911  a row for each kind
    state: MemberState,
    message: protocol.EndAttempt
    | protocol.RanksDone
    | protocol.RanksSaved
    | protocol.AttemptReport
    | protocol.NodeText
    | protocol.GiveUp
    | protocol.AskLooks
    | protocol.LookTaken,
) -> Step:
    match message:
        case protocol.GiveUp(_, text):
            memory = changed(state.memory, over=True) if "over" in state.reported else state.memory
            state, outputs = _posted(replace(state, memory=memory), QUIT, text)
            return (_aside(state) if state.open_attempt is not None else state), outputs
        case protocol.EndAttempt(_, kind, text):
            return _posted(state, kind, text)
        case protocol.RanksDone():
            return _posted(state, DONE)
        case protocol.RanksSaved():
            return _posted(state, SAVED)
        case protocol.AttemptReport(_, text):
            return _posted(state, REPORT, text)
        case protocol.NodeText(_, number, text):
            return _posted(state, GATHER, text, number) if number else _posted(state, BEGAN, text)
        case protocol.AskLooks(_, text):
            state = replace(_without_posts(state, STALLED), stalls=state.stalls + 1)
            return _posted(state, STALLED, text, state.stalls)
        case protocol.LookTaken(_, look, text):
            return _posted(_without_posts(state, LOOK), LOOK, text, look)
        case _:
            assert_never(message)


def _posted(state: MemberState, kind: str, text: str = "", index: int = 0) -> Step:
    """Post it about the open attempt, now and over each next connection."""
    attempt = state.open_attempt
    if attempt is None or (kind, index) in state.posts:
        return state, ()
    post = Post(attempt.number, kind, text, index)
    state = replace(state, posts={**state.posts, (kind, index): post})
    return state, (SendToCoordinator(post),) if state.connected and state.welcomed else ()


def _without_posts(state: MemberState, kind: str) -> MemberState:
    """Return the state without the posts of a kind."""
    return replace(state, posts={key: post for key, post in state.posts.items() if key[0] != kind})


def _meeting_sent(state: MemberState) -> tuple[MemberOutput, ...]:
    meeting = state.meeting
    if meeting is None or not (state.connected and state.welcomed):
        return ()
    return (SendToCoordinator(protocol.Meet(meeting.token, meeting.index, meeting.count, meeting.number)),)


def _aside(state: MemberState) -> MemberState:
    """Return the state of a node that takes no part in the rest of its attempt."""
    return replace(state, memory=changed(state.memory, aside=True))


# what the coordinator says


def _of_coordinator(state: MemberState, message: FromTheCoordinator) -> Step:  # noqa: PLR0911  a row for each kind
    running = state.running_attempt
    match message:
        case protocol.Welcome():
            return _welcomed(state, message)
        case protocol.Began(attempt):
            return _begun(state, attempt)
        case protocol.Decided(number, decision, returning):
            return _decided(state, number, decision, returning)
        case protocol.BeatAnswer():
            return state, ()
        case protocol.Ended(number, end) if running is not None and number == running.number:
            return replace(state, end=end), (message,)
        case protocol.Gathered(number, index) if running is not None and number == running.number:
            is_awaited = (GATHER, index) in state.posts
            return _once(state, f"{GATHER} {index}", message) if is_awaited else (state, ())
        case protocol.Peer(number, node) if running is not None and number == running.number:
            return _once(state, f"{BEGAN} {node}", message)
        case protocol.LookWanted(number, look) if running is not None and number == running.number:
            return _once(_without_posts(state, STALLED), f"{LOOK} {look}", message)  # it is answered, and not posted again
        case protocol.Looked(number) if running is not None and number == running.number:
            return state, (message,)
        case _:
            return state, ()


def _once(state: MemberState, key: str, output: MemberOutput) -> Step:
    """Report something of the attempt once, though it may come again over the next connection."""
    return (state, ()) if key in state.reported else (replace(state, reported=state.reported | {key}), (output,))


def _welcomed(state: MemberState, welcome: protocol.Welcome) -> Step:
    """Say again what this node posted, if the coordinator has its attempt; take part in one whose beginning it missed."""
    state = replace(state, welcomed=True, reported=state.reported - {"gone"})
    job_attempt, own_attempt, me = welcome.attempt, state.memory.attempt, state.memory.node
    outputs: tuple[MemberOutput, ...] = ()
    if job_attempt != own_attempt:
        if state.open_attempt is not None:
            outputs = (protocol.StepAside(state.open_attempt),)
            state = _aside(state)
        is_missed = (
            job_attempt is not None
            and me in job_attempt.members
            and job_attempt.number > (0 if own_attempt is None else own_attempt.number)
        )
        if job_attempt is not None and is_missed and welcome.decision is None:
            state, begun = _begun(state, job_attempt)
            outputs = (*outputs, *begun)
    elif welcome.decision is None and state.open_attempt is not None:
        outputs = tuple(SendToCoordinator(post) for post in state.posts.values())
    if job_attempt is not None and welcome.decision is not None:
        state, decision_outputs = _decided(state, job_attempt.number, welcome.decision, welcome.returning)
        outputs = (*outputs, *decision_outputs)
    if welcome.end is not None and state.running_attempt is not None and state.running_attempt == job_attempt:
        state = replace(state, end=welcome.end)
        outputs = (*outputs, protocol.Ended(job_attempt.number, welcome.end))
    return state, (*outputs, *_meeting_sent(state))


def _begun(state: MemberState, attempt: SharedAttempt) -> Step:
    """Take part in the attempt of our meeting; void one of a meeting that was given up."""
    node, meeting = state.memory.node, state.meeting
    state = replace(state, memory=NodeMemory(node, attempt), posts={}, reported=frozenset(), end=None, stalls=0)
    if meeting is not None and meeting.token == attempt.token:
        return replace(state, meeting=None), (protocol.Began(attempt),)
    return _posted(state, VOID, f"node {node} had given the meeting up")


def _decided(state: MemberState, number: int, decision: ClusterDecision, returning: int) -> Step:
    """Act on the decision about our attempt. A node that is left out, or takes no part, only notes that the job is over."""
    attempt, memory = state.memory.attempt, state.memory
    if attempt is not None and number == attempt.number and memory.acted is None and state.open_attempt is not None:
        count = 0 if decision.is_final else returning
        return replace(state, memory=changed(memory, acted=decision, returning=count)), (protocol.ActOn(attempt, decision, count),)
    is_ours = attempt is not None and number <= attempt.number and not memory.aside
    return (state, ()) if is_ours or not decision.is_final else _once(state, "over", protocol.ClosedWithoutUs(number, decision))


# time


def _ticked(state: MemberState, tick: protocol.NodeTick) -> Step:
    """Beat if it is time for it, and report that no coordinator answers."""
    rules = state.rules
    pause_s = 0.0 if state.tick_t is None else tick.t - state.tick_t
    state = replace(state, t=tick.t, tick_t=tick.t)
    if pause_s > rules.suspension_s:
        closed_t, answered_t = (min(t + pause_s, state.t) for t in (state.closed_t, state.answered_t))  # perhaps noted since the pause
        state = replace(state, closed_t=closed_t, answered_t=answered_t, woke_t=state.t)
    stepped_s = _stepped_s(state, tick)
    outputs: list[MemberOutput] = []
    meeting = state.meeting
    if meeting is not None and state.t - meeting.t > rules.meeting_s:
        state = replace(state, meeting=None)
        text = f"the meeting of {meeting.count} nodes got no number within {rules.meeting_s:g} s"
        outputs.append(protocol.MeetingFailed(meeting.token, text))
    if state.connected and state.t - state.beat_t >= rules.beat_s:
        state = replace(state, beat_t=state.t)
        outputs.append(SendToCoordinator(protocol.Beat(state.t, tick.standing, stepped_s, tick.step_s)))
    state, silent = _silent(state, stepped_s, tick.step_s)
    return state, (*outputs, *silent)


def _stepped_s(state: MemberState, tick: protocol.NodeTick) -> float | None:
    """Return for how long no own rank ended a step. Steps that ended while this process was away are not known yet."""
    return None if tick.stepped_s is None else min(tick.stepped_s, state.t - state.woke_t)


def _silent(state: MemberState, stepped_s: float | None, step_s: float | None) -> Step:
    attempt, rules = state.running_attempt, state.rules
    silent_s, text = state.t - state.answered_t, ""
    if state.connected and silent_s > rules.silent_s:
        text = f"the coordinator of the nodes did not answer for {rules.silent_s:g} s"
    elif not state.connected and state.t - state.closed_t > rules.closed_s:
        text = f"the coordinator of the nodes could not be reached for {rules.closed_s:g} s"
    limit_s = missing_after_s(rules, step_s)
    wait_s = max(rules.wait_s, rules.silent_s if state.connected else rules.closed_s)  # a pause of the coordinator ends nothing
    if silent_s > wait_s:
        text = f"no coordinator of the nodes answered for {wait_s:g} s"
    elif text and stepped_s is not None and stepped_s < limit_s:
        text = ""  # every rank takes part in a step: nobody continues without this node
    elif text:
        text += ", and no rank of this node ended a step"
    outputs: tuple[MemberOutput, ...] = ()
    if attempt is not None and text:
        state, outputs = _once(state, "silent", protocol.CoordinatorSilent(attempt.number, text))
    if silent_s > wait_s:
        state, gone_outputs = _once(state, "gone", protocol.CoordinatorGone(text))
        outputs = (*outputs, *gone_outputs)
    return state, outputs
