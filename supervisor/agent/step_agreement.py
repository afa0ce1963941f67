"""Runs in each rank: `worker.agree`, by which all ranks leave out a batch that one of them cannot use, and `worker.barrier`.

*One small message a step.* Each rank gives 0, or its number + 1 where its batch is bad, to an all-reduce (the greatest wins) of 4 bytes in
a gloo group of its own. So all ranks learn of a bad batch at the same call, and which rank has it; only then is the reason sent too.

*A budget.* Where supervise runs the job, `guard.skips` batches may be left out in 1,000 calls; one more raises TooManyBatchesLeftOut on all
ranks, whose text classify/signatures/training.toml knows. Without supervise nothing is counted.

*A rank that never calls it* is named when the group's time is over: those that wait write into torch's store that they do; who has not
written is asked where it is (checkpointing/training/whereabouts.py).

torch is imported by the script: outside torch.distributed there is one rank, and the answer is its own value.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol

    class BatchCounter(Protocol):
        """The part of the instrumentation that this module calls, in a rank that a supervisor started."""

        def batch_left_out(self) -> None:
            """Count a batch that all ranks left out."""


#: How many batches may be left out among the last WINDOW calls; set by supervise (guard.skips).
BUDGET_VARIABLE = "SUPERVISE_JOB_SKIPS"
WINDOW = 1000
#: Bytes of the reason that the other ranks get.
REASON_BYTES = 256
#: How long ranks whose time is over wait for the others of them to say so.
ROLL_CALL_S = 2.0
_LOOK_S = 0.05
_KEYS = "supervise/agree"


class TooManyBatchesLeftOut(RuntimeError):  # noqa: N818  it says what happened
    """More batches were left out than guard.skips allows: the same on every rank. Raised by `worker.agree`."""


class StepAgreement:
    """One process's part in the agreement. Only the thread of the training loop may use it."""

    def __init__(self) -> None:
        self._default_group: Any = None  # torch's, for which the group of our own was made
        self._group: Any = None
        self._own_task: Any = None  # what this process waits in, for ranks that ask (whereabouts.OwnTask)
        self._number = 0  # of groups made so far: every rank makes the same ones
        self._calls = 0
        self._left_out: deque[int] = deque()  # the calls
        self._barriers: Counter[str] = Counter()  # how often each was called

    def agree(self, ok: bool, reason: str, counter: BatchCounter | None) -> bool:  # noqa: FBT001  the caller's word
        """Answer one call; see worker.agree."""
        self._calls += 1
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        if c10d is None or not c10d.is_initialized() or c10d.get_world_size() == 1:
            rank, bad_rank = 0, -1 if ok else 0
        else:
            rank = c10d.get_rank()
            bad_rank, reason = self._among_all(c10d, rank, reason, ok=ok)
        if bad_rank < 0:
            return True
        self._leave_out(rank, bad_rank, reason, counter)
        return False

    def barrier(self, name: str, timeout_s: float) -> None:
        """Wait for all ranks; see worker.barrier."""
        from checkpointing.model import CheckpointingError  # noqa: PLC0415  only scripts that use it pay for it
        from checkpointing.training.ranks import ranks  # noqa: PLC0415  as above

        self._barriers[name] += 1
        place = f"{_KEYS}/barrier/{os.environ.get('SUPERVISE_JOB_ATTEMPT', '')}/{self._barriers[name]}/{name}"
        try:
            ranks(f"worker.barrier({name!r})", timeout_s, place).meet()
        except CheckpointingError as error:
            raise TimeoutError(str(error)) from None

    def _among_all(self, c10d: Any, rank: int, reason: str, *, ok: bool) -> tuple[int, str]:  # noqa: ANN401  torch's module
        """Return the greatest rank whose batch is bad, -1 for none, and its reason."""
        torch = sys.modules["torch"]
        group = self._group_of(c10d)
        word = torch.tensor([0 if ok else rank + 1], dtype=torch.int32, device="cpu")  # whatever the script's default device is
        self._own_task.task = f"{_KEYS}/{os.environ.get('SUPERVISE_JOB_ATTEMPT', '')}/{self._number}/{self._calls}"
        try:
            c10d.all_reduce(word, op=c10d.ReduceOp.MAX, group=group)
        except RuntimeError as error:
            if not self._time_is_over(c10d, error):
                raise  # a peer is gone: its own end says why
            raise RuntimeError(self._absence(c10d, rank)) from error
        finally:
            self._own_task.task = ""
        bad_rank = int(word.item()) - 1
        if bad_rank < 0:
            return bad_rank, ""
        data = reason.encode()[:REASON_BYTES] if rank == bad_rank else b""
        text = torch.frombuffer(bytearray(data.ljust(REASON_BYTES, b"\0")), dtype=torch.uint8)
        c10d.broadcast(text, bad_rank, group=group)
        return bad_rank, bytes(text.tolist()).rstrip(b"\0").decode(errors="ignore")

    def _group_of(self, c10d: Any) -> Any:  # noqa: ANN401  torch's
        """Return the gloo group of all ranks, made at the first call; its time limit is that of the script's own group."""
        default_group = c10d._get_default_group()  # noqa: SLF001  there is no public name
        if default_group is not self._default_group:
            from checkpointing.training import whereabouts  # noqa: PLC0415  only scripts that use it pay for it
            from checkpointing.training.ranks import group_timeout  # noqa: PLC0415  as above

            whereabouts.show(c10d._get_default_store(), c10d.get_rank())  # noqa: SLF001  there is no public name
            self._own_task = whereabouts.OwnTask
            self._group = c10d.new_group(backend="gloo", timeout=group_timeout())
            self._default_group, self._number = default_group, self._number + 1
        return self._group

    def _time_is_over(self, c10d: Any, error: RuntimeError) -> bool:  # noqa: ANN401  torch's module
        """Return whether a rank of this call waited in vain for the group's time limit: this one, or a peer.

        The first rank whose time is over closes its connections. The others then see "Connection closed by peer", as where a peer died.
        """
        store, key = c10d._get_default_store(), f"{self._own_task.task}/over"  # noqa: SLF001  there is no public name
        if "timed out" in str(error).lower():
            store.set(key, "")
            return True
        until = time.monotonic() + ROLL_CALL_S
        try:
            while not store.check([key]):
                if time.monotonic() > until:
                    return False
                time.sleep(_LOOK_S)  # as in _absence
        except RuntimeError:
            return False  # the store is gone with the peer that kept it
        return True

    def _absence(self, c10d: Any, rank: int) -> str:  # noqa: ANN401  torch's module
        """Say which ranks did not make this call, and where they stand."""
        from checkpointing.training import whereabouts  # noqa: PLC0415  only where something went wrong

        store, world, key = c10d._get_default_store(), c10d.get_world_size(), self._own_task.task  # noqa: SLF001  as above
        store.set(f"{key}/{rank}", "")
        until, absent = time.monotonic() + ROLL_CALL_S, list(range(world))
        while absent := [peer for peer in absent if not store.check([f"{key}/{peer}"])]:  # all ranks ask one store
            if time.monotonic() > until:
                break
            time.sleep(_LOOK_S)  # torch's store has no wait that leaves its other users alone
        text = whereabouts.described(store, absent, key) if absent else ""
        if not text:
            return "worker.agree: all ranks wait for one another: the network between them does not deliver"
        return f"worker.agree: not every rank made call {self._calls}: {text}"

    def _leave_out(self, rank: int, bad_rank: int, reason: str, counter: BatchCounter | None) -> None:
        """Count it; raise where the budget is used up."""
        if counter is not None:
            counter.batch_left_out()
        allowed = os.environ.get(BUDGET_VARIABLE, "")
        if not allowed.isdecimal():
            return
        self._left_out.append(self._calls)
        while self._left_out[0] <= self._calls - WINDOW:
            self._left_out.popleft()
        count = len(self._left_out)
        where = f"at call {self._calls} of worker.agree by rank {bad_rank}: {reason or 'no reason given'}"
        if count > int(allowed):
            raise TooManyBatchesLeftOut(
                f"{count} batches were left out within {WINDOW} steps, and guard.skips allows {allowed}; the last {where}"
            )
        if rank == bad_rank:
            sys.stderr.write(f"supervise: all ranks leave out a batch ({count} of {allowed} in {WINDOW} steps) {where}\n")
            sys.stderr.flush()


def show_place() -> None:
    """Let the other ranks ask for this rank's place, before it first waits for them. The shim calls it once a process group is made."""
    from checkpointing.training import ranks  # noqa: PLC0415  only ranks of a group pay for it

    ranks.show_place()


#: One per process, as a process has one place in the training.
agreement = StepAgreement()
