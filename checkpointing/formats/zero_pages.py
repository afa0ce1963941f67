"""Finds zeros where a crash left blocks unwritten, in formats that have no checksum.

A file system that lost power shows zeros where the data of a grown file never reached the disk: whole sectors, pages, or the rest of
the file. Trained weights hold zeros too, in whole rows (words that never occurred, padding of a vocabulary) or whole tensors (a fresh
bias), so only these count, in tensors of floating numbers:

* zeros to the end of the file that begin within a row, and either at the border of a page or before the last row;
* zeros that begin and end at borders of sectors, and begin within a row;
* in a tensor of several dimensions, zeros that begin within one row, cover at least one, and end within a third.

A tensor with more than `_MOST_RUNS` such stretches is sparse by itself and counts for nothing. The result is probable, not proven: a
manifest (docs/reference/checkpoint-format.md) proves.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECTOR: Final = 512
_PAGE: Final = 4096
_TAIL_BYTES: Final = 64  # fewer zeros at the end are a few small numbers
_MOST_RUNS: Final = 3
_RUN: Final = bytes(_SECTOR)
_NOT_ZERO: Final = re.compile(rb"[^\0]")
_STRIDE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Span:
    """Where a tensor lies in its file, in bytes. `row` is what its last dimension takes; `floating` also says that its zeros count."""

    name: str
    begin: int
    end: int
    item: int
    row: int
    floating: bool


class ZeroPageScan:
    """Looks at one file's tensors; feed it every byte from the first span's begin to the file's end in order."""

    def __init__(self, spans: Sequence[Span], file_bytes: int) -> None:
        """Take the spans in the order of the file; they neither overlap nor leave gaps."""
        self._spans = [span for span in spans if span.end > span.begin]
        self._begins = [span.begin for span in self._spans]
        self._file_bytes = file_bytes
        self._at = self._begins[0] if self._begins else 0
        self._open: int | None = None  # where the zeros began in which the last piece ended
        self._found: dict[str, list[str]] = {}

    @property
    def problem(self) -> str:
        """The first hole, once everything was fed; "" for none."""
        if self._open is not None:
            self._close(self._at)
        found = [lines for lines in self._found.values() if len(lines) <= _MOST_RUNS]
        return found[0][0] if found else ""

    def feed(self, piece: bytes | memoryview) -> None:
        """Look at the bytes that follow those seen before."""
        data = bytes(piece)
        at = 0
        while at < len(data):
            if self._open is None:
                at = self._to_zeros(data, at)
            else:
                end = _first_not_zero(data, at)
                at = len(data) if end is None else end
                if end is not None:
                    self._close(self._at + end)
        self._at += len(data)

    def _to_zeros(self, data: bytes, at: int) -> int:
        """Go to the next zeros that are worth a look, or to those at the end, which may go on in the next piece."""
        found = data.find(_RUN, at)
        start = len(data[max(at, len(data) - _SECTOR) :].rstrip(b"\0")) + max(at, len(data) - _SECTOR) if found < 0 else found
        if start < len(data):
            self._open = self._at + start
        return start + 1 if start < len(data) else len(data)

    def _close(self, end: int) -> None:
        start, self._open = self._open or 0, None
        to_the_end = end >= self._file_bytes
        if end - start < (_TAIL_BYTES if to_the_end else _SECTOR) or not self._spans:
            return
        span = self._spans[max(0, bisect_right(self._begins, start) - 1)]
        # a number's own low bytes may be zero: it belongs to the zeros only if all of it is
        start += -(start - span.begin) % span.item
        if not span.floating or not span.begin < start < span.end or (start - span.begin) % span.row == 0:
            return
        if to_the_end:
            hole = -start % _PAGE < span.item or (min(end, span.end) - span.begin - 1) // span.row > (start - span.begin) // span.row
        else:
            hole = _at_sector(start, span.item) and end % _SECTOR < span.item
            hole = hole or self._wraps(span, start, end)
        if hole:
            length = "to the end of the file" if to_the_end else f"of {end - start} bytes"
            self._found.setdefault(span.name, []).append(f"{span.name}: zeros {length} from byte {start} on: they were never written")

    def _wraps(self, span: Span, start: int, end: int) -> bool:
        """Return whether zeros of one tensor begin within a row, cover at least one whole, and end within another."""
        end -= (end - span.begin) % span.item
        if end >= span.end or span.row >= span.end - span.begin or span.row < _TAIL_BYTES:
            return False
        return (end - span.begin) // span.row - (start - span.begin) // span.row > 1 and (end - span.begin) % span.row != 0


def _at_sector(start: int, item: int) -> bool:
    """Return whether a sector begins at `start`, or within the number before it."""
    return -start % _SECTOR < item or start % _SECTOR < item


def _first_not_zero(data: bytes, at: int) -> int | None:
    """Return where the zeros that begin at `at` end; None where they do not."""
    for begin in range(at, len(data), _STRIDE):
        if any(data[begin : begin + 8]) or data.count(0, begin, begin + _STRIDE) < min(_STRIDE, len(data) - begin):
            match = _NOT_ZERO.search(data, begin)
            return match.start() if match else None
    return None
