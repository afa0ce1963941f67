"""This node's part in the agreement of several nodes on the checkpoint of an attempt (core/nodes/gathering.py, checkpointing/common.py).

Every step is an all-gather: each node sends a row of JSON and receives the rows of all nodes. All nodes then draw the same conclusion from
the same rows.

1. The state that each node continues from. The node with the newest agreement gives the knobs, how the global batch is held with the ranks
   that have met, and the failures that the budgets count; the rejected checkpoints are those of every node with that agreement. What one
   node's ranks were seen to run or to load, all nodes know from then on, so that all add the program's resume option. Their
   environments are compared with this row and the all-gather 0 (node/node_environment.py). Where one of them asks for it, they are
   tried against each other then (node/node_check.py). The markers in the directories of its checkpoints (shared_directories.py).
2. The checkpoints that each node has: names, sizes and steps, without reading their data. Whose markers it found.
3. For each candidate that all nodes have, newest first: each node's proof that it can load it. One node reads the bytes of a shared file,
   the others compare its identity. Of a save of which each node has a part, each brings the rest here from the mirror, and then reads all
   of it. The nodes take the first candidate that all of them prove. A node that reads for long has no limit of time: it reports that it
   still reads, and all ask again.

`agree` runs in a worker thread: files are read, and other nodes are waited for.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import secrets
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from checkpointing import common
from checkpointing.common import Proof
from checkpointing.io.background_call import BackgroundCall
from checkpointing.io.read_watch import DiskSilent
from checkpointing.model import CheckpointingError
from checkpointing.select import Selection
from supervisor.checkpoints.node_rows import CheckpointsHere, NodeRows, NodeState, gathered, newest, programs, remedy, summary
from supervisor.core.attempt.programs import DECLARED
from supervisor.core.events import CheckpointSelected
from supervisor.core.model import CheckpointRef
from supervisor.core.values import replace
from supervisor.node.node_environment import PeerEnvironment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from supervisor.checkpoints.node_offer import NodeOffer
    from supervisor.checkpoints.node_rows import AllGather
    from supervisor.core.actions import SelectCheckpoint
    from supervisor.node.node_check import NodeCheck, NodeCheckResult
    from supervisor.node.node_environment import EnvironmentComparison


#: So often the nodes look whether the parts of a save have come to the mirror, and so many seconds after each look.
MOST_LOOKS: Final = 100
LOOK_AGAIN_S: Final = 3.0
#: A node that still reads reports it after so long, each time later, and at last each LONGEST_READING_S.
READING_S: Final = 30.0
LONGEST_READING_S: Final = 300.0
_FIRST_PROOF: Final = 3


class AgreementCancelled(Exception):  # noqa: N818  not a failure: the attempt ended while its nodes agreed
    """The attempt is over."""


@dataclass(frozen=True, slots=True)
class _Proven:
    """A candidate that all nodes proved. `number`: its index among the candidates; path: on this node."""

    number: int
    path: str
    proofs: tuple[Proof, ...]

    @property
    def step(self) -> int | None:
        """Its step, from a node that read it: all that read it agree."""
        return next((proof.step for proof in self.proofs if proof.level), None)

    @property
    def nan(self) -> frozenset[str]:
        """Names of weights that hold NaN."""
        return frozenset(name for proof in self.proofs for name in proof.nan)


def agree(  # noqa: PLR0913  the request, and this node's part
    action: SelectCheckpoint,
    node_offer: NodeOffer,
    all_gather: AllGather,
    comparison: EnvironmentComparison,
    *,
    host: str,
    suspect: bool,
    t: float,
    check: NodeCheck | None = None,
) -> CheckpointSelected:
    """Agree with the other nodes. Raises AgreementCancelled, by way of `all_gather`, if the attempt ends first."""
    problem = node_offer.read_records()
    node_offer.record_parts()
    with node_offer.markers.placed() as markers:
        own = NodeState(
            host,
            action,
            suspect,
            node_offer.prefers_finite,
            comparison.digest,
            comparison.now(),
            markers,
            secrets.token_hex(8),
            node_offer.has_saved,
        )
        states = gathered(all_gather, 1, own)
        cannot_work = comparison.compare(all_gather, action.node, [PeerEnvironment(s.host, s.environment, s.sent_t) for s in states])
        if cannot_work:
            leavers = _leavers(action, [state.agreed for state in states], comparison.fits)
            event = CheckpointSelected(t, action.attempt, None, 0, agreement=action.attempt, cannot_work=cannot_work)
            return _with_leavers(event, action, leavers)
        checked = _tried(all_gather, action.node, [state.asked.check for state in states], check)
        if checked is not None and checked.unfit:
            return _without_unfit(action, checked, states, t)
        ways = [state.resume_by(programs(states)) for state in states]
        node_offer.set_resume_way(ways[action.node], own_only=action.own_only)
        rows = _listed(action, node_offer, all_gather, states, problem)
    meeting = hashlib.sha256("/".join([str(action.attempt), *(state.nonce for state in states)]).encode()).hexdigest()[:16]
    node_offer.note_meeting(action.attempt, meeting, action.node, rows.groups)
    notes = node_offer.note_groups(rows.groups, [state.host for state in states], [state.markers for state in states])
    checkpoint_selected = _chosen(action, node_offer, all_gather, rows, ways, t)
    loaded, saved = any(state.asked.ever_loaded for state in states), any(state.has_saved for state in states)
    notes = (*node_offer.take_notes("" if checkpoint_selected.chosen is None else checkpoint_selected.chosen.path), *notes)
    return replace(checkpoint_selected, notes=notes, ever_loaded=loaded, has_saved=saved)


def _leavers(action: SelectCheckpoint, agreed: Sequence[int], fit: Callable[[Sequence[int]], bool]) -> tuple[int, ...]:
    """Return the nodes that joined, and do not fit those of the newest agreement: they leave, and these continue. () where these cannot.

    agreed: of each node, 0: it joined. fit: whether these nodes can begin together. Fewer than an attempt needs can continue where another
    node may still come: they wait for it.
    """
    newest = max(agreed)
    stay = [node for node, number in enumerate(agreed) if number == newest]
    joined = tuple(node for node in range(len(agreed)) if node not in stay)
    enough = 0 < action.least_nodes <= len(stay) or (action.least_nodes > 0 and len(agreed) < action.most_nodes)
    if not newest or not joined or not enough or not fit(stay):
        return ()
    return tuple(node for node in joined if not fit([*stay, node])) or joined


def _with_leavers(event: CheckpointSelected, action: SelectCheckpoint, leavers: Sequence[int]) -> CheckpointSelected:
    leaves = action.node in leavers
    return replace(event, this_node_leaves=leaves, peer_leaves=bool(leavers) and not leaves)


def _tried(all_gather: AllGather, node: int, wanted: Sequence[str], check: NodeCheck | None) -> NodeCheckResult | None:
    """Return what came of the node check, None where no node asks for it."""
    why = "doubt" if "doubt" in wanted else next(filter(None, wanted), "")
    return check.run(all_gather, node, why) if why and check is not None else None


def _without_unfit(action: SelectCheckpoint, checked: NodeCheckResult, states: Sequence[NodeState], t: float) -> CheckpointSelected:
    """Return the event where nodes failed the node check: they leave if the others are enough, else all nodes stop."""
    event = CheckpointSelected(
        t,
        action.attempt,
        None,
        0,
        agreement=action.attempt,
        unfit=checked.unfit,
        not_excluded=checked.not_excluded,
        batch=newest(states).asked.batch,
    )
    goes_on = checked.may_leave and 0 < action.least_nodes <= len(states) - len(checked.unfit)
    return _with_leavers(event, action, [node for node, _ in checked.unfit] if goes_on else ())


def _listed(
    action: SelectCheckpoint, node_offer: NodeOffer, all_gather: AllGather, states: list[NodeState], problem: tuple[str, str] | None
) -> NodeRows:
    """Return what each node has, and which of the others' markers it sees."""
    rows = NodeRows(tuple(states), (), Selection(None, 0))
    times = [state.asked.diverged_since_t for state in states]
    since = min((t for t in times if t is not None), default=None)
    here, selection = _checkpoints_here(action, node_offer, rows.rejected, problem, since)
    sees = node_offer.sees([state.markers for state in states], action.node, [state.host for state in states])
    return dataclasses.replace(rows, offers=tuple(gathered(all_gather, 2, dataclasses.replace(here, sees=sees))), selection=selection)


