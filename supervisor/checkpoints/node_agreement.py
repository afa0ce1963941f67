"""This node's part in the agreement of several nodes on the checkpoint of an attempt (core/gathering.py, checkpointing/common.py).

Every step is an all-gather: each node sends a row of JSON and receives the rows of all nodes. All nodes then draw the same conclusion from
the same rows.

1. The state that each node continues from. The node with the newest agreement gives the knobs and the failures that the budgets count; the
   rejected checkpoints are those of every node with that agreement. What one node's ranks were seen to run, all nodes know from then on,
   so that all add the program's resume option. Before this step each node has written to disk the state that its dead ranks left in shared
   memory. Their environments are compared with this row and the all-gather 0 (node/node_environment.py).
2. The checkpoints that each node has: names, sizes and steps, without reading their data.
3. For each candidate that all nodes have, newest first: each node's proof that it can load it. One node reads the bytes of a shared file,
   the others compare its identity. The nodes take the first candidate that all of them prove.

`agree` runs in a worker thread: files are read, and other nodes are waited for.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

import msgspec

from checkpointing import common
from checkpointing.common import NodeCheckpoint, Proof
from checkpointing.model import CheckpointingError
from checkpointing.select import Selection
from supervisor.core.events import CheckpointSelected
from supervisor.core.model import CheckpointRef, PastFailures
from supervisor.core.planning import DECLARED
from supervisor.core.values import dataclass
from supervisor.node.node_environment import PeerEnvironment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from supervisor.checkpoints.node_offer import NodeOffer
    from supervisor.checkpoints.repair import RepairPermission
    from supervisor.core.actions import SelectCheckpoint
    from supervisor.node.node_environment import EnvironmentComparison

    #: (number, text): sends the text to the all-gather of this number; returns the texts of all nodes, in their order.
    AllGather = Callable[[int, str], list[str]]


class AgreementCancelled(Exception):  # noqa: N818  not a failure: the attempt ended while its nodes agreed
    """The attempt is over."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state that a node continues from. Host, agreement number, knobs and rejected paths: as in SelectCheckpoint.

    suspect: a checkpoint may have caused the last failure. knows: the node had a good checkpoint before. finite: if weights of the newest
    checkpoint turned to NaN, the node prefers an older one. mixed_from_t: wall time from which the nodes trained from different states, so
    that checkpoints written since are rejected; None if they did not. programs, resume_knobs: as in SelectCheckpoint. environment, sent_t:
    as in PeerEnvironment.
    """

    host: str
    agreed: int
    overrides: tuple[tuple[str, str], ...]
    rejected: tuple[str, ...]
    suspect: bool
    knows: bool
    finite: bool
    mixed_from_t: float | None
    programs: tuple[str, ...] = ()
    resume_knobs: tuple[str, ...] = ()
    environment: str = ""
    sent_t: float = 0.0
    past: PastFailures | None = None

    def resume_by(self, programs: Collection[str]) -> str:
        """Return by whose knob it hands a checkpoint over if ranks run these programs; "" for none."""
        return next((by for by in self.resume_knobs if by == DECLARED or by in programs), "")


@dataclass(frozen=True, slots=True)
class _Proven:
    """A candidate that all nodes proved. `number`: its index among the candidates."""

    number: int
    proofs: tuple[Proof, ...]

    @property
    def step(self) -> int | None:
        """Its step, from a node that read it: all that read it agree."""
        return next((proof.step for proof in self.proofs if proof.level), None)

    @property
    def nan(self) -> frozenset[str]:
        """Names of weights that hold NaN."""
        return frozenset(name for proof in self.proofs for name in proof.nan)


@dataclass(frozen=True, slots=True)
class CheckpointsHere:
    """The checkpoints of a node.

    held: those that it offers; found: how many paths may be checkpoints; refused: (path, reason) of the rest.
    """

    held: tuple[NodeCheckpoint, ...]
    found: int
    refused: tuple[tuple[str, str], ...] = ()


def agree(  # noqa: PLR0913  the request, and this node's part
    action: SelectCheckpoint,
    node_offer: NodeOffer,
    all_gather: AllGather,
    permission: RepairPermission,
    comparison: EnvironmentComparison,
    *,
    host: str,
    suspect: bool,
    t: float,
) -> CheckpointSelected:
    """Agree with the other nodes. Raises AgreementCancelled, by way of `all_gather`, if the attempt ends first."""
    problem = node_offer.save_dead_ranks_state(permission)
    states = _gathered(
        all_gather,
        1,
        NodeState(
            host,
            action.last_agreement,
            action.overrides,
            action.rejected,
            suspect,
            action.had_checkpoint,
            node_offer.prefers_finite,
            action.mixed_from_t,
            action.programs,
            action.resume_knobs,
            comparison.digest,
            comparison.now(),
            action.past,
        ),
    )
    cannot_work = comparison.compare(all_gather, action.node, [PeerEnvironment(s.host, s.environment, s.sent_t) for s in states])
    if cannot_work:
        return CheckpointSelected(t, action.attempt, None, 0, agreement=action.attempt, cannot_work=cannot_work)
    ways = [state.resume_by(_programs(states)) for state in states]
    node_offer.set_resume_way(ways[action.node], own_only=action.own_only)
    newest = max(states, key=lambda state: state.agreed)  # several may be equally new; take the first
    rejected = tuple(dict.fromkeys(path for state in states if state.agreed == newest.agreed for path in state.rejected))
    since = min((state.mixed_from_t for state in states if state.mixed_from_t is not None), default=None)
    here, selection = _checkpoints_here(action, node_offer, rejected, problem, since)
    offers = _gathered(all_gather, 2, here)
    candidates = common.candidates([one.held for one in offers])
    refused: list[tuple[str, str]] = []
    newest_whole: _Proven | None = None
    taken: _Proven | None = None
    for number, candidate in enumerate(candidates):
        proof = node_offer.prove(candidate, action.node, suspect=any(state.suspect for state in states))
        proofs = _gathered(all_gather, 3 + number, proof)
        why = common.accepted(candidate, proofs)
        if why:
            refused.append((candidate[action.node].path, why))
            continue
        found = _Proven(number, tuple(proofs))
        if newest_whole is None:
            newest_whole = found
        # stop here unless the newest has NaN weights, this one has the same ones, and every node prefers finite weights
        if not newest_whole.nan or not newest_whole.nan <= found.nan or not all(state.finite for state in states):
            taken = found
            break
    taken = taken or newest_whole
    if taken is None:
        return _none(action, states, offers, selection, tuple(refused), newest, rejected, t)
    if "" in ways and set(ways) - {"", DECLARED}:
        return _resumes_differ(action, states, ways, newest, rejected, t)
    rows = [candidate[action.node] for candidate in candidates]
    row, proof = rows[taken.number], taken.proofs[action.node]
    node_offer.take(row.path)
    whole = (one for one in rows[newest_whole.number if newest_whole else taken.number : taken.number] if one.path not in dict(refused))
    return CheckpointSelected(
        t,
        action.attempt,
        CheckpointRef(row.path, taken.step, proof.level or "identity"),
        max(one.found for one in offers),
        selection.torn,
        (*refused, *here.refused),
        tuple(CheckpointRef(one.path, one.step, "") for one in reversed(rows[taken.number + 1 :])),
        not_finite=tuple((one.path, "its weights hold NaN; an older one is taken instead") for one in whole),
        agreement=action.attempt,
        overrides=newest.overrides,
        rejected=rejected,
        dangerous=selection.dangerous,
        programs=_programs(states),
        past=newest.past,
    )


def _programs(states: Sequence[NodeState]) -> tuple[str, ...]:
    """Return what the ranks of any node were seen to run: a node that joins, or whose ranks died early, has not seen it itself."""
    return tuple(dict.fromkeys(name for state in states for name in state.programs))


def _resumes_differ(  # noqa: PLR0913, PLR0917  as _none
    action: SelectCheckpoint,
    states: Sequence[NodeState],
    ways: Sequence[str],
    newest: NodeState,
    rejected: tuple[str, ...],
    t: float,
) -> CheckpointSelected:
    """Return the event where the commands of the nodes differ, so that only some of them add a program's option."""
    texts = ("nothing is added to its command" if not by else "by its command" if by == DECLARED else f"by {by}'s option" for by in ways)
    return CheckpointSelected(
        t,
        action.attempt,
        None,
        1,
        agreement=action.attempt,
        overrides=newest.overrides,
        rejected=rejected,
        node_offers=tuple((state.host, text) for state, text in zip(states, texts, strict=True)),
        programs=_programs(states),
        resume_differs=True,
    )


