"""The packets on the guardian's links: one TypedDict for each, used at both ends.

The supervisor checks the messages that it receives against these types (launch/guardian_client.py, msgspec). The guardian never imports
this file: `typing` would cost it half a MiB. It answers a request that it cannot read with `refused`.
"""

from __future__ import annotations

from typing import Literal, TypedDict

# the supervisor's requests


class SpawnRequest(TypedDict):
    """Start the command of an attempt; answered by spawned or spawn_failed. kind: agent or plain. The rest as in `GuardianClient.spawn`.

    It ends no process, and drops every `end` that is not answered yet: that was meant for the processes before.
    """

    do: Literal["spawn"]
    attempt: int
    kind: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log_dir: str
    show: bool


class StandbyRequest(TypedDict):
    """Start a standby for the plain command of the next attempt, by what the command of `attempt` was started with.

    record: of its imports.
    """

    do: Literal["standby"]
    attempt: int
    argv: list[str]
    env: dict[str, str]
    cwd: str
    record: str


class DropStandbyRequest(TypedDict):
    """End the standby: it is not to be used."""

    do: Literal["drop_standby"]


class LogDirRequest(TypedDict):
    """Log the streams of a new attempt of a living agent there."""

    do: Literal["log_dir"]
    attempt: int
    log_dir: str


class SignalRequest(TypedDict):
    """Signal the command, or every process that descends from the guardian. to: command or all.

    A command in our process group is passed over if we received the signal too: the whole group got it.
    """

    do: Literal["signal"]
    signum: int
    to: str


class EndRequest(TypedDict):
    """End processes: `signum`, KILL after `grace_s`; answered by ended. what: orphans, command (all but a standby) or all.

    Orphans are all descendants but the commands that live and what descends from those. A second one hurries one that runs (the earlier
    KILL of both, one answer), and `all` takes the others over.
    """

    do: Literal["end"]
    what: str
    grace_s: float
    signum: int


class TailsRequest(TypedDict):
    """Send the last output of each stream; answered by tails of this id. attempt: None for the last two."""

    do: Literal["tails"]
    id: int
    attempt: int | None


class LastWordRequest(TypedDict):
    """Send `message` to host and port once the supervisor has died and all its processes are ended; replaces an earlier one."""

    do: Literal["last_word"]
    host: str
    port: int
    message: str


class FinishRequest(TypedDict):
    """The run is over, and nothing is killed from now on; answered by survivors."""

    do: Literal["finish"]


GuardianRequest = (
    SpawnRequest
    | StandbyRequest
    | DropStandbyRequest
    | LogDirRequest
    | SignalRequest
    | EndRequest
    | TailsRequest
    | LastWordRequest
    | FinishRequest
)

# the guardian's events


class GuardianHello(TypedDict):
    """The guardian is ready."""

    ev: Literal["hello"]
    pid: int


class CommandSpawned(TypedDict):
    """The command runs. start_ticks: field 22 of /proc/PID/stat, 0 if it could not be read."""

    ev: Literal["spawned"]
    attempt: int
    kind: str
    pid: int
    start_ticks: int


class SpawnFailed(TypedDict):
    """The command could not be started."""

    ev: Literal["spawn_failed"]
    attempt: int
    kind: str
    errno: int | None
    text: str


class CommandExited(TypedDict):
    """The command ended: exactly one of `code` and `signal` is set. at_ns: CLOCK_MONOTONIC."""

    ev: Literal["exited"]
    attempt: int
    kind: str
    pid: int
    code: int | None
    signal: int | None
    core_dumped: bool
    at_ns: int


class StandbyReported(TypedDict):
    """The standby of a plain command: as agent/messages.py has it for those of ranks."""

    ev: Literal["standbys"]
    attempt: int
    pids: list[int]
    ready: int
    private_kib: int
    why: str


class StandbyUsed(TypedDict):
    """The attempt's command was started: `ranks` is [0] where a standby became it. cold: why it did not."""

    ev: Literal["standbys_used"]
    attempt: int
    ranks: list[int]
    cold: str


class RemainingProcess(TypedDict):
    """A process that could not be ended, or was spared. unkilled: KILL was sent to it. start_ticks: field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int
    why: str
    unkilled: bool


class ProcessesEnded(TypedDict):
    """The answer to an end. killed: how many processes were signalled."""

    ev: Literal["ended"]
    what: str
    killed: int
    left: list[RemainingProcess]


class StreamTail(TypedDict):
    """The last output of one stream. name: out, err or both; rank: -1 for the agent's own."""

    attempt: int
    rank: int
    name: str
    text: str


class StreamTails(TypedDict):
    """Some of the tails that were asked for by this id. more: another such event follows."""

    ev: Literal["tails"]
    id: int
    tails: list[StreamTail]
    more: bool


class SurvivingProcess(TypedDict):
    """A process that lives on after the run."""

    pid: int
    cmd: str


class SurvivorsFound(TypedDict):
    """The answer to finish."""

    ev: Literal["survivors"]
    pids: list[SurvivingProcess]


class OutputDropped(TypedDict):
    """How much of the output was dropped so far, and why a log could not be written."""

    ev: Literal["output"]
    dropped_bytes: int
    log_errors: str | None


class StdoutClosed(TypedDict):
    """The reader of our stdout (`stream` 1) or stderr (2) closed it."""

    ev: Literal["stdout_closed"]
    stream: int


class LineUnfinished(TypedDict):
    """Sent before ended and survivors: what the ranks wrote last on our stderr has no line end."""

    ev: Literal["line_unfinished"]


class RequestRefused(TypedDict):
    """The guardian could not read a request, or a packet of the agent (`do` is then output)."""

    ev: Literal["refused"]
    do: str
    text: str


OutputReport = OutputDropped | StdoutClosed | LineUnfinished | RequestRefused
StandbyEvent = StandbyReported | StandbyUsed
CommandEvent = CommandSpawned | SpawnFailed | CommandExited
GuardianEvent = GuardianHello | CommandEvent | StandbyEvent | ProcessesEnded | StreamTails | SurvivorsFound | OutputReport

#: The form of each event, by its name on the wire.
EVENTS: dict[str, type[GuardianEvent]] = {
    "hello": GuardianHello,
    "spawned": CommandSpawned,
    "spawn_failed": SpawnFailed,
    "exited": CommandExited,
    "standbys": StandbyReported,
    "standbys_used": StandbyUsed,
    "ended": ProcessesEnded,
    "tails": StreamTails,
    "survivors": SurvivorsFound,
    "output": OutputDropped,
    "stdout_closed": StdoutClosed,
    "line_unfinished": LineUnfinished,
    "refused": RequestRefused,
}

# the agent's packets, each with a descriptor


class RankStream(TypedDict):
    """A stream of a rank, to be read and logged. name: out, err or both; to: our stdout (1) or stderr (2), if `show`."""

    attempt: int
    rank: int
    name: str
    show: bool
    to: int
    pty: bool
