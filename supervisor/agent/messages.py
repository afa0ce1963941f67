"""What the agent reports to the supervisor: one dataclass for each message, used at both ends of the link.

The agent runs in the user's interpreter, so this is standard library only. On the wire a message is one line of JSON with its name as `ev`;
the supervisor checks the types of each field when it reads the line (launch/elastic_session.py, msgspec). `attempt` is 0 where none is
under way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class AgentHello:
    """The agent is ready, and torch has parsed its arguments. nnodes: least and most. max_restarts: None where the user gave none."""

    attempt: int
    pid: int
    nnodes: tuple[int, int]
    nproc: int
    max_restarts: int | None
    torch: str = ""
    rdzv_backend: str = ""
    tee: str = ""


@dataclass(frozen=True)
class AgentUnfit:
    """torch is not as the agent needs it, and nothing has run."""

    attempt: int
    missing: tuple[str, ...]


@dataclass(frozen=True)
class AgentFailed:
    """The agent or torch failed; `text` is a traceback. refused: torchrun did not accept its arguments."""

    attempt: int
    text: str
    refused: bool = False


@dataclass(frozen=True)
class AgentFinished:
    """The last attempt succeeded on every node, and torchrun returned."""

    attempt: int


@dataclass(frozen=True)
class RendezvousCompleted:
    """The nodes have met, and rank 0 will serve its store on `master_port`."""

    attempt: int
    round: int
    group_rank: int
    world_size: int
    master_addr: str
    master_port: int


@dataclass(frozen=True)
class NodesMet:
    """The nodes wait for the supervisors to agree. This is node `node` of `nodes`."""

    attempt: int
    node: int
    nodes: int


@dataclass(frozen=True)
class AllGathered:
    """The texts of all nodes for all-gather `number`, in the order of the nodes."""

    attempt: int
    number: int
    texts: tuple[str, ...]


@dataclass(frozen=True)
class BroadcastReceived:
    """Another node's broadcast."""

    attempt: int
    text: str


@dataclass(frozen=True)
class WaitingNodesCounted:
    """So many nodes want to join."""

    attempt: int
    count: int


@dataclass(frozen=True)
class SpawnedRank:
    """One rank, as it was spawned. start_ticks: field 22 of /proc/PID/stat."""

    rank: int
    local_rank: int
    pid: int
    start_ticks: int


@dataclass(frozen=True)
class RanksStarted:
    """Every rank of this node exists."""

    attempt: int
    ranks: tuple[SpawnedRank, ...]
    world_size: int


@dataclass(frozen=True)
class RankReaped:
    """A rank ended: exactly one of `code` and `signal` is set. at_ns: CLOCK_MONOTONIC."""

    attempt: int
    rank: int
    pid: int
    at_ns: int
    code: int | None
    signal: int | None
    core_dumped: bool


@dataclass(frozen=True)
class TorchError:
    """An exception as torch's `@record` wrote it down."""

    rank: int
    message: str
    traceback: str


@dataclass(frozen=True)
class LogTail:
    """The end of a log file of torch's. name: out or err."""

    rank: int
    name: str
    text: str


@dataclass(frozen=True)
class RanksStopped:
    """No rank of this node is left. outcome: one of the words in agent/ranks.py."""

    attempt: int
    outcome: str
    errors: tuple[TorchError, ...] = ()
    log_tails: tuple[LogTail, ...] = ()


@dataclass(frozen=True)
class PeerStopped:
    """Another node ended the attempt. kind: failure or membership."""

    attempt: int
    node: str
    text: str
    kind: str = "failure"


@dataclass(frozen=True)
class DecisionOfPeer:
    """Another node's decision for all. kind: restart or stop. The last three are None where an agent decided, whose supervisor is gone."""

    attempt: int
    kind: str
    exit_code: int
    reason: str
    overrides: tuple[tuple[str, str], ...] | None = None
    rejected: tuple[str, ...] | None = None
    first: Mapping[str, Any] | None = None


#: About the nodes of one attempt.
NodesMessage = RendezvousCompleted | NodesMet | AllGathered | BroadcastReceived | WaitingNodesCounted | PeerStopped | DecisionOfPeer
#: About one attempt, and void where that is not the current one.
AttemptMessage = RanksStarted | RankReaped | RanksStopped | AgentFinished | NodesMessage
AgentMessage = AgentHello | AgentUnfit | AgentFailed | AttemptMessage

#: The name of each message on the wire.
MESSAGES: dict[str, type[AgentMessage]] = {
    "hello": AgentHello,
    "unfit": AgentUnfit,
    "failed": AgentFailed,
    "finished": AgentFinished,
    "rendezvous": RendezvousCompleted,
    "gathered": NodesMet,
    "all_gathered": AllGathered,
    "broadcast": BroadcastReceived,
    "nodes_waiting": WaitingNodesCounted,
    "started": RanksStarted,
    "rank_exited": RankReaped,
    "stopped": RanksStopped,
    "peer_stopped": PeerStopped,
    "peer_decided": DecisionOfPeer,
}
_NAMES = {kind: name for name, kind in MESSAGES.items()}


def encode(message: AgentMessage) -> bytes:
    """Return the line of a message."""
    return json.dumps({"ev": _NAMES[type(message)], **asdict(message)}, default=str).encode() + b"\n"
