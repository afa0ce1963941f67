"""Finds out where all nodes of a job stand: by their coordinator, and by the journals of those that share the state directory.

It is asked (cluster/reader.py) by what a node keeps of its address and key beside its journal. It knows a node's last beat, and is
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
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from supervisor.cluster.client import CoordinatorAddress  # noqa: TC004  not for --help
    from supervisor.cluster.messages import KnownNode, KnownNodes
    from supervisor.cluster.reader import NodeStanding
    from supervisor.journal.history import History  # noqa: TC004  likewise

#: For the answer of one address of the coordinator; a few are tried.
_ANSWER_S = 2.0
_MOST_TRIES = 3
_LOOPBACK = "127.0.0.1"


class NodeJournal(Struct, frozen=True):
    """What the state directory has of one node. name: by which the other nodes know it, "" where it has met none."""

    place: JobFiles
    history: History
    alive: bool | None
    name: str
    address: CoordinatorAddress | None


def all_nodes(root: Path, place: JobFiles) -> JobNodesStatus:
    """Return where the nodes of a job stand. place: its files on one of them."""
    journals = journals_of(root, place)
    newest = max(journals, key=lambda one: (bool(one.history.members), not _is_behind(one, journals), one.history.last_t))
    slow = {clean(row.text): None for one in journals if one.alive for row in one.history.stragglers if row.until_t is None}
    known, problem = (None, "the job has ended: no coordinator is asked") if newest.history.end is not None else _asked(journals)
    if known is not None and known.number:
        rows = [_by_coordinator(node, journals) for node in known.nodes]
        attempt, coordinator = known.number, known.host.partition("/")[0]
        slow |= {clean(text): None for node in known.nodes if not node.absence for text in _slow(node)}
    else:
        members = newest.history.members
        rows = [_by_journal(member, index, journals) for index, member in enumerate(members)]
        attempt, coordinator = newest.history.attempt, ""
    shown = {node_status.node for node_status in rows}
    rows += [_of_journal(journal, None) for journal in journals if journal.place.node not in shown] if rows else []
    if not rows:  # its nodes have never met: a job of one node, or one that only begins
        rows = [_of_journal(one, index if len(journals) == 1 else None) for index, one in enumerate(journals)]
    return JobNodesStatus(place.job, attempt, tuple(rows), coordinator, "" if coordinator else problem, tuple(slow))


def _is_behind(one: NodeJournal, journals: Sequence[NodeJournal]) -> bool:
    """Return whether a node that was at this one's last meeting has met others since: it knows more, whatever their clocks show."""
    attempt, members = next(reversed(one.history.meetings.items()), (0, ()))
    return any(other.history.meetings.get(attempt) == members and max(other.history.meetings) > attempt for other in journals)


def journals_of(root: Path, place: JobFiles) -> list[NodeJournal]:
    """Return what the state directory has of the job's nodes, that of `place` first. Raises SuperviseError where that cannot be read."""
    from supervisor.cluster.kept import KeptFile, KeptNode  # noqa: PLC0415  not for --help

    found = []
    for job_files in [place, *other_nodes(root, place)]:
        try:
            history, alive = history_of(job_files)
        except SuperviseError as error:
            if job_files is place:
                raise
            stdio.say(f"{job_files.node}: {error.message}")
            continue
        kept = KeptFile(job_files.directory / "cluster" / "node.json", stdio.say).read(KeptNode)
        if kept is not None and (history.run is None or kept.owner.run != history.run.run_id):
            kept = None
        address = None if kept is None else kept.address
        if address is not None and address.host == _LOOPBACK and job_files.node != identity.node_name():
            address = replace(address, host=job_files.node)  # it is the coordinator itself
        found.append(NodeJournal(job_files, history, alive, history.me if kept is None else kept.memory.node, address))
    return found


def _asked(journals: Sequence[NodeJournal]) -> tuple[KnownNodes | None, str]:
    """Return what the coordinator knows, and why there is no answer."""
    from supervisor.cluster.reader import known_nodes  # noqa: PLC0415  not for --help

    addresses = list(dict.fromkeys(journal.address for journal in journals if journal.address is not None and journal.history.end is None))
    problem = "the nodes have not met, or it is a job of one node: there is no coordinator"
    for address in addresses[:_MOST_TRIES]:
        try:
            return known_nodes(address, _ANSWER_S), ""
        except OSError as error:
            problem = f"the coordinator at {address.host}:{address.port} does not answer: {error}"
    return None, problem