def _chosen(  # noqa: PLR0913, PLR0917  as agree, with the rows of all nodes
    action: SelectCheckpoint, node_offer: NodeOffer, all_gather: AllGather, rows: NodeRows, ways: Sequence[str], t: float
) -> CheckpointSelected:
    """Return the first candidate that all nodes can load; one with finite weights before one without, where all nodes prefer that."""
    states = rows.states
    held = [offer.held for offer in rows.offers]
    candidates = common.order(common.candidates(held, states.index(rows.newest)), [offer.saves for offer in rows.offers])
    own = [_own_path(candidate, rows, action.node) for candidate in candidates]
    refused: list[tuple[str, str]] = []
    silent = list(rows.silent)
    proven = _proven(candidates, own, action.node, node_offer, all_gather, states, refused, silent)
    newest_whole = next(proven, None)
    if newest_whole is None:
        return replace(_none(action, rows, ways, tuple(refused), t), silent=tuple(silent))
    taken = newest_whole
    if newest_whole.nan and all(state.finite for state in states):  # every node prefers finite weights: the next with others is taken
        taken = next((row for row in proven if not newest_whole.nan <= row.nan), newest_whole)
    if not _resume_alike(ways):
        return _resumes_differ(action, rows, ways, t)
    node_offer.take(taken.path)
    whole = (path for path in own[newest_whole.number : taken.number] if path not in dict(refused))
    older = [(offered, path) for offered, path in zip(candidates, own, strict=True)][taken.number + 1 :]
    return replace(
        _agreed(action, rows, t),
        chosen=CheckpointRef(taken.path, taken.step, taken.proofs[action.node].level or "identity"),
        n_found=max(offer.n_found for offer in rows.offers),
        torn=rows.selection.torn,
        refused=(*refused, *rows.offers[action.node].refused),
        older=tuple(
            CheckpointRef(path, offered[action.node].step, "") for offered, path in reversed(older) if not isinstance(offered, str)
        ),
        not_finite=tuple((path, "its weights hold NaN; an older one is taken instead") for path in whole),
        dangerous=rows.selection.dangerous,
        silent=tuple(silent),
        passed_over=(*(row for row in refused if row[0] not in {path for path, _ in rows.selection.torn}), *rows.selection.unknown),
    )


