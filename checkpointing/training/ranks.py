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
does not come in time: with the ranks that are missing, and where each of them stands (whereabouts.py). A meeting with patience warns of
them before, and fails early only where they are proven never to come: whereabouts.away.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from checkpointing.model import CheckpointingError
from checkpointing.training import whereabouts

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S: Final = 1800.0  # as long as gloo waits in a collective; a save to a slow disk is waited for as well
#: Seconds after which a call that waits for other ranks, and has no time limit of its own, warns of those that are missing.
PATIENCE_S: Final = 30.0
_FIRST_LOOK_S: Final = 0.001
_PER_RANK_S: Final = 1e-4  # at most 10,000 questions per second to the store, however many ranks wait
_LONGEST_LOOK_S: Final = 1.0
_MOST_OF_AN_ERROR: Final = 500
_ONLY: Final = "only"
_EVERY_RANK: Final = "let every rank make this call, at the same place"
_NOT_ALL_CAME: Final = f"{_EVERY_RANK}; or give it a longer timeout_s="
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
    patience_s: when it warns of missing ranks; 0: never.
    """

    what: str
    rank: int = 0
    world: int = 1
    timeout_s: float = TIMEOUT_S
    store: Any = None
    place: str = ""
    patience_s: float = 0.0
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
        with _waits_in(keys):
            outcome = self._outcome(keys)
        if outcome not in ("yes", "no"):
            self._failed = True  # this meeting reports the error to all ranks
            cause = outcome.removeprefix("error: ")
            hint = _AS_NAMED if not cause.startswith(_ONLY) else _EVERY_RANK if self.patience_s else _NOT_ALL_CAME
            raise CheckpointingError(f"{self.what}: {cause}", hint=hint)
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
        next_look_s = self.patience_s or self.timeout_s
        while not self.store.check([f"{keys}/outcome"]):
            waited = time.monotonic() - began
            if waited > self.timeout_s:
                self._conclude(keys, f"error: {_ONLY} {self._absence(f'{keys}/came', self.timeout_s)}")
                break
            if waited > next_look_s:
                self._look(keys, waited, warn=next_look_s == self.patience_s)
                next_look_s += self.patience_s
            time.sleep(min(_LONGEST_LOOK_S, max(_FIRST_LOOK_S, self.world * _PER_RANK_S, waited / 20)))
        outcome: bytes = self.store.get(f"{keys}/outcome")
        return outcome.decode()

    def _look(self, keys: str, waited_s: float, *, warn: bool) -> None:
        """Warn of the ranks that are missing, and conclude where they cannot come: the lowest rank that is here, for all."""
        absent = self._absent(f"{keys}/came")
        if not absent or self.rank != next(rank for rank in range(self.world) if rank not in absent):
            return
        text = self._absence(f"{keys}/came", waited_s)
        if whereabouts.away(self.store, absent, keys):
            self._conclude(keys, f"error: {_ONLY} {text}; it will not come here")
        elif warn:
            warnings.warn(f"{self.what} yet: {_ONLY} {text}", RuntimeWarning, stacklevel=2)

    def _absent(self, key: str) -> list[int]:
        return [rank for rank in range(self.world) if not self.store.check([f"{key}/{rank}"])]

    def _absence(self, key: str, waited_s: float) -> str:
        """Say how many ranks came, which did not, and where those stand."""
        absent = self._absent(key)
        text = f"{self.world - len(absent)} of {self.world} ranks came within {waited_s:.0f} s"
        return f"{text}; {whereabouts.described(self.store, absent)}" if absent else text


@contextlib.contextmanager
def _waits_in(task: str) -> Iterator[None]:
    """Tell ranks that ask what the training thread waits in."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    whereabouts.OwnTask.task = task
    try:
        yield
    finally:
        whereabouts.OwnTask.task = ""


def ranks(what: str, timeout_s: float = TIMEOUT_S, place: str = "", *, patience_s: float = 0.0) -> Ranks:
    """Return the ranks of torch.distributed, where this process is in a group; else itself alone. Imports nothing. The rest: see Ranks."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized() or c10d.get_world_size() == 1:
        return Ranks(what)
    store = c10d._get_default_store()  # noqa: SLF001 -- the only way to the ranks' store
    whereabouts.show(store, c10d.get_rank())
    return Ranks(what, c10d.get_rank(), c10d.get_world_size(), timeout_s, store, place, patience_s)


def group_timeout() -> timedelta:
    """Return the time limit that the script gave its process group; that of gloo where it cannot be read."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        group = c10d._get_default_group()  # noqa: SLF001 -- there is no public name
        device = "cuda" if c10d.get_backend(group) == "nccl" else "cpu"
        limit: timedelta = group._get_backend(sys.modules["torch"].device(device)).options._timeout  # noqa: SLF001 -- as above
    except (AttributeError, RuntimeError, ValueError, KeyError):
        return timedelta(seconds=TIMEOUT_S)
    return limit
