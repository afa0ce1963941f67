"""Loads the newest checkpoint that is proven whole, the same one on every rank.

    checkpoint = load_latest("ckpt", map_location=device)
    if checkpoint is not None:
        model.load_state_dict(checkpoint.state["model"])

Rank 0 proposes the newest that it can verify. A rank that sees another file there (a disk of the node's own) verifies it too. All ranks
pass over a checkpoint that one of them lacks. If there are checkpoints and none is good, CheckpointingError lists them: training never
starts from scratch in silence.

The supervisor hands out a checkpoint that it verified. If that is of this directory, it is proposed first, and nothing newer than it.
"""

from __future__ import annotations

import bisect
import contextlib
import glob
import json
import os
import time
import warnings
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, cast

import torch

from checkpointing import discover, select, step_names
from checkpointing.candidates import SelectionOptions
from checkpointing.io import staging
from checkpointing.manifest import documents
from checkpointing.model import CheckpointingError, Verdict
from checkpointing.training.broadcast import BroadcastError, form_of, share_state, shared_file
from checkpointing.training.ranks import Ranks, ranks
from checkpointing.verification import Cache, identity_of, verify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkpointing.model import Identity, Verification

RESUME_FROM: Final = "SUPERVISE_JOB_RESUME_FROM"
RESUME_STEP: Final = "SUPERVISE_JOB_RESUME_STEP"
_MOST_LISTINGS: Final = 100
_GRAIN_NS: Final = 20_000_000  # of a file system's times, with room
_ALL_IS_REFUSED: Final = "look at each with `supervise checkpoints verify`, put a good one there, or move them away to start from scratch"
_NOT_READABLE: Final = (
    "if it holds objects of your own, allow their classes by torch.serialization.add_safe_globals, or trust its pickle: weights_only=False"
)

