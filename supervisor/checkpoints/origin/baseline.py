"""What lay at the declared patterns before this job wrote there: a mirror gets only what came later.

    <state>/checkpoints/baseline.json
    {"version": 1, "patterns": [...], "files": {path: [device, inode, size, modification time in nanoseconds]}}

It is taken once for the job's patterns, before the first rank starts, and outlives a run: what one run saved last and could not send is
still a change to the next. A time would not do, since the clock of a network file system is another machine's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from checkpointing.io import durable, staging
from checkpointing.model import Identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from checkpointing.model import Candidate

_VERSION: Final = 1


class Baseline:
    """The baseline of one job on this node. Not thread-safe: it is written before the ranks start, and read afterwards."""

    def __init__(self, directory: Path, patterns: Sequence[str]) -> None:
        """Read nothing yet."""
        self._file = directory / "baseline.json"
        self._patterns = tuple(patterns)
        self._files: dict[str, Identity] | None = None
        self.problem: str | None = None

    def take(self, candidates: Iterable[Candidate]) -> None:
        """Record what is there, unless that was done for the same patterns before."""
        self._files = self._read()
        if self._files is None:
            self._files = {candidate.path: candidate.identity for candidate in candidates}
            self._write()

    def add(self, path: str, identity: Identity) -> None:
        """Add a checkpoint that was restored from a mirror: it need not be sent again."""
        self._files = {**(self._files or {}), path: identity}
        self._write()

    def has(self, path: str, identity: Identity) -> bool:
        """Return whether this content lay there before. Where nothing was recorded yet, it may have."""
        return self._files is None or self._files.get(path) == identity

    def lists(self, path: str, identity: Identity) -> bool:
        """Return whether this content is recorded to have lain there before."""
        return self._files is not None and self._files.get(path) == identity

    def _read(self) -> dict[str, Identity] | None:
        try:
            content = json.loads(durable.read(str(self._file)))
            if content["version"] != _VERSION or tuple(content["patterns"]) != self._patterns:
                return None
            return {str(path): Identity(*map(int, numbers)) for path, numbers in content["files"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _write(self) -> None:
        rows = {path: [one.dev, one.ino, one.size, one.mtime_ns] for path, one in (self._files or {}).items()}
        content = {"version": _VERSION, "patterns": self._patterns, "files": rows}
        try:
            durable.make_directory(str(self._file.parent))
            staging.write(str(self._file), json.dumps(content).encode("ascii"))
            self.problem = None
        except OSError as error:
            self.problem = f"what lay at the declared patterns could not be recorded: {self._file}: {error.strerror}"
