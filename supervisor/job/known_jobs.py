"""Remembers per user where a job's files are, so that a command copied from an alert finds the job from any directory.

One small file for each job name below `$XDG_STATE_HOME/supervise/jobs` (`~/.local/state`), written only by jobs that alert people. A job of
the same name elsewhere takes its place. Nothing depends on it: without it, `--state-dir` names the place.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from checkpointing.io import staging
from supervisor.config.settings import is_job_name

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_BYTES = 4096


def remember(job: str, root: Path, environ: Mapping[str, str]) -> None:
    """Note the state root (the directory of all jobs' files) of a job. Raises OSError; may hang as long as the disk does."""
    directory = _directory(environ)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    staging.write(str(directory / job), os.fsencode(root), is_durable=False)


def recall(job: str, environ: Mapping[str, str]) -> Path | None:
    """Return the state root that was noted last for a job; None where there is none, or where the job's files are gone."""
    if not is_job_name(job):
        return None
    try:
        with (_directory(environ) / job).open("rb") as file:
            root = Path(os.fsdecode(file.read(_MOST_BYTES)))
        return root if root.is_absolute() and (root / job / "nodes").is_dir() else None
    except (OSError, ValueError):
        return None


def _directory(environ: Mapping[str, str]) -> Path:
    home = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(home):  # noqa: PTH117  "" and relative values are to be ignored (XDG base directory specification)
        home = os.path.join(environ.get("HOME", "") or os.path.expanduser("~"), ".local", "state")  # noqa: PTH111, PTH118  text
    return Path(home, "supervise", "jobs")