_SENT_NO_MORE: Final = "read the error of rank 0, which reads the file for all, and of a rank that ended"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded checkpoint."""

    #: The saved state; for a sharded checkpoint `into`.
    state: Any
    #: The absolute path of it.
    path: str
    #: None if neither content nor name has it.
    step: int | None
    #: The newer ones that were not loaded, as (path, reason).
    passed_over: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Proposal:
    """A checkpoint that rank 0 verified."""

    path: str
    step: int | None
    #: Its size in bytes and its modification time (ns), by which another node recognises the file.
    whole: tuple[int, int]
    is_directory: bool


def load_latest(
    directory: str | os.PathLike[str],
    *,
    into: Mapping[str, Any] | None = None,
    map_location: Any = "cpu",  # noqa: ANN401 -- torch.load's
    weights_only: bool = True,
    timeout_s: float | None = None,
) -> Loaded | None:
    """Load the newest whole checkpoint in `directory`, on all ranks the same one; None where there is none.

    In torch.distributed every rank must call it. Rank 0 verifies a file, reads it and sends it to the others; of a sharded checkpoint
    (DCP) each rank reads its part. `directory` may also be one checkpoint.

    into: a state of the right names, shapes and dtypes, which a sharded checkpoint is loaded into in place; `state` is this one then.
    map_location, weights_only: as in torch.load; weights_only=False lets a pickle run code. timeout_s: as in `save`.

    Raises CheckpointingError where there are checkpoints and none is good, where the newest good one cannot be loaded, and on all ranks
    where one of them fails.
    """
    directory = os.path.abspath(os.fspath(directory))  # noqa: PTH100 -- paths are plain strings throughout the package
    together = ranks(f"no checkpoint was loaded from {directory}", timeout_s, call="load_latest")
    with together.together():
        if together.rank == 0:
            staging.bring_back(directory)
        proposer, lacking = _Proposer(directory), list[tuple[str, str]]()
        while True:
            proposal, passed_over = _agree(proposer, together, lacking)
            if proposal is None:
                if passed_over:
                    listed = "; ".join(f"{path}: {why}" for path, why in passed_over)
                    raise CheckpointingError(f"no checkpoint was loaded from {directory}: none is good: {listed}", hint=_ALL_IS_REFUSED)
                return None
            try:
                state, is_there = _load(proposal, into, map_location, together, weights_only=weights_only), True
            except (CheckpointingError, FileNotFoundError):
                if os.path.lexists(proposal.path):
                    raise
                state, is_there = None, False
            if together.meet(vote=is_there).yes:
                return Loaded(state, proposal.path, proposal.step, passed_over)
            lacking.append((proposal.path, "it was removed while it was loaded"))


def _agree(proposer: _Proposer, together: Ranks, lacking: list[tuple[str, str]]) -> tuple[_Proposal | None, tuple[tuple[str, str], ...]]:
    """Let rank 0 propose, newest first, until all ranks have the proposed one; add what a rank does not have to `lacking`."""
    while True:
        message = ""
        if together.rank == 0:
            proposed = proposer.next([path for path, _ in lacking])
            message = json.dumps([proposed and [proposed.path, proposed.step, proposed.whole, proposed.is_directory], proposer.passed_over])
        fields, passed_over = json.loads(together.meet(value=message).value)
        why = tuple((path, reason) for path, reason in [*lacking, *passed_over])
        if fields is None:
            return None, why
        proposal = _Proposal(fields[0], fields[1], (fields[2][0], fields[2][1]), fields[3])
        has_it = together.rank == 0 or _have(proposal)
        if together.meet(vote=has_it).yes:
            return proposal, why
        lacking.append((proposal.path, "not every rank has it whole"))


class _Proposer:
    """Rank 0's view of the directory: its verified checkpoints, newest first."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._cache = Cache()
        given = os.environ.get(RESUME_FROM)
        self._resume_from = given if given and _is_of(directory, os.path.abspath(given)) else None  # noqa: PTH100 -- as above
        self._tried = ""
        self._limit: int | None = None
        self._refused: list[tuple[str, str]] = []
        self.passed_over: list[tuple[str, str]] = []

    def next(self, lacking: list[str]) -> _Proposal | None:
        """Return the newest that is whole and not lacking anywhere; `passed_over` then has the faults of newer ones."""
        if self._resume_from is not None:
            given = self._tried = os.path.abspath(self._resume_from)  # noqa: PTH100 -- as above
            self._resume_from = None
            verification = verify(given, own=True)
            self._limit = verification.step if verification.step is not None else _number(RESUME_STEP)
            if verification.verdict is Verdict.VERIFIED:
                return _proposal(verification)
            self._refused.append((given, verification.reason))
        changed = self._changed_ns()
        listing = self._list()
        for _ in range(_MOST_LISTINGS):
            # a training script keeps no record of torn files: each start looks at them anew
            options = SelectionOptions(cache=self._cache, avoid=lacking, own=_is_guarded)
            chosen = select.newest(listing, options)
            self.passed_over = [*self._refused, *chosen.not_finite, *chosen.torn, *chosen.dangerous, *chosen.unverifiable]
            self.passed_over += chosen.unknown
            if chosen.chosen is not None:
                return _proposal(chosen.chosen)
            # another process may save there and prune: a listed one is gone by the time of its read, and the next not listed yet,
            # or a listing saw neither. Only what stood still between two looks, by more than the grain of its clock, is what there is
            stood_still = abs(time.time_ns() - changed) > _GRAIN_NS
            if not stood_still:
                time.sleep(_GRAIN_NS / 1e9)
            before, changed_before = listing, changed
            changed = self._changed_ns()
            listing = self._list()
            if stood_still and (listing, changed) == (before, changed_before):
                break
        return None

    def _changed_ns(self) -> int:
        """Return when a name last came into the directory or went from it; 0 where it is not there."""
        try:
            return os.stat(self._directory).st_mtime_ns  # noqa: PTH116 -- as above
        except OSError:
            return 0

    def _list(self) -> discover.Listing:
        """List the directory; where that is a file, or DCP's own directory, just that."""
        directory = self._directory.rstrip("/")
        if os.path.isfile(directory) or os.path.isfile(f"{directory}/.metadata"):  # noqa: PTH113 -- as above
            listing = discover.find([glob.escape(os.path.basename(directory))], os.path.dirname(directory))  # noqa: PTH119, PTH120 -- as above
        else:
            listing = discover.find(["*"], self._directory)
        return discover.Listing(tuple(candidate for candidate in listing.candidates if self._allowed(candidate.path)), listing.problems)

    def _allowed(self, path: str) -> bool:
        """Return whether a checkpoint may be proposed: not one newer than what the supervisor hands out, which stepped back on purpose."""
        if path == self._tried:
            return False
        named = step_names.step_in(path)
        return self._limit is None or (named is not None and named.step <= self._limit)


def _is_guarded(_path: str) -> bool:
    """Take each file for one of the script's own: torch.load has a guard of its own, which weights_only=False switches off on purpose."""
    return True


def _is_of(directory: str, given: str) -> bool:
    """Return whether the supervisor's checkpoint is in `directory`, or is our copy of one there: a script may load from two directories."""
    homes = [given]
    with contextlib.suppress(OSError, documents.ManifestDamaged):
        homes.append(documents.read(f"{os.path.dirname(os.path.dirname(given))}/{documents.FILE_NAME}").path)  # noqa: PTH120 -- as above
    above = f"{directory.rstrip('/')}/", f"{os.path.realpath(directory).rstrip('/')}/"
    return any(f"{place}/".startswith(above) for home in homes for place in (home, os.path.realpath(home)))


