"""Carries a job's journal along where Slurm, after a requeue, starts the job on a node that it was not on before.

Each node has its files in a directory of its name. In the journal are the run, its budgets, its overrides, and its rejections: without it
the job would begin a run of its own there. Only nodes that are not in the step any more count: the others have their journals themselves,
and write to them. It is a copy: a node that left may come back, and finds its own then.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from checkpointing.io import staging
from health.probes.slurm import job_id
from supervisor.journal import records
from supervisor.journal.file import next_name
from supervisor.journal.records import Record, RunBegan
from supervisor.launch import slurm

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.job.job import Job

JOURNAL: Final = "journal.jsonl"
#: Files of the job and not of the node: the cards of its incidents, and the facts of its checkpoints.
_BESIDE: Final = ("incidents", "checkpoints")


def carry_along(job: Job) -> str:
    """Copy the journal of the node that the job left last, if this node has none of that life of the job. Return its name, "" for none.

    The job must have its name from Slurm, so that all lives in its directory are of one job of Slurm, and its nodes theirs. The caller
    holds the job's lock. Raises OSError.
    """
    step = slurm.step_of(job.environ)
    requeued = job.environ.get("SLURM_RESTART_COUNT", "0") not in {"", "0"}
    if step is None or not requeued or not step.nodes or job.name != f"slurm-{job_id(job.environ)}":
        return ""
    here = {name.partition(".")[0] for name in step.nodes}
    if job.node.partition(".")[0] not in here:  # Slurm's names are not those of the hosts (NodeHostname): nobody knows by name who left
        return ""
    left = [path for path in job.state.parent.glob(f"*/{JOURNAL}") if path.parent.name.partition(".")[0] not in here]
    if not left:
        return ""
    newest = max(left, key=lambda path: path.stat().st_mtime)
    own = job.state / JOURNAL
    began_t, _ = _last_life(newest)
    if own.exists() and _last_life(own)[1] >= began_t:  # this node took part in that life, or in a later one
        return ""
    for name in _BESIDE:
        if (newest.parent / name).is_dir():
            shutil.copytree(newest.parent / name, job.state / name, dirs_exist_ok=True)
    content = newest.read_bytes()
    if own.exists():
        own.rename(next_name(own))
    staging.write(str(own), content)
    return newest.parent.name


def _last_life(journal: Path) -> tuple[float, float]:
    """Return when its last supervisor began, and the time of its last record; 0 for none."""
    began_t = last_t = 0.0
    with suppress(records.OtherFormatError):  # it is set aside when it is opened
        for record in records.scan(journal):
            if isinstance(record, Record):
                last_t = record.t
                began_t = record.t if isinstance(record.body, RunBegan) else began_t
    return began_t, last_t
