"""The messages between the coordinator and the nodes, and what each of the two takes in and has to do."""

from __future__ import annotations

from supervisor.cluster.model import AttemptEnd, ClusterDecision, SharedAttempt
from supervisor.core.values import Struct


class _Message(Struct, frozen=True, tag=str.lower):
    """A message on the wire: its field `type` is the name of its class in small letters."""


# a node to the coordinator


class Join(_Message, frozen=True):
    """The first message of each connection: what this node remembers (NodeMemory). Answered by Welcome."""

    node: str
    attempt: SharedAttempt | None = None
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
    """A node takes part in a meeting of the agents, as `index` of `count`. number: the least that the attempt may have."""

    token: str
    index: int
    count: int
    number: int


class Post(_Message, frozen=True):
    """A node's report about attempt `number`; the first of a kind and index counts.

    kind: FAILURE, MEMBERSHIP, LEFT, VOID (these end the attempt), QUIT, DONE, SAVED, GATHER (index: which all-gather), BEGAN, REPORT,
    STALLED (index: how often it stalled), LOOK (index: which round).
    """

    number: int
    kind: str
    text: str = ""
    index: int = 0


class Gone(_Message, frozen=True):
    """A node's guardian says, over a connection of its own: the supervisor of the node has died, and all its processes are ended."""

    node: str


class AskNodes(_Message, frozen=True):
    """A reader, which is not a node, asks for the nodes that the coordinator knows. Answered by KnownNodes."""


# the coordinator to a node


class Welcome(_Message, frozen=True):
    """Answers Join: the newest attempt as the coordinator has it. returning: as in Decided. The posts that it has already come next."""

    host: str
    attempt: SharedAttempt | None = None
    end: AttemptEnd | None = None
    decision: ClusterDecision | None = None
    returning: int = 0


class Began(_Message, frozen=True):
    """A meeting has its number. Sent to its members."""

    attempt: SharedAttempt


class Ended(_Message, frozen=True):
    """The attempt has ended, or is being ended."""

    number: int
    end: AttemptEnd


class Decided(_Message, frozen=True):
    """The decision about the attempt. returning: how many of its members come to the next meeting, 0: not known."""

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
    """Post your look for this round: what your ranks do now. Answered by LookTaken."""

    number: int
    look: int


class Looked(_Message, frozen=True):
    """The result of the looks of all nodes (run/job_hangs.py): a hang, or that there is none."""

    number: int
    text: str


class BeatAnswer(_Message, frozen=True):
    """Answers a Beat. coordinator_t: when it came, by the coordinator's clock."""

    sent_t: float
    coordinator_t: float


class Refusal(_Message, frozen=True):
    """The connection is refused: another version of the protocol, another key. text: for people, without secrets."""

    text: str


class KnownNode(Struct, frozen=True):
    """The coordinator's facts of one node.

    index: among the members of the newest attempt, -1: it waits to join. age_s: since its last message, None: none came. absence: why it
    takes no part in the attempt any more (`lost: …`, `left: …`, `done`), "": it takes part. standing: of its last beat. reached: its
    connection is open.
    """

    node: str
    index: int
    age_s: float | None
    absence: str
    standing: str
    reached: bool = True


class KnownNodes(_Message, frozen=True):
    """The nodes of the newest attempt, and those that wait to join."""

    host: str  # the node of the coordinator
    number: int  # of the attempt, 0: none yet
    nodes: tuple[KnownNode, ...]


ToCoordinator = Join | Beat | Meet | Post | Gone | AskNodes
FromTheCoordinator = Welcome | Began | Ended | Decided | Gathered | Peer | LookWanted | Looked | BeatAnswer


# what the coordinator takes in, and has to do


class FromNode(Struct, frozen=True):
    """A message of a node. node: the name in the Join of its connection, or in a Gone."""

    t: float
    node: str
    message: Join | Beat | Meet | Post | Gone


