"""Records which files must not be resumed from. The files themselves stay untouched.

The record is `fences.json` in the state directory's `checkpoints/`, one for each job and node. A rejection holds for one identity of one
path, so a rewritten file is free again. `add` returns when the record is durable. If that fails, the rejections hold in memory,
and `problem` has the reason. Losing the record costs one more reading of each torn file, so an unreadable record is replaced.

    {"version": 1, "fences": [{"path", "dev", "ino", "size", "mtime_ns", "kind", "reason", "t"}]}

`kind` is torn, incomplete or dangerous; `t` is wall seconds. Earlier versions treated NaN and Inf as damage; such rows are dropped.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from checkpointing.io import durable, staging
from checkpointing.model import CheckpointingError, Identity

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FILE_NAME: Final = "fences.json"
_VERSION: Final = 1
_MOST: Final = 10_000
_NUMERICS: Final = "not finite: "


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why one identity of one path is not handed out, and since when (wall time in seconds)."""

    path: str
    identity: Identity
    reason: str
    t: float
    kind: str = "torn"


class Rejections:
    """The rejections of a job on this node. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        """Read what is recorded in `directory`, which need not exist yet. Raises CheckpointingError for a record of a newer version."""
        self._file = directory / FILE_NAME
        self._lock = threading.Lock()
        self.problem: str | None = None
        self._rows: dict[str, Rejection] = {}
        try:
            for rejection in _decode(durable.read(str(self._file)), self._file):
                self._rows[rejection.path] = rejection
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self.problem = f"rejections could not be read: {self._file}: {why}"

    def get(self, path: str, identity: Identity) -> Rejection | None:
        """Return the rejection of this identity of this path."""
        rejection = self._rows.get(path)
        return rejection if rejection is not None and rejection.identity == identity else None

    def all(self) -> tuple[Rejection, ...]:
        """Return every rejection, also those whose identity is gone."""
        return tuple(self._rows.values())

    def withdraw(self, path: str) -> bool:
        """Forget the rejection of a path, durably. Return whether there was one."""
        with self._lock:
            rest = {name: rejection for name, rejection in self._rows.items() if name != path}
            if len(rest) == len(self._rows):
                return False
            self._keep(rest)
            return True

    def add(self, torn: Iterable[tuple[str, Identity, str]], kind: str = "torn") -> None:
        """Reject each (path, identity, reason), durably. An older rejection of the same path goes, because its identity is gone."""
        with self._lock:
            changed = False
            rejections = dict(self._rows)
            for path, identity, reason in torn:
                if self.get(path, identity) is None:
                    rejections.pop(path, None)
                    rejections[path] = Rejection(path, identity, reason, time.time(), kind)
                    changed = True
            if not changed:
                return
            while len(rejections) > _MOST:
                del rejections[next(iter(rejections))]
            self._keep(rejections)

    def _keep(self, rejections: dict[str, Rejection]) -> None:
        self._rows = rejections  # replaced, never changed: readers need no lock
        try:
            durable.make_directory(str(self._file.parent))
            staging.write(str(self._file), _encode(rejections.values()))
            self.problem = None
        except OSError as error:
            self.problem = f"rejections could not be recorded: {self._file}: {error.strerror}"


def _encode(rejections: Iterable[Rejection]) -> bytes:
    rows = [
        {"path": rejection.path, **asdict(rejection.identity), "kind": rejection.kind, "reason": rejection.reason, "t": rejection.t}
        for rejection in rejections
    ]
    # a path may hold bytes that are no UTF-8: surrogates go through JSON's own escapes
    return json.dumps({"version": _VERSION, "fences": rows}, indent=1).encode("ascii")


def _decode(raw: bytes, file: Path) -> list[Rejection]:
    document: Any = json.loads(raw)
    version = int(document["version"])
    if version > _VERSION:
        message = f"rejections could not be read: {file}: version {version} was written by a newer supervise"
        raise CheckpointingError(message, hint="install that version again, or remove the file to have every checkpoint judged anew")
    return [
        Rejection(
            str(row["path"]),
            Identity(int(row["dev"]), int(row["ino"]), int(row["size"]), int(row["mtime_ns"])),
            str(row["reason"]),
            float(row["t"]),
            str(row["kind"]),
        )
        for row in document["fences"]
        if not (row["kind"] == "torn" and _NUMERICS in row["reason"])
    ]