def _agreed(action: SelectCheckpoint, rows: NodeRows, t: float) -> CheckpointSelected:
    """Return the event without a checkpoint, with what belongs to the job and holds on all nodes."""
    asked = rows.newest.asked
    return CheckpointSelected(
        t,
        action.attempt,
        None,
        0,
        agreement=action.attempt,
        overrides=asked.overrides,
        rejected=rows.rejected,
        programs=programs(rows.states),
        past=asked.past,
        batch=asked.batch,
    )


def _proven(  # noqa: PLR0913, PLR0917  as _chosen, with the candidates
    candidates: Sequence[common.Candidates | str],
    own: Sequence[str],
    node: int,
    node_offer: NodeOffer,
    all_gather: AllGather,
    states: Sequence[NodeState],
    refused: list[tuple[str, str]],
    silent: list[tuple[str, str]],
) -> Iterator[_Proven]:
    """Prove one candidate after the other, as far as they are asked for. Yield those that all nodes can load; `refused` gets the rest.

    `silent` gets those of the refused from which no byte came on some node.
    """
    numbers, suspect = itertools.count(_FIRST_PROOF), any(state.suspect for state in states)
    for number, candidate in enumerate(candidates):
        if isinstance(candidate, str):
            proofs = _save_proofs(candidate, node_offer, all_gather, numbers, suspect=suspect)
            why = common.all_same(proofs)
        else:
            prove = partial(node_offer.prove, candidate, node, suspect=suspect)
            proofs = _proofs(prove, node_offer, all_gather, numbers)
            why = common.accepted(candidate, proofs)
        if why:
            refused.append((own[number], why))
            if any(proof.silent for proof in proofs):
                silent.append((own[number], why))
        else:
            yield _Proven(number, node_offer.restored_at(candidate) if isinstance(candidate, str) else own[number], tuple(proofs))


def _proofs(prove: Callable[[], Proof], node_offer: NodeOffer, all_gather: AllGather, numbers: Iterator[int]) -> list[Proof]:
    """Return the nodes' proofs, once no node reads any more. A node that moves no further is waited for in vain, as any silent one."""
    own, wait_s = BackgroundCall(prove, "prove"), READING_S
    while True:
        n_moves = node_offer.n_moves
        while not own.done.wait(wait_s) and node_offer.n_moves == n_moves:
            continue
        proofs = gathered(all_gather, next(numbers), own.result() if own.done.is_set() else Proof("", reading=True))
        if not any(proof.reading for proof in proofs):
            return proofs
        wait_s = min(2 * wait_s, LONGEST_READING_S)


