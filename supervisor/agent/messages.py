"""The messages of the agent to the supervisor, and the supervisor's commands: one dataclass for each, used at both ends of the link.

The agent runs in the user's interpreter, so this is standard library only. On the wire a message is one line of JSON with its name: `ev` of
a message of the agent, `do` of a command. Each reader checks the type of every field: the supervisor with msgspec
(launch/elastic_session.py), the agent in `decode_command`. `attempt` is 0 where none is under way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class AgentHello:
    """The agent is ready, and torch has parsed its arguments. nnodes: least and most. max_restarts: None where the user gave none.

    versions: of python, torch, CUDA and NCCL, as the ranks will import them.
    """

    attempt: int
    pid: int
    nnodes: tuple[int, int]
    nproc: int
    max_restarts: int | None
    torch: str = ""
    rdzv_backend: str = ""
    tee: str = ""
    versions: dict[str, str] | None = None


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
    """The nodes wait for the supervisors to agree. This is node `node` of `nodes`, in the meeting `token`, with `world_size` ranks in all.

    host, port, key: of the coordinator; empty where this node's supervisor is to be it, as the agent here serves torch's rendezvous store.
    It answers with PublishCoordinator.
    """

    attempt: int
    node: int
    nodes: int
    token: str = ""
    host: str = ""
    port: int = 0
    key: str = ""
    world_size: int = 0


@dataclass(frozen=True)
class AllRanksDone:
    """All ranks of this node exited 0. Whether the job succeeded is for the nodes together to say: Complete, or a stop."""

    attempt: int


@dataclass(frozen=True)
class WaitingNodesCounted:
    """So many nodes want to join."""

    attempt: int
    count: int


@dataclass(frozen=True)
class MissingNodesCounted:
    """This node waits for so many more nodes: fewer are there than --nnodes needs. within_s: torch's join_timeout, which is suspended."""

    attempt: int
    count: int
    within_s: float


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
class StandbysReported:
    """The standbys of this node's ranks. pids: all that wait or prepare. why: why one was refused. private_kib: of those that are ready."""

    attempt: int
    pids: tuple[int, ...] = ()
    ready: int = 0
    private_kib: int = 0
    why: str = ""


@dataclass(frozen=True)
class StandbysUsed:
    """The attempt's ranks began: `ranks` are the local ranks that standbys became. cold: why one of the others was started cold."""

    attempt: int
    ranks: tuple[int, ...]
    cold: str = ""


@dataclass(frozen=True, slots=True)
class ScriptArgs:
    """The script's arguments, replaced as a whole: they must be `before` and become `after`. If they differ, the attempt fails."""

    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Go:
    """Meet the other nodes; on a one-node job also start the ranks as `attempt`.

    `env` and `unset` edit the ranks' environment. First `script_args` replaces the script's arguments (None: they stay), then `replace`
    fills placeholders in them (placeholder → value), then `args` are appended. The agent outlives many attempts, so it fills the
    placeholders. `nproc`: ranks of this node, None: as in torchrun's arguments. `returning`: how many nodes of the last attempt come, 0:
    not known. `least_nodes`: so many are waited for, 0: as many as torchrun's arguments say. `node_group`: nodes take part in groups of so
    many.
    """

    attempt: int
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    replace: Mapping[str, str] = field(default_factory=dict)
    script_args: ScriptArgs | None = None
    nproc: int | None = None
    returning: int = 0
    least_nodes: int = 0
    node_group: int = 1


@dataclass(frozen=True, slots=True)
class StopCommand:
    """End the ranks: `signum`, KILL after `grace_s`; then wait for a Go (`exit_code` None), or exit with this code.

    failure: why the supervisor ends the attempt, "" if it did not fail. for_all: no node of the job continues, so that the rendezvous is
    closed.
    """

    attempt: int
    signum: int
    grace_s: float
    exit_code: int | None = None
    failure: str = ""
    for_all: bool = False


@dataclass(frozen=True, slots=True)
class PublishCoordinator:
    """The supervisor of this agent is the coordinator, at this port: tell the other agents, through torch's rendezvous store."""

    attempt: int
    port: int
    key: str


@dataclass(frozen=True, slots=True)
class Renumber:
    """The attempt for which the nodes have met has the number `number` on all of them."""

    attempt: int
    number: int