class NodeClosed(Struct, frozen=True):
    """The newest connection of a node has ended, or leads nowhere. Not given where a newer one has taken its place.

    unreachable_s: its host did not answer for this long before.
    """

    t: float
    node: str
    unreachable_s: float = 0.0


class CoordinatorTick(Struct, frozen=True):
    """Time has passed: several times in a second."""

    t: float


class DecisionProposed(Struct, frozen=True):
    """The core's answer to JudgeReports."""

    t: float
    number: int
    decision: ClusterDecision


class SendToNodes(Struct, frozen=True):
    """Send this to these nodes, as far as they are connected."""

    nodes: tuple[str, ...]
    message: FromTheCoordinator


class JudgeReports(Struct, frozen=True):
    """To the core of the coordinator's host: judge these. missing: members without a report, and why. Answered by DecisionProposed."""

    number: int
    reports: tuple[tuple[str, str], ...]
    missing: tuple[tuple[str, str], ...]


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
    """The core's findings in looks. Sent to all members."""

    t: float
    number: int
    text: str


# what a node takes in


class LinkOpened(Struct, frozen=True):
    """A connection to the coordinator was opened."""

    t: float


class LinkClosed(Struct, frozen=True):
    """The connection has ended, or leads nowhere. unreachable_s: the coordinator's host did not answer for this long before."""

    t: float
    unreachable_s: float = 0.0


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


class NodeTick(Struct, frozen=True):
    """Time has passed. standing, stepped_s, step_s: for the next beat."""

    t: float
    standing: str = ""
    stepped_s: float | None = None
    step_s: float | None = None


class NodesTogether(Struct, frozen=True):
    """The agents have met: this node is `index` of `count`. number: the least that the attempt may have."""

    t: float
    token: str
    index: int
    count: int
    number: int


class MeetingGivenUp(Struct, frozen=True):
    """The meeting is over before its attempt began."""

    t: float


class GiveUp(Struct, frozen=True):
    """This node waits no longer for a decision: it leaves the job, and may come back."""

    t: float
    text: str


class EndAttempt(Struct, frozen=True):
    """This node ends the attempt: kind FAILURE, MEMBERSHIP, or LEFT for its own end."""

    t: float
    kind: str
    text: str


class RanksDone(Struct, frozen=True):
    """All ranks of this node exited 0."""

    t: float


class RanksSaved(Struct, frozen=True):
    """All ranks of this node have saved, so that waiting nodes can be admitted."""

    t: float


class AttemptReport(Struct, frozen=True):
    """This node's ranks are gone; it sends its evidence."""

    t: float
    text: str


class NodeText(Struct, frozen=True):
    """A text for the other nodes: for all-gather `number`, or how the ranks began if that is 0."""

    t: float
    number: int
    text: str


# what a node has to do, beside Began, Ended, Gathered, Peer, LookWanted and Looked, which it hands on as they came


class SendToCoordinator(Struct, frozen=True):
    """Send this to the coordinator."""

    message: Join | Beat | Meet | Post


class CoordinatorSilent(Struct, frozen=True):
    """The coordinator cannot be reached, and no own rank ends a step: the others may continue without this node. text: for people."""

    number: int
    text: str


class CoordinatorGone(Struct, frozen=True):
    """No coordinator answered for `wait_s`: this node stops, once no rank of it is left."""

    text: str


class ActOn(Struct, frozen=True):
    """Act on the decision about an attempt. returning: how many of its members come to the next meeting, 0: not known."""

    attempt: SharedAttempt
    decision: ClusterDecision
    returning: int


class StepAside(Struct, frozen=True):
    """The job has continued without this node, and the decision about its attempt is not known any more."""

    attempt: SharedAttempt


class ClosedWithoutUs(Struct, frozen=True):
    """The job is over, by a decision about an attempt in which this node takes no part."""

    number: int
    decision: ClusterDecision


class MeetingFailed(Struct, frozen=True):
    """The meeting got no number."""

    token: str
    text: str
