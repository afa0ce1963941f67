"""Finds out where all nodes of a job stand: by their coordinator, and by the journals of those that share the state directory.

It is asked (cluster/reader.py) by what a node keeps of its address and key beside its journal. It knows a node's last beat, and is
there as long as the job. A journal is there for good, and is as old as its last record. A fact that neither has is shown as not known.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from supervisor.cli import stdio
from supervisor.cli.jobs.job_files import JobFiles, other_nodes, view_of, whole_view_of
from supervisor.cli.jobs.job_status import status_from
from supervisor.core.model import Phase
from supervisor.core.numeric import rank_list
from supervisor.core.values import Struct, replace
from supervisor.errors import SuperviseError
from supervisor.job import identity
from supervisor.report.nodes_page import UNKNOWN, JobNodesStatus, NodeStatus
from supervisor.report.text import clean
from supervisor.view.status import stage_word

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from supervisor.cluster.client import CoordinatorAddress  # noqa: TC004  not for --help
    from supervisor.cluster.messages import KnownNode, KnownNodes
    from supervisor.cluster.reader import NodeStanding
    from supervisor.view.job_view import JobView  # noqa: TC004  likewise

#: For the answer of one address of the coordinator; a few are tried.
_ANSWER_S = 2.0
_MOST_TRIES = 3
_LOOPBACK = "127.0.0.1"


class NodeJournal(Struct, frozen=True):
    """One node in the state directory. name: by which the other nodes know it, "" where it has met none."""

    place: JobFiles
    view: JobView
    alive: bool | None
    name: str
    address: CoordinatorAddress | None


def all_nodes(root: Path, place: JobFiles) -> JobNodesStatus:
    """Return where the nodes of a job stand. place: its files on one of them."""
    journals = journals_of(root, place)
    newest = max(journals, key=lambda journal: (bool(journal.view.members), not _is_behind(journal, journals), journal.view.last_t))
    slow = {clean(row.text): None for journal in journals if journal.alive for row in journal.view.stragglers if row.until_t is None}
    known, problem = (None, "the job has ended: no coordinator is asked") if newest.view.end is not None else _coordinator_answer(journals)
    if known is not None and known.number:
        rows = [_by_coordinator(node, journals) for node in known.nodes]
        attempt, coordinator = known.number, known.host.partition("/")[0] or None
        slow |= {clean(text): None for node in known.nodes if not node.absence for text in _slow(node)}
    else:
        members = newest.view.members
        rows = [_by_journal(member, index, journals) for index, member in enumerate(members)]
        attempt, coordinator = newest.view.attempt, None
    shown = {node_status.node for node_status in rows}
    rows += [_of_journal(journal, None) for journal in journals if journal.place.node not in shown] if rows else []
    if not rows:  # its nodes have never met: a job of one node, or one that only begins
        rows = [_of_journal(journal, index if len(journals) == 1 else None) for index, journal in enumerate(journals)]
    return JobNodesStatus(place.job, attempt, tuple(rows), coordinator, None if coordinator else problem or None, tuple(slow))


def _is_behind(node: NodeJournal, journals: Sequence[NodeJournal]) -> bool:
    """Return whether a node that was at the last meeting of `node` has met others since: it knows more, whatever their clocks show."""
    attempt, members = next(reversed(node.view.meetings.items()), (0, ()))
    return any(journal.view.meetings.get(attempt) == members and max(journal.view.meetings) > attempt for journal in journals)


def journals_of(root: Path, place: JobFiles) -> list[NodeJournal]:
    """Return what the state directory has of the job's nodes, that of `place` first. Raises SuperviseError where that cannot be read."""
    from supervisor.cluster.kept import KeptFile, KeptNode  # noqa: PLC0415  not for --help

    journals, views = [], _views(root, place, view_of)
    if len({max(view.meetings, default=0) for _, view, _ in views}) > 1:  # which of them is behind its earlier meetings show
        views = _views(root, place, whole_view_of)
    for job_files, view, alive in views:
        kept = KeptFile(job_files.directory / "cluster" / "node.json", stdio.say).read(KeptNode)
        if kept is not None and (view.run is None or kept.owner.run != view.run.run_id):
            kept = None
        address = None if kept is None else kept.address
        if address is not None and address.host == _LOOPBACK and job_files.node != identity.node_name():
            address = dataclasses.replace(address, host=job_files.node)  # it is the coordinator itself
        journals.append(NodeJournal(job_files, view, alive, view.me if kept is None else kept.memory.node, address))
    return journals


