"""The ranks of a training meet: all go on, or all raise.

The meeting goes through the store of torch's process group, without a collective: it needs no GPU, works for every backend and has a time
limit of its own, and a rank that fails reports it without waiting. Outside torch.distributed there is one rank, and nothing is asked.

One meeting, keys under `checkpointing/meeting/<number>/`:

    came       how many are there; the one that completes the world writes the outcome
    came/<rank>   this rank is there
    no         how many of them voted no
    value      what rank 0 gave, written before it comes
    outcome    yes | no | error: …     written once (compare-and-set): the first error wins, and nobody waits for a rank that failed

The numbers count the meetings of this process, which is the one state here: every rank goes through the same ones in the same order, also
through one that failed, so that a training which catches the error can go on. The last to leave removes the keys of one that did not fail.

A rank that fails raises its own error. All others raise CheckpointingError with the first failed rank's number, and so do all ranks if one
does not come in time: with the ranks that are missing, and where each of them stands (whereabouts.py).
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from checkpointing.model import CheckpointingError
from checkpointing.training import whereabouts

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S: Final = 1800.0  # as long as gloo waits in a collective; a save to a slow disk is waited for as well
_FIRST_LOOK_S: Final = 0.001
_PER_RANK_S: Final = 1e-4  # at most 10,000 questions per second to the store, however many ranks wait
_LONGEST_LOOK_S: Final = 1.0
_MOST_OF_AN_ERROR: Final = 500
_ONLY: Final = "only"
_NOT_ALL_CAME: Final = "let every rank make this call, at the same place; or give it a longer timeout_s="
_AS_NAMED: Final = "read the error of the rank that is named: it has the hint"

# the meetings of this process, whose process group there is one of: see above
_numbers: Final = itertools.count()


@dataclass(frozen=True, slots=True)
class RankAnswer:
    """The outcome of a meeting: whether all voted yes, and the value of rank 0."""

    yes: bool
    value: str


@dataclass(slots=True)
class Ranks:
    """The ranks that do one thing together. Made by `ranks()`.

    what: names it in errors. place: keys of its only meeting; "": the next of those in which ranks save and load.
    """

    what: str
    rank: int = 0
    world: int = 1
    timeout_s: float = TIMEOUT_S
    store: Any = None
    place: str = ""
    _failed: bool = field(default=False, init=False)

    def meet(self, *, vote: bool = True, value: str = "") -> RankAnswer:
        """Wait until all ranks are here. `value` counts on rank 0 alone. Raises CheckpointingError."""
        if self.store is None:
            return RankAnswer(vote, value)
        keys = self._next_keys()
        if self.rank == 0:
            self.store.set(f"{keys}/value", value)
        self.store.set(f"{keys}/came/{self.rank}", "")
        if not vote:
            self.store.add(f"{keys}/no", 1)
        if self.store.add(f"{keys}/came", 1) == self.world:
            self._conclude(keys, "no" if self.store.add(f"{keys}/no", 0) else "yes")
        outcome = self._outcome(keys)
        if outcome not in ("yes", "no"):
            self._failed = True  # this meeting reports the error to all ranks
            cause = outcome.removeprefix("error: ")
            raise CheckpointingError(f"{self.what}: {cause}", hint=_NOT_ALL_CAME if cause.startswith(_ONLY) else _AS_NAMED)
        answer = RankAnswer(outcome == "yes", self.store.get(f"{keys}/value").decode())
        if self.store.add(f"{keys}/left", 1) == self.world:
            for key in ("came", "no", "value", "outcome", "left", *(f"came/{rank}" for rank in range(self.world))):
                with contextlib.suppress(Exception):  # a store that cannot forget keeps a few bytes
                    self.store.delete_key(f"{keys}/{key}")
        return answer

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Report an error that is raised inside to the others, which raise at their next meeting."""
        try:
            yield
        except BaseException as error:  # DCP's CheckpointException is no Exception; a KeyboardInterrupt leaves the others waiting as well
            if self.store is not None and not self._failed:
                self._failed = True
                text = " ".join(str(error).split())[:_MOST_OF_AN_ERROR]
                with contextlib.suppress(Exception):  # without the store the others fail by themselves
                    outcome = f"error: rank {self.rank}: {type(error).__name__}: {text}"
                    self._conclude(self._next_keys(), outcome)
            raise

    def _next_keys(self) -> str:
        return self.place or f"checkpointing/meeting/{next(_numbers)}"

    def _conclude(self, keys: str, outcome: str) -> None:
        self.store.compare_set(f"{keys}/outcome", "", outcome)

    def _outcome(self, keys: str) -> str:
        """Poll, ever less often: waiting inside the store would block torch's own threads."""
        began = time.monotonic()
        while not self.store.check([f"{keys}/outcome"]):
            waited = time.monotonic() - began
            if waited > self.timeout_s:
                self._conclude(keys, f"error: {_ONLY} {self._absence(f'{keys}/came')}")
                break
            time.sleep(min(_LONGEST_LOOK_S, max(_FIRST_LOOK_S, self.world * _PER_RANK_S, waited / 20)))
        outcome: bytes = self.store.get(f"{keys}/outcome")
        return outcome.decode()

    def _absence(self, key: str) -> str:
        """Say how many ranks came, which did not, and where those stand."""
        absent = [rank for rank in range(self.world) if not self.store.check([f"{key}/{rank}"])]
        text = f"{self.world - len(absent)} of {self.world} ranks came within {self.timeout_s:.0f} s"
        return f"{text}; {whereabouts.described(self.store, absent)}" if absent else text


def ranks(what: str, timeout_s: float = TIMEOUT_S, place: str = "") -> Ranks:
    """Return the ranks of torch.distributed, where this process is in a group; else itself alone. Imports nothing. place: see Ranks."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized() or c10d.get_world_size() == 1:
        return Ranks(what)
    store = c10d._get_default_store()  # noqa: SLF001 -- the only way to the ranks' store
    whereabouts.show(store, c10d.get_rank())
    return Ranks(what, c10d.get_rank(), c10d.get_world_size(), timeout_s, store, place)


def show_place() -> None:
    """Let the other ranks ask where this one stands from now on, where this process is in a group."""
    ranks("")
