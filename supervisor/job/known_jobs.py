"""Finds where a job's files are by its name alone, so that a command copied from an alert, or typed, works in any directory.

Remembered per user: one small file for each job name below `$XDG_STATE_HOME/supervise/jobs` (`~/.local/state`), written only by jobs that
alert people. A job of the same name elsewhere takes its place. Beside that, the unit supervise@JOB has its files in a place of its own.
Nothing depends on it: `--state-dir` names any place.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from checkpointing.io import staging
from supervisor.config.settings import is_job_name
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_BYTES = 4096
#: Where systemd keeps the state of the units supervise@JOB (their StateDirectory=).
UNITS = Path("/var/lib/supervise")


def remember(job: str, root: Path, environ: Mapping[str, str]) -> None:
    """Note the state root (the directory of all jobs' files) of a job. Raises OSError; may hang as long as the disk does."""
    directory = _directory(environ)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    staging.write(str(directory / job), os.fsencode(root), is_durable=False)


def recall(job: str, environ: Mapping[str, str]) -> Path | None:
    """Return the state root of a job: the one noted last, or its unit's, whichever changed last. None where the job's files are gone.

    Raises SuperviseError if they are in the unit's, and this user may not read them.
    """
    if not is_job_name(job):
        return None
    roots = [root for root in (_remembered(job, environ), _of_unit(job)) if root is not None]
    return max(roots, key=lambda root: _changed_at(root, job), default=None)


def _remembered(job: str, environ: Mapping[str, str]) -> Path | None:
    try:
        with (_directory(environ) / job).open("rb") as file:
            root = Path(os.fsdecode(file.read(_MOST_BYTES)))
        return root if root.is_absolute() and (root / job / "nodes").is_dir() else None
    except (OSError, ValueError):
        return None


def _of_unit(job: str) -> Path | None:
    root = UNITS / job
    try:
        return root if (root / job / "nodes").is_dir() else None
    except PermissionError as error:
        hint = f"Run this as the unit's user: sudo -u {_owner(root)} supervise ..."
        raise SuperviseError(f"no permission to read the state of supervise@{job}: {root}", hint=hint) from error
    except OSError:
        return None


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except (OSError, KeyError):
        return "USER"


def _changed_at(root: Path, job: str) -> float:
    try:
        return max((path.stat().st_mtime for path in root.glob(f"{job}/nodes/*/journal.jsonl")), default=0.0)
    except OSError:
        return 0.0


def _directory(environ: Mapping[str, str]) -> Path:
    home = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(home):  # noqa: PTH117  "" and relative values are to be ignored (XDG base directory specification)
        home = os.path.join(environ.get("HOME", "") or os.path.expanduser("~"), ".local", "state")  # noqa: PTH111, PTH118  text
    return Path(home, "supervise", "jobs")
