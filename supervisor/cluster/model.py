"""The attempts of a job of several nodes, their ends and decisions, the memory of them, and the times of the protocol."""

from __future__ import annotations

from dataclasses import dataclass

#: Kinds of an end. VOID: a member had given the meeting up before it got its number, so that no rank was started.
FAILURE, MEMBERSHIP, LEFT, DONE, VOID = "failure", "membership", "left", "done", "void"
#: Kinds of a decision beside VOID: after the last two the job is over.
RESTART, STOP, SUCCESS = "restart", "stop", "success"
#: Kinds of a `Post` beside those of an end. SAVED: the ranks of the node saved, so that nodes that ask to join can be admitted. GATHER: its
#: text for an all-gather. BEGAN: how its ranks began. STALLED: its ranks make no progress, and it asks for the look of every node. QUIT: it
#: takes no part in the attempt any more.
SAVED, GATHER, BEGAN, REPORT, STALLED, LOOK, QUIT = "saved", "gather", "began", "report", "stalled", "look", "quit"


@dataclass(frozen=True, slots=True)
class ClusterRules:
    """The times of the protocol in seconds, and the size of the job."""

    nodes: int = 1  # the greatest number of nodes of the job
    beat_s: float = 2.0  # between two beats of a node
    report_s: float = 60.0  # how long reports are waited for
    meeting_s: float = 90.0  # a meeting that gets no number in this time has failed: longer than `rejoin_s`
    suspension_s: float = 1.5  # a longer gap in the own ticks means that this process itself was suspended
    #: A node whose connection is closed, or leads nowhere, is lost after `closed_s` where no other rank ends a step, but after
    #: `closed_after_end_s` where the attempt has ended anyway. One that is connected and silent is lost after `silent_s`.
    closed_s: float = 10.0
    closed_after_end_s: float = 3.0
    silent_s: float = 60.0
    #: Members have so long to come back to a coordinator that began after their attempt; one that knows of no attempt waits so long for
    #: nodes that know more.
    rejoin_s: float = 60.0
    #: A node that finds no coordinator for this long ends its ranks, and stops (`nodes.wait_s`).
    wait_s: float = 600.0
    look_s: float = 20.0  # how long the looks of all nodes are waited for
    looks_apart_s: float = 60.0  # from one round of looks to the next


@dataclass(frozen=True, slots=True)
class SharedAttempt:
    """An attempt of nodes that have met, with one number on all of them."""

    number: int
    members: tuple[str, ...]  # in the order of their group rank
    host: str  # the node of the coordinator
    token: str


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """An attempt is over, or is being ended, by a node."""

    kind: str  # one of those above; MEMBERSHIP: waiting nodes are admitted
    node: str
    text: str


@dataclass(frozen=True, slots=True)
class ClusterDecision:
    """The decision about an attempt. kind: RESTART, STOP, SUCCESS, or VOID: the nodes meet again, nothing is counted. text: the core's."""

    kind: str
    text: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the job is over after it."""
        return self.kind in {STOP, SUCCESS}


#: Decisions that need no core, by the kind of the end.
PLAIN_DECISIONS = {DONE: ClusterDecision(SUCCESS), VOID: ClusterDecision(VOID)}


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """The lasting memory of a node: the newest attempt in which it took part, and its work there.

    acted: the decision, None: none yet. returning: how many members come to the next meeting, 0: not known. aside: this node takes no part
    in the rest of the attempt. over: it ended as the job did without it, in a newer attempt.
    """

    node: str
    attempt: SharedAttempt | None = None
    acted: ClusterDecision | None = None
    aside: bool = False
    over: bool = False
    returning: int = 0


@dataclass(frozen=True, slots=True)
class CoordinatorMemory:
    """The lasting memory of a coordinator: the newest attempt, its end and the decision about it. None: none yet."""

    attempt: SharedAttempt | None = None
    end: AttemptEnd | None = None
    decision: ClusterDecision | None = None
