"""Reads a job's view from its journal: from the last whole view in it, and the records that follow.

A journal of months is read so in a moment. A view that another version wrote, that is damaged, or that follows on one that is, is passed
over: then the records after the one before count, or all. It reads the file as any other process could, writes nothing and takes no lock.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from checkpointing.io import durable
from supervisor.core.values import Struct
from supervisor.journal.records import Damage, Header, JournalPosition, ViewTaken, check_version, decode, frames, scan, unframe
from supervisor.view.job_facts import JournalFault
from supervisor.view.job_view import JobView
from supervisor.view.snapshot import ViewChain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    #: Gets the present work on a journal, how many of its bytes were read, and how many there are.
    ReadReport = Callable[[str, int, int], None]

Item = TypeVar("Item")
#: The bytes of one step backwards from the end.
_BLOCK_BYTES = 1 << 18
#: The kind of a record is within its first bytes.
_KIND_WITHIN = 160
#: A report is made after so many.
_REPORT_BYTES = 1 << 20
_IS_VIEW, _IS_HEADER = b'"kind":"view"', b'"kind":"header"'


def _no_report(_what: str, _done: int, _total: int) -> None:
    """Report nothing: nobody waits for the reading."""


def _reported(items: Iterator[Item], path: Path, position: JournalPosition, verb: str, report: ReadReport) -> Iterator[Item]:
    """Yield the items, and report how far they lead in the file. position: after the last item."""
    begin, due, mark = position.offset, 0, mark_of(path)
    for item in items:
        if mark is not None and position.offset >= due:
            due = position.offset + _REPORT_BYTES
            report(verb, position.offset - begin, max(mark[2], position.offset) - begin)
        yield item


class ViewBase(Struct):
    """The last view in a journal that can be read, and where the records begin that follow it."""

    view: JobView | None  # None: there is none, and all records follow
    position: JournalPosition
    damage: list[Damage]  # before that


def base_of(path: Path, report: ReadReport = _no_report) -> ViewBase:
    """Return the last whole view in a journal. Each line is checked, and few are read. Raises OSError, and OtherFormatError (78)."""
    chain, base, position = ViewChain(is_whole=True), ViewBase(None, JournalPosition(), []), JournalPosition()
    damage: list[Damage] = []
    for rec in _reported(frames(path, position=position), path, position, "checking", report):
        if isinstance(rec, Damage):
            damage.append(rec)
            continue
        record = decode(rec) if _is_kind(rec, _IS_VIEW) or _is_kind(rec, _IS_HEADER) else None
        if record is not None and isinstance(record.body, Header):
            check_version(path, record.body)
        elif record is not None and isinstance(record.body, ViewTaken) and chain.take(record.body):
            base.position, base.damage = JournalPosition(position.offset, record.seq), [*damage]
    base.view = chain.view()
    return base


def _is_kind(rec: bytes, kind: bytes) -> bool:
    return rec.find(kind, 0, _KIND_WITHIN) >= 0


def begun_from(base: ViewBase) -> JobView:
    """Return a view that continues from the base, with the damage before it."""
    if base.view is None:
        return JobView()
    view = base.view.copied()
    known = {fault.text for fault in view.faults}
    view.faults += [JournalFault(str(damage)) for damage in base.damage if str(damage) not in known]
    return view


def read_view(path: Path, report: ReadReport = _no_report) -> JobView:
    """Return what the journal at `path` says. Raises OSError, and OtherFormatError (78)."""
    follower = ViewFollower(path, report)
    follower.advance()
    return follower.view


def read_end(path: Path, report: ReadReport = _no_report) -> JobView:
    """Return the state of the job, by the end of its journal: the last view in it, and the records after it. Raises as `read_view`.

    The lists of the view begin with the additions to it (JobView.after_seq). Earlier damage is not looked for.
    """
    follower = ViewFollower(path, report, is_whole=False)
    follower.advance()
    return follower.view


def end_base_of(path: Path) -> ViewBase | None:
    """Return the last view in a journal, whose lists begin late, and what follows it; None: there is none. Raises as `base_of`."""
    first = next(frames(path), None)
    record = decode(first) if isinstance(first, bytes) else None
    if record is not None and isinstance(record.body, Header):
        check_version(path, record.body)
    views: list[tuple[ViewTaken, JournalPosition]] = []
    for taken, position in _views_backwards(path):
        views.append((taken, position))
        if taken.full or taken.before == 0:
            break
    chain, behind = ViewChain(is_whole=False), None
    for taken, position in reversed(views):
        behind = position if chain.take(taken) else behind
    end = chain.view()
    return None if end is None or behind is None else ViewBase(end, behind, [])


def _views_backwards(path: Path) -> Iterator[tuple[ViewTaken, JournalPosition]]:
    """Yield the views in a journal, the last first, each with the place after its record. Reads backwards from the end."""
    try:
        fd = durable.open_regular(str(path))
    except FileNotFoundError:
        return
    try:
        begin, rest = os.fstat(fd).st_size, b""
        while begin > 0:
            end, begin = begin, max(0, begin - _BLOCK_BYTES)
            rest = os.pread(fd, end - begin, begin) + rest
            at = rest.rfind(_IS_VIEW)
            while at >= 0:
                line_at = rest.rfind(b"\n", 0, at) + 1
                line_end = rest.find(b"\n", at) + 1
                if (line_at or begin == 0) and line_end:
                    rec = unframe(rest[line_at:line_end])
                    record = decode(rec) if rec is not None and _is_kind(rec, _IS_VIEW) else None
                    if record is not None and isinstance(record.body, ViewTaken):
                        yield record.body, JournalPosition(begin + line_end, record.seq)
                at = rest.rfind(_IS_VIEW, 0, line_at)
            rest = rest[: rest.find(b"\n") + 1] or rest  # the end of a line that begins in the block before
    finally:
        os.close(fd)


class ViewFollower:
    """Follows a journal while it grows: each look takes the records added since the last one, so that nothing is read twice.

    is_whole: False where it begins with the last view in the journal, as `read_end`. It holds no descriptor between two looks. A file that
    was replaced, because a new run began, or that became shorter is read anew; so is one after an exception of `advance`.
    """

    def __init__(self, path: Path, report: ReadReport = _no_report, *, is_whole: bool = True) -> None:
        self._path, self._report, self._is_whole = path, report, is_whole
        self._begin()

    def _begin(self) -> None:
        self._position, self.view = JournalPosition(), JobView()  # up to the last look; `copied` is for its keepers
        self._mark: tuple[int, int, int, int] | None = None

    def advance(self) -> bool:
        """Read the new records; return whether there are any. Raises OSError, and SuperviseError (78) for another version."""
        while (mark := mark_of(self._path)) != self._mark:
            is_same = self._mark is not None and mark is not None and mark[:2] == self._mark[:2] and mark[2] >= self._position.offset
            if not is_same:
                self._begin()
            if mark is None:
                return True
            self._mark = None  # until it is read without an error
            if not is_same:
                end = None if self._is_whole else end_base_of(self._path)
                base = base_of(self._path, self._report) if end is None else end
                self._position, self.view = base.position, begun_from(base)
            for record in _reported(scan(self._path, self._position), self._path, self._position, "reading", self._report):
                self.view.take(record)
            self._mark = mark
            if mark[:2] == (mark_of(self._path) or mark)[:2]:  # else it was replaced before it was opened
                return True
        return False


def mark_of(path: Path) -> tuple[int, int, int, int] | None:
    """Return what changes when a journal grows or is replaced; None: there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116  over NFS as fresh as its attributes are
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
