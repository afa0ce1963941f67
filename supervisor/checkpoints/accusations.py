"""Says which checkpoints are out of use since an earlier run, why, and which command puts them back into use.

A run that steps back from a checkpoint and trains from an older one leaves the newer one out of use for later runs (origin/order.py). The
next run then resumes from an older checkpoint and overwrites newer ones. A person has to know that before it happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from checkpointing.model import Candidate
    from checkpointing.ordering import RollBack
    from supervisor.checkpoints.origin.order import CheckpointOrder
    from supervisor.job.job import Job

_NO_REASON = "an earlier run stepped back from it"


def of_earlier_runs(order: CheckpointOrder, candidates: Iterable[Candidate], chosen: str, job: Job) -> Iterator[str]:
    """Yield a line for each step back of an earlier run that passes over a checkpoint which is newer than the chosen one ("": none)."""
    known = tuple(candidates)
    least = max((order.age_of(candidate) for candidate in known if candidate.path == chosen), default=None)
    for row in order.roll_backs:
        given_up = [candidate for candidate in known if row.last.run != job.run_id and order.gives_up(row, candidate)]
        passed = [candidate.path for candidate in given_up if least is None or order.age_of(candidate) > least]
        if passed:
            others = len(passed) - (row.path in passed)
            more = f" (and {others} more, saved at its step or beyond)" if others else ""
            yield f"checkpoint out of use: {text(row, job, more)}"


def text(row: RollBack, job: Job, more: str = "") -> str:
    """Return the path, why it is out of use, and the command that puts it back into use."""
    command = job.settings.readmit_checkpoint_command(job.name, row.path)
    return f"{row.path}{more}: {row.reason or _NO_REASON}; it is used again after `{command}`"
