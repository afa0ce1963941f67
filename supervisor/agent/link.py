"""The agent's end of the link to the supervisor: one JSON object per line, each with `attempt`.

Any thread may send, one thread reads. Sending never raises: without a supervisor the reader sees the end of the stream, and the guardian
ends the agent. A line that is no command raises ValueError; that is a bug of ours and never the job's fault.
"""

from __future__ import annotations

import json
import select
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from supervisor.agent.messages import AgentMessage, encode

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence


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
    placeholders. `nproc`: ranks of this node, None: as in torchrun's arguments.
    """

    attempt: int
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    replace: Mapping[str, str] = field(default_factory=dict)
    script_args: ScriptArgs | None = None
    nproc: int | None = None


@dataclass(frozen=True, slots=True)
class StopCommand:
    """End the ranks: `signum`, KILL after `grace_s`; then wait for a Go (`exit_code` None), or exit with this code.

    failure: why the supervisor ends the attempt, "" if it did not fail. The round of the other nodes ends with this text. The command does
    nothing if the ranks are already being stopped or all ended well.
    """

    attempt: int
    signum: int
    grace_s: float
    exit_code: int | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Publish:
    """This node's decision for all nodes of the attempt. kind: restart or stop; the rest as in core/actions.py."""

    attempt: int
    kind: str
    exit_code: int = 0
    reason: str = ""
    overrides: tuple[tuple[str, str], ...] = ()
    rejected: tuple[str, ...] = ()
    first: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AllGather:
    """This node's text for all-gather `number` of the round. The answer `all_gathered` has the texts of all nodes."""

    attempt: int
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A text for the other nodes of the round while the ranks run. Theirs come as `broadcast`."""

    attempt: int
    text: str


@dataclass(frozen=True, slots=True)
class Start:
    """The nodes have agreed: start the ranks with `go`. A one-node job needs only the first Go."""

    attempt: int
    go: Go


@dataclass(frozen=True, slots=True)
class Admit:
    """Stop the ranks so that waiting nodes can join the next round."""

    attempt: int


Command = Go | Start | AllGather | Broadcast | StopCommand | Publish | Admit


def parse(line: bytes) -> Command:
    """Return the command in one line. Raises ValueError if the line holds none."""
    try:
        raw: dict[str, Any] = json.loads(line)
        what, attempt = raw["do"], int(raw["attempt"])
        if what == "go":
            return _go(attempt, raw)
        if what == "start":
            return Start(attempt, _go(attempt, raw))
        if what in {"all_gather", "broadcast"}:
            text = str(raw["text"])
            return Broadcast(attempt, text) if what == "broadcast" else AllGather(attempt, int(raw["number"]), text)
        if what == "stop":
            exit_code = int(raw.get("exit_code") or 0) if raw.get("then", "wait") == "exit" else None
            return StopCommand(attempt, int(raw["signum"]), float(raw["grace_s"]), exit_code, str(raw.get("failure") or ""))
        if what == "publish":
            overrides = tuple((str(name), str(value)) for name, value in raw.get("overrides", ()))
            rejected = tuple(str(path) for path in raw.get("rejected", ()))
            return Publish(
                attempt,
                str(raw["kind"]),
                int(raw.get("exit_code") or 0),
                str(raw.get("reason") or ""),
                overrides,
                rejected,
                raw.get("first"),
            )
        if what == "admit":
            return Admit(attempt)
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        msg = f"not a command: {line[:200]!r}: {e!r}"
        raise ValueError(msg) from e
    msg = f"unknown command: {what!r}"
    raise ValueError(msg)


def _go(attempt: int, raw: Mapping[str, Any]) -> Go:
    return Go(
        attempt,
        env={str(k): str(v) for k, v in raw.get("env", {}).items()},
        unset=tuple(raw.get("unset", ())),
        args=tuple(raw.get("args", ())),
        replace={str(k): str(v) for k, v in raw.get("replace", {}).items()},
        script_args=_script_args(raw.get("script_args")),
        nproc=None if raw.get("nproc") is None else int(raw["nproc"]),
    )


def _script_args(raw: Mapping[str, Any] | None) -> ScriptArgs | None:
    return None if raw is None else ScriptArgs(tuple(map(str, raw["from"])), tuple(map(str, raw["to"])))


class AgentLink:
    """Events out, commands in, over one stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        """Own `sock`."""
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, message: AgentMessage) -> None:
        """Write one message. A broken link is not an error here."""
        line = encode(message)
        with self._lock:
            try:
                self._sock.sendall(line)
            except OSError:  # the supervisor is gone: commands() ends, and its reader decides what to do
                return

    def lost(self) -> bool:
        """Return whether the other end is closed, as the kernel reports it; unread commands may still be buffered."""
        poller = select.poll()
        poller.register(self._sock, select.POLLRDHUP)
        return bool(poller.poll(0))

    def commands(self) -> Iterator[Command]:
        """Yield every command until the other end closes."""
        with self._sock.makefile("rb") as lines:
            try:
                for line in lines:
                    yield parse(line)
            except OSError:
                return


def filled(word: str, values: Mapping[str, str]) -> str:
    """Return `word` with each placeholder replaced by its value (placeholder → value)."""
    for placeholder, value in values.items():
        word = word.replace(placeholder, value)
    return word


def filled_command(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the command with its placeholders replaced by their values."""
    return [filled(word, values) for word in command]
