"""Finds zeros where a crash left blocks unwritten, in formats that have no checksum.

A file system that lost power shows zeros where the data of a grown file never reached the disk: whole pages, or the rest of the file.
Trained weights hold zeros too, in whole rows (words that never occurred, padding of a vocabulary) or whole tensors (a fresh bias), so only
these count, in tensors of floating numbers:

* zeros to the end of the file that begin within a row, and either at the border of a page or before the last row;
* zeros that begin and end at borders of pages, and begin within a row;
* in a tensor of several dimensions, zeros that begin within one row, cover at least one, and end within a third.

A tensor with more than `_MOST_RUNS` such stretches is sparse by itself and counts for nothing. Nor does a stretch whose uneven end the rows
around it explain: the same columns are zero there as well, or zeros are so frequent that more beside a row of zeros are not a surprise.

    0 0 0 5 7 0    a fresh Adam state, or pruned weights: the zeros from the first row's end on cover the second row and
    0 0 0 0 0 0    continue in the third, because the last column and the first three are zero in every row
    0 0 0 2 9 0

The result is probable, not proven: a manifest (docs/reference/checkpoint-format.md) proves.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

_PAGE: Final = 4096
_TAIL_BYTES: Final = 64  # fewer zeros at the end are a few small numbers
_MOST_RUNS: Final = 3
_RUN: Final = bytes(512)  # fewer zeros within a file are not looked at
_NOT_ZERO: Final = re.compile(rb"[^\0]")
_STRIDE: Final = 1 << 16
_WINDOW: Final = 1 << 16  # bytes of a row that are looked at beside a border
_ROWS: Final = 3  # rows that are looked at on each side of a stretch
#: Zeros beside a row of zeros are not a surprise if so many come by chance more often than this; few begin or end at a page's border.
_CHANCE: Final = 1e-4
_CHANCE_AT_PAGE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Span:
    """Where a tensor lies in its file, in bytes. `row` is what its last dimension takes; `floating` also says that its zeros count."""

    name: str
    begin: int
    end: int
    item: int
    row: int
    floating: bool


@dataclass(frozen=True, slots=True)
class _Hole:
    """Zeros within a tensor, in bytes of the file. earlier: the zeros of the tensor that end before; None: these are the first."""

    span: Span
    start: int
    end: int
    text: str
    earlier: tuple[int, int] | None


class ZeroPageScan:
    """Looks at one file's tensors; feed it every byte from the first span's begin to the file's end in order."""

    def __init__(self, spans: Sequence[Span], file_bytes: int, read: Callable[[int, int], bytes]) -> None:
        """Take the spans in the order of the file; they neither overlap nor leave gaps. `read` returns so many bytes at an offset."""
        self._spans = [span for span in spans if span.end > span.begin]
        self._begins = [span.begin for span in self._spans]
        self._file_bytes = file_bytes
        self._at = self._begins[0] if self._begins else 0
        self._open: int | None = None  # where the zeros began in which the last piece ended
        self._read = read
        self._last: tuple[Span, int, int] | None = None  # the zeros that were seen last, and the tensor in which they end
        self._found: dict[str, list[_Hole]] = {}

    def problem(self) -> str:
        """Return the first hole, once everything was fed; "" for none. Reads the rows around it, and raises what `read` does."""
        if self._open is not None:
            self._close(self._at)
        holes = (hole for holes_of_tensor in self._found.values() if len(holes_of_tensor) <= _MOST_RUNS for hole in holes_of_tensor)
        return next((hole.text for hole in holes if not _is_explained(hole, self._read)), "")

    def feed(self, piece: bytes | memoryview) -> None:
        """Examine the bytes that follow those seen before."""
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
        """Go to the next zeros that are worth a look, or to those at the end, which may continue in the next piece."""
        run_at = data.find(_RUN, at)
        start = len(data[max(at, len(data) - len(_RUN)) :].rstrip(b"\0")) + max(at, len(data) - len(_RUN)) if run_at < 0 else run_at
        if start < len(data):
            self._open = self._at + start
        return start + 1 if start < len(data) else len(data)

    def _close(self, end: int) -> None:
        start, self._open = self._open or 0, None
        to_the_end = end >= self._file_bytes
        if end - start < (_TAIL_BYTES if to_the_end else len(_RUN)) or not self._spans:
            return
        span, last_span = self._span_at(start), self._span_at(end - 1)
        earlier = self._last[1:] if self._last is not None and self._last[0] is span else None
        self._last = (last_span, start, end)
        # a number's own low bytes may be zero: it belongs to the zeros only if all of it is
        start += -(start - span.begin) % span.item
        if not span.floating or not span.begin < start < span.end or (start - span.begin) % span.row == 0:
            return
        if to_the_end:
            hole = -start % _PAGE < span.item or (min(end, span.end) - span.begin - 1) // span.row > (start - span.begin) // span.row
        else:
            hole = _at_page(start, span.item) and end % _PAGE < span.item
            hole = hole or self._wraps(span, start, end)
        if hole:
            length = "to the end of the file" if to_the_end else f"of {end - start} bytes"
            text = f"{span.name}: zeros {length} from byte {start} on: they were never written"
            self._found.setdefault(span.name, []).append(_Hole(span, start, min(end, span.end), text, earlier))

    def _span_at(self, offset: int) -> Span:
        return self._spans[max(0, bisect_right(self._begins, offset) - 1)]

    def _wraps(self, span: Span, start: int, end: int) -> bool:
        """Return whether zeros of one tensor begin within a row, cover at least one whole, and end within another."""
        end -= (end - span.begin) % span.item
        if end >= span.end or span.row >= span.end - span.begin or span.row < _TAIL_BYTES:
            return False
        return (end - span.begin) // span.row - (start - span.begin) // span.row > 1 and (end - span.begin) % span.row != 0


