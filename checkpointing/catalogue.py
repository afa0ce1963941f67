"""What is known of a job's checkpoints on one node: one file of rows, `checkpoints/catalogue.jsonl` in the state directory.

A row belongs to a table and has a key; the newest row of a table and key counts. A line is JSON:

    {"row": "rejected", "key": "/data/step_9.pt", "is": {...}}       without "is": there is no such row any more

One process writes the file: the supervisor, which holds the job's lock, or a person's command while no supervisor runs the job. Everybody may read it, at any moment and without a lock: lines are
only appended, and a file that was compacted is another one, put in its place at once. A line that a kill or a full disk cut off is the
last; it is dropped, and with it that row alone. Close-to-open consistency is enough on shared storage.

In memory is only where each row stands, so that rows with the digests of a terabyte cost nothing until they are asked for.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from checkpointing.io import durable, staging

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE_NAME: Final = "catalogue.jsonl"
_VERSION: Final = 1
_HEAD: Final = "catalogue"  # the table of the first line, whose row is the version
#: The file is compacted once it is this much larger than its rows: a job that saves each minute appends 100 MB in 90 days.
_SLACK_BYTES: Final = 4 << 20

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """Rows of one kind. kind: a dataclass; key: of a row, "" where the table has one row."""

    name: str
    kind: type[R]
    key: Callable[[R], str]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a row stands in the file."""

    offset: int
    n_bytes: int


