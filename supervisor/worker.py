"""The functions that a training script may import. All are optional; without a supervisor each does nothing and returns None or False.

    from supervisor import worker

    worker.heartbeat(step)              report the absolute step, if the optimizer does not hold it
    worker.heartbeat(step, total=N)     and the step with which the training ends: what comes behind that is no training
    worker.report(loss=x, step=n)       report the loss: NaN and jumps are reported at once, whatever the log prints
    if worker.should_save(): ...        once per step: the attempt will be stopped; save now, on every rank at this same step
    if worker.save_requested(): ...     the job will be stopped; this node's ranks may save, without an agreement on the step
    with worker.phase("eval"): ...      report what the script does, so that a long one is not called a hang; at_most_s=900 sets its limit
    worker.saved()                      report that the checkpoint is complete, if torch did not write it
    worker.resume_from()                the verified checkpoint to start from, or None
    worker.resume_step()                the step of that checkpoint, or None

Nothing here raises, imports torch, or costs more than a few microseconds. The functions find the instrumentation in `sys.modules`, because
its module has another name in a rank than in the supervisor. The only state is the step on which the ranks agreed
(supervisor/agent/save_agreement.py).
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from supervisor.agent.save_agreement import agreement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.instrument._supervise_shim import Instrumentation


def heartbeat(step: int, total: int | None = None) -> None:
    """Report the absolute training step: the one that a resume continues from.

    From then on this number, not the optimizer's, is the rank's step. total: the step with which the training ends, if it is known: for
    `supervise status`, and so that what stands or dies behind it is named as that, and trains nothing again.
    """
    instrument = _instrument()
    if instrument is not None:
        instrument.heartbeat(step, total)


def report(*, loss: float | None = None, step: int | None = None) -> None:
    """Report the loss of a training step as a number (`loss.item()`), and the absolute step as `heartbeat` does.

    The loss rules (docs/explanation/loss-and-pace.md) judge it instead of what the log prints. What is no number has no effect.
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
    rank is signalled, and waits until the checkpoint is complete or the time is over. After the save the script may go on training. Each
    call looks once at a file in memory.
    """
    return agreement.should_save(_instrument())


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
