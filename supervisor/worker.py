"""The functions that a training script may import. All are optional; without a supervisor each does nothing and returns None or False.

    from supervisor import worker

    worker.heartbeat(step)              report the absolute step, if the optimizer does not hold it
    worker.heartbeat(step, total=N)     and the step with which the training ends: what comes after that is not training
    worker.report(loss=x, step=n)       report the loss: NaN and jumps are reported at once, whatever the log prints
    if worker.should_save(): ...        once per step: the attempt will be stopped; save now, on every rank at this same step
    if worker.save_requested(): ...     the job will be stopped; this node's ranks may save, without an agreement on the step
    with worker.phase("eval"): ...      report what the script does, so that a long one is not called a hang; at_most_s=900 sets its limit
    if not worker.agree(ok): ...        once per step: a batch is bad on some rank, so that every rank leaves it out
    worker.barrier("data", 600)         wait for all ranks; an absent rank is named, with the line where it is
    worker.batch_plan()                 this rank's share of the global batch on unequal GPUs, or None
    worker.saved()                      report that the checkpoint is complete, if torch did not write it
    worker.resume_from()                the verified checkpoint to start from, or None
    worker.resume_step()                the step of that checkpoint, or None

Nothing here imports torch; nothing but `agree` and `barrier`, in which ranks wait for each other, costs more than a few microseconds;
nothing but these and `batch_plan` raises. The functions find the instrumentation in `sys.modules`, because its module has another name in a
rank than in the supervisor. The only state is in what the ranks agreed on (supervisor/agent/save_agreement.py, step_agreement.py).
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from supervisor.agent import batch_plan as plans
from supervisor.agent import step_agreement
from supervisor.agent.batch_plan import BatchPlan as BatchPlan  # noqa: PLC0414, TC001  a script may make a plan of its own
from supervisor.agent.save_agreement import agreement
from supervisor.agent.step_agreement import TooManyBatchesLeftOut as TooManyBatchesLeftOut  # noqa: PLC0414  a script may catch it

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.instrument._supervise_shim import Instrumentation


def heartbeat(step: int, total: int | None = None) -> None:
    """Report the absolute training step: the one that a resume continues from.

    From then on this number, not the optimizer's, is the rank's step. total: the step with which the training ends, if it is known: for
    `supervise status`, and so that a rank that hangs or dies after it is named as that, and trains nothing again.
    """
    instrument = _instrument()
    if instrument is not None:
        instrument.heartbeat(step, total)


def report(*, loss: float | None = None, step: int | None = None) -> None:
    """Report the loss of a training step as a number (`loss.item()`), and the absolute step as `heartbeat` does.

    The loss rules (docs/explanation/loss-and-pace.md) judge it instead of the log's lines. NaN has no effect.
    """
    instrument = _instrument()
    if instrument is not None:
        instrument.report(loss, step)


@contextmanager
def phase(name: Literal["init", "load", "train", "checkpoint", "eval", "data"], at_most_s: float | None = None) -> Iterator[None]:
    """Report that the script is in this phase until the end of the block, and then in the one before (docs/explanation/hangs.md).

    at_most_s: seconds that may pass in it without a sign of life before the job is suspected to hang; None: `hang.phase_s`. Phases may be
    nested. Only the thread that trains has phases; in another one, as with an unknown name, this does nothing.
    """
    instrument = _instrument()
    begun = instrument.phase_began(name, at_most_s) if instrument is not None else None
    try:
        yield
    finally:
        if instrument is not None:
            instrument.phase_ended(begun)


def should_save() -> bool:
    """Return whether to save a checkpoint now, because the attempt will be stopped: True once, at the same call number on every rank.

    It is stopped with the job, or for nodes that ask to join.

    Every rank must call it once per optimizer step, at the same place of the loop, because the ranks count the calls
    (docs/guides/preemption.md). The first call tells supervise that the script can save on request. A later stop then asks here before any
    rank is signalled, and waits until the checkpoint is complete or the time is over. After the save the script may continue training. Each
    call looks once at a file in memory.
    """
    return agreement.should_save(_instrument())


def agree(ok: bool, reason: str = "") -> bool:  # noqa: FBT001  as in `if not agree(loss.isfinite())`
    """Return whether the batch of this step is good on *every* rank; where it is not, every rank must leave it out.

    Every rank calls it once per step, before the backward pass (docs/reference/library-worker.md): `ok` says whether this rank can continue
    with its batch, `reason` why not ("loss is nan"; the first 256 bytes count). It costs one all-reduce of 4 bytes in a gloo group.

    Raises on every rank TooManyBatchesLeftOut after more than `guard.skips` in 1,000 calls; RuntimeError at the time-out of the script's
    process group, which names the ranks that did not call it, and where they stand. Outside torch.distributed it returns `ok`.
    """
    return step_agreement.agreement.agree(ok, reason, _instrument())


def barrier(name: str, timeout_s: float = 1800.0) -> None:
    """Wait until every rank is at the barrier of this name. Raises TimeoutError that names the missing ranks, and where they are.

    It goes through the store of torch's process group: no GPU, no collective. Outside torch.distributed it returns at once.
    """
    step_agreement.agreement.barrier(name, timeout_s)


def batch_plan() -> BatchPlan | None:
    """Return this rank's share of the global batch, where it is shared out over unequal GPUs (docs/reference/library-worker.md); else None.

    Raises ValueError where the plan is for another number of ranks: the training would continue with another batch.
    """
    return plans.of_rank(os.environ)


def saved() -> None:
    """Report that the checkpoint is complete. Needed only if neither torch.save nor torch.distributed.checkpoint writes it."""
    instrument = _instrument()
    if instrument is not None:
        instrument.saved()


def save_requested() -> bool:
    """Return whether this node's job will be stopped: `should_save` without the agreement. Once True, it is True at every call.

    For a script whose ranks agree by themselves. Also True if supervise itself was killed and this node's guardian ends the job: then
    a save gets 2 s.
    """
    return agreement.save_requested(_instrument())


def resume_from() -> str | None:
    """Return the path of the checkpoint to resume from. None: the script starts from scratch, or finds a checkpoint by itself."""
    return os.environ.get("SUPERVISE_JOB_RESUME_FROM") or None


def resume_step() -> int | None:
    """Return the step of the checkpoint `resume_from()`, or None if it is unknown."""
    try:
        return int(os.environ["SUPERVISE_JOB_RESUME_STEP"])
    except (KeyError, ValueError):
        return None


def _instrument() -> Instrumentation | None:
    instrumentation: Instrumentation | None = getattr(sys.modules.get("_supervise_shim"), "instrument", None)
    return instrumentation