def _have(proposal: _Proposal) -> bool:
    """Return whether this rank sees the same file, or has a whole one of the same size on a disk of its node's own."""
    identity = identity_of(proposal.path)
    if identity is None:
        return False
    exact = proposal.whole[1] % 1_000_000_000  # a clock of whole seconds makes files alike that are not
    if _whole(identity) == proposal.whole and exact:
        return True
    return identity.size == proposal.whole[0] and verify(proposal.path, own=True).verdict is Verdict.VERIFIED


def _proposal(verification: Verification) -> _Proposal:
    is_directory = os.path.isdir(verification.path)  # noqa: PTH112 -- as above
    return _Proposal(verification.path, verification.step, _whole(verification.identity), is_directory)


def _whole(identity: Identity) -> tuple[int, int]:
    """Return the facts that all nodes see alike. An inode number is not among them: some shared file systems give each mount its own."""
    return (identity.size, identity.mtime_ns)


def _number(name: str) -> int | None:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return None


def _load(proposal: _Proposal, into: Mapping[str, Any] | None, map_location: Any, together: Ranks, *, weights_only: bool) -> Any:  # noqa: ANN401 -- torch.load's
    try:
        if proposal.is_directory:  # as rank 0 saw it: all ranks go the same way
            return _load_sharded(proposal.path, into, together)
        return _load_file(proposal, map_location, together, weights_only=weights_only)
    except BroadcastError as error:
        raise CheckpointingError(f"checkpoint could not be loaded: {proposal.path}: {error}", hint=_SENT_NO_MORE) from error


def _load_file(proposal: _Proposal, map_location: Any, together: Ranks, *, weights_only: bool) -> Any:  # noqa: ANN401 -- torch.load's
    path = proposal.path
    try:
        if together.store is None:
            return torch.load(path, map_location=map_location, weights_only=weights_only)
        with shared_file(path, proposal.whole[0], together.rank) as file:
            return torch.load(cast("IO[bytes]", file), map_location=map_location, weights_only=weights_only)
    except BroadcastError:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise CheckpointingError(f"checkpoint could not be loaded: {path}: {first}", hint=_NOT_READABLE) from error


def _load_sharded(path: str, into: Mapping[str, Any] | None, together: Ranks) -> Any:  # noqa: ANN401 -- torch.load's
    """Let DCP fill `into`. Its reader unpickles .metadata as it is: `verify` has read that one's opcodes before."""
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415 -- a second of import
    from torch.distributed.checkpoint.filesystem import FileSystemReader  # noqa: PLC0415 -- as above
    from torch.distributed.checkpoint.state_dict_loader import load as dcp_load  # noqa: PLC0415 -- as above

    if into is None:
        message = f"checkpoint could not be loaded: {path}: it is sharded, and nothing was given to load it into"
        raise CheckpointingError(message, hint="give load_latest a state of the right shape: into={'model': model.state_dict(), …}")
    state = dict(into)
    optimizer = state.get("optimizer")
    if isinstance(optimizer, dict) and isinstance(optimizer.get("state"), dict):
        held = sorted(FileSystemReader(path).read_metadata().state_dict_metadata)
        kept = _of_updated_parameters(optimizer["state"], held)
        if len(kept) < len(optimizer["state"]):
            state["optimizer"] = {**optimizer, "state": kept}
    is_replicated = together.store is not None and _is_replicated(state, together)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # as it is
            if not is_replicated or together.rank == 0:
                dcp_load(state, checkpoint_id=path, no_dist=together.store is None or is_replicated)
    except CheckpointException as error:
        rank, failure = min(error.failures.items())
        message = f"checkpoint could not be loaded: {path}: rank {rank}: {type(failure[0]).__name__}: {failure[0]}"
        raise CheckpointingError(message, hint="compare its content with `into`: every entry must be there, in the same shape") from error
    if not is_replicated:
        return state
    together.meet()  # rank 0 has loaded it, or reported why not
    return share_state(state, together.rank)


def _is_replicated(state: Mapping[str, Any], together: Ranks) -> bool:
    """Return whether all ranks want the same, no shards: then one of them reads it for all. The same answer on all."""
    form = form_of(state)
    of_rank_0 = together.meet(value=form).value
    return together.meet(vote=bool(form) and form == of_rank_0).yes


def _of_updated_parameters(states: Mapping[str, Any], held: list[str]) -> dict[str, Any]:
    """Return the states of the parameters that have one in the checkpoint, whose names are sorted in `held`.

    A parameter that never got a gradient has none there. An optimizer that has made no step yet is given one for each (state.py).
    """
    kept = {}
    for name, values in states.items():
        prefix = f"optimizer.state.{name}."
        place = bisect.bisect_left(held, prefix)
        if not values or (place < len(held) and held[place].startswith(prefix)):
            kept[name] = values
    return kept
