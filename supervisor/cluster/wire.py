"""The messages of the nodes' protocol on the wire: JSON objects whose `type` is the message's, each in lines (lines.py).

A connection begins with a greeting, which names the version of the protocol and the job's key. Its form and that of Refusal are for ever,
so that nodes of any two versions can report why they do not work together.
"""

from __future__ import annotations

import hmac
import json
import re
import socket
from typing import TYPE_CHECKING, Any

import msgspec

from checkpointing.io import typed
from supervisor.cluster.lines import PIECE, in_lines
from supervisor.cluster.messages import FromTheCoordinator, Gone, KnownNodes, Refusal, ToCoordinator
from supervisor.version import __version__

if TYPE_CHECKING:
    from supervisor.cluster.messages import AskNodes

#: Raised with each change of a message that an earlier version would misunderstand.
PROTOCOL = 2
#: The longest message in bytes: of a node; of the coordinator, which sends the texts of all nodes in one; of a stranger.
LONGEST_OF_A_NODE = 4 * 2**20
LONGEST_OF_THE_COORDINATOR = 64 * 2**20
LONGEST_OF_A_STRANGER = PIECE
_GREETING = re.compile(rb"supervise coordinator (\S{1,20}) (\S{1,200})", re.ASCII)


def greeting(key: str, version: str = str(PROTOCOL)) -> tuple[bytes, ...]:
    """Return the first line of a connection."""
    return (f"supervise coordinator {version} {key}\n".encode(),)


def refusal(message: bytes, key: str, peer: str) -> str:
    """Return why a connection with this first message is refused, for the people of both nodes; "" where it is accepted.

    peer: the address of the node. Raises ConnectionAbortedError where it is not a greeting: the peer is not supervise.
    """
    words = _GREETING.fullmatch(message)
    if words is None:
        raise ConnectionAbortedError("no node of a job")
    version, coordinator = words[1].decode("ascii", "replace"), f"the coordinator on {socket.gethostname()} (supervise {__version__})"
    if version != str(PROTOCOL):
        return (
            f"the node at {peer} speaks version {version} of the protocol between nodes, {coordinator} speaks version {PROTOCOL}: "
            "install the same supervise on all nodes, and start it again on that node"
        )
    if not hmac.compare_digest(words[2], key.encode()):
        return (
            f"the node at {peer} speaks version {version} of the protocol between nodes, like {coordinator}, but is of another job, "
            "whose coordinator is not served there any more: start supervise again on that node with the --rdzv-endpoint of its job"
        )
    return ""


def encode(message: ToCoordinator | FromTheCoordinator | AskNodes | KnownNodes | Refusal) -> tuple[bytes, ...]:
    """Return the lines of a message."""
    return in_lines(json.dumps(msgspec.to_builtins(message), separators=(",", ":")).encode())


def last_word(key: str, node: str) -> str:
    """Return the message that a guardian sends once the supervisor of its node has died and all processes have ended."""
    return b"".join((*greeting(key), *encode(Gone(node)))).decode()


def to_coordinator(message: bytes) -> ToCoordinator:
    """Return the message of a node, a guardian or a reader. Raises msgspec.DecodeError for any other message."""
    return _decoded(message, ToCoordinator)  # type: ignore[no-any-return]


def to_node(message: bytes) -> FromTheCoordinator | Refusal:
    """Return a message of the coordinator. Raises msgspec.DecodeError for any other message."""
    return _decoded(message, FromTheCoordinator | Refusal)  # type: ignore[no-any-return]


def to_reader(message: bytes) -> KnownNodes | Refusal:
    """Return the answer to a reader. Raises msgspec.DecodeError for any other message."""
    return _decoded(message, KnownNodes | Refusal)  # type: ignore[no-any-return]


def _decoded(message: bytes, kinds: Any) -> Any:  # noqa: ANN401  a union of types, and one of them
    try:
        return typed.decoded(message, kinds)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass  # msgspec refuses lone surrogates, which are in a name that is not UTF-8
    try:
        fields = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(f"no message of the nodes' protocol: {error!r}") from error
    return typed.converted(fields, kinds)
