"""Samples a log that is a flood of failures: it reads only some of them.

A log with few failures is read whole. One that is full of anchors would take seconds for each ten megabytes and shows nothing new in them.
After WHOLE_HITS anchors, a shape of line (its text without the figures) that was read ENOUGH times is only sampled. The end of the log is
always read whole. Line numbers hold: newlines are counted in omitted parts. Memory is bounded by LAST_BYTES and MOST_SHAPES. The
sample depends on the log alone, not on the clock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from supervisor.classify.logs.match import Reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.classify.logs.catalogue import Catalogue
    from supervisor.classify.logs.scanner import Scanner
    from supervisor.core.model import Evidence

#: Looking at one costs some 30 us.
WHOLE_HITS = 20_000
#: A block with fewer hits, one in so many bytes, is read whole: most of it costs nothing.
SPARSE_BYTES = 1024
LAST_BYTES = 1 << 20
#: The sizes of omitted and of read parts, at lines' ends, and how often a part is read though it says nothing new.
PART_BYTES = 4096
EVERY = 32
ENOUGH = 8
#: Where each line is another one, all are taken for known beyond this.
MOST_SHAPES = 20_000
#: Words that differ between two occurrences of one line: figures, addresses, ids.
_VARYING = b"0123456789abcdef"


class FloodReader:
    """A Reader of one stream."""

    def __init__(self, catalogue: Catalogue, scanner: Scanner, *, rank: int | None = None) -> None:
        """Begin at the beginning of a stream. rank: of lines that do not name their own."""
        self._scanner = scanner
        self._counted = _Counting(scanner)
        self._reader = Reader(catalogue, self._counted, rank=rank)
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        self._seen: dict[int, int] = {}
        self._known_parts = 0

    def feed(self, block: bytes) -> None:
        """Take in the next bytes."""
        self._held.append(block)
        self._held_bytes += len(block)
        while self._held_bytes - len(self._held[0]) >= LAST_BYTES:
            oldest = self._held.popleft()
            self._held_bytes -= len(oldest)
            self._reader.feed(self._thinned(oldest) if self._is_flood(oldest) else oldest)

    def finish(self) -> tuple[Evidence, ...]:
        """Return all that was found, now that the stream has ended."""
        for block in self._held:
            self._reader.feed(block)
        self._held.clear()
        return self._reader.finish()

    def _is_flood(self, block: bytes) -> bool:
        return self._counted.hits_so_far > WHOLE_HITS and len(self._scanner.hits(block)) * SPARSE_BYTES > len(block)

    def _thinned(self, block: bytes) -> bytes:
        """Return the block without the parts of which every line is known, and those beside them too: a traceback is not cut for long."""
        first, last = block.find(b"\n") + 1, block.rfind(b"\n") + 1
        if not 0 < first < last:
            return block
        parts: list[bytes] = []
        at = first
        while at < last:
            end = block.find(b"\n", min(at + PART_BYTES, last) - 1) + 1
            parts.append(block[at:end])
            at = end
        known = [self._is_known(chunk) for chunk in parts]
        kept = [block[:first]]
        for index, chunk in enumerate(parts):
            if all(known[max(0, index - 1) : index + 2]):
                self._known_parts += 1
                kept.append(chunk if self._known_parts % EVERY == 0 else b"\n" * chunk.count(b"\n"))
            else:
                kept.append(chunk)
        return b"".join((*kept, block[last:]))

    def _is_known(self, chunk: bytes) -> bool:
        """Whether each line of it was seen often; they are counted."""
        known = True
        for line in chunk.split(b"\n"):
            shape = hash(line.translate(None, _VARYING))
            times = self._seen.get(shape, 0)
            if times < ENOUGH and (times or len(self._seen) < MOST_SHAPES):
                self._seen[shape] = times + 1
                known = False
        return known


class _Counting:
    """A scanner that counts its hits."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self.hits_so_far = 0

    def hits(self, block: bytes) -> Sequence[tuple[int, int]]:
        hits = self._scanner.hits(block)
        self.hits_so_far += len(hits)
        return hits