@dataclass(frozen=True, slots=True)
class Complete:
    """All ranks of all nodes exited 0."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Start:
    """The nodes have agreed: start the ranks with `go`. A one-node job needs only the first Go."""

    go: Go

    @property
    def attempt(self) -> int:
        """The attempt of its `go`."""
        return self.go.attempt


@dataclass(frozen=True, slots=True)
class Admit:
    """Stop the ranks so that waiting nodes can join the next round."""

    attempt: int


@dataclass(frozen=True, slots=True)
class PrepareStandbys:
    """Start a standby for each rank of this node.

    commands: what each rank was seen to run, by local rank; no other is started. directory: where their records are.
    """

    attempt: int
    directory: str
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class DropStandbys:
    """End the standbys: they are not to be used."""

    attempt: int


#: About the nodes of one attempt.
NodesMessage = RendezvousCompleted | NodesMet | AllRanksDone | WaitingNodesCounted | MissingNodesCounted
StandbysMessage = StandbysReported | StandbysUsed
#: About one attempt, and void where that is not the current one.
AttemptMessage = RanksStarted | RankReaped | RanksStopped | AgentFinished | NodesMessage | StandbysMessage
AgentMessage = AgentHello | AgentUnfit | AgentFailed | AttemptMessage

Command = Go | Start | PublishCoordinator | Renumber | Complete | StopCommand | Admit | PrepareStandbys | DropStandbys

#: The name of each message on the wire.
MESSAGES: dict[str, type[AgentMessage]] = {
    "hello": AgentHello,
    "unfit": AgentUnfit,
    "failed": AgentFailed,
    "finished": AgentFinished,
    "rendezvous": RendezvousCompleted,
    "gathered": NodesMet,
    "ranks_done": AllRanksDone,
    "nodes_waiting": WaitingNodesCounted,
    "nodes_missing": MissingNodesCounted,
    "started": RanksStarted,
    "rank_exited": RankReaped,
    "stopped": RanksStopped,
    "standbys": StandbysReported,
    "standbys_used": StandbysUsed,
}
COMMANDS: dict[str, type[Command]] = {
    "go": Go,
    "start": Start,
    "publish_coordinator": PublishCoordinator,
    "renumber": Renumber,
    "complete": Complete,
    "stop": StopCommand,
    "admit": Admit,
    "prepare_standbys": PrepareStandbys,
    "drop_standbys": DropStandbys,
}
_NAMES: dict[type[AgentMessage | Command], str] = {kind: name for name, kind in (*MESSAGES.items(), *COMMANDS.items())}


def name_of(message: AgentMessage | Command) -> str:
    """Return the name of a message on the wire."""
    return _NAMES[type(message)]


def encode(message: AgentMessage | Command) -> bytes:
    """Return the line of a message."""
    key = "do" if isinstance(message, Command) else "ev"
    return json.dumps({key: name_of(message), **asdict(message)}, default=str).encode() + b"\n"


def decode_command(line: bytes) -> Command:
    """Return the command in one line. Raises ValueError for another line, or where a field has another type."""
    try:
        fields = json.loads(line)
        command: Command = _as_type(fields, COMMANDS[fields.pop("do")])
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        msg = f"not a command: {line[:200]!r}: {e!r}"
        raise ValueError(msg) from e
    return command


def _as_type(value: Any, kind: Any) -> Any:  # noqa: ANN401 - JSON, and a type as it is at a field
    """Return a value of JSON as `kind`: one of the types that the fields of the commands have."""
    items = get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        types = get_type_hints(kind)
        return kind(**{name: _as_type(item, types[name]) for name, item in value.items()})
    if isinstance(kind, UnionType):  # X | None
        return None if value is None else _as_type(value, items[0])
    if get_origin(kind) is Mapping:
        return {_as_type(key, items[0]): _as_type(item, items[1]) for key, item in value.items()}
    if get_origin(kind) is tuple and isinstance(value, list):
        kinds = items[:1] * len(value) if items[-1] is Ellipsis else items
        return tuple(_as_type(item, item_kind) for item, item_kind in zip(value, kinds, strict=True))
    if kind is float and type(value) is int:
        return float(value)
    if kind is not Any and type(value) is not kind:
        raise TypeError(value, kind)
    return value