def _is_explained(hole: _Hole, read: Callable[[int, int], bytes]) -> bool:
    """Return whether the rows around some zeros show why they begin, and end, within a row."""
    span = hole.span
    end = hole.end - (hole.end - span.begin) % span.item
    first, begins_at = divmod(hole.start - span.begin, span.row)
    last, ends_at = divmod(end - span.begin, span.row)
    above, below = [*range(first - _ROWS, first + 1)], [*range(last, last + _ROWS + 1)]
    if hole.earlier is not None:  # rows with numbers, where all those near are zero
        above += [(offset - span.begin) // span.row for offset in hole.earlier]

    def is_usual(own: int, columns: tuple[int, int], side: list[int]) -> bool:
        """Ask the rows on the same side, which share a band that was pruned, then those on both."""
        n_rows = (span.end - span.begin) // span.row
        choices = (frozenset(row for row in rows if 0 <= row < n_rows) for rows in (side, above + below))
        return any(_is_usual(hole, read, rows, own, columns) for rows in choices)

    if last == first:
        return is_usual(first, (begins_at, ends_at), above + below)
    return is_usual(first, (begins_at, span.row), above) and (not ends_at or is_usual(last, (0, ends_at), below))


def _is_usual(hole: _Hole, read: Callable[[int, int], bytes], rows: Collection[int], own: int, columns: tuple[int, int]) -> bool:
    """Return whether some columns of the row `own` are zero in other rows as well, or may be so by chance.

    columns: where the zeros lie in that row, in bytes. Only what lies near the border at which they begin, or end, is looked at.
    """
    item, within = hole.span.item, columns[0] or columns[1]
    border = hole.span.begin + own * hole.span.row + within
    left, right = max(0, within - _WINDOW), min(hole.span.row, within + _WINDOW)
    begin, end = max(columns[0], left), min(columns[1], right)
    chance = _CHANCE_AT_PAGE if -border % _PAGE < item or border % _PAGE < item else _CHANCE
    union, n_zeros, n_items = None, 0, 0
    for row in {*rows, own}:
        before, n_within, after = _parts(hole, read, row, left, right)
        outside = _items(before, item) + _items(after, item)
        if any(outside):
            n_zeros, n_items = n_zeros + outside.count(0), n_items + len(outside)
            if row != own:
                union = (union or 0) | int.from_bytes(before + bytes(n_within) + after, "little")
    if not n_items:
        return False
    numbers = [] if union is None else _items(union.to_bytes(right - left, "little")[begin - left : end - left], item)
    n_more = (end - begin) // item if union is None else len(numbers) - numbers.count(0)
    return n_more <= math.log(chance) / math.log((n_zeros + 1) / (n_items + 2))


def _parts(hole: _Hole, read: Callable[[int, int], bytes], row: int, left: int, right: int) -> tuple[bytes, int, bytes]:
    """Return some columns of a row: those before the hole, how many bytes of them lie in it, and those after it."""
    at = hole.span.begin + row * hole.span.row + left
    content = read(at, right - left)
    cut = min(max(0, hole.start - at), len(content))
    go_on = min(max(cut, hole.end - at), len(content))
    go_on -= go_on % hole.span.item
    return content[:cut], go_on - cut, content[go_on:]


def _items(content: bytes, item: int) -> list[int]:
    view = memoryview(content)
    return (view.cast("H") if item == 2 else view.cast("I") if item == 4 else view.cast("Q") if item == 8 else view).tolist()  # noqa: PLR2004 -- bytes


def _at_page(start: int, item: int) -> bool:
    """Return whether a page begins at `start`, or within the number before it."""
    return -start % _PAGE < item or start % _PAGE < item


def _first_not_zero(data: bytes, at: int) -> int | None:
    """Return where the zeros that begin at `at` end; None where they do not."""
    for begin in range(at, len(data), _STRIDE):
        if any(data[begin : begin + 8]) or data.count(0, begin, begin + _STRIDE) < min(_STRIDE, len(data) - begin):
            match = _NOT_ZERO.search(data, begin)
            return match.start() if match else None
    return None
