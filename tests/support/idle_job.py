"""A job that is not run, for what needs one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.job.job import Job

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.config.settings import Settings


def make_job(directory: Path, settings: Settings, *command: str, **environ: str) -> Job:
    """Return a job with all its files below `directory`."""
    places = {"cwd": directory, "state": directory / "state", "scratch": directory / "scratch"}
    return Job("job", "run", "node", command or ("torchrun", "train.py"), environ=environ, settings=settings, cookie="c" * 32, **places)
