"""The messages between the control store and the nodes, and what a node takes in and has to do."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.cluster.model import ClusterDecision, Epoch, EpochEnd

# a node to the store


@dataclass(frozen=True, slots=True)
class NodeHello:
    """A node opened a connection."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeBeat:
    """A node lives. have: the revision up to which it has all rows. sent_t: by its own clock. standing: of its attempt, for people."""

    node: str
    have: int
    sent_t: float = 0.0
    standing: str = ""


@dataclass(frozen=True, slots=True)
class WriteRow:
    """Write a row if there is none."""

    node: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class MeetNodes:
    """A node takes part in a meeting, as `index` of `count`.

    epoch: the newest in which it took part. number: the least number that the new one may have.
    """

    node: str
    token: str
    index: int
    count: int
    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ReadReports:
    """Send the reports of an epoch."""

    node: str
    number: int


ToStore = NodeHello | NodeBeat | WriteRow | MeetNodes | ReadReports


@dataclass(frozen=True, slots=True)
class AskNodes:
    """A reader, who is no node, asks which nodes the store knows. Answered by KnownNodes."""


# the store to a node


@dataclass(frozen=True, slots=True)
class StoreRows:
    """Rows of the revisions above `since` up to `revision`, reports without their values.

    store: changes with each start of a store. beat_t: the time in the beat that this answers, 0: none. store_t: by the store's clock.
    """

    store: str
    host: str
    since: int
    revision: int
    rows: tuple[tuple[str, str], ...]
    beat_t: float = 0.0
    store_t: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreReports:
    """The reports of an epoch that have been written, by node."""

    store: str
    number: int
    reports: tuple[tuple[str, str], ...]


ToNode = StoreRows | StoreReports


@dataclass(frozen=True, slots=True)
class KnownNode:
    """What the store knows of one node.

    index: among the members of the newest epoch, -1: it waits to join. age_s: since its last message, None: none came. out: why it takes no
    part in the epoch any more (`lost: …`, `left: …`, `done`), "": it does. standing: of its last beat.
    """

    node: str
    index: int
    age_s: float | None
    out: str
    standing: str


@dataclass(frozen=True, slots=True)
class KnownNodes:
    """The nodes of the newest epoch, and those that wait to join. number: of the epoch, 0: none yet. host: the node of the store."""

    host: str
    number: int
    nodes: tuple[KnownNode, ...]


# what a node takes in


@dataclass(frozen=True, slots=True)
class StoreOpened:
    """A connection to the store was opened."""

    t: float


@dataclass(frozen=True, slots=True)
class StoreClosed:
    """The connection has ended, or none can be opened."""

    t: float


@dataclass(frozen=True, slots=True)
class FromStore:
    """A message of the store."""

    t: float
    message: ToNode


@dataclass(frozen=True, slots=True)
class NodeTick:
    """Time has passed. standing: for the next beat."""

    t: float
    standing: str = ""


@dataclass(frozen=True, slots=True)
class NodesTogether:
    """The agents have met: this node is `index` of `count`. number: the least that the epoch may have."""

    t: float
    token: str
    index: int
    count: int
    number: int


@dataclass(frozen=True, slots=True)
class MeetingGivenUp:
    """The meeting is over before its epoch began."""

    t: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """This node waits no longer for a decision: it leaves the job, and may come back."""

    t: float
    text: str


@dataclass(frozen=True, slots=True)
class EndEpoch:
    """This node ends the epoch: kind FAILURE, MEMBERSHIP, or LEFT for its own end."""

    t: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class RanksDone:
    """All ranks of this node exited 0."""

    t: float


@dataclass(frozen=True, slots=True)
class RanksSaved:
    """All ranks of this node have saved, so that waiting nodes can be admitted."""

    t: float


@dataclass(frozen=True, slots=True)
class EpochReport:
    """This node's ranks are gone, and this is what it saw."""

    t: float
    text: str


@dataclass(frozen=True, slots=True)
class DecisionProposed:
    """The core's answer to JudgeReports."""

    t: float
    number: int
    decision: ClusterDecision


@dataclass(frozen=True, slots=True)
class NodeText:
    """A text for the other nodes: for all-gather `number`, or how the ranks began if that is 0."""

    t: float
    number: int
    text: str


NodeInput = (
    StoreOpened
    | StoreClosed
    | FromStore
    | NodeTick
    | NodesTogether
    | MeetingGivenUp
    | GiveUp
    | EndEpoch
    | RanksDone
    | RanksSaved
    | EpochReport
    | DecisionProposed
    | NodeText
)

# what a node has to do


@dataclass(frozen=True, slots=True)
class SendToStore:
    """Send this to the store."""

    message: ToStore


@dataclass(frozen=True, slots=True)
class EpochBegan:
    """The meeting has its number. Keep the memory."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """The attempt is over, or is to be ended."""

    number: int
    end: EpochEnd


@dataclass(frozen=True, slots=True)
class JudgeReports:
    """This node is the leader: judge these. missing: members without a report, and why. Answered by DecisionProposed."""

    number: int
    reports: tuple[tuple[str, str], ...]
    missing: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ActOn:
    """Act on the decision about an epoch. returning: how many of its members come to the next meeting, 0: not known."""

    epoch: Epoch
    decision: ClusterDecision
    returning: int


@dataclass(frozen=True, slots=True)
class StepAside:
    """The job has gone on without this node, and what was decided about its epoch is not known any more."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class ClosedWithoutUs:
    """The job is over, by a decision about an epoch in which this node takes no part."""

    number: int
    decision: ClusterDecision


@dataclass(frozen=True, slots=True)
class StoreSilent:
    """The store did not answer for the time of a lease: the others may go on without this node."""

    number: int


@dataclass(frozen=True, slots=True)
class MeetingFailed:
    """The meeting got no number."""

    token: str
    text: str


@dataclass(frozen=True, slots=True)
class TextsGathered:
    """The texts of all members for an all-gather, in their order."""

    number: int
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PeerText:
    """How the ranks of another member began."""

    node: str
    text: str


NodeOutput = (
    SendToStore
    | EpochBegan
    | EpochEnded
    | JudgeReports
    | ActOn
    | StepAside
    | ClosedWithoutUs
    | StoreSilent
    | MeetingFailed
    | TextsGathered
    | PeerText
)