def _own_path(candidate: common.Candidates | str, rows: NodeRows, node: int) -> str:
    """Return where a candidate is on this node; of a save of which it has nothing, where another node has its part."""
    if not isinstance(candidate, str):
        return candidate[node].path
    offers = (rows.offers[node], *rows.offers)
    return next(save.path for here in offers for save in here.saves if save.save == candidate)


def _save_proofs(save: str, node_offer: NodeOffer, all_gather: AllGather, numbers: Iterator[int], *, suspect: bool) -> list[Proof]:
    """Return the nodes' proofs of a save of which each has a part.

    While it is not in the mirror and a node still sends its part, all look again. A node that found it asked after one that did not.
    """
    proofs: list[Proof] = []
    for _ in range(MOST_LOOKS):
        proofs = _proofs(partial(node_offer.prove_save, save, suspect=suspect), node_offer, all_gather, numbers)
        missing = [proof.missing for proof in proofs]
        is_over = not any(missing) or any(proof.reason and not proof.missing for proof in proofs)
        if is_over or (all(missing) and not any(proof.coming for proof in proofs)):
            break
        time.sleep(LOOK_AGAIN_S)
    return proofs


def _resume_alike(ways: Collection[str]) -> bool:
    """Whether either all nodes resume, or none that gets a program's option added to its command."""
    return "" not in ways or not set(ways) - {"", DECLARED}


def _resumes_differ(action: SelectCheckpoint, rows: NodeRows, ways: Sequence[str], t: float) -> CheckpointSelected:
    """Return the event where the commands of the nodes differ, so that only some of them add a program's option."""
    texts = ("nothing is added to its command" if not by else "by its command" if by == DECLARED else f"by {by}'s option" for by in ways)
    node_offers = tuple((state.host, text) for state, text in zip(rows.states, texts, strict=True))
    event = replace(_agreed(action, rows, t), n_found=1, node_offers=node_offers, resume_differs=True)
    agreed = [state.agreed for state in rows.states]
    return _with_leavers(event, action, _leavers(action, agreed, lambda nodes: _resume_alike([ways[node] for node in nodes])))


def _none(
    action: SelectCheckpoint, rows: NodeRows, ways: Sequence[str], refused: tuple[tuple[str, str], ...], t: float
) -> CheckpointSelected:
    """Return the event without a checkpoint: a start from scratch if no node has or had one, else each node's checkpoints."""
    states, offers = rows.states, rows.offers
    n_known = sum(offer.n_found for offer in offers) + sum(state.asked.had_checkpoint for state in states)
    held = tuple((state.host, summary(here)) for state, here in zip(states, offers, strict=True)) if n_known else ()
    # a node without any has lost its disk, or has the journal of another one (run/moved_job.py)
    agreed = [state.agreed if here.held or here.saves else 0 for state, here in zip(states, offers, strict=True)]
    is_hint = not any(ways) and not any(state.asked.had_checkpoint for state in states)  # the script finds its checkpoint by itself
    fit: Callable[[Sequence[int]], bool] = lambda nodes: bool(common.candidates([offers[node].held for node in nodes]))  # noqa: E731
    leavers = () if is_hint else _leavers(action, agreed, fit)
    event = replace(
        _agreed(action, rows, t),
        n_found=n_known,
        torn=rows.selection.torn,
        refused=(*refused, *offers[action.node].refused),
        node_offers=(*held, *refused[:1]),
        dangerous=rows.selection.dangerous,
        remedy=remedy(rows),
    )
    return _with_leavers(event, action, leavers)


def _checkpoints_here(
    action: SelectCheckpoint,
    node_offer: NodeOffer,
    rejected: tuple[str, ...],
    problem: tuple[str, str] | None,
    diverged_since_t: float | None,
) -> tuple[CheckpointsHere, Selection]:
    try:
        if diverged_since_t is not None:
            node_offer.reject_mixed(diverged_since_t)
        avoid = (*rejected, *action.rejected)
        held, selection = node_offer.list_checkpoints(avoid, action.agreed_attempts)
        saves = node_offer.saves(avoid)
    except (CheckpointingError, OSError) as error:
        why = (("the checkpoints could not be read", str(error)),)
        return CheckpointsHere((), 1, why, silent=isinstance(error, DiskSilent)), Selection(None, 1)
    against = (*selection.rejected, *selection.unverifiable, *selection.unknown, *((problem,) if problem else ()))
    refused = (*against, *selection.torn, *selection.dangerous)
    return CheckpointsHere(held, selection.n_found + len(saves) + bool(problem), refused, (), saves, bool(selection.silent)), selection
