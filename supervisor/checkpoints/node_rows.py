"""The messages of nodes that agree on a checkpoint (node_agreement.py): rows of JSON, and conclusions from those of all nodes."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from checkpointing import common
from checkpointing.common import NodeCheckpoint, NodeSave, Proof
from checkpointing.io import typed
from checkpointing.select import Selection
from supervisor.checkpoints import shared_directories
from supervisor.checkpoints.shared_directories import DirectoryMarker
from supervisor.core.actions import SelectCheckpoint
from supervisor.core.attempt.programs import DECLARED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    #: (number, text): sends the text to the all-gather of this number; returns the texts of all nodes, in their order.
    AllGather = Callable[[int, str], list[str]]


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state that a node continues from."""

    host: str
    asked: SelectCheckpoint  # what its core knows of the job
    suspect: bool  # a checkpoint may have caused the last failure
    finite: bool  # if weights of the newest checkpoint turned to NaN, the node prefers an older one
    environment: str  # as in PeerEnvironment
    sent_t: float  # as in PeerEnvironment
    markers: tuple[DirectoryMarker, ...]  # in the directories of its checkpoints
    nonce: str  # of this meeting alone
    has_saved: bool  # as in CheckpointSelected

    @property
    def agreed(self) -> int:
        """The attempt of the last agreement that it took part in, 0: it joins."""
        return self.asked.last_agreement

    def resume_by(self, programs: Collection[str]) -> str:
        """Return by whose knob it hands a checkpoint over if ranks run these programs; "" for none."""
        return next((by for by in self.asked.resume_knobs if by == DECLARED or by in programs), "")


@dataclass(frozen=True, slots=True)
class CheckpointsHere:
    """The checkpoints of a node."""

    held: tuple[NodeCheckpoint, ...]  # those that it offers
    n_found: int  # how many paths may be checkpoints
    refused: tuple[tuple[str, str], ...] = ()  # (path, reason) of the rest
    sees: tuple[int, ...] = ()  # the nodes whose markers lie in its directories
    saves: tuple[NodeSave, ...] = ()  # those of several nodes of which it has a part, or all
    silent: bool = False  # no byte came from the disk of some


@dataclass(frozen=True, slots=True)
class NodeRows:
    """The first two rows of all nodes, and this node's own selection."""

    states: tuple[NodeState, ...]
    offers: tuple[CheckpointsHere, ...]
    selection: Selection

    @property
    def newest(self) -> NodeState:
        """The state that hands over what belongs to the job."""
        return newest(self.states)

    @property
    def rejected(self) -> tuple[str, ...]:
        """The rejected checkpoints of every node with the newest agreement."""
        agreed = self.newest.agreed
        return tuple(dict.fromkeys(path for state in self.states if state.agreed == agreed for path in state.asked.rejected))

    @property
    def silent(self) -> tuple[tuple[str, str], ...]:
        """The nodes to which no byte came when they listed their checkpoints, as (host, reason)."""
        rows = zip(self.states, self.offers, strict=True)
        return tuple((state.host, ": ".join(here.refused[-1]) if here.refused else "") for state, here in rows if here.silent)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The nodes in groups that see the same directories; () if that is not known."""
        return shared_directories.groups([state.markers for state in self.states], [offer.sees for offer in self.offers])


def newest(states: Sequence[NodeState]) -> NodeState:
    """Return the state with the newest agreement, of several the first. Before any agreement who knows of most ranks saw who left."""
    return max(states, key=lambda state: (state.agreed, 0 if state.agreed else state.asked.batch.ranks))


def programs(states: Sequence[NodeState]) -> tuple[str, ...]:
    """Return the programs that ranks of any node ran: a node that joins, or whose ranks died early, does not know them itself."""
    return tuple(dict.fromkeys(name for state in states for name in state.asked.programs))


def remedy(rows: NodeRows) -> str:
    """Return what brings the newest checkpoint to the nodes that lack it, with the commands; "" if all have it."""
    firsts = [(here.held[0].step or -1, -node) for node, here in enumerate(rows.offers) if here.held]
    if firsts:
        source = -max(firsts)[1]
        newest = rows.offers[source].held[0]
        lacking = [node for node, here in enumerate(rows.offers) if not any(common.may_be_one(newest, row) for row in here.held)]
        commands = [f"on {rows.states[node].host}: {_copy(rows, source, newest.path, node)}" for node in lacking]
        literal = "copy the newest"
    else:
        parts = {node: here.saves[0].path for node, here in enumerate(rows.offers) if here.saves}
        pairs = [(node, source) for node in range(len(rows.offers)) for source in parts if source != node]
        commands = [f"on {rows.states[node].host}: {_copy(rows, source, parts[source], node)}" for node, source in pairs]
        literal = "give every node the same --mirror before it saves, or bring every node's part to every node"
    more = f"; and {len(commands) - 2} more like it" if len(commands) > 2 else ""  # noqa: PLR2004 (two fit)
    why = "the nodes have directories of their own: " if len(rows.groups) > 1 else ""
    text = f"{why}put the checkpoints on storage that all nodes share, or {literal}: {'; '.join(commands[:2])}{more}; then start again"
    return text if commands else ""


def _copy(rows: NodeRows, source: int, path: str, node: int) -> str:
    """Return the command that copies a checkpoint of one node to another. Files that are there stay."""
    markers = rows.states[node].markers
    directory = markers[0].directory if markers else os.path.dirname(path)  # noqa: PTH120 (strings throughout)
    return shlex.join(["rsync", "-a", "--ignore-existing", f"{_machine(rows.states[source].host)}:{path}", f"{directory}/"])


def _machine(host: str) -> str:
    """Return the machine's name out of what the other nodes call a node ("node 0 (a)")."""
    return host.rpartition("(")[2].rstrip(")")


def summary(here: CheckpointsHere) -> str:
    """Return in a few words what a node has."""
    if not here.held and here.saves:
        newest = min(here.saves, key=common.age_of)
        return f"{'' if newest.step is None else f'step {newest.step}, '}{newest.path}, of which other nodes have the rest"
    if here.held:
        return common.summary(here.held)
    return f"none ({'; '.join(': '.join(row) for row in here.refused[:2])})" if here.refused else "none"


_Row = TypeVar("_Row", NodeState, CheckpointsHere, Proof)


def gathered(all_gather: AllGather, number: int, own_row: _Row) -> list[_Row]:
    """Return the rows of all nodes. A path that is not UTF-8 goes by escapes, which msgspec neither writes nor reads."""
    try:
        own = msgspec.json.encode(own_row).decode()
    except UnicodeEncodeError:
        own = json.dumps(msgspec.to_builtins(own_row))
    return [_row(text, type(own_row)) for text in all_gather(number, own)]


def _row(text: str, kind: type[_Row]) -> _Row:
    try:
        return typed.decoded(text, kind)
    except msgspec.DecodeError:
        return typed.converted(json.loads(text), kind)
