"""Says whose a checkpoint is that ranks loaded, or that a selection would hand over.

Foreign is only a file that is surely neither of this run nor of an earlier one of the same job. Where ranks of other nodes save too, or no
save is logged, nobody knows whose a file is. The command may name a path; then the user chose it. A declared pattern names no path: a stray
file of another training lies in the same directory as this run's checkpoints.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from checkpointing import step_names
from checkpointing.io.tree import Tree
from checkpointing.manifest.documents import is_same
from checkpointing.verification import identity_of, verify
from supervisor.checkpoints.recording.shared_manifests import SharedManifests
from supervisor.core.checkpoint_model import CheckpointOwner, LoadedCheckpoint
from supervisor.observe.ranks.path_patterns import checkpoint_path, has_wildcard, is_within, pattern_of
from supervisor.observe.ranks.progress_sampler import loads_of_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from checkpointing.model import Identity
    from supervisor.checkpoints.records import CheckpointRecords

#: A file server's clock differs from this node's by no more than this, and some file systems keep whole seconds.
FILE_CLOCKS_S: Final = 2.0


class CheckpointOwners:
    """Judges whether a checkpoint is of this job or of another training. Its methods read files: call them in worker threads."""

    def __init__(self, records: CheckpointRecords) -> None:
        self._records, self._job = records, records.job
        self._other_nodes = SharedManifests(records.job.state, records.directory.name)

    def of_loads(self, directory: Path) -> tuple[LoadedCheckpoint, ...]:
        """Return what the ranks of an attempt loaded before their first step where this job keeps its checkpoints."""
        ranks = loads_of_ranks(directory)
        ranks = [[self._followed(path) for path in paths] for paths in ranks]
        files = dict.fromkeys(file for paths in ranks for file in paths)
        owners = {file: self.owner_of(checkpoint_path(file), file) for file in files if self._belongs_to_job(file)}
        return tuple(dict.fromkeys(load for paths in ranks for load in self._of_rank(paths, owners)))

    def _of_rank(self, files: Sequence[str], owners: dict[str, tuple[CheckpointOwner, str]]) -> Iterator[LoadedCheckpoint]:
        for at, file in enumerate(files):
            if file not in owners:
                continue
            path, (owner, why) = checkpoint_path(file), owners[file]
            is_foreign = owner is CheckpointOwner.FOREIGN
            later = (other for other in files[at + 1 :] if other in owners and owners[other][0] is CheckpointOwner.OWN)
            replaced = is_foreign and any(pattern_of(checkpoint_path(other)) == pattern_of(path) for other in later)
            yield LoadedCheckpoint(path, owner, step_of(path, file) if is_foreign else None, why, replaced)

    def _followed(self, path: str) -> str:
        """Return a path with its link followed, still by the name of a place of this job: `ckpt` may be a link to a scratch disk."""
        real = _resolved(path)
        beside = f"{path.rpartition('/')[0]}/{real.rpartition('/')[2]}"
        is_there = beside != real and not self._belongs_to_job(real) and self._belongs_to_job(beside)
        return beside if is_there and os.path.lexists(beside) else real

    def _belongs_to_job(self, file: str) -> bool:
        locations = self._records.locations
        return locations.belongs_to_job(checkpoint_path(file)) or locations.belongs_to_job(file)

    def owner_of(self, path: str, file: str = "") -> tuple[CheckpointOwner, str]:
        """Return who wrote a checkpoint, and what shows it where it is foreign. `file`: the file of it that was loaded, "" the whole."""
        file = file or path
        if (owner := self._writer_of(path, file))[0] is CheckpointOwner.UNKNOWN:
            return owner
        return (CheckpointOwner.NAMED, "") if self._is_named(path) or self._is_named(file) else owner

    def is_foreign(self, path: str) -> bool:
        """Return whether another training wrote a checkpoint, also where the user chose it: it is not progress of this run."""
        return self._writer_of(path, path)[0] is CheckpointOwner.FOREIGN

    def _writer_of(self, path: str, file: str) -> tuple[CheckpointOwner, str]:
        discovery, identity, content = self._records.discovery, identity_of(path), identity_of(file)
        if discovery is None or self._records.several_nodes or identity is None or content is None:
            return CheckpointOwner.UNKNOWN, ""
        if self._is_own(path, identity) or self._is_own(file, content) or discovery.has_content(content):
            return CheckpointOwner.OWN, ""
        return self._of_stranger(path, identity, file, content)

    def _is_named(self, path: str) -> bool:
        """Return whether the user's command, or a declaration without wildcards, names this very path."""
        words = (argument for word in self._job.command for argument in (word, word.partition("=")[2]))
        declared = (pattern for pattern in self._job.settings.checkpoints.paths if not has_wildcard(pattern))
        cwd = str(self._job.cwd)
        return any(
            path in {whole := os.path.normpath(os.path.join(cwd, os.path.expanduser(text))), _resolved(whole)}  # noqa: PTH111, PTH118 (strings)
            for text in (*words, *declared)
            if text
        )

    def _is_own(self, path: str, identity: Identity) -> bool:
        """Return whether this job wrote a path, or a copy of it: a save was logged, or an earlier run or another node recorded it."""
        records, discovery = self._records, self._records.discovery
        if path == records.restored or is_within(str(records.directory), path):
            return True
        if discovery is not None and (discovery.writes(path) or discovery.wrote_earlier(path)):
            return True
        manifest = records.manifests.facts(path)
        lineage = manifest.about.lineage if manifest is not None and is_same(identity, manifest) else None
        if lineage is not None and lineage.began and lineage.run != self._job.run_id:  # of this run a logged save alone shows it
            return True
        return self._other_nodes.wrote(path, identity)

    def _of_stranger(self, path: str, identity: Identity, file: str, content: Identity) -> tuple[CheckpointOwner, str]:
        records = self._records
        # a first save must not look older than the job
        run = records.order.lineage_of(path, identity, _newest_mtime_ns(path, identity) + int(FILE_CLOCKS_S * 1e9)).run
        if run not in {"", self._job.run_id}:
            return CheckpointOwner.UNKNOWN, ""  # by its time an earlier run of this job wrote it
        if records.baseline.lists(path, identity) or records.baseline.lists(file, content):
            return CheckpointOwner.FOREIGN, "it lay there before this job wrote anything"
        if not run:
            return CheckpointOwner.FOREIGN, "it is older than this job's first attempt"
        if records.discovery is not None and records.discovery.logs_saves_like(path):
            return CheckpointOwner.FOREIGN, "no rank of this job saved it, and each of their saves next to it is known"
        return CheckpointOwner.UNKNOWN, ""


def step_of(path: str, file: str = "") -> int | None:
    """Return the greatest step that a checkpoint's content or name gives; None if neither gives one.

    A script that sorts by name goes by the one, a script that reads the content by the other.
    """
    content, named = verify(path, bulk=False), step_names.step_in(path)
    contents = [content.content_step, content.step, verify(file, bulk=False).content_step if file and file != path else None]
    return max((step for step in (*contents, None if named is None else named.step) if step is not None), default=None)


def _resolved(path: str) -> str:
    """Return the path with a link of its own, or of its directory, followed: `latest` is a link to a step's."""
    if os.path.islink(path):  # noqa: PTH114 (strings throughout)
        return os.path.realpath(path)
    directory, _, name = path.rpartition("/")
    return f"{os.path.realpath(directory)}/{name}" if directory and os.path.islink(directory) else path  # noqa: PTH114 (as above)


def _newest_mtime_ns(path: str, identity: Identity) -> int:
    try:
        return Tree(path).newest_mtime_ns if os.path.isdir(path) else identity.mtime_ns  # noqa: PTH112 (as above)
    except OSError:
        return 0