def _none(  # noqa: PLR0913, PLR0917  the rows of all nodes, and their results
    action: SelectCheckpoint,
    states: Sequence[NodeState],
    offers: Sequence[CheckpointsHere],
    selection: Selection,
    refused: tuple[tuple[str, str], ...],
    newest: NodeState,
    rejected: tuple[str, ...],
    t: float,
) -> CheckpointSelected:
    """Return the event without a checkpoint: a start from scratch if no node has or had one, else each node's checkpoints."""
    found = sum(one.found for one in offers) + sum(state.knows for state in states)
    held = tuple((state.host, _summary(here)) for state, here in zip(states, offers, strict=True)) if found else ()
    # fresh: the nodes of the newest agreement; alone: they can go on without the others
    fresh = [node for node, state in enumerate(states) if state.agreed == newest.agreed]
    others_can = newest.agreed > 0 and 0 < action.least_nodes <= len(fresh) < len(states)
    alone = others_can and bool(common.candidates([offers[node].held for node in fresh]))
    return CheckpointSelected(
        t,
        action.attempt,
        None,
        found,
        selection.torn,
        (*refused, *offers[action.node].refused),
        agreement=action.attempt,
        overrides=newest.overrides,
        rejected=rejected,
        node_offers=(*held, *refused[:1]),
        this_node_leaves=alone and action.node not in fresh,
        peer_leaves=alone and action.node in fresh,
        dangerous=selection.dangerous,
        programs=_programs(states),
        past=newest.past,
    )