def _views(
    root: Path, place: JobFiles, read: Callable[[JobFiles], tuple[JobView, bool | None]]
) -> list[tuple[JobFiles, JobView, bool | None]]:
    """Return what the journals of the job's nodes say, with the death of a supervisor that nobody could record."""
    views = []
    for job_files in [place, *other_nodes(root, place)]:
        try:
            views.append((job_files, *read(job_files)))
        except SuperviseError as error:
            if job_files is place:
                raise
            stdio.say(f"{job_files.node}: {error.message}")
    return views


def _coordinator_answer(journals: Sequence[NodeJournal]) -> tuple[KnownNodes | None, str]:
    """Return what the coordinator knows, and why there is no answer."""
    from supervisor.cluster.reader import known_nodes  # noqa: PLC0415  not for --help

    addresses = list(dict.fromkeys(journal.address for journal in journals if journal.address is not None and journal.view.end is None))
    problem = "the nodes have not met, or it is a job of one node: there is no coordinator"
    for address in addresses[:_MOST_TRIES]:
        try:
            return known_nodes(address, _ANSWER_S), ""
        except OSError as error:
            problem = f"the coordinator at {address.host}:{address.port} does not answer: {error}"
    return None, problem


def _by_coordinator(known: KnownNode, journals: Sequence[NodeJournal]) -> NodeStatus:
    """Return the state of a node by the coordinator's records; this node is shown as it is now."""
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
        return NodeStatus(host, number, why or UNKNOWN, text or None, age_s=_rounded(known.age_s), source="coordinator")
    step_s, own_s = _pace_of(standing if not why else None)
    trains = standing.step is not None or standing.phase in {Phase.TRAIN, Phase.CHECKPOINT, Phase.EVAL}
    word = stage_word(standing.stage, trains=trains, phase=standing.phase, is_again=standing.attempt > 1)
    return NodeStatus(
        host,
        number,
        why or ("waits to join" if number is None else word.value),
        text or None,
        attempt=standing.attempt,
        step=standing.step,
        step_relative=standing.relative,
        phase=standing.phase,
        ranks=None if why else standing.ranks or None,
        gpus_out_of_use=standing.gpus_out,
        step_s=step_s,
        own_s=own_s,
        health=None if why else clean(standing.health) or None,
        age_s=_rounded(known.age_s),
        source="coordinator",
    )


def _rounded(age_s: float | None) -> float | None:
    return None if age_s is None else round(age_s, 3)


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


def _of_journal(journal: NodeJournal, number: int | None) -> NodeStatus:
    """Return the state of a node by its own files."""
    status = status_from(journal.place, journal.view, journal.alive)
    is_here = bool(status.supervisor.alive)
    health = "; ".join(clean(finding.reason) for finding in status.health if finding.result != "ok")
    return NodeStatus(
        journal.place.node,
        number,
        status.state.value,
        attempt=status.attempt,
        step=status.step,
        step_relative=status.step_relative,
        phase=status.phase,
        ranks=rank_list(rank.rank for rank in status.ranks) if status.ranks else None,
        gpus_out_of_use=sum(bool(gpu.quarantined) for gpu in status.gpus),
        health=(health or None) if status.runs else None,
        age_s=0.0 if is_here else _rounded(max(0.0, time.time() - journal.view.last_t)),
        source="here" if is_here else "journal",
    )