def _by_coordinator(known: KnownNode, journals: Sequence[NodeJournal]) -> NodeStatus:
    """Return where a node stands by what the coordinator has of it; a node that is here is shown as it is now."""
    from supervisor.cluster.reader import NodeStanding  # noqa: PLC0415  not for --help

    number = known.index if known.index >= 0 else None
    own = next((journal for journal in journals if journal.name == known.node), None)
    why, _, text = known.absence.partition(": ")
    standing, host = NodeStanding.read(known.standing), known.node.partition("/")[0]
    if own is not None and own.alive and not why:
        step_s, own_s = _pace_of(standing)
        return replace(_of_journal(own, number), step_s=step_s, own_s=own_s)
    if standing is None and not why and own is not None:  # the coordinator began after its last beat
        return _of_journal(own, number)
    if standing is None:
        return NodeStatus(host, number, why or UNKNOWN, age_s=known.age_s, source="coordinator", why=text)
    state = why or ("waits to join" if number is None else standing.stage)
    return NodeStatus(
        host, number, state, standing.attempt, standing.step, standing.relative, standing.phase,
        "" if why else standing.ranks, standing.gpus_out, known.age_s, "coordinator", text,
        *_pace_of(standing if not why else None), "" if why else clean(standing.health),
    )  # fmt: skip


def _pace_of(standing: NodeStanding | None) -> tuple[float | None, float | None]:
    """Return the seconds of a step, and what of it the node needs by itself, by its last beat."""
    pace = None if standing is None else standing.pace
    return (None, None) if pace is None else (round(pace.step_s, 6), round(pace.own_s, 6))


def _slow(known: KnownNode) -> tuple[str, ...]:
    from supervisor.cluster.reader import NodeStanding  # noqa: PLC0415  not for --help

    standing = NodeStanding.read(known.standing)
    return () if standing is None else standing.slow


def _by_journal(member: str, number: int, journals: Sequence[NodeJournal]) -> NodeStatus:
    own = next((journal for journal in journals if journal.name == member), None)
    return NodeStatus(member.partition("/")[0], number) if own is None else _of_journal(own, number)


def _of_journal(one: NodeJournal, number: int | None) -> NodeStatus:
    """Return where a node stands by its own files."""
    status = status_from(one.place, one.history, one.alive)
    state = f"ended with {status.exit_code}" if status.ended else "supervise died" if status.died else status.stage
    age_s = 0.0 if status.supervisor_alive else max(0.0, time.time() - one.history.last_t)
    ranks = rank_list(rank.rank for rank in status.ranks) if status.ranks else ""
    out = sum(bool(gpu.quarantined) for gpu in status.gpus)
    source = "here" if status.supervisor_alive else "journal"
    health = "; ".join(clean(finding.reason) for finding in status.findings if finding.result != "ok")
    return NodeStatus(
        one.place.node, number, state, status.attempt, status.step, status.step_relative, status.phase, ranks, out, age_s, source,
        health=health if status.runs else "",
    )  # fmt: skip


def as_dict(found: JobNodesStatus) -> dict[str, Any]:
    """Return the JSON of `status --all-nodes --json` (docs/guides/status-why-logs.md)."""
    nodes = [
        {
            "node": node.node,
            "number": node.number,
            "state": node.state,
            "why": node.why or None,
            "attempt": node.attempt,
            "step": node.step,
            "step_relative": node.relative,
            "phase": node.phase or "unknown",
            "ranks": node.ranks or None,
            "gpus_out_of_use": node.gpus_out,
            "step_s": node.step_s,
            "own_s": node.own_s,
            "health": node.health or None,
            "age_s": None if node.age_s is None else round(node.age_s, 3),
            "source": node.source or None,
        }
        for node in found.nodes
    ]
    return {
        "job": found.job,
        "attempt": found.attempt,
        "coordinator": found.coordinator or None,
        "no_coordinator": found.no_coordinator or None,
        "slow": list(found.slow),
        "nodes": nodes,
    }
