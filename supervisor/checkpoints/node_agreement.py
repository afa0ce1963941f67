"""This node's part in the agreement of several nodes on what an attempt resumes from (core/gathering.py, checkpointing/common.py).

Every step is an all-gather: each node gives a row of JSON and gets the rows of all nodes. All nodes then draw the same conclusion by
themselves, from the same rows.

1. The state that each node continues from. The node with the newest agreement gives the knobs for all, and the checkpoints that are
   rejected. Before this step each node has written to disk what dead ranks left in shared memory.
2. The checkpoints that each node has: names, sizes and steps; nothing is read through.
3. For each candidate that all nodes have, newest first: each node's proof that it can load it. Of a shared file one node reads the bytes,
   the others compare its identity. The first candidate that all nodes prove is taken.

`agree` runs in a worker thread: files are read, and other nodes are waited for.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from checkpointing import common
from checkpointing.common import NodeCheckpoint, Proof
from checkpointing.model import CheckpointingError
from checkpointing.select import Selection
from supervisor.core.events import CheckpointSelected
from supervisor.core.model import CheckpointRef

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisor.checkpoints.node_offer import NodeOffer
    from supervisor.checkpoints.repair import RepairPermission
    from supervisor.core.actions import SelectCheckpoint

    #: (number, text): sends the text to the all-gather of this number; returns the texts of all nodes, in their order.
    AllGather = Callable[[int, str], list[str]]


class AgreementCancelled(Exception):  # noqa: N818  not a failure: the attempt ended while its nodes agreed
    """The attempt is over."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a node went on with so far, as SelectCheckpoint has it. suspect: a checkpoint may have caused the last failure.

    finite: it takes an older checkpoint where weights of the newest turned to NaN. mixed_from_t: wall time; see SelectCheckpoint.
    """

    host: str
    agreed: int
    overrides: tuple[tuple[str, str], ...]
    rejected: tuple[str, ...]
    suspect: bool
    knows: bool
    finite: bool
    mixed_from_t: float | None


@dataclass(frozen=True, slots=True)
class _Taken:
    """A candidate that all nodes proved, by its number."""

    number: int
    proofs: tuple[Proof, ...]

    @property
    def step(self) -> int | None:
        """The step that it holds: a node that read it knows; they agree."""
        return next((proof.step for proof in self.proofs if proof.level), None)

    @property
    def nan(self) -> frozenset[str]:
        """Names of weights that hold NaN."""
        return frozenset(name for proof in self.proofs for name in proof.nan)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node has. found: how many may be checkpoints; refused: why those are out that are not held."""

    held: tuple[NodeCheckpoint, ...]
    found: int
    refused: tuple[tuple[str, str], ...] = ()


def agree(  # noqa: PLR0913  the request, and this node's part
    action: SelectCheckpoint,
    node_offer: NodeOffer,
    all_gather: AllGather,
    permission: RepairPermission,
    *,
    host: str,
    suspect: bool,
    t: float,
) -> CheckpointSelected:
    """Agree with the other nodes. Raises AgreementCancelled, by way of `all_gather`, where the attempt is over before they do."""
    problem = node_offer.rescue(permission)
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
        ),
    )
    newest = max(states, key=lambda state: state.agreed)  # the first of those that are as new
    rejected = tuple(dict.fromkeys(path for state in states if state.agreed == newest.agreed for path in state.rejected))
    since = min((state.mixed_from_t for state in states if state.mixed_from_t is not None), default=None)
    offer, selection = _offer(action, node_offer, rejected, problem, since)
    offers = _gathered(all_gather, 2, offer)
    candidates = common.candidates([one.held for one in offers])
    refused: list[tuple[str, str]] = []
    newest_whole: _Taken | None = None
    taken: _Taken | None = None
    for number, candidate in enumerate(candidates):
        proof = node_offer.prove(candidate, action.node, suspect=any(state.suspect for state in states))
        proofs = _gathered(all_gather, 3 + number, proof)
        why = common.accepted(candidate, proofs)
        if why:
            refused.append((candidate[action.node].path, why))
            continue
        found = _Taken(number, tuple(proofs))
        if newest_whole is None:
            newest_whole = found
        if not newest_whole.nan or not newest_whole.nan <= found.nan or not all(state.finite for state in states):
            taken = found
            break
    taken = taken or newest_whole
    if taken is None:
        return _none(action, states, offers, selection, tuple(refused), newest, rejected, t)
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
        (*refused, *offer.refused),
        tuple(CheckpointRef(one.path, one.step, "") for one in reversed(rows[taken.number + 1 :])),
        not_finite=tuple((one.path, "its weights hold NaN; an older one is taken instead") for one in whole),
        agreement=newest.agreed + 1,
        overrides=newest.overrides,
        rejected=rejected,
        dangerous=selection.dangerous,
    )


def _none(  # noqa: PLR0913, PLR0917  the rows of all nodes, and what they gave
    action: SelectCheckpoint,
    states: Sequence[NodeState],
    offers: Sequence[Offer],
    selection: Selection,
    refused: tuple[tuple[str, str], ...],
    newest: NodeState,
    rejected: tuple[str, ...],
    t: float,
) -> CheckpointSelected:
    """Return the event without a checkpoint: a start from scratch if no node has or had one, else with what each node has."""
    found = sum(one.found for one in offers) + sum(state.knows for state in states)
    held = tuple((state.host, _has(offer)) for state, offer in zip(states, offers, strict=True)) if found else ()
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
        agreement=newest.agreed + 1,
        overrides=newest.overrides,
        rejected=rejected,
        node_offers=(*held, *refused[:1]),
        this_node_leaves=alone and action.node not in fresh,
        peer_leaves=alone and action.node in fresh,
        dangerous=selection.dangerous,
    )


def _has(offer: Offer) -> str:
    if offer.held:
        return common.summary(offer.held)
    return f"none ({'; '.join(': '.join(row) for row in offer.refused[:2])})" if offer.refused else "none"


def _offer(
    action: SelectCheckpoint,
    node_offer: NodeOffer,
    rejected: tuple[str, ...],
    problem: tuple[str, str] | None,
    mixed_from_t: float | None,
) -> tuple[Offer, Selection]:
    try:
        if mixed_from_t is not None:
            node_offer.reject_mixed(mixed_from_t)
        held, selection = node_offer.offer((*rejected, *action.rejected), dict(action.agreements))
    except (CheckpointingError, OSError) as error:
        return Offer((), 1, (("the checkpoints could not be read", str(error)),)), Selection(None, 1)
    against = (*selection.rejected, *selection.unverifiable, *selection.unknown, *((problem,) if problem else ()))
    return Offer(held, selection.found + bool(problem), (*against, *selection.torn, *selection.dangerous)), selection


_Row = TypeVar("_Row", NodeState, Offer, Proof)


def _gathered(all_gather: AllGather, number: int, mine: _Row) -> list[_Row]:
    return [msgspec.convert(json.loads(text), type=type(mine)) for text in all_gather(number, json.dumps(asdict(mine)))]
