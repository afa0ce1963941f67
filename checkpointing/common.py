"""Choose what all nodes of a job resume from: the newest checkpoint that every node has, and can load.

Each node lists its checkpoints as rows of `NodeCheckpoint`, the newest first. `candidates` returns those that may be one checkpoint on all
nodes. Each node then proves its own row of a candidate (`Proof`), and `accepted` judges the proofs. Every node calls both with the same
values, so every node comes to the same answer, and no node decides for the others.

Two rows of one file (a shared file system: inode, size and modification time agree) are one checkpoint, and one node reads it for all.
Two files are one checkpoint where name and step agree, and either their digests do or the ranks of both nodes wrote them in the same
attempt: of a sharded save to local disks each node holds other bytes. The same path alone proves nothing: a directory of its own on each
node may hold step 60 of this run on one, and step 60 of another run on the next.

A save of which each node has a part in a directory of its own (checkpointing/manifest/joint.py) has a name, `NodeSave.save`. It can be
resumed from once every node has all of it, which a mirror brings. `order` puts saves and candidates in one order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkpointing.model import Lineage
from checkpointing.ordering import Age, age

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class NodeCheckpoint:
    """A checkpoint as one node has it.

    path: where it lies. name: its own, the same on all nodes. digest: of its content, as in its manifest; "" without one. written_in:
    number of the agreement of the attempt in which this node's ranks wrote it; 0: unknown.
    """

    path: str
    name: str
    step: int | None
    n_bytes: int
    mtime_ns: int
    inode: int
    digest: str = ""
    written_in: int = 0


@dataclass(frozen=True, slots=True)
class Proof:
    """One node's verdict on its row of a candidate. reason: why it cannot be loaded there, "" where it can.

    step, digest, level and nan (names of weights that hold NaN) are known to the nodes that read it (`reads`). missing: not all parts
    of the save are in a mirror; coming: this node still sent its own when it asked. silent: no byte came from its disk. reading: it still
    reads, and is to be asked again.
    """

    reason: str
    step: int | None = None
    digest: str = ""
    level: str = ""
    nan: tuple[str, ...] = ()
    missing: bool = False
    coming: bool = False
    silent: bool = False
    reading: bool = False


@dataclass(frozen=True, slots=True)
class NodeSave:
    """A save of several nodes of which this node has its part, or all. attempt: of this run, that saved it; 0: unknown."""

    save: str
    path: str
    step: int | None
    attempt: int


Candidates = tuple[NodeCheckpoint, ...]


def order(candidates: Sequence[Candidates], saves: Sequence[Sequence[NodeSave]]) -> list[Candidates | str]:
    """Return candidates (in their order) and the names of saves in one order, newest first. `saves`: of each node.

    A save goes before the first candidate that is not newer. A save of this run is newer than one of another run; within this run the
    attempt counts, then the step. Of a save that every node has whole there is a candidate too; that goes first.
    """
    rows: dict[str, NodeSave] = {}
    for row in (row for node in saves for row in node):
        known = rows.get(row.save)
        rows[row.save] = row if known is None or known.attempt < row.attempt else known
    waiting = sorted(rows.values(), key=age_of)
    ordered: list[Candidates | str] = []
    for candidate in candidates:
        while waiting and _is_newer(waiting[0], candidate):
            ordered.append(waiting.pop(0).save)
        ordered.append(candidate)
    return [*ordered, *(row.save for row in waiting)]


def age_of(save: NodeSave) -> Age:
    """Return the key that sorts the newest save first."""
    return _age(save.step, save.attempt, save.save)


def _is_newer(save: NodeSave, candidate: Candidates) -> bool:
    written_in = max(row.written_in for row in candidate)
    return _age(save.step, save.attempt if written_in else 0) < _age(candidate[0].step, written_in)


def _age(step: int | None, attempt: int, name: str = "") -> Age:
    """Return the key of what an attempt of this run saved."""
    return age(step, None, Lineage(0, "", attempt), name=name)


def is_same_file(a: NodeCheckpoint, b: NodeCheckpoint) -> bool:
    """Whether two nodes see one file, or one directory, of a shared file system. Device numbers differ between machines."""
    return (a.inode, a.n_bytes, a.mtime_ns) == (b.inode, b.n_bytes, b.mtime_ns)


def _written_together(a: NodeCheckpoint, b: NodeCheckpoint) -> bool:
    return a.step is not None and a.written_in > 0 and a.written_in == b.written_in


def may_be_one(a: NodeCheckpoint, b: NodeCheckpoint) -> bool:
    """Whether two rows may be one checkpoint, before anything was read."""
    if is_same_file(a, b):
        return True
    if (a.name, a.step) != (b.name, b.step):
        return False
    return not a.digest or not b.digest or a.digest == b.digest or _written_together(a, b)


def candidates(held: Sequence[Sequence[NodeCheckpoint]], orderer: int = 0) -> list[tuple[NodeCheckpoint, ...]]:
    """Return what may be one checkpoint on all nodes, newest first: for each a row of every node, in the order of the nodes.

    orderer: the node whose order counts. It must have been in the newest attempt: who missed one cannot tell which files it saved.
    """
    offers = []
    for node_checkpoint in held[orderer] if held else ():
        rows = [node_checkpoint if node == orderer else _fitting(node_checkpoint, others) for node, others in enumerate(held)]
        if None not in rows:
            offers.append(tuple(row for row in rows if row is not None))
    return offers


def _fitting(checkpoint: NodeCheckpoint, rows: Sequence[NodeCheckpoint]) -> NodeCheckpoint | None:
    """Return the row that may be the same checkpoint, best the same file."""
    fitting = [row for row in rows if may_be_one(checkpoint, row)]
    return next((row for row in fitting if is_same_file(checkpoint, row)), fitting[0] if fitting else None)


def reads(candidate: Sequence[NodeCheckpoint], node: int) -> bool:
    """Whether a node reads its row itself: the first of those that see the same file does, for all of them."""
    return not any(is_same_file(candidate[node], row) for row in candidate[:node])


def is_shared(candidate: Sequence[NodeCheckpoint]) -> bool:
    """Whether all nodes see one file."""
    return all(is_same_file(candidate[0], row) for row in candidate[1:])


def accepted(candidate: Sequence[NodeCheckpoint], proofs: Sequence[Proof]) -> str:
    """Return why the nodes cannot resume from a candidate, "" where they can."""
    for node, proof in enumerate(proofs):
        if proof.reason:
            return f"node {node}: {proof.reason}"
    readers = [node for node in range(len(candidate)) if reads(candidate, node)]
    first = readers[0]
    for node in readers[1:]:
        if proofs[node].step != proofs[first].step:
            return f"node {first} has step {proofs[first].step} and node {node} has step {proofs[node].step}"
        same = proofs[node].digest and proofs[node].digest == proofs[first].digest
        if not same and not _written_together(candidate[first], candidate[node]):
            return f"nodes {first} and {node} have different files of that name"
    return ""


def all_same(proofs: Sequence[Proof]) -> str:
    """Return why the nodes cannot resume from a save of which each brought all of it, "" where they can."""
    for node, proof in enumerate(proofs):
        if proof.reason:
            return f"node {node}: {proof.reason}"
    return "" if len({proof.digest for proof in proofs}) == 1 else "the nodes have different files of that name"


def summary(rows: Sequence[NodeCheckpoint]) -> str:
    """Return what a node has, newest first, for a person who compares the nodes."""
    step = "" if rows[0].step is None else f"step {rows[0].step}, "
    return f"{step}{rows[0].path}" + (f" and {len(rows) - 1} older" if len(rows) > 1 else "")
