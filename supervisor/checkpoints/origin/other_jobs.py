"""Reads what other jobs of this user recorded of checkpoints.

Chained `sbatch` scripts without --job need it: each start has a name of its own, and resumes from what the job before it saved. A record is
believed if its directories belong to this user and nobody else may write them.
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from checkpointing.manifest.documents import Manifests
from checkpointing.retention import ownership
from checkpointing.select import is_unchanged
from supervisor.checkpoints.discovery.from_logs import read_last_run
from supervisor.job.identity import state_root

if TYPE_CHECKING:
    from pathlib import Path

    from checkpointing.model import Identity
    from supervisor.checkpoints.discovery.from_logs import Discovery

#: How many records are searched, the newest first: a chain of jobs is as long as its training.
MOST_RECORDS: Final = 64


class OtherJobs:
    """The records of this user's jobs, read once, at the first call."""

    def __init__(self, node_state: Path, directory: str) -> None:
        """`directory`: its name below a node's state directory."""
        self._node_state, self._directory = node_state, directory

    def has_saved(self, path: str, identity: Identity) -> bool:
        """Return whether a job, on any node, recorded this content as verified, or logged the save that left it as it is now."""
        if any(_has_recorded(directory, path, identity) for directory in self._records):
            return True
        return any(_has_logged(discovery, path, identity) for discovery in self._discoveries)

    def saved_by(self, path: str, identity: Identity) -> str:
        """Return the name of another job that logged the save which left this content, "" if none did."""
        return next((name for name, discovery in self._others if _has_logged(discovery, path, identity)), "")

    def is_of_other_node(self, path: str, identity: Identity) -> bool:
        """Return whether this job recorded this content on another node, or logged its save there."""
        return any(
            _has_recorded(directory, path, identity) or _has_logged(read_last_run(directory), path, identity)
            for directory in self._records
            if self._is_of_this_job(directory) and directory != self._node_state / self._directory
        )

    def _is_of_this_job(self, directory: Path) -> bool:
        return directory.parent.parent == self._node_state.parent

    @cached_property
    def _others(self) -> list[tuple[str, Discovery]]:
        directories = (directory for directory in self._records if not self._is_of_this_job(directory))
        return [(directory.parents[2].name, read_last_run(directory)) for directory in directories]

    @cached_property
    def _discoveries(self) -> list[Discovery]:
        return [read_last_run(directory) for directory in self._records]

    @cached_property
    def _records(self) -> list[Path]:
        found = []
        for directory in state_root(self._node_state).glob(f"*/nodes/*/{self._directory}"):
            try:
                if all(_is_private(above) for above in (directory, *directory.parents[:3])):
                    found.append((directory.stat().st_mtime_ns, directory))
            except OSError:
                continue
        return [directory for _, directory in sorted(found, reverse=True)[:MOST_RECORDS]]


def _is_private(directory: Path) -> bool:
    """Return whether only this user may write a directory. Raises OSError."""
    st = directory.lstat()
    return stat.S_ISDIR(st.st_mode) and st.st_uid == os.geteuid() and not st.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _has_recorded(directory: Path, path: str, identity: Identity) -> bool:
    """Return whether a job recorded a content as verified. Each node's mount has a device number of its own."""
    manifest = Manifests(str(directory)).get(path)
    return manifest is not None and is_unchanged(identity, manifest.identity)


def _has_logged(discovery: Discovery, path: str, identity: Identity) -> bool:
    """Return whether a run logged the save of each file of a checkpoint as it is now. Each node's mount has a device number of its own."""
    seen = {file: replace(noted, dev=identity.dev) for file, noted in discovery.written_files(path, 0, identity).items()}
    return bool(seen) and not ownership.not_written(path, identity, seen)
