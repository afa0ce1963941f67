"""The control store's messages on the wire: one line of JSON each, `["name", {fields}]`.

A connection begins with a line that has the job's key; without it, it is refused.
"""

from __future__ import annotations

import hmac
import json
import re
from typing import TYPE_CHECKING, TypeVar

import msgspec

from supervisor.cluster.messages import (
    AskNodes,
    KnownNodes,
    MeetNodes,
    NodeBeat,
    NodeHello,
    ReadReports,
    StoreReports,
    StoreRows,
    WriteRow,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisor.cluster.messages import ToNode, ToStore

#: A longer line is no message: a report has some hundred KiB at most.
LONGEST_LINE = 16 * 2**20
#: The key of a row: its kind, the number of its epoch, and perhaps more.
_KEY = re.compile(r"[a-z]+/[0-9]{1,18}(?:/.*)?", re.ASCII | re.DOTALL)
_GREETING = "supervise control store 1"
_TO_STORE: dict[str, type[ToStore | AskNodes]] = {
    "hello": NodeHello,
    "beat": NodeBeat,
    "write": WriteRow,
    "meet": MeetNodes,
    "read": ReadReports,
    "ask": AskNodes,
}
_TO_NODE: dict[str, type[ToNode]] = {"rows": StoreRows, "reports": StoreReports}
_TO_READER: dict[str, type[KnownNodes]] = {"nodes": KnownNodes}
_NAMES: dict[type, str] = {kind: name for name, kind in (*_TO_STORE.items(), *_TO_NODE.items(), *_TO_READER.items())}
_Kind = TypeVar("_Kind")


def greeting(key: str) -> bytes:
    """Return the first line of a connection."""
    return f"{_GREETING} {key}\n".encode()


def is_greeting(line: bytes, key: str) -> bool:
    """Return whether a line is the greeting of a node of this job."""
    return hmac.compare_digest(line, greeting(key))


def encode(message: ToStore | ToNode | AskNodes | KnownNodes) -> bytes:
    """Return the line of a message."""
    fields = msgspec.to_builtins(message)
    return json.dumps([_NAMES[type(message)], fields], separators=(",", ":")).encode() + b"\n"


def to_store(line: bytes) -> ToStore | AskNodes:
    """Return the message of a node or of a reader.

    Raises msgspec.DecodeError where the line is none, a field has another type, or the key of a row is none.
    """
    message = _decoded(line, _TO_STORE)
    if isinstance(message, WriteRow) and not _KEY.fullmatch(message.key):
        raise msgspec.DecodeError(f"not the key of a row: {message.key[:80]!r}")
    return message


def to_node(line: bytes) -> ToNode:
    """Return a message of the store. Raises msgspec.DecodeError where the line is none, or a field has another type."""
    return _decoded(line, _TO_NODE)


def to_reader(line: bytes) -> KnownNodes:
    """Return the answer to a reader. Raises msgspec.DecodeError where the line is none, or a field has another type."""
    return _decoded(line, _TO_READER)


def _decoded(line: bytes, kinds: Mapping[str, type[_Kind]]) -> _Kind:
    try:
        name, fields = json.loads(line)  # msgspec's decoder refuses lone surrogates, which stand for a name that is not UTF-8
        kind = kinds[name]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise msgspec.DecodeError(f"no message of the control store: {error!r}") from error
    return msgspec.convert(fields, kind)