class Catalogue:
    """The rows of one job and node. Thread-safe.

    Nothing here raises: `problem` says in one line what could not be read or written last. What could not be written is known all the same
    until this process ends.
    """

    def __init__(self, directory: Path, *, is_writer: bool = False) -> None:
        """Read `directory`/catalogue.jsonl, which need not exist yet. `is_writer`: this process holds the job's lock."""
        self.file = directory / FILE_NAME
        self.problem: str | None = None
        self._is_writer = is_writer
        self._lock = threading.RLock()
        self._fd = -1
        self._name: tuple[int, int] | None = None  # device and inode of the file that is open
        self._places: dict[tuple[str, str], _Place] = {}
        self._unwritten: dict[tuple[str, str], object] = {}  # None: the row is gone
        self._end = 0  # of the last whole line
        self._is_newer = False
        self._is_doubtful = False  # a write failed: what the file holds behind `_end`, and what readers have of it, is not known
        self._read()

    def get(self, table: Table[R], key: str = "") -> R | None:
        """Return the row of a key; None where there is none, or it cannot be read."""
        with self._lock:
            self._follow()
            return self._row(table, key)

    def all(self, table: Table[R]) -> tuple[R, ...]:
        """Return every row of a table, in the order in which their keys were first written."""
        return tuple(self.each(table))

    def each(self, table: Table[R]) -> Iterator[R]:
        """Yield every row of a table, one after the other: rows with many digests need not be in memory together."""
        with self._lock:
            self._follow()
            keys = dict.fromkeys(key for name, key in (*self._places, *self._unwritten) if name == table.name)
        for key in keys:
            with self._lock:
                row = self._row(table, key)
            if row is not None:
                yield row

    def put(self, table: Table[R], *rows: R) -> bool:
        """Write rows, durably. Return False where that failed: they are known until this process ends."""
        return self._write([(table.name, table.key(row), msgspec.to_builtins(row)) for row in rows])

    def remove(self, table: Table[R], *keys: str) -> bool:
        """Remove the rows of keys, durably. Return whether there was one."""
        with self._lock:
            self._follow()
            known = [key for key in dict.fromkeys(keys) if self._has(table.name, key)]
            if known:
                self._write([(table.name, key, None) for key in known])
            return bool(known)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd, self._name = -1, None

    def _has(self, name: str, key: str) -> bool:
        return self._unwritten[name, key] is not None if (name, key) in self._unwritten else (name, key) in self._places

    def _row(self, table: Table[R], key: str) -> R | None:
        name = table.name, key
        try:
            if name in self._unwritten:
                content = self._unwritten[name]
            elif name in self._places:
                place = self._places[name]
                content = json.loads(os.pread(self._fd, place.n_bytes, place.offset)).get("is")
            else:
                return None
            return None if content is None else msgspec.convert(content, table.kind)
        except (OSError, ValueError, msgspec.ValidationError) as error:
            self.problem = f"a row of the checkpoints' catalogue could not be read: {self.file}: {table.name} {key}: {error}"
            return None

    # reading

    def _follow(self) -> None:
        """Read what another process wrote since; the writer knows it."""
        if not self._is_writer:
            self._read()

    def _read(self) -> None:
        try:
            st = self.file.stat()
            if self._name != (st.st_dev, st.st_ino) or st.st_size < self._end:
                self._open()
            self._index()
        except (FileNotFoundError, NotADirectoryError):
            self._forget()
        except OSError as error:
            self.problem = f"the checkpoints' catalogue could not be read: {self.file}: {error.strerror}"

    def _open(self) -> None:
        self._forget()
        self._fd = os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)
        st = os.fstat(self._fd)
        self._name = st.st_dev, st.st_ino

    def _forget(self) -> None:
        self.close()
        self._places, self._end, self._is_newer = {}, 0, False

    def _index(self) -> None:
        """Note where the rows stand that were appended since. A last line that is not whole is left for the next time."""
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(self._end)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._note(line, self._end)
                self._end += len(line)

    def _note(self, line: bytes, offset: int) -> None:
        try:
            row: dict[str, Any] = json.loads(line)
            name = str(row["row"]), str(row["key"])
            is_row = "is" in row
        except (ValueError, KeyError, TypeError) as error:
            self.problem = f"a line of the checkpoints' catalogue could not be read: {self.file}, at byte {offset}: {error}"
            return
        if name[0] == _HEAD:
            self._is_newer = int(row["is"]) > _VERSION
            if self._is_newer:
                self.problem = f"the checkpoints' catalogue was written by a newer supervise, and is not changed: {self.file}"
        elif is_row:
            self._places[name] = _Place(offset, len(line))
        else:
            self._places.pop(name, None)

    # writing

    def _write(self, rows: list[tuple[str, str, object]]) -> bool:
        with self._lock:
            if self._is_newer or not self._is_writer:
                return False
            try:
                self._unwritten.update({(name, key): content for name, key, content in rows})
                self._append()
                if self._end >= 2 * self._rows_bytes() + _SLACK_BYTES:
                    self._rewrite()
            except OSError as error:
                self._is_doubtful = True
                self.problem = f"the checkpoints' catalogue could not be written: {self.file}: {error.strerror}"
                return False
            self.problem = None
            return True

    def _append(self) -> None:
        """Append what is not written yet. After a kill within a line, the next one takes its place; after an error, another file does."""
        lines = [(name, _line(*name, content)) for name, content in self._unwritten.items()]
        if self._name is None:
            durable.make_directory(str(self.file.parent))
            staging.write(str(self.file), _line(_HEAD, "", _VERSION))
            self._read()
        elif self._is_doubtful:
            self._rewrite()
        self._is_doubtful = False
        fd = os.open(self.file, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.ftruncate(fd, self._end)
            content = memoryview(b"".join(line for _, line in lines))
            at = self._end
            while content:
                n_written = os.pwrite(fd, content, at)
                at, content = at + n_written, content[n_written:]
            os.fsync(fd)
        finally:
            os.close(fd)
        for name, line in lines:
            if self._unwritten.pop(name) is None:
                self._places.pop(name, None)
            else:
                self._places[name] = _Place(self._end, len(line))
            self._end += len(line)

    def _rows_bytes(self) -> int:
        return sum(place.n_bytes for place in self._places.values())

    def _rewrite(self) -> None:
        """Put another file in its place, without the rows that no longer count."""
        rows = (os.pread(self._fd, place.n_bytes, place.offset) for place in self._places.values())
        staging.write(str(self.file), itertools.chain((_line(_HEAD, "", _VERSION),), rows))
        self._read()


def _line(table: str, key: str, content: object) -> bytes:
    """Return a line. JSON's own escapes carry the bytes of a path that are no UTF-8."""
    row = {"row": table, "key": key} if content is None else {"row": table, "key": key, "is": content}
    return json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n"
