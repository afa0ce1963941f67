"""The messages between the control store and the nodes, and what a node takes in and has to do."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.cluster.model import ClusterDecision, Epoch, EpochEnd
from supervisor.core.values import Struct


class _Message(Struct, frozen=True, tag=str.lower):
    """A message on the wire: its field `type` is the name of its class in small letters."""


# a node to the coordinator


class Join(_Message, frozen=True):
    """The first message of each connection: what this node remembers (NodeMemory). Answered by Welcome."""

    node: str
    epoch: Epoch | None = None
    acted: ClusterDecision | None = None
    aside: bool = False


class Beat(_Message, frozen=True):
    """A node lives. Answered by BeatAnswer.

    sent_t: by its own clock. standing: of its attempt, for people and for the comparison of the nodes. stepped_s: since a rank of this node
    last ended a step, None: not known. step_s: its usual step, None: not known.
    """

    sent_t: float = 0.0
    standing: str = ""
    stepped_s: float | None = None
    step_s: float | None = None


class Meet(_Message, frozen=True):
    """A node takes part in a meeting of the agents, as `index` of `count`. number: the least that the epoch may have."""

    token: str
    index: int
    count: int
    number: int


class Post(_Message, frozen=True):
    """What a node has to say about epoch `number`; the first of a kind and index counts.

    kind: FAILURE, MEMBERSHIP, LEFT, VOID (these end the epoch), QUIT, DONE, SAVED, GATHER (index: which all-gather), BEGAN, REPORT, STALLED
    (index: how often it stalled), LOOK (index: which round).
    """

    number: int
    kind: str
    text: str = ""
    index: int = 0


class Gone(_Message, frozen=True):
    """A node's guardian says, over a connection of its own: the supervisor of the node has died, and all its processes are ended."""

    node: str


class Ask(_Message, frozen=True):
    """A reader, who is no node, asks which nodes the coordinator knows. Answered by KnownNodes."""


# the coordinator to a node


class Welcome(_Message, frozen=True):
    """Answers Join: the newest epoch as the coordinator has it. returning: as in Decided. What was gathered in it already comes next."""

    host: str
    epoch: Epoch | None = None
    end: EpochEnd | None = None
    decision: ClusterDecision | None = None
    returning: int = 0


class Began(_Message, frozen=True):
    """A meeting has its number. Sent to its members."""

    epoch: Epoch


class Ended(_Message, frozen=True):
    """The epoch has ended, or is being ended."""

    number: int
    end: EpochEnd


class Decided(_Message, frozen=True):
    """What is done about the epoch. returning: how many of its members come to the next meeting, 0: not known."""

    number: int
    decision: ClusterDecision
    returning: int = 0


class Gathered(_Message, frozen=True):
    """The texts of all members for all-gather `index`, in the order of the members."""

    number: int
    index: int
    texts: tuple[str, ...]


class Peer(_Message, frozen=True):
    """How the ranks of another member began."""

    number: int
    node: str
    text: str


class LookWanted(_Message, frozen=True):
    """Post your look for this round: what your ranks do now. Also an output of the node, answered by LookTaken."""

    number: int
    look: int


class Looked(_Message, frozen=True):
    """What the looks of all nodes showed (run/job_hangs.py): a hang, or that there is none. Also an output of the node."""

    number: int
    text: str


class BeatAnswer(_Message, frozen=True):
    """Answers a Beat. coordinator_t: when it came, by the coordinator's clock."""

    sent_t: float
    coordinator_t: float


class Refused(_Message, frozen=True):
    """The connection is refused: another version of the protocol, another key. text: for people, without secrets."""

    text: str


class KnownNode(Struct, frozen=True):
    """What the coordinator knows of one node.

    index: among the members of the newest epoch, -1: it waits to join. age_s: since its last message, None: none came. out: why it takes no
    part in the epoch any more (`lost: …`, `left: …`, `done`), "": it does. standing: of its last beat. reached: its connection is open.
    """

    node: str
    index: int
    age_s: float | None
    out: str
    standing: str
    reached: bool = True


class KnownNodes(_Message, frozen=True):
    """The nodes of the newest epoch, and those that wait to join. number: of the epoch, 0: none yet. host: the node of the coordinator."""

    host: str
    number: int
    nodes: tuple[KnownNode, ...]


ToCoordinator = Join | Beat | Meet | Post | Gone | Ask
FromTheCoordinator = Welcome | Began | Ended | Decided | Gathered | Peer | LookWanted | Looked | BeatAnswer


# what the coordinator takes in, and has to do


class FromNode(Struct, frozen=True):
    """A message of a node. node: the name in the Join of its connection, or in a Gone."""

    t: float
    node: str
    message: Join | Beat | Meet | Post | Gone


class NodeClosed(Struct, frozen=True):
    """The newest connection of a node has ended, or leads nowhere. Not given where a newer one has taken its place."""

    t: float
    node: str


class CoordinatorTick(Struct, frozen=True):
    """Time has passed: several times in a second."""

    t: float


class SendToNodes(Struct, frozen=True):
    """Send this to these nodes, as far as they are connected."""

    nodes: tuple[str, ...]
    message: FromTheCoordinator


class LooksGathered(Struct, frozen=True):
    """The looks of a round, by node in the order of the members. missing: live members without one, and why."""

    number: int
    look: int
    looks: tuple[tuple[str, str], ...]
    missing: tuple[tuple[str, str], ...]


class LooksDue(Struct, frozen=True):
    """The core wants one more round of looks, to compare it with the last."""

    t: float
    number: int


class LooksJudged(Struct, frozen=True):
    """What the core found in looks. Sent to all members."""

    t: float
    number: int
    text: str


# what a node takes in, and has to do, beside what stands below


class LinkOpened(Struct, frozen=True):
    """A connection to the coordinator was opened."""

    t: float


class LinkClosed(Struct, frozen=True):
    """The connection has ended, or leads nowhere."""

    t: float


class FromCoordinator(Struct, frozen=True):
    """A message of the coordinator."""

    t: float
    message: FromTheCoordinator


class AskLooks(Struct, frozen=True):
    """The ranks of this node have made no progress for longer than the limit: all nodes are to take a look. text: why, for people."""

    t: float
    text: str


class LookTaken(Struct, frozen=True):
    """The answer to LookWanted."""

    t: float
    look: int
    text: str


class SendToCoordinator(Struct, frozen=True):
    """Send this to the coordinator."""

    message: Join | Beat | Meet | Post


class CoordinatorSilent(Struct, frozen=True):
    """The coordinator cannot be reached, and no own rank ends a step: the others may go on without this node. text: for people."""

    number: int
    text: str


class CoordinatorGone(Struct, frozen=True):
    """No coordinator answered for `wait_s`: this node stops."""

    text: str


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
    """Time has passed. standing, stepped_s, step_s: for the next beat."""

    t: float
    standing: str = ""
    stepped_s: float | None = None
    step_s: float | None = None


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
