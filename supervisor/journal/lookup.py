"""Finds records of a journal by their number, or the newest one of a kind, without reading the file whole.

Numbers grow along the file, so that bisection finds one with some twenty reads of 2 KiB. Where numbers do not grow (records that were
written twice after a failed fsync) or bytes are damaged, a record may not be found: the caller then reads the whole file.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from supervisor.journal.records import decode, unframe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.journal.records import Record

_CHUNK_BYTES: Final = 2048
#: How far from the end the newest record of a kind is searched for.
SEARCH_BYTES: Final = 4 << 20
_STEP_BYTES: Final = 256 << 10
#: No record is longer: the evidence of a failure is bounded.
_LONGEST_LINE: Final = 16 << 20
_BEGIN = re.compile(rb'\n\{"crc":"[0-9a-f]{8}","len":[0-9]{1,10},"rec":\{"seq":([0-9]+),')


class JournalLookup:
    """The records in an open journal, up to the size that it had then. Raises OSError."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.size = os.fstat(fd).st_size

    def newest(self, mark: bytes) -> Record | None:
        """Return the last record near the end whose line holds `mark`; None if there is none, or it does not check."""
        end, at = self.size, -1
        text = b""
        while end > max(0, self.size - SEARCH_BYTES):
            begin = max(0, end - _STEP_BYTES)
            text = os.pread(self._fd, end - begin, begin) + text
            at = at + end - begin if at >= 0 else text.rfind(mark, 0, end - begin + len(mark))  # the rest was searched before
            line_start = text.rfind(b"\n", 0, at) + 1 if at >= 0 else 0
            if at >= 0 and (line_start or not begin):
                line_end = text.find(b"\n", at) + 1
                rec = unframe(text[line_start:line_end])
                return None if rec is None else decode(rec)
            end = begin
        return None

    def between(self, first: int, last: int) -> list[Record]:
        """Return the records of these numbers, a single one or a few thousand; none at all if one of the two is not found."""
        offset = self.offset(first)
        found: list[Record] = []
        for line in self._lines(offset) if offset is not None else ():
            rec = unframe(line)
            record = decode(rec) if rec is not None else None
            if record is not None:
                found.append(record)
            if record is not None and record.seq >= last:
                break
        return found if found and (found[0].seq, found[-1].seq) == (first, last) else []

    def offset(self, seq: int) -> int | None:
        """Return where the line of this record begins; None if it is not found."""
        low, high = -1, self.size  # the first line begins at 0, behind a line feed that is not there
        while high - low > _CHUNK_BYTES:
            middle = (low + high) // 2
            found = self._next_line(middle, high)
            if found is None:
                high = middle
                continue
            at, number = found
            if number == seq:
                return at
            if number < seq:
                low = at
            else:
                high = middle
        at = max(low, 0)
        for line in self._lines(at):
            found_line = _BEGIN.match(b"\n" + line)
            if found_line is not None and int(found_line[1]) >= seq:
                return at if int(found_line[1]) == seq else None
            at += len(line)
            if at > high + _CHUNK_BYTES:
                return None
        return None

    def _lines(self, offset: int) -> Iterator[bytes]:
        """Yield the whole lines from `offset` on, which is the beginning of one."""
        rest = b""
        while chunk := os.pread(self._fd, _CHUNK_BYTES if not rest else max(_CHUNK_BYTES, len(rest)), offset + len(rest)):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line + b"\n"
                offset += len(line) + 1

    def _next_line(self, offset: int, end: int) -> tuple[int, int] | None:
        """Return the first line that begins behind `offset` and before `end`, and the number of its record."""
        text = b""
        while offset + len(text) < end + _CHUNK_BYTES and len(text) < _LONGEST_LINE:
            chunk = os.pread(self._fd, max(_CHUNK_BYTES, len(text)), offset + len(text))
            text += chunk
            found = _BEGIN.search(text)
            if found is not None:
                at = offset + found.start() + 1
                return (at, int(found[1])) if at < end else None
            if not chunk:
                return None
        return None
