"""Finds out where all nodes of a job stand: by their control store, and by the journals of those that share the state directory.

The store is asked (cluster/reader.py) by what a node keeps of its address and key beside its journal. It knows a node's last beat, and is
there as long as the job. A journal is there for good, and is as old as its last record. What neither has is not known, and is shown so.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from supervisor.cli import stdio
from supervisor.cli.jobs.job_files import JobFiles, history_of, other_nodes
from supervisor.cli.jobs.job_status import status_from
from supervisor.core.numeric import rank_list
from supervisor.core.values import Struct, replace
from supervisor.errors import SuperviseError
from supervisor.job import identity
from supervisor.report.nodes_page import UNKNOWN, JobNodesStatus, NodeStatus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from supervisor.cluster.client import StoreAddress  # noqa: TC004  not for --help
    from supervisor.cluster.messages import KnownNode, KnownNodes
    from supervisor.journal.history import History  # noqa: TC004  likewise

#: For the answer of one address of the store; a few are tried.
_ANSWER_S = 2.0
_MOST_TRIES = 3
_LOOPBACK = "127.0.0.1"


class NodeJournal(Struct, frozen=True):
    """What the state directory has of one node. name: by which the other nodes know it, "" where it has met none."""

    place: JobFiles
    history: History
    alive: bool | None
    name: str
    address: StoreAddress | None


def all_nodes(root: Path, place: JobFiles) -> JobNodesStatus:
    """Return where the nodes of a job stand. place: its files on one of them."""
    journals = journals_of(root, place)
    newest = max(journals, key=lambda one: (bool(one.history.members), not _is_behind(one, journals), one.history.last_t))
    known, problem = (None, "the job has ended: no control store is asked") if newest.history.end is not None else _asked(journals)
    if known is not None and known.number:
        rows = [_by_store(one, journals) for one in known.nodes]
        attempt, store = known.number, known.host.partition("/")[0]
    else:
        members = newest.history.members
        rows = [_by_journal(member, index, journals) for index, member in enumerate(members)]
        attempt, store = newest.history.attempt, ""
    shown = {one.node for one in rows}
    rows += [_of_journal(one, None) for one in journals if one.place.node not in shown] if rows else []
    if not rows:  # its nodes have never met: a job of one node, or one that only begins
        rows = [_of_journal(one, index if len(journals) == 1 else None) for index, one in enumerate(journals)]
    return JobNodesStatus(place.job, attempt, tuple(rows), store, "" if store else problem)


def _is_behind(one: NodeJournal, journals: Sequence[NodeJournal]) -> bool:
    """Return whether a node that was at this one's last meeting has met others since: it knows more, whatever their clocks show."""
    attempt, members = next(reversed(one.history.meetings.items()), (0, ()))
    return any(other.history.meetings.get(attempt) == members and max(other.history.meetings) > attempt for other in journals)


def journals_of(root: Path, place: JobFiles) -> list[NodeJournal]:
    """Return what the state directory has of the job's nodes, that of `place` first. Raises SuperviseError where that cannot be read."""
    from supervisor.cluster.kept import KeptFile, KeptNode  # noqa: PLC0415  not for --help

    found = []
    for one in [place, *other_nodes(root, place)]:
        try:
            history, alive = history_of(one)
        except SuperviseError as error:
            if one is place:
                raise
            stdio.say(f"{one.node}: {error.message}")
            continue
        kept = KeptFile(one.directory / "cluster" / "node.json", stdio.say).read(KeptNode)
        if kept is not None and (history.run is None or kept.owner.run != history.run.run_id):
            kept = None
        address = None if kept is None else kept.address
        if address is not None and address.host == _LOOPBACK and one.node != identity.node_name():
            address = replace(address, host=one.node)  # it serves the store itself
        found.append(NodeJournal(one, history, alive, history.me if kept is None else kept.memory.node, address))
    return found


def _asked(journals: Sequence[NodeJournal]) -> tuple[KnownNodes | None, str]:
    """Return what the control store knows, and why there is no answer."""
    from supervisor.cluster.reader import known_nodes  # noqa: PLC0415  not for --help

    addresses = list(dict.fromkeys(one.address for one in journals if one.address is not None and one.history.end is None))
    problem = "the nodes have not met, or it is a job of one node: there is no control store"
    for address in addresses[:_MOST_TRIES]:
        try:
            return known_nodes(address, _ANSWER_S), ""
        except OSError as error:
            problem = f"the control store at {address.host}:{address.port} does not answer: {error}"
    return None, problem


def _by_store(known: KnownNode, journals: Sequence[NodeJournal]) -> NodeStatus:
    """Return where a node stands by what the store has of it; a node that is here is shown as it is now."""
    from supervisor.cluster.reader import NodeStanding  # noqa: PLC0415  not for --help

    number = known.index if known.index >= 0 else None
    own = next((one for one in journals if one.name == known.node), None)
    why, _, text = known.out.partition(": ")
    if own is not None and own.alive and not why:
        return _of_journal(own, number)
    standing, host = NodeStanding.read(known.standing), known.node.partition("/")[0]
    if standing is None and not why and own is not None:  # the store began after its last beat
        return _of_journal(own, number)
    if standing is None:
        return NodeStatus(host, number, why or UNKNOWN, age_s=known.age_s, source="store", why=text)
    state = why or ("waits to join" if number is None else standing.stage)
    return NodeStatus(
        host, number, state, standing.attempt, standing.step, standing.relative, standing.phase,
        "" if why else standing.ranks, standing.gpus_out, known.age_s, "store", text,
    )  # fmt: skip


def _by_journal(member: str, number: int, journals: Sequence[NodeJournal]) -> NodeStatus:
    own = next((one for one in journals if one.name == member), None)
    return NodeStatus(member.partition("/")[0], number) if own is None else _of_journal(own, number)


def _of_journal(one: NodeJournal, number: int | None) -> NodeStatus:
    """Return where a node stands by its own files."""
    found = status_from(one.place, one.history, one.alive)
    state = f"ended with {found.exit_code}" if found.ended else "supervise died" if found.died else found.stage
    age_s = 0.0 if found.supervisor_alive else max(0.0, time.time() - one.history.last_t)
    ranks = rank_list(rank.rank for rank in found.ranks) if found.ranks else ""
    out = sum(bool(gpu.quarantined) for gpu in found.gpus)
    source = "here" if found.supervisor_alive else "journal"
    return NodeStatus(
        one.place.node, number, state, found.attempt, found.step, found.step_relative, found.phase, ranks, out, age_s, source
    )  # fmt: skip


def as_dict(found: JobNodesStatus) -> dict[str, Any]:
    """Return the JSON of `status --all-nodes --json` (docs/guides/status-why-logs.md)."""
    nodes = [
        {
            "node": one.node,
            "number": one.number,
            "state": one.state,
            "why": one.why or None,
            "attempt": one.attempt,
            "step": one.step,
            "step_relative": one.relative,
            "phase": one.phase or "unknown",
            "ranks": one.ranks or None,
            "gpus_out_of_use": one.gpus_out,
            "age_s": None if one.age_s is None else round(one.age_s, 3),
            "source": one.source or None,
        }
        for one in found.nodes
    ]
    return {"job": found.job, "attempt": found.attempt, "store": found.store or None, "no_store": found.no_store or None, "nodes": nodes}
