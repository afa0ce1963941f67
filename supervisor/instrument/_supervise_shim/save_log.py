"""Logs what this process saved: one line of JSON where a save begins, where it ends, and where the saved file is renamed.

From `saves-<local rank>.jsonl` the supervisor knows where the checkpoints are, which files and directories this job made, and which save
was cut off: it began and never ended. The log sees the saves of torch, DCP, safetensors and Lightning, and each os.replace, os.rename and
os.mkdir. A process without a slot keeps its lines until it has one. A long file is rewritten with the last lines of the `PATHS` newest
paths, so that memory stays bounded.
"""

from __future__ import annotations

import os
from _thread import RLock
from _weakref import ref
from itertools import count
from time import time

from .layout import quiet, wrapped_as
from .paths import archive_of, as_good_as, path_of, stat_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .claim import ProcessIdentity
    from .heartbeat import HeartbeatWriter

PATHS = 128
DIRECTORIES = 256
FILE_BYTES = 256 << 10
#: Parts of a directory that DCP writes with torch.save: the directory itself is logged.
PARTS = (".distcp", ".metadata", ".metadata.tmp")


class SaveLog:
    """Holds the lines that are not written yet, and the newest of each path."""

    def __init__(self, identity: ProcessIdentity, beat: HeartbeatWriter) -> None:
        self._identity = identity
        self._beat = beat
        self._lines: list[str] = []
        self._lock = RLock()  # saves in the background end in other threads; a forked child is disabled and never takes it
        self._later: list[Callable[[], None]] = []  # notes to be made, in order
        self._busy = False
        self._number = count(1)
        self._bytes = 0
        self._newest: dict[str, dict[str, str]] = {}  # path → what → line, in the order of their last change
        self._made: dict[str, tuple[int, int]] = {}  # directory → device and inode, of the newest that were made here
        self._archive: Callable[[], Any] = lambda: None  # the open file of the archive into which the last save went
        self._rename: Callable[..., None] = os.replace  # for our own file, unhooked

    @quiet
    def began(self, target: Any, via: str) -> tuple[int, str] | None:  # noqa: ANN401 - whatever the script gave
        """Log that a save begins. Return the token for `ended`; None if the target has no name."""
        path = path_of(target)
        if path is None or not self._identity.enabled or path.endswith(PARTS):
            return None
        status, file = stat_of(path), not isinstance(target, (str, bytes, os.PathLike))
        number = next(self._number)
        archive = archive_of(target)
        more = {"goes_on": True} if archive is not None and self._archive() is archive else {}  # another member: the same save
        self._archive = (lambda: None) if archive is None else ref(archive)

        def note() -> None:
            self._renew(path)
            self._note(path, "began", n=number, via=via, was=status, file=file, **more, **self._context(path))

        self._in_turn(note)
        return number, path

    @quiet
    def ended(self, token: tuple[int, str] | None, *, well: bool) -> None:
        """Log that a save ended."""
        if token is not None and self._identity.enabled:
            number, path = token
            now = stat_of(path)
            self._in_turn(lambda: self._note(path, "ended", n=number, well=well, now=now))

    @quiet
    def renamed(self, source: Any, target: Any) -> None:  # noqa: ANN401 - see above
        """Log that a saved file, or a directory above it, has another name now."""
        if not (self._newest or self._made or self._later) or not self._identity.enabled:
            return
        before, after = path_of(source), path_of(target)
        if before is None or after is None:
            return

        def note() -> None:
            for path in [path for path in self._made if path == before or path.startswith(before + os.sep)]:
                self._made[after + path[len(before) :]] = self._made.pop(path)
            for path in [path for path in self._newest if path == before or path.startswith(before + os.sep)]:
                name = after + path[len(before) :]
                del self._newest[path]
                self._renew(name)
                self._note(name, "renamed", was=path, now=stat_of(name), **self._context(name))

        self._in_turn(note)

    @quiet
    def was_made(self, target: Any) -> None:  # noqa: ANN401 - see above
        """Note a directory that this process made: everything in it is younger."""
        path = path_of(target)
        now = None if path is None or not self._identity.enabled else stat_of(path)
        if path is None or now is None:
            return

        def note() -> None:
            self._made.pop(path, None)
            while len(self._made) >= DIRECTORIES:
                del self._made[next(iter(self._made))]
            self._made[path] = now[0], now[1]

        self._in_turn(note)

    @quiet
    def watch(self) -> None:
        """Hook os.replace, os.rename and os.mkdir, which pathlib and shutil use too. Called once, when torch is imported."""
        self._rename = os.replace
        for name, note, n_args in (("replace", self.renamed, 2), ("rename", self.renamed, 2), ("mkdir", self.was_made, 1)):
            setattr(os, name, self._hooked(getattr(os, name), note, n_args))

    def _hooked(self, inner: Callable[..., Any], note: Callable[..., Any], n_args: int) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as os has it
            result = inner(*args, **kwargs)
            if not kwargs.keys() - {"mode"}:
                note(*args[:n_args])
            return result

        return as_good_as(inner, wrapped_as(inner, wrapper))

    def _in_turn(self, note: Callable[[], None]) -> None:
        """Make one note after the other. If a signal's handler saves during a note, its own note comes after that one."""
        self._later.append(note)
        with self._lock:
            if self._busy:  # this thread is in a note: it continues once the signal handler returns
                return
            self._busy = True
            try:
                while self._later:
                    self._later.pop(0)()
            finally:
                self._busy = False

    def _context(self, path: str) -> dict[str, Any]:
        """Return the optimizer steps so far, and the directories above a path that were made here."""
        directories = [[directory, *known] for directory, known in self._made.items() if path.startswith(directory + os.sep)]
        return {"steps": self._beat.steps, "made": directories} if directories else {"steps": self._beat.steps}

    def _renew(self, path: str) -> None:
        self._newest.pop(path, None)
        while len(self._newest) >= PATHS:
            del self._newest[next(iter(self._newest))]
        self._newest[path] = {}

    def _note(self, path: str, event: str, **more: Any) -> None:  # noqa: ANN401 - what JSON takes
        import json  # noqa: PLC0415 - 3 ms at every start; torch has it by now

        line = json.dumps({"what": event, "path": path, "t": time(), **more}) + "\n"
        if path in self._newest:
            self._newest[path][event] = line
        self._lines.append(line)
        self._write()

    @quiet
    def write(self) -> None:
        """Write the lines, if this process has a slot by now."""
        self._in_turn(self._write)

    def _write(self) -> None:
        if not self._lines:
            return
        if not self._identity.claimed:
            del self._lines[:-PATHS]
            return
        name = os.path.join(self._identity.directory, f"saves-{self._identity.local_rank}.jsonl")  # noqa: PTH118 - pathlib costs 5 ms of start-up
        text = "".join(self._lines).encode()
        anew = self._bytes + len(text) > FILE_BYTES
        if anew:
            text = "".join(line for lines in self._newest.values() for line in lines.values()).encode()
        fd = os.open(name + ".half" * anew, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if anew else os.O_APPEND), 0o600)
        try:
            os.write(fd, text)
        finally:
            os.close(fd)
        if anew:
            self._rename(name + ".half", name)
        self._bytes = len(text) if anew else self._bytes + len(text)
        self._lines.clear()
