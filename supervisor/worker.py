"""The few names that a training script may import. All optional; without a supervisor each is a no-op that answers as if there were none.

    from supervisor import worker

    worker.heartbeat(step)              the absolute step, where the optimizer does not hold it
    if worker.should_save(): ...        once per step: the job is to be stopped; save now, on every rank at this same step
    worker.saved()                      the checkpoint is made, where it is not written through torch
    worker.resume_from()                the checkpoint to start from, verified, or None

Nothing here raises, imports torch, or costs more than a few microseconds. The instrumentation
is found through `sys.modules`, because a rank knows it under another name than the supervisor does. The only state is which step the
ranks agreed on (supervisor/agent/save_agreement.py).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from supervisor.agent.save_agreement import agreement

if TYPE_CHECKING:
    from supervisor.instrument._supervise_shim import Instrumentation


def heartbeat(step: int) -> None:
    """Report the absolute training step: the one that a resume continues from. From then on it is taken for this rank's progress."""
    instrument = _instrument()
    if instrument is not None:
        instrument.heartbeat(step)


def should_save() -> bool:
    """Say whether to make a checkpoint now, because the job is to be stopped: True once, on every rank at its same call.

    To be called by every rank, once per optimizer step, at the same place of the loop: calls are what the ranks count
    (docs/preemption.md). The first call says that this script saves when it is told to; then a stop is announced here first, and the
    ranks are left alone until the checkpoint is made or the time is over. What the script does after the save is its own business:
    going on is fine. One look at a file in memory per call.
    """
    return agreement.should_save(_instrument())


def saved() -> None:
    """Say that the checkpoint is made. Needed only where it is written neither by torch.save nor by torch.distributed.checkpoint."""
    instrument = _instrument()
    if instrument is not None:
        instrument.saved()


def save_requested() -> bool:
    """Say whether the job is to be stopped, on this node: `should_save` without the agreement, and True from then on at every call.

    For a script whose ranks agree by themselves. Also True where supervise itself was killed and this node's guardian ends the job: then
    a save gets `stop.orphan_grace_s` (at most 2 s).
    """
    return agreement.save_requested(_instrument())


def resume_from() -> str | None:
    """Give the path of the checkpoint to resume from, or None: start from scratch, or as the script finds by itself."""
    return os.environ.get("SUPERVISE_JOB_RESUME_FROM") or None


def resume_step() -> int | None:
    """Give the step that `resume_from()` holds, or None where it is not known."""
    try:
        return int(os.environ["SUPERVISE_JOB_RESUME_STEP"])
    except (KeyError, ValueError):
        return None


def _instrument() -> Instrumentation | None:
    found: Instrumentation | None = getattr(sys.modules.get("_supervise_shim"), "instrument", None)
    return found
