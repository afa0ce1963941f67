"""Logs what this process loaded, or tried to load, so that the supervisor knows whether the script resumes, and from where.

One line of JSON per file goes to `loads-<local rank>.jsonl`; a process without a slot keeps its lines until it has one. If it dies of a
load before (a rank that its launcher gave no number), the line of that load goes to `loads-p<pid>.jsonl`. Bounded per folder, because a
data set may be a million .pt files. Inode, size and time of an absent file are null: the script tried to load a checkpoint there.

`target`: where the path led, if it goes through a link.

Before it, a line `{"loading": PATH}` says that the load began: of a rank that dies within it no other line comes.
"""

from __future__ import annotations

import os
from time import time

from .layout import quiet
from .paths import path_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .claim import ProcessIdentity
    from .heartbeat import HeartbeatWriter

PER_FOLDER = 16
FOLDERS = 256


class LoadLog:
    """Holds the lines that are not written yet."""

    def __init__(self, identity: ProcessIdentity, beat: HeartbeatWriter) -> None:
        self._identity = identity
        self._beat = beat
        self._lines: list[str] = []
        self._counts: dict[str, int] = {}

    @quiet
    def began(self, source: Any) -> None:  # noqa: ANN401 - as in `note`
        """Log that a load begins."""
        path = path_of(source)
        if path is None or not self._identity.enabled or self._is_full(os.path.dirname(path)):  # noqa: PTH120 - pathlib costs 5 ms of start-up
            return
        import json  # noqa: PLC0415 - 3 ms at every start; torch has it by now

        self._lines.append(json.dumps({"loading": path}) + "\n")
        self.write()

    @quiet
    def note(self, source: Any, complete: bool, via: str, began: float) -> None:  # noqa: ANN401, FBT001 - whatever the script gave to torch.load
        """Log a load. `source` is a path or an open file; `complete`: it raised nothing; `via`: the library that loaded.

        `began`: when, in wall seconds.
        """
        path = path_of(source)
        if path is None or not self._identity.enabled:
            return
        folder = os.path.dirname(path)  # noqa: PTH120 - pathlib costs 5 ms of start-up
        if self._is_full(folder):
            return
        self._counts[folder] = self._counts.get(folder, 0) + 1
        import json  # noqa: PLC0415 - 3 ms at every start; torch has it by now

        record = {"path": path, "began": began, "t": time(), "complete": complete, "via": via, "steps": self._beat.steps, **_stat(path)}
        target = os.path.realpath(path)  # a link may lead elsewhere when this is read
        if target != path:
            record["target"] = target
        self._lines.append(json.dumps(record) + "\n")
        self.write()

    def _is_full(self, folder: str) -> bool:
        count = self._counts.get(folder, 0)
        return count >= PER_FOLDER or (not count and len(self._counts) >= FOLDERS)

    @quiet
    def write(self) -> None:
        """Write the lines, if this process has a slot by now."""
        if self._identity.claimed and self._lines:
            self._append(str(self._identity.local_rank))

    @quiet
    def write_fatal(self) -> None:
        """Write the last line, of the load that this process dies of, if it has no slot."""
        if not self._identity.claimed and self._lines:
            del self._lines[:-1]
            self._append(f"p{self._identity.pid}")

    def _append(self, whose: str) -> None:
        name = os.path.join(self._identity.directory, f"loads-{whose}.jsonl")  # noqa: PTH118 - see above
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, "".join(self._lines).encode())
            self._lines.clear()
        finally:
            os.close(fd)


def _stat(path: str) -> dict[str, int | None]:
    try:
        status = os.stat(path)  # noqa: PTH116 - see above
    except OSError:
        return {"inode": None, "size": None, "mtime_ns": None}
    return {"inode": status.st_ino, "size": status.st_size, "mtime_ns": status.st_mtime_ns}
