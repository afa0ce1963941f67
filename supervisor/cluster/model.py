"""The rows of the control store, and the messages between it and the nodes.

A row is written once: the first value stays. So a row may come late, twice, or after a later one, and nothing here counts on an order.

    epoch/E          members, host, token       E: the number of the epoch, N: a node
    lost/E/N         why                        written by the store
    left/E/N         why
    done/E/N
    saved/E/N                                   its ranks saved, so that nodes that ask to join can be admitted
    end/E            kind, node, text
    report/E/N       what the node saw          sent to those only that read it
    decision/E       what the leader decided
    here/E/N                                    the node wrote again into a store without memory what it had acted on
    kept/E                                      written by a store that begins with what an earlier one on its host kept
    gather/E/I/N     a text of all-gather I
    began/E/N        how the ranks began
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Kinds of an end. VOID: a member had given the meeting up before it got its number, so that no rank was started.
FAILURE, MEMBERSHIP, LEFT, DONE, VOID = "failure", "membership", "left", "done", "void"
#: Kinds of a decision beside VOID: after the last two the job is over.
RESTART, STOP, SUCCESS = "restart", "stop", "success"
#: Kinds of a `Post` beside those of an end. SAVED: the ranks of the node saved, so that nodes that ask to join can be admitted. GATHER: its
#: text for an all-gather. BEGAN: how its ranks began. STALLED: its ranks make no progress, and it asks for the look of every node. QUIT: it
#: takes no part in the epoch any more.
SAVED, GATHER, BEGAN, REPORT, STALLED, LOOK, QUIT = "saved", "gather", "began", "report", "stalled", "look", "quit"


@dataclass(frozen=True, slots=True)
class ClusterRules:
    """The times of the protocol in seconds, and the size of the job."""

    nodes: int = 1  # the greatest number of nodes of the job
    beat_s: float = 2.0  # between two beats of a node
    lease_s: float = 6.0  # a member without a beat for so long is lost,
    disconnect_timeout_s: float = 2.0  # and one whose connection has been closed for so long
    #: in place of both where the store began after the epoch; and how long a store without memory waits for nodes that know more
    rejoin_window_s: float = 20.0
    report_s: float = 60.0  # how long reports are waited for
    meeting_s: float = 90.0  # a meeting that gets no number in this time has failed: longer than `rejoin_s`
    suspension_s: float = 1.5  # a longer gap in the own ticks means that this process itself was suspended
    #: A node whose connection is closed, or leads nowhere, is lost after `closed_s` where no other rank ends a step, but after
    #: `closed_after_end_s` where the attempt has ended anyway. One that is connected and silent is lost after `silent_s`.
    closed_s: float = 10.0
    closed_after_end_s: float = 3.0
    silent_s: float = 60.0
    #: Members have so long to come back to a coordinator that began after their epoch; one that knows of no epoch waits so long for nodes
    #: that know more.
    rejoin_s: float = 60.0
    #: A node stops that finds no coordinator for so long (`nodes.wait_s`).
    wait_s: float = 600.0
    look_s: float = 20.0  # how long the looks of all nodes are waited for
    looks_apart_s: float = 60.0  # from one round of looks to the next


@dataclass(frozen=True, slots=True)
class Epoch:
    """One meeting of nodes and its attempt. members: in the order of their group rank. host: the node that serves the store."""

    number: int
    members: tuple[str, ...]
    host: str
    token: str

    def row(self) -> tuple[str, str]:
        """Return its key and its value."""
        return f"epoch/{self.number}", json.dumps({"members": self.members, "host": self.host, "token": self.token})

    @classmethod
    def read(cls, number: int, value: str) -> Epoch:
        """Return the epoch of a row."""
        fields = json.loads(value)
        return cls(number, tuple(fields["members"]), fields["host"], fields["token"])


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The attempt of an epoch is over, or is being ended, by a node. kind: one of those above; MEMBERSHIP: waiting nodes are admitted."""

    kind: str
    node: str
    text: str

    def value(self) -> str:
        """Return the value of its row."""
        return json.dumps([self.kind, self.node, self.text])

    @classmethod
    def read(cls, value: str) -> EpochEnd:
        """Return the end of a row."""
        return cls(*json.loads(value))


@dataclass(frozen=True, slots=True)
class ClusterDecision:
    """What is done about an epoch. kind: RESTART, STOP, SUCCESS, or VOID: the nodes meet again, nothing is counted. text: the core's."""

    kind: str
    text: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the job is over after it."""
        return self.kind in {STOP, SUCCESS}

    def value(self) -> str:
        """Return the value of its row."""
        return json.dumps([self.kind, self.text])

    @classmethod
    def read(cls, value: str) -> ClusterDecision:
        """Return the decision of a row."""
        return cls(*json.loads(value))


#: Decisions that need no core, by the kind of the end.
PLAIN_DECISIONS = {DONE: ClusterDecision(SUCCESS), VOID: ClusterDecision(VOID)}


def newest_epoch(rows: Mapping[str, str]) -> int:
    """Return the greatest number of an epoch in these rows, 0 for none."""
    return max((int(key[6:]) for key in rows if key.startswith("epoch/")), default=0)


def nodes_of(rows: Mapping[str, str], kind: str, number: int) -> frozenset[str]:
    """Return the nodes that have a row of this kind in an epoch."""
    prefix = f"{kind}/{number}/"
    return frozenset(key[len(prefix) :] for key in rows if key.startswith(prefix))


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """What a node keeps for good: the newest epoch in which it took part, and what it did there.

    acted: the decision, None: none yet. returning: how many members come to the next meeting, 0: not known. aside: this node takes no part
    in the rest of the epoch. over: it ended as the job did without it, in a newer epoch.
    """

    node: str
    epoch: Epoch | None = None
    acted: ClusterDecision | None = None
    aside: bool = False
    over: bool = False
    returning: int = 0


@dataclass(frozen=True, slots=True)
class CoordinatorMemory:
    """What a coordinator keeps for good: the newest epoch, its end and the decision about it. None: none yet."""

    epoch: Epoch | None = None
    end: EpochEnd | None = None
    decision: ClusterDecision | None = None
