"""The records that a job keeps of its checkpoints on this node, as the commands find and read them."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Final

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.manifest.documents import Manifests
from checkpointing.rejections import Rejections
from supervisor.checkpoints.discovery import from_logs
from supervisor.checkpoints.origin.order import CheckpointOrder
from supervisor.cli.jobs.job_files import find_job, places_in, state_root
from supervisor.errors import SuperviseError
from supervisor.observe.ranks import path_patterns
from supervisor.run import lock

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.checkpoints.discovery.from_logs import Discovery
    from supervisor.cli.invocation import Invocation
    from supervisor.cli.jobs.job_files import JobFiles
    from supervisor.config.settings import Settings

#: In the state of a job on a node.
DIRECTORY: Final = "checkpoints"
#: The settings that say which mirror, and whose checkpoints in it.
MIRROR: Final = ("checkpoints.mirror",)


class RecordedCheckpoints:
    """A job's records of its checkpoints on one node; each part is read at its first use. is_writer: the records may be changed."""

    def __init__(self, directory: Path, *, is_writer: bool = False) -> None:
        self.directory = directory
        self.catalogue = CheckpointCatalogue(directory, is_writer=is_writer)
        self.rejections = Rejections(self.catalogue)
        self.manifests = Manifests(self.catalogue)

    @cached_property
    def order(self) -> CheckpointOrder:
        """The order of checkpoints, and the roll-backs of runs."""
        return CheckpointOrder(self.catalogue, self.manifests)

    @cached_property
    def last_run(self) -> Discovery:
        """The files that the ranks of the last run visibly wrote."""
        return from_logs.read_last_run(self.catalogue)


def records_of(settings: Settings, job: str | None, directory: str) -> Path | None:
    """Return the place of a job's records of checkpoints: `job`'s, else the last one here that recorded any in `directory`."""
    root = state_root(settings)
    if job is not None and any(place.job == job for place in places_in(root)):
        return find_job(root, job).directory / DIRECTORY
    above = os.path.abspath(directory)  # noqa: PTH100  a link stays as it is named
    for place in places_in(root):
        records = place.directory / DIRECTORY
        if any(path_patterns.is_within(above, manifest.path) for manifest in Manifests(CheckpointCatalogue(records)).all()):
            return records
    return None


def refuse_while_running(place: JobFiles) -> None:
    """Raise SuperviseError where a supervisor runs the job: it holds the same records in memory."""
    record = lock.holder(place.directory / "lock")
    if record is not None and lock.is_alive(record) is not False:
        raise SuperviseError(
            f"a supervisor runs this job: {place.job} on {place.node}: pid {record.process.pid}",
            hint="Stop the job first: the supervisor holds the same records.",
        )


def named_or_latest_job(invocation: Invocation) -> tuple[Settings, str]:
    """Return the settings, and the job: the one that is named, else the most recent one here. Raises SuperviseError (64)."""
    settings = invocation.settings()
    job = invocation.job(settings)
    if job is None:
        try:
            job = find_job(state_root(settings), None).job
        except SuperviseError as error:
            hint = "Name the job whose checkpoints are meant with --job NAME; for a wrong name the mirror's jobs are listed."
            raise SuperviseError(error.message, hint=hint, exit_code=error.exit_code) from error
    return settings, job
