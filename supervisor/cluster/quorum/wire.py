"""The register's messages on the wire: one line of JSON each, every request answered by one line.

A connection begins with a line that names the register: a digest of the job's id and of the list. There is no secret before the nodes have
met, as torch's rendezvous has none; a host of another job, or one that has another list, is refused, and learns why.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import msgspec

from supervisor.cluster.quorum.acceptor import AcceptCell, AcceptorAnswer, JoinRegister, PrepareBallot, ReadCell

if TYPE_CHECKING:
    from supervisor.cluster.quorum.acceptor import AcceptorRequest

#: The rows of a control store of many nodes have some hundred KiB at most.
LONGEST_LINE = 16 * 2**20
REFUSED = b"another register\n"
_REQUESTS: dict[str, type[AcceptorRequest]] = {
    "read": ReadCell,
    "prepare": PrepareBallot,
    "accept": AcceptCell,
    "join": JoinRegister,
}
_NAMES = {kind: name for name, kind in _REQUESTS.items()}


@dataclass(frozen=True, slots=True)
class RegisterHosts:
    """The list. job: torch's --rdzv-id. hosts: host and port of each acceptor, on all hosts the same list in the same order."""

    job: str
    hosts: tuple[tuple[str, int], ...]

    @property
    def digest(self) -> str:
        """What a connection begins with, and the file of an acceptor."""
        return hashlib.sha256(json.dumps([self.job, self.hosts]).encode()).hexdigest()

    def greeting(self) -> bytes:
        """Return the first line of a connection."""
        return f"supervise register 1 {self.digest}\n".encode()


def encode_request(request: AcceptorRequest) -> bytes:
    """Return the line of a request."""
    return json.dumps([_NAMES[type(request)], asdict(request)]).encode() + b"\n"


def request_of(line: bytes) -> AcceptorRequest:
    """Return the request of a line. Raises ValueError (msgspec.ValidationError is one) where it is none."""
    try:
        name, fields = json.loads(line)
        kind = _REQUESTS[name]
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"no request of the register: {error!r}") from error
    return msgspec.convert(fields, kind)


def encode_answer(answer: AcceptorAnswer) -> bytes:
    """Return the line of an answer."""
    return json.dumps(asdict(answer)).encode() + b"\n"


def answer_of(line: bytes, size: int) -> AcceptorAnswer:
    """Return the answer of a line. Raises ValueError where it is none."""
    answer = msgspec.convert(json.loads(line), AcceptorAnswer)
    if len(answer.incarnations) != size:
        raise ValueError(f"an answer about {len(answer.incarnations)} hosts, and not {size}")
    return answer
