"""What other nodes of a job, and other jobs, recorded of the same checkpoints, where they share the state directory.

One node reads a shared checkpoint and records its digests; the others take its manifest, if it is of the content that they see. Device and
inode are each mount's own, hence size and modification time are compared; of a directory the hash of all its files.

Other jobs matter where each start has a name of its own, as chained `sbatch` scripts without --job do: the job before this one saved what
this one resumes from. A record is believed if its directories belong to this user, and nobody else may write them.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from checkpointing.io.reader import BACKGROUND_BYTES_PER_S
from checkpointing.manifest.documents import Manifests
from checkpointing.retention import ownership
from supervisor.checkpoints.discovery import of_last_run
from supervisor.job.identity import state_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from checkpointing.manifest.documents import Manifest
    from checkpointing.model import Identity
    from supervisor.checkpoints.discovery import Learned

#: How long the node that should read a checkpoint may take: it reads it twice, and may be slower than it is allowed to be.
PATIENCE_S: Final = 30.0
_READINGS: Final = 4
#: Of the begins of one save on several nodes, by their clocks. An earlier run's save to the same path is not meant.
_SAME_SAVE_S: Final = 600.0
#: Records of so many jobs and nodes are asked who saved a checkpoint, those written last: a chain is as long as its training.
MOST_RECORDS: Final = 64


class Neighbours:
    """The other nodes of a job. For the watcher's thread."""

    def __init__(self, node_state: Path, directory: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`directory` is where a node's state holds what is recorded of checkpoints."""
        self._nodes, self._me, self._directory, self._clock = node_state.parent, node_state.name, directory, clock
        self._asked: dict[tuple[str, Identity], float] = {}

    def recorded(self, path: str, identity: Identity) -> Manifest | None:
        """Return what another node recorded of this content, with the identity that it has here."""
        for node in self._others():
            found = Manifests(f"{self._nodes}/{node}/{self._directory}").get(path)
            if found is not None and (found.identity.size, found.identity.mtime_ns) == (identity.size, identity.mtime_ns):
                self._asked.pop((path, identity), None)
                return replace(found, identity=identity)
        return None

    def is_worth_waiting(self, path: str, identity: Identity) -> bool:
        """Say whether another node may still record this content: there is one, and it had not yet the time to read it."""
        if not self._others():
            return False
        since = self._asked.setdefault((path, identity), self._clock())
        return self._clock() - since < PATIENCE_S + _READINGS * identity.size / BACKGROUND_BYTES_PER_S

    def is_first(self, unit: str, mine: Learned) -> bool:
        """Say whether this node's name is the first of those whose ranks were seen to take part in the last save of a checkpoint."""
        at = max((write.t for write in mine.writes(unit)), default=None)
        earlier = [name for name in self._others() if name < self._me]
        return at is None or not any(
            abs(write.t - at) < _SAME_SAVE_S for name in earlier for write in of_last_run(self._nodes / name / self._directory).writes(unit)
        )

    def has_saved(self, path: str, identity: Identity) -> bool:
        """Say whether a job of this user, on any node, recorded this content as verified, or was seen to save it as it is now.

        Asked are the records that were there at the first question: those of jobs that ended before this one began.
        """
        for directory in self._records:
            made = Manifests(str(directory)).get(path)
            if made is not None and replace(made.identity, dev=identity.dev) == identity:
                return True
        return any(_saw(learned, path, identity) for learned in self._learned)

    @cached_property
    def _learned(self) -> list[Learned]:
        return [of_last_run(directory) for directory in self._records]

    @cached_property
    def _records(self) -> list[Path]:
        """Return the directories in which jobs of this user record what they know of checkpoints, the newest first."""
        found = []
        for directory in state_root(self._nodes / self._me).glob(f"*/nodes/*/{self._directory}"):
            try:
                if all(_is_ours(one) for one in (directory, *directory.parents[:3])):
                    found.append((directory.stat().st_mtime_ns, directory))
            except OSError:
                continue
        return [directory for _, directory in sorted(found, reverse=True)[:MOST_RECORDS]]

    def _others(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._nodes) if name != self._me)  # noqa: PTH208
        except OSError:
            return []


def _is_ours(directory: Path) -> bool:
    """Say whether this user alone may write a directory. Raises OSError."""
    st = directory.lstat()
    return stat.S_ISDIR(st.st_mode) and st.st_uid == os.geteuid() and not st.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _saw(learned: Learned, path: str, identity: Identity) -> bool:
    """Say whether the ranks of a run were seen to write each file of a checkpoint as it is now, on this node or another."""
    seen = {file: replace(noted, dev=identity.dev) for file, noted in learned.seen(path, 0, identity).items()}
    return bool(seen) and not ownership.not_written(path, identity, seen)
