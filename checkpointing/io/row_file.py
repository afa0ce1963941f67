"""A file of rows that one process writes and everybody may read: the form of the checkpoints' catalogue and of the alerts' spool.

A row belongs to a table and has a key; the newest row of a table and key counts. A line is JSON:

    {"row": "catalogue", "key": "5f0c9b1e2a7d4c33", "is": 1}         the first line: the version
    {"row": "rejected", "key": "/data/step_9.pt", "is": {...}}       without "is": there is no such row any more

One process writes the file: the supervisor, which holds the job's lock, or a person's command while no supervisor runs the job. Everybody
may read it, at any moment and without a lock: lines are only appended, and a file that was compacted is another one, put in its place at
once: its first line has a key of its own, since a file system may give it the inode of an earlier one. A line that a kill or a full disk
cut off is the last; it is dropped, and with it that row alone. Close-to-open consistency is enough on shared storage.

In memory is only the place of each row, so that rows with the digests of a terabyte cost nothing until they are asked for.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Generic, NamedTuple, TypeVar

import msgspec

from checkpointing.io import durable, staging, typed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_VERSION: Final = 1
_HEAD: Final = "catalogue"  # the table of the first line, whose row is the version
#: The file is compacted once it is this much larger than its rows: a job that saves each minute appends 100 MB in 90 days.
_SLACK_BYTES: Final = 4 << 20

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RowTable(Generic[R]):
    """Rows of one kind. kind: a dataclass; key: of a row, "" where the table has one row."""

    name: str
    kind: type[R]
    key: Callable[[R], str]


class TableChange(NamedTuple, Generic[R]):
    """The rows of a table by their keys, before and after."""

    table: RowTable[R]
    before: Mapping[str, R]
    after: Mapping[str, R]


class _Row(msgspec.Struct, frozen=True):
    """A line. content: as it is there, so that many digests are not decoded before they are asked for."""

    row: str
    key: str
    content: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="is", default=msgspec.UNSET)


_ROWS: Final = typed.decoder(_Row)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a row is in the file."""

    offset: int
    n_bytes: int


