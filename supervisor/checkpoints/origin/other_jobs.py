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
        for directory in self._records:
            made = Manifests(str(directory)).get(path)
            if made is not None and replace(made.identity, dev=identity.dev) == identity:
                return True
        return any(_has_logged(discovery, path, identity) for discovery in self._discoveries)

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


def _has_logged(discovery: Discovery, path: str, identity: Identity) -> bool:
    """Return whether a run logged the save of each file of a checkpoint as it is now. Each node's mount has a device number of its own."""
    seen = {file: replace(noted, dev=identity.dev) for file, noted in discovery.written_files(path, 0, identity).items()}
    return bool(seen) and not ownership.not_written(path, identity, seen)
