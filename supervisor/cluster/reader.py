"""Asks a coordinator which nodes it knows, from a process that is not a node: `supervise status --all-nodes`."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from checkpointing.io import typed
from supervisor.cluster import wire
from supervisor.cluster.lines import LineSocket
from supervisor.cluster.messages import AskNodes, Refusal
from supervisor.core.numeric import rank_list
from supervisor.core.watch import loss_and_pace
from supervisor.observe.pace.judge import NodePace

if TYPE_CHECKING:
    from supervisor.cluster.client import CoordinatorAddress
    from supervisor.cluster.messages import KnownNodes
    from supervisor.core.state import JobState

#: A longer standing leaves things out, bytes. The longest text in it, in characters, and how many of the slow nodes it names.
MOST_BYTES = 2048
LONGEST_TEXT, MOST_SLOW = 400, 3


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """The state of a node's attempt, as each of its beats has it.

    ranks: those of the node that live, such as `ranks 0-7`. step: of the rank that is furthest behind, None: not known. relative: as in
    Progress. gpus_out: how many of its GPUs are out of use. pace: of the last minute or so. gpu: of the rank that is its slowest.
    health: what checks and the kernel's log show to be wrong with that GPU and the node. slow: which ranks or nodes this one finds to be
    slow, a sentence for each.
    """

    stage: str
    attempt: int
    step: int | None = None
    relative: bool = False
    phase: str = "unknown"
    ranks: str = ""
    gpus_out: int = 0
    pace: NodePace | None = None
    gpu: str = ""
    health: str = ""
    slow: tuple[str, ...] = ()

    @classmethod
    def of(cls, state: JobState, pace: NodePace | None = None) -> NodeStanding:
        """Return the standing of a node by its state, and the pace of its ranks."""
        attempt, progress = state.attempt, state.attempt.progress
        ranks = rank_list(rank.rank for rank in attempt.live_ranks) if attempt.live_ranks else ""
        gpus_out = sum(bool(gpu.quarantined) for gpu in state.gpus)
        slow = tuple(_short(text) for *_, text in loss_and_pace.stragglers(attempt)[:MOST_SLOW])
        rank = None if pace is None else pace.rank
        gpu, health = loss_and_pace.gpu_text(state, rank), _short(loss_and_pace.health_text(state, rank))
        facts = (progress.step, progress.relative, progress.phase.value, ranks, gpus_out, pace, gpu, health, slow)
        return cls(state.stage.value, attempt.number, *facts)

    def text(self) -> str:
        """Return it for a beat."""
        encoded = msgspec.json.encode(self)
        if len(encoded) > MOST_BYTES:
            encoded = msgspec.json.encode(replace(self, slow=self.slow[:1], health=""))
        return encoded.decode()

    @classmethod
    def read(cls, text: str) -> NodeStanding | None:
        """Return what a beat brought, None where it brought none, or that of a later version."""
        try:
            return typed.decoded(text, cls)
        except (ValueError, msgspec.DecodeError):
            return None


def _short(text: str) -> str:
    text = text.encode(errors="replace").decode()  # a health check may name a path that is not UTF-8, which no JSON takes
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def known_nodes(address: CoordinatorAddress, within_s: float) -> KnownNodes:
    """Return what the coordinator there knows. Raises OSError where none answers in time, or it refuses to."""
    with socket.create_connection((address.host, address.port), timeout=within_s) as sock:
        connection = LineSocket(sock, wire.LONGEST_OF_THE_COORDINATOR)
        sock.settimeout(within_s)  # nothing else waits here
        connection.put(wire.greeting(address.key) + wire.encode(AskNodes()))
        connection.flush()
        until_t = time.monotonic() + within_s
        while time.monotonic() < until_t:
            for message in connection.messages():
                return _answer(message)
    raise TimeoutError(f"no answer within {within_s:g} s")


def _answer(message: bytes) -> KnownNodes:
    try:
        answer = wire.to_reader(message)
    except msgspec.DecodeError as error:
        raise OSError(str(error)) from error
    if isinstance(answer, Refusal):
        raise ConnectionRefusedError(answer.text)
    return answer