def _summary(here: CheckpointsHere) -> str:
    if here.held:
        return common.summary(here.held)
    return f"none ({'; '.join(': '.join(row) for row in here.refused[:2])})" if here.refused else "none"


def _checkpoints_here(
    action: SelectCheckpoint,
    node_offer: NodeOffer,
    rejected: tuple[str, ...],
    problem: tuple[str, str] | None,
    mixed_from_t: float | None,
) -> tuple[CheckpointsHere, Selection]:
    try:
        if mixed_from_t is not None:
            node_offer.reject_mixed(mixed_from_t)
        held, selection = node_offer.list_checkpoints((*rejected, *action.rejected), action.agreed_attempts)
    except (CheckpointingError, OSError) as error:
        return CheckpointsHere((), 1, (("the checkpoints could not be read", str(error)),)), Selection(None, 1)
    against = (*selection.rejected, *selection.unverifiable, *selection.unknown, *((problem,) if problem else ()))
    return CheckpointsHere(held, selection.found + bool(problem), (*against, *selection.torn, *selection.dangerous)), selection


_Row = TypeVar("_Row", NodeState, CheckpointsHere, Proof)


def _gathered(all_gather: AllGather, number: int, own_row: _Row) -> list[_Row]:
    return [msgspec.convert(json.loads(text), type=type(own_row)) for text in all_gather(number, json.dumps(asdict(own_row)))]
