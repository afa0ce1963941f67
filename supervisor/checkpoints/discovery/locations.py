"""Lists where a job's checkpoints are: at the declared patterns, and at the locations that were discovered."""

from __future__ import annotations

import os
import shlex
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from checkpointing.discover import Listing, checkpoints_in, find
from supervisor.observe.ranks.path_patterns import checkpoint_path, escaped, has_wildcard, is_within, matches, pattern_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from checkpointing.io.listing_cache import ListingCache
    from supervisor.checkpoints.discovery.from_logs import Discovery
    from supervisor.job.job import Job


class CheckpointLocations:
    """Lists one job's checkpoints on this node, and classifies paths."""

    def __init__(self, job: Job, discovery: Discovery | None) -> None:
        """`discovery`: None if nothing is to be discovered."""
        self._patterns = job.settings.checkpoints.paths
        self._cwd = str(job.cwd)
        self._discovery = discovery
        by_option = job.settings.knobs.resume.kind is not None or any("{resume}" in word for word in job.command)
        # without its option such a script begins from scratch, and overwrites the files there, also those that nobody can verify
        self._by_option = by_option and not job.settings.job.resumes_itself

    def declared(self, cache: ListingCache | None = None) -> Listing:
        """List the checkpoints at the declared patterns."""
        return find(self._patterns, self._cwd, cache, declared=self._by_option)

    def listing(self, *, candidates: bool = False, cache: ListingCache | None = None) -> Listing:
        """List the checkpoints that are declared or discovered, and with `candidates` those of candidates too."""
        declared = self.declared(cache)
        if self._discovery is None:
            return declared
        patterns = self._discovery.patterns(candidates=candidates)
        further = find(patterns, self._cwd, cache) if patterns else Listing(())
        known = {(candidate.identity.dev, candidate.identity.ino) for candidate in declared.candidates}
        # a part of a declared checkpoint, or the directory of one: the declared path is the one that is meant
        inside = {candidate.path for candidate in declared.candidates if candidate.is_directory}
        around = {directory for candidate in declared.candidates for directory in _above(candidate.path)}
        more = [
            candidate
            for candidate in further.candidates
            if (candidate.identity.dev, candidate.identity.ino) not in known
            and any(matches(pattern, candidate.path) for pattern in patterns)
            and not (candidate.is_directory and candidate.path in around)
            and inside.isdisjoint(_above(candidate.path))
        ]
        # a discovered location that cannot be read is the script's own trouble
        listed = tuple(sorted((*declared.candidates, *more), key=lambda candidate: candidate.path))
        return Listing(listed, declared.problems, declared.without)

    def is_checkpoint(self, path: str) -> bool:
        """Return whether a listed candidate is a checkpoint: discovered to be one, or declared."""
        return self._discovery is None or self._discovery.is_checkpoint(path) or self.is_listed_as_declared(path)

    def is_likely(self, path: str) -> bool:
        """Return whether a listed candidate is a checkpoint, or lies where this job saved at least twice while it trained."""
        return self.is_checkpoint(path) or (self._discovery is not None and self._discovery.is_repeated(path, in_training=True))

    def is_listed_as_declared(self, path: str) -> bool:
        """Return whether a declared pattern finds the checkpoint at a path. Lists directories."""
        return any(path == candidate.path for candidate in self.declared().candidates)

    def covers(self, listing: Listing) -> Callable[[str], bool]:
        """Return a function that says whether declared candidates of a listing hold a save at a path.

        They do if one has the same path, lies in it, or lies around it.
        """
        declared = [candidate for candidate in listing.candidates if self.is_declared(candidate.path)]
        paths = {candidate.path for candidate in declared}
        around = {directory for path in paths for directory in _above(path)}
        return lambda path: path in paths or path in around or not paths.isdisjoint(_above(path))

    def instead_of(self, saved: str) -> str:
        """Return what to declare so that a checkpoint is found which the declared patterns miss; "" if no pattern finds it."""
        for path in (saved, *checkpoints_in(saved)):
            pattern = pattern_of(checkpoint_path(path))
            if find(pattern, self._cwd).candidates:
                return os.path.relpath(pattern, self._cwd) if is_within(self._cwd, pattern) else pattern
        return ""

    def without_candidates(self) -> tuple[str, ...]:
        """Return a line for each declared pattern that matches only other files: its matches, and the pattern to declare instead."""
        lines: list[str] = []
        for pattern, path in self.declared().without:
            instead = self.instead_of(path)
            advice = f"declare {shlex.quote(instead)} instead" if instead else "`supervise checkpoints verify` tells what lies there"
            lines.append(f"--checkpoints {shlex.quote(pattern)} matches {path}, which is not a checkpoint of a known layout: {advice}")
        return tuple(lines)

    def is_declared(self, path: str) -> bool:
        """Return whether a path, or the directory above it, matches a declared pattern. Reads nothing."""
        declared = (os.path.join(self._cwd, pattern) for pattern in self._patterns)  # noqa: PTH118 (patterns)
        names = path, os.path.dirname(path)  # noqa: PTH120 (as above) -- a directory means the checkpoints in it
        return any(
            any(fnmatchcase(name, pattern) for name in names) or fnmatchcase(path, os.path.dirname(pattern))  # noqa: PTH120 (as above) -- `step-*/*.pt` means the set
            for pattern in declared
        )

    def belongs_to_job(self, path: str) -> bool:
        """Return whether a path lies where this job's checkpoints are declared, or where it was seen to save. Reads nothing."""
        return self.is_declared(path) or (self._discovery is not None and self._discovery.is_saved(path))

    def is_checkpoint_place(self, path: str) -> bool:
        """Return whether a path lies where the checkpoints are declared or discovered, there or not. Reads nothing."""
        return self.is_declared(path) or (self._discovery is not None and self._discovery.is_checkpoint(path))

    def is_saved_in_place(self, path: str) -> bool:
        """Return whether the next save will write to the same path, as to `last.pt`. Lists directories."""
        return bool(self.saved_in_place((path,)))

    def saved_in_place(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return those of the paths to which the next save will write. Lists directories once: a checkpoint may have thousands of files."""
        same = [path for path in paths if pattern_of(path) == escaped(path)]
        discovery = self._discovery
        if discovery is None:
            return tuple(same)
        known = {path for path in same if discovery.is_checkpoint(path) or discovery.is_known(path)}
        if len(known) < len(same):
            known |= {candidate.path for candidate in self.declared().candidates}
        return tuple(path for path in same if path in known)

    def directories(self) -> tuple[str, ...]:
        """Return the directories that hold checkpoints, as far as no wildcard is in their names."""
        discovered = () if self._discovery is None else self._discovery.patterns()
        above = {os.path.dirname(os.path.join(self._cwd, pattern)) for pattern in (*self._patterns, *discovered)}  # noqa: PTH118, PTH120 (patterns)
        return tuple(sorted(directory for directory in above if not has_wildcard(directory)))

    def roots(self) -> tuple[str, ...]:
        """Return the directories below which all checkpoints lie: of each pattern the part before its first wildcard."""
        discovered = () if self._discovery is None else self._discovery.patterns()
        whole = [os.path.normpath(os.path.join(self._cwd, os.path.expanduser(pattern))) for pattern in (*self._patterns, *discovered)]  # noqa: PTH111, PTH118 (patterns)
        return tuple(sorted({_before_wildcard(os.path.dirname(pattern)) for pattern in whole}))  # noqa: PTH120 (as above)


def _above(path: str) -> Iterator[str]:
    """Yield the directories above a path, the nearest first."""
    while "/" in path.rstrip("/"):
        path = path.rpartition("/")[0]
        yield path


def _before_wildcard(pattern: str) -> str:
    parts = pattern.split("/")
    plain = next((at for at, segment in enumerate(parts) if has_wildcard(segment)), len(parts))
    return "/".join(parts[:plain]) or "/"
