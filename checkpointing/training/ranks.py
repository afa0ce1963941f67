"""The ranks of a training meet: all continue, or all raise.

The meeting goes through the store of torch's process group, without a collective: it needs no GPU, works for every backend and has a time
limit of its own, and a rank that fails reports it without waiting. Outside torch.distributed there is one rank, and nothing is asked.

One meeting, keys under `checkpointing/<call>/<number>/`:

    came       how many are there; the one that completes the world writes the outcome
    came/<rank>   this rank is there
    no         how many of them voted no
    value      what rank 0 gave, written before it comes
    outcome    yes | no | error: …     written once (compare-and-set): the first error wins, and nobody waits for a rank that failed

The numbers count the meetings of this process, which is the one state here: every rank goes through the same ones in the same order, also
through one that failed, so a training that catches the error can continue. The last to leave removes the keys of one that did not fail.
Ranks in different calls never meet.

A rank that fails raises its own error. All others raise CheckpointingError with the first failed rank's number. Of ranks that do not come:

    after PATIENCE_S     a warning names them, and the place of each (whereabouts.py)
    any time after that  an error, if they are proven never to come: whereabouts.away
    after timeout_s      an error; a rank that is at work in the same call, such as rank 0 while it writes, has TIMEOUT_S at least
"""

from __future__ import annotations

import contextlib
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
#: Seconds after which a rank that waits for others warns of those that are missing, and looks whether they can still come.
PATIENCE_S: float = 30.0
_FIRST_LOOK_S: Final = 0.001
_PER_RANK_S: Final = 1e-4  # at most 10,000 questions per second to the store, however many ranks wait
_LONGEST_LOOK_S: Final = 1.0
_MOST_OF_AN_ERROR: Final = 500
_ONLY: Final = "only"
_EVERY_RANK: Final = "let every rank make this call, at the same place; for one that is only late, raise the timeout of init_process_group"
_AS_NAMED: Final = "read the error of the rank that is named: it has the hint"


class _Meetings:
    """The meetings of this process, whose process group there is one of."""

    number = 0  # of the next


@dataclass(frozen=True, slots=True)
class RankAnswer:
    """The outcome of a meeting: whether all voted yes, and the value of rank 0."""

    yes: bool
    value: str


@dataclass(slots=True)
class Ranks:
    """The ranks that do one thing together. Made by `ranks()`."""

    #: The failure if they do not, for errors.
    failure: str
    rank: int = 0
    world: int = 1
    #: How long a rank waits for others that are not in the call.
    timeout_s: float = TIMEOUT_S
    #: The store of torch's process group. None: there is one rank.
    store: Any = None
    #: The keys of its only meeting. "": its meetings are counted.
    place: str = ""
    #: The name of the call in the keys of counted meetings.
    call: str = "meeting"
    _failed: bool = field(default=False, init=False)

    def meet(self, *, vote: bool = True, value: str = "") -> RankAnswer:
        """Wait until all ranks are here. `value` counts on rank 0 alone. Raises CheckpointingError."""
        if self.store is None:
            return RankAnswer(vote, value)
        keys = self._next_keys()
        if whereabouts.OwnTask.work:
            whereabouts.OwnTask.work = self._coming_keys()
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
            raise CheckpointingError(f"{self.failure}: {cause}", hint=_EVERY_RANK if cause.startswith(_ONLY) else _AS_NAMED)
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
            whereabouts.OwnTask.work = self._coming_keys()
            yield
        except BaseException as error:  # DCP's CheckpointException is not an Exception; a KeyboardInterrupt leaves the others waiting too
            if self.store is not None and not self._failed:
                self._failed = True
                text = " ".join(str(error).split())[:_MOST_OF_AN_ERROR]
                with contextlib.suppress(Exception):  # without the store the others fail by themselves
                    outcome = f"error: rank {self.rank}: {type(error).__name__}: {text}"
                    self._conclude(self._next_keys(), outcome)
            raise
        finally:
            whereabouts.OwnTask.work = ""

    def _next_keys(self) -> str:
        keys = self._coming_keys()
        _Meetings.number += not self.place
        return keys

    def _coming_keys(self) -> str:
        return self.place or f"checkpointing/{self.call}/{_Meetings.number}"

    def _conclude(self, keys: str, outcome: str) -> None:
        self.store.compare_set(f"{keys}/outcome", "", outcome)

    def _outcome(self, keys: str) -> str:
        """Poll, ever less often: waiting inside the store would block torch's own threads."""
        began = time.monotonic()
        next_look_s, limit_s, has_warned = PATIENCE_S, self.timeout_s, False
        while not self.store.check([f"{keys}/outcome"]):
            waited = time.monotonic() - began
            if waited > limit_s:
                if waited > TIMEOUT_S or self._missing(keys):
                    self._conclude(keys, f"error: {_ONLY} {self._absence(keys, limit_s)}")
                    break
                limit_s = waited + PATIENCE_S
            if waited > next_look_s:
                has_warned = self._look(keys, waited, has_warned=has_warned)
                next_look_s += PATIENCE_S
            time.sleep(min(_LONGEST_LOOK_S, max(_FIRST_LOOK_S, self.world * _PER_RANK_S, waited / 20)))
        outcome: bytes = self.store.get(f"{keys}/outcome")
        return outcome.decode()

    def _look(self, keys: str, waited_s: float, *, has_warned: bool) -> bool:
        """Warn of the ranks that are missing, and conclude where they cannot come: the lowest rank that is here, for all.

        Return whether it has warned.
        """
        absent = self._absent(keys)
        if not absent or self.rank != next(rank for rank in range(self.world) if rank not in absent) or not self._missing(keys):
            return has_warned
        text = self._absence(keys, waited_s)
        if whereabouts.away(self.store, absent, keys):
            self._conclude(keys, f"error: {_ONLY} {text}; it will not come here")
        elif not has_warned:
            warnings.warn(f"{self.failure}: it still waits: {_ONLY} {text}", RuntimeWarning, stacklevel=2)
        return True

    def _absent(self, keys: str) -> list[int]:
        return [rank for rank in range(self.world) if not self.store.check([f"{keys}/came/{rank}"])]

    def _missing(self, keys: str) -> bool:
        """Return whether a rank did not come that is not at work in the same call, on the way here."""
        return not whereabouts.are_coming(self.store, self._absent(keys), keys)

    def _absence(self, keys: str, waited_s: float) -> str:
        """Say how many ranks came, which did not, and where those stand."""
        absent = self._absent(keys)
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


def ranks(failure: str, timeout_s: float | None = None, place: str = "", *, call: str = "meeting") -> Ranks:
    """Return the ranks of torch.distributed, where this process is in a group; else itself alone. Imports nothing. The rest: see Ranks.

    timeout_s: None is the time limit of the group itself.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized() or c10d.get_world_size() == 1:
        return Ranks(failure)
    store = c10d._get_default_store()  # noqa: SLF001 -- the only way to the ranks' store
    whereabouts.show(store, c10d.get_rank())
    limit_s = group_timeout().total_seconds() if timeout_s is None else timeout_s
    return Ranks(failure, c10d.get_rank(), c10d.get_world_size(), limit_s, store, place, call)


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


def show_place() -> None:
    """Let the other ranks ask for this rank's place from now on, where this process is in a group."""
    ranks("")