class RowFile:
    """The rows of one file. Thread-safe.

    Nothing here raises: `not_written` says in one line why the last rows are not on the disk, `problem` also what could not be read. What
    could not be written is known all the same until this process ends, and is written with the next rows. A file that cannot be read is
    not replaced.
    """

    def __init__(self, file: Path, subject: str, *, is_writer: bool = False) -> None:
        """Read the file, which need not exist yet. `subject`: its name in messages. `is_writer`: this process holds the job's lock."""
        self.file = file
        self._subject = subject
        self.not_written: str | None = None
        self._not_compacted: str | None = None
        self._unreadable: str | None = None
        self._damaged: str | None = None  # a line
        self._is_writer = is_writer
        self._lock = threading.RLock()
        self._head = b""  # the first line of the file that was read
        self._places: dict[tuple[str, str], _Place] = {}
        self._unwritten: dict[tuple[str, str], object] = {}  # None: the row is gone
        self._end = 0  # of the last whole line
        self._is_newer = False
        self._is_doubtful = False  # it could not be synced: what the disk holds of the last rows is not known
        self._read()

    @property
    def problem(self) -> str | None:
        """The last failed write or read, in one line."""
        return self.not_written or self._not_compacted or self._unreadable or self._damaged

    @property
    def unreadable(self) -> str | None:
        """Why the file cannot be read, in one line, so that its rows are not known; None where it can, or there is none."""
        with self._lock:
            self._read()
            return self._unreadable

    @property
    def is_empty(self) -> bool:
        """Whether there is no file, or none that holds a row: it is new, or was lost with a disk."""
        with self._lock:
            self._follow()
            return not self._places and not self._unwritten and self._unreadable is None

    @property
    def state(self) -> tuple[bytes, int]:
        """Return a value that changes whenever a reader may find other rows."""
        with self._lock:
            self._follow()
            return self._head, self._end

    def get(self, table: RowTable[R], key: str = "") -> R | None:
        """Return the row of a key; None where there is none, or it cannot be read."""
        with self._lock:
            self._follow()
            return self._row(table, key)

    def all(self, table: RowTable[R]) -> tuple[R, ...]:
        """Return every row of a table, in the order in which they were written last."""
        return tuple(self.each(table))

    def each(self, table: RowTable[R]) -> Iterator[R]:
        """Yield every row of a table, one after the other: rows with many digests need not be in memory together."""
        with contextlib.ExitStack() as stack:
            with self._lock:
                self._follow()
                unwritten = {key: content for (name, key), content in self._unwritten.items() if name == table.name}
                file = self._opened(stack)
                places = {key: place for (name, key), place in self._places.items() if name == table.name and key not in unwritten}
            for key, place in places.items():  # of the file as it was: another one may be in its place by now
                row = self._converted(table, key, functools.partial(_content, file, place))
                if row is not None:
                    yield row
            for key, content in unwritten.items():
                row = self._converted(table, key, functools.partial(_same, content))
                if row is not None:
                    yield row

    def count(self, name: str) -> int:
        """Return how many rows the table of this name has."""
        with self._lock:
            self._follow()
            return sum(self._has(name, key) for table, key in {*self._places, *self._unwritten} if table == name)

    def sizes(self, table: RowTable[Any]) -> dict[str, int]:
        """Return the bytes in the file of each row of a table, by key, in the order in which they were written last."""
        with self._lock:
            self._follow()
            return {key: place.n_bytes for (name, key), place in self._places.items() if name == table.name}

    def _opened(self, stack: contextlib.ExitStack) -> BinaryIO | None:
        try:
            file = stack.enter_context(os.fdopen(durable.open_regular(str(self.file)), "rb"))
            self._index(file)
        except OSError as error:
            self._fail(error)
            return None
        return file

    def put(self, table: RowTable[R], *rows: R) -> bool:
        """Write rows, durably. Return False where that failed: they are known until this process ends."""
        return self._write([(table.name, table.key(row), msgspec.to_builtins(row)) for row in rows])

    def change(self, *changes: TableChange[Any]) -> bool:
        """Write at once, durably, what differs between the rows before and after. Return False where that failed, as `put`."""
        rows: list[tuple[str, str, object]] = []
        for table, before, after in changes:
            rows += [(table.name, key, None) for key in before if key not in after]
            rows += [(table.name, key, msgspec.to_builtins(row)) for key, row in after.items() if before.get(key) != row]
        return self._write(rows) if rows else True

    def remove(self, table: RowTable[R], *keys: str) -> bool:
        """Remove the rows of keys, durably. Return whether there was one."""
        with self._lock:
            self._follow()
            known = [key for key in dict.fromkeys(keys) if self._has(table.name, key)]
            if known:
                self._write([(table.name, key, None) for key in known])
            return bool(known)

    def _has(self, name: str, key: str) -> bool:
        return self._unwritten[name, key] is not None if (name, key) in self._unwritten else (name, key) in self._places

    def _row(self, table: RowTable[R], key: str) -> R | None:
        name = table.name, key
        if name in self._unwritten:
            return self._converted(table, key, lambda: self._unwritten[name])
        return self._converted(table, key, lambda: _decoded(self._line(name))[1]) if name in self._places else None

    def _converted(self, table: RowTable[R], key: str, content: Callable[[], object]) -> R | None:
        try:
            row = content()
            if isinstance(row, msgspec.Raw):
                return typed.decoded(row, table.kind)
            return None if row is None else typed.converted(row, table.kind)
        except KeyError:  # removed meanwhile
            return None
        except (OSError, ValueError) as error:
            self._damaged = f"a row of {self._subject} could not be read: {self.file}: {table.name} {key}: {error}"
            return None

    def _line(self, name: tuple[str, str]) -> bytes:
        """Return the line of a row. If another file was put in the place of the one that was read, that one is read. Raises KeyError."""
        with os.fdopen(durable.open_regular(str(self.file)), "rb") as file:
            self._index(file)
            place = self._places[name]
            return os.pread(file.fileno(), place.n_bytes, place.offset)

    # reading

    def _follow(self) -> None:
        """Read what another process wrote since; the writer knows it."""
        if not self._is_writer:
            self._read()

    def _read(self) -> None:
        try:
            with os.fdopen(durable.open_regular(str(self.file)), "rb") as file:
                self._index(file)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            self._forget(b"")
        else:
            self._unreadable = f"{self._subject} could not be read: {self.file}: {error.strerror}"

    def _forget(self, head: bytes) -> None:
        self._head, self._places, self._end, self._is_newer, self._damaged = head, {}, 0, False, None

    def _index(self, file: BinaryIO) -> None:
        """Note where the rows stand that were appended since. A last line that is not whole is left for the next time.

        A reader that saw a damaged line reads all again: over NFS the end of a file that grows may read as zeros for a moment.
        """
        head, n_bytes = file.readline(), os.fstat(file.fileno()).st_size
        self._unreadable = None
        if head != self._head or n_bytes < self._end or (self._damaged and not self._is_writer):
            self._forget(head)
        if n_bytes == self._end:
            return
        file.seek(self._end)
        for line in file:
            if not line.endswith(b"\n"):
                break
            self._note(line, self._end)
            self._end += len(line)

    def _note(self, line: bytes, offset: int) -> None:
        try:
            name, content = _decoded(line)
        except (ValueError, KeyError, TypeError) as error:
            self._damaged = f"a line of {self._subject} could not be read: {self.file}, at byte {offset}: {error}"
            return
        if name[0] == _HEAD:
            self._is_newer = line != _line(*name, _VERSION)
            if self._is_newer:
                self._damaged = f"{self._subject} was written by a newer supervise, and is not changed: {self.file}"
        elif content is None:
            self._places.pop(name, None)
        else:
            self._set_place(name, _Place(offset, len(line)))

    def _set_place(self, name: tuple[str, str], place: _Place) -> None:
        self._places.pop(name, None)  # the row that was written last is the last
        self._places[name] = place

    # writing

    def _write(self, rows: list[tuple[str, str, object]]) -> bool:
        with self._lock:
            if not self._is_writer:
                return False
            self._unwritten.update({(name, key): content for name, key, content in rows})
            gone = [name for name, content in self._unwritten.items() if content is None and name not in self._places]
            for name in () if self._is_doubtful else gone:  # of a row that never was there nothing is to be written
                del self._unwritten[name]
            if self._is_newer:
                self.not_written = self._damaged
                return False
            try:
                self._append()
            except OSError as error:
                self.not_written = f"{self._subject} could not be written: {self.file}: {error.strerror}"
                return False
            self.not_written = None
            self._compact()
            return True

    def _append(self) -> None:
        """Append the unwritten rows, after the last whole line: readers may have all lines before it, and none has a torn one.

        After a sync that failed the pages of the lines may count as written: only another file is sure to have them.
        """
        lines = [(name, _line(*name, content)) for name, content in self._unwritten.items()]
        try:
            with os.fdopen(durable.open_regular(str(self.file)), "rb") as file:
                self._index(file)
        except FileNotFoundError:
            self._forget(b"")
        if not self._end or self._is_doubtful:
            durable.make_directory(str(self.file.parent))
            self._rewrite()
            self._is_doubtful = False
        fd = os.open(self.file, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            os.ftruncate(fd, self._end)
            content, at = memoryview(b"".join(line for _, line in lines)), self._end
            while content:
                n_written = os.pwrite(fd, content, at)
                at, content = at + n_written, content[n_written:]
            self._is_doubtful = True
            os.fsync(fd)
            self._is_doubtful = False
        finally:
            os.close(fd)
        for name, line in lines:
            if self._unwritten.pop(name) is None:
                self._places.pop(name, None)
            else:
                self._set_place(name, _Place(self._end, len(line)))
            self._end += len(line)

    def _compact(self) -> None:
        self._not_compacted = None
        if self._end >= 2 * sum(place.n_bytes for place in self._places.values()) + _SLACK_BYTES:
            try:
                self._rewrite()
            except OSError as error:
                self._not_compacted = f"{self._subject} could not be made smaller: {self.file}: {error.strerror}"

    def _rewrite(self) -> None:
        """Put another file in its place, without the rows that no longer count."""
        head = _line(_HEAD, secrets.token_hex(8), _VERSION)
        with contextlib.ExitStack() as stack:
            fd = stack.enter_context(os.fdopen(durable.open_regular(str(self.file)), "rb")).fileno() if self._places else -1
            rows = (os.pread(fd, place.n_bytes, place.offset) for place in self._places.values())
            staging.write(str(self.file), itertools.chain((head,), rows))
        self._read()


def _line(table: str, key: str, content: object) -> bytes:
    """Return a line. JSON's own escapes carry the bytes of a path that are not UTF-8."""
    row = {"row": table, "key": key} if content is None else {"row": table, "key": key, "is": content}
    return json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n"


def _decoded(line: bytes) -> tuple[tuple[str, str], object]:
    """Return the name of a row, and its content: None where it is gone. Raises ValueError, KeyError and TypeError for another line."""
    try:
        row = _ROWS.decode(line)
    except msgspec.DecodeError:  # for msgspec a path that is not UTF-8 is not JSON
        other: dict[str, Any] = json.loads(line.decode("ascii"))  # of bytes it would take zeros for another encoding
        return (str(other["row"]), str(other["key"])), other.get("is")
    return (row.row, row.key), None if row.content is msgspec.UNSET else row.content


def _content(file: BinaryIO | None, place: _Place) -> object:
    return None if file is None else _decoded(os.pread(file.fileno(), place.n_bytes, place.offset))[1]


def _same(content: object) -> object:
    return content
