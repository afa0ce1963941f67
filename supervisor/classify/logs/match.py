"""Turns the bytes of a log into evidence: signatures, tracebacks and launchers' footers.

A scanner (scanner.py) finds the catalogue's anchors in a whole block of bytes. Only lines with an anchor are searched further, so a log
without failures costs almost nothing. A Reader accepts any bytes and holds bounded memory. Patterns are searched in these units:

    line        a line without colours and prefixes; a carriage return ends a line too, because progress bars print it
    kernel      the message of a line of the kernel's log
    logged      a line that calls itself an error, where no row for lines matches it: its writer continued
    exception   "Type: message" with all lines of the message, for each exception of a traceback, or for one without a traceback

Never searched: source code that a traceback quotes, and printed settings, help and commands (`text.is_echo`). If a benign row matches a
line or an exception, no other row does.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from supervisor.classify import exits
from supervisor.classify.exception_table import OF_VALUES
from supervisor.classify.logs import footers, log_end, text
from supervisor.classify.logs.bounded_sample import BoundedSample
from supervisor.classify.logs.rows import ANY_CAUSE, Signature
from supervisor.classify.logs.scanner import PlainScanner, Scanner
from supervisor.classify.logs.tracebacks import Finder, before_header, calls, frames_in
from supervisor.core.model import Claim, Evidence
from supervisor.core.values import Struct, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from supervisor.classify.logs.catalogue import Catalogue
    from supervisor.classify.logs.text import Line
    from supervisor.classify.logs.tracebacks import PrintedException, Traceback

#: A longer line is read in parts.
LONGEST_PART = 1 << 20
BEFORE_HIT = 2048
#: Bytes by which two parts of one line overlap, so that no match is cut.
OVERLAP = 512
#: Hits kept for one row and rank: the first and the last ones.
FIRST_HITS = 4
LAST_HITS = 4
MOST_HITS = 2000
MOST_TRACEBACKS = 256
#: So many lines after a traceback without another one prove that the program logged it and continued.
LINES_AFTERWARDS = 400
TAIL_BYTES = 65536
#: Remembered lines that are not progress and are not read again: more than a tail can hold.
MOST_QUOTED = 2048
#: Lines of training that must follow an exception, a mere line, or the end of a process to prove that the job survived it. A few may come
#: from other ranks, or from a buffer, after the first rank failed.
PROGRESS_AFTERWARDS = {"progress": 3, "recent_progress": 2, "last_progress": 1}
KEPT_TEXT = 2000
#: Characters of a line that may have been broken by a terminal's width.
NARROWEST_TERMINAL = 60

_ENDS = re.compile(rb"[\r\n]")
_BREAK = re.compile(r"[ \t]*\n[ \t]*")


def _is_bare(unit: str) -> bool:
    """Whether a kernel message has no prefix of the kernel's log."""
    return text.kernel_message(unit)[0] == unit.lstrip()


class Match(Struct, frozen=True):
    """A row that matched, and its typed values."""

    row: Signature
    values: tuple[tuple[str, int | float | str], ...]
    start: int = 0


def matches(catalogue: Catalogue, unit: str, place: str, anchors: Iterable[int] | None = None, came_through: str = "") -> list[Match]:
    """Return the rows for a place that match the text of a unit; none if a benign row matches.

    anchors: the indexes of the unit's anchors if a scanner found them; further ones do no harm, a missing one hides rows.
    came_through: the frames of an exception's traceback, in the form of tracebacks.calls.
    """
    standing = anchors if anchors is not None else (index for index, anchor in enumerate(catalogue.anchors) if anchor in unit)
    tried: set[int] = set()
    row_matches: list[Match] = []
    for anchor in sorted(standing):
        for number in catalogue.by_anchor[anchor]:
            row = catalogue.rows[number]
            if number in tried or place not in row.where:
                continue
            tried.add(number)
            if row.frames is not None and row.frames.search(came_through) is None:
                continue
            match = row.pattern.search(unit)
            if match is None:
                continue
            if row.benign:
                return [Match(row, ())]
            row_matches.append(Match(row, tuple(row.values(match).items()), match.start()))
    return row_matches


def of_exception(catalogue: Catalogue, unit: str, anchors: Iterable[int] | None = None, came_through: str = "") -> list[Match]:
    """Return the rows that match an exception. In an exception about a value the further lines quote the value, so they do not count."""
    row_matches = matches(catalogue, unit, "exception", anchors, came_through)
    kind, _, _ = unit.partition(":")
    if kind.strip() not in OF_VALUES:
        return row_matches
    first = unit.find("\n") if "\n" in unit else len(unit)
    return [match for match in row_matches if match.start <= first]


def read_text(log: str | bytes, catalogue: Catalogue, scanner: Scanner | None = None) -> tuple[Evidence, ...]:
    """Return the evidence in a whole log, with the line's number as its time."""
    reader = Reader(catalogue, scanner)
    data = log.encode("utf-8", "surrogatepass") if isinstance(log, str) else log
    for start in range(0, len(data), LONGEST_PART):
        reader.feed(data[start : start + LONGEST_PART])
    return reader.finish()


class _Written(Struct, frozen=True):
    """A traceback whose evidence was kept. by: rank and node. whole: its first line was seen. thread: it ended only a thread.

    passed_on: it carries another process's exception.
    """

    by: tuple[int | None, str]
    whole: bool
    last_line: int
    thread: bool
    passed_on: bool


class Reader:
    """Reads one stream. rank, node: of lines that name none."""

    def __init__(self, catalogue: Catalogue, scanner: Scanner | None = None, *, rank: int | None = None, node: str = "") -> None:
        """Begin at the beginning of a stream."""
        self._catalogue = catalogue
        self._scanner: Scanner = scanner if scanner is not None else PlainScanner(catalogue.anchors)
        self._rank, self._node = rank, node
        self._finder = Finder()
        self._prefixes = text.SharedPrefixes()
        self._of_prefixed = False  # the open traceback's lines have such a prefix
        self._carry = b""
        self._inside = False  # the carry is not the beginning of its line
        self._number = 1  # of the line at which the carry, or the next block, begins
        self._hits: BoundedSample[Evidence] = BoundedSample(MOST_HITS, first=FIRST_HITS, last=LAST_HITS)
        self._facts: list[Evidence] = []
        self._tracebacks: list[tuple[_Written, list[Evidence]]] = []
        self._tail = b""
        self._quoted: deque[int] = deque(maxlen=MOST_QUOTED)  # numbers of lines of tracebacks, and of those that a row calls benign
        self._bytes = 0
        self._times: list[tuple[int, float]] = []  # (bytes read by then, when), as far back as the tail

    def feed(self, block: bytes, t: float = 0.0) -> None:
        """Read the next bytes. t: when they came, 0 if only their order is known."""
        data = self._carry + block
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end:
            self._carry = data[end:]
            self._block(data[:end], t)
        elif len(data) < LONGEST_PART:
            self._carry = data
        else:
            self._carry = data[-OVERLAP:]
            self._block(data, t)

    def evidence(self) -> tuple[Evidence, ...]:
        """Return the evidence so far."""
        raised = [fact for _, parts in self._tracebacks for fact in parts]
        claims = [fact for fact in raised if fact.claim is not None]
        known = {(fact.name, fact.line + i) for fact in claims for i in range(fact.text.count("\n") + 1)}
        facts = [*self._facts, *raised, *(fact for fact in self._hits if (fact.name, fact.line) not in known)]
        return tuple(sorted(facts, key=lambda e: (e.line, e.name)))

    def finish(self, t: float = 0.0) -> tuple[Evidence, ...]:
        """End the stream. Return all evidence; only now is the last traceback of each rank known to be the last."""
        if self._carry:
            data, self._carry = self._carry, b""
            self._block(data, t)
        for traceback in self._finder.finish():
            if not traceback.is_of_a_tracker:
                self._traceback(traceback)
        self._facts += log_end.last_words(self._tail, self._number, self._rank)
        after = self._afterwards()
        if self._times:
            self._look_again(after)
        survived = max((fact.line for fact in after if fact.name in {"progress", "ended_well"}), default=0)
        went_on = max((fact.line for fact in after if fact.name in {"last_progress", "ended_well"}), default=0)
        self._tracebacks = [(written, parts) for written, parts in self._tracebacks if not (written.thread and written.last_line < went_on)]
        final = {written.by: index for index, (written, _) in enumerate(self._tracebacks) if not written.thread}
        for index in final.values():
            written, parts = self._tracebacks[index]
            if (
                written.whole
                and not written.passed_on
                and self._number - written.last_line <= LINES_AFTERWARDS
                and written.last_line > survived
            ):
                self._tracebacks[index] = (written, [replace(raised_fact, free_text=False) for raised_fact in parts])
        return (*self._with_sources(self.evidence()), Evidence("log", "read", f"{self._number} lines", line=self._number), *after)

    def _look_again(self, after: Sequence[Evidence]) -> None:
        """Read the end again, normalised, if no row is sure of it. after: the evidence that training continued, or ended well."""
        from supervisor.classify.logs import second_look  # noqa: PLC0415  its patterns cost a start 20 ms, and a healthy job needs none

        known = self.evidence()
        if not second_look.is_weak(known):
            return
        since = max((fact.line for fact in after if fact.name in {"recent_progress", "ended_well"}), default=0)
        raised = (range(fact.line, fact.line + fact.text.count("\n") + 1) for fact in known if fact.name == "exception")
        judged = frozenset(self._quoted).union(*raised)
        tail = second_look.Tail(self._tail, self._number, since, judged, self._rank, self._times[-1][1])
        for fact in second_look.look(tail, self._evidence_in, known):
            self._hits.add(fact.name, fact.rank, fact)

    def _evidence_in(self, data: bytes) -> tuple[Evidence, ...]:
        """Return the evidence in other bytes than the stream's."""
        reader = Reader(self._catalogue, self._scanner, rank=self._rank, node=self._node)
        reader.feed(data)
        return reader.evidence()

    def _with_sources(self, facts: Sequence[Evidence]) -> Sequence[Evidence]:
        """Return the facts. In the kernel's own log its messages are not free text; in other logs one without prefix is a mere line."""
        if not any(fact.source == "kernel" for fact in facts):
            return facts
        if self._is_of_the_kernel():
            return [replace(fact, free_text=False) if fact.source == "kernel" else fact for fact in facts]
        return [replace(fact, source="log") if fact.source == "kernel" and _is_bare(fact.text) else fact for fact in facts]

    def _is_of_the_kernel(self) -> bool:
        """Whether most of the last lines are kernel messages."""
        lines = [line for line in text.plain(self._tail.decode("utf-8", "replace")).split("\n") if line.strip()]
        return 2 * sum(text.kernel_message(line)[0] is not None for line in lines) >= len(lines)

    def _block(self, data: bytes, t: float) -> None:
        pos = 0
        number = self._number
        self._prefixes.learn(data)
        hits = sorted(self._scanner.hits(data), key=lambda hit: hit[1])
        ends = [end for _, end in hits]
        while pos < len(data):
            first = bisect_right(ends, pos)
            if not self._finder.reading:
                if first == len(hits):
                    break
                start = self._start_of(data, pos, ends[first])
                number += data.count(b"\n", pos, start)
                pos = start
            end, after = self._end_of(data, pos)
            anchors = {index for index, _ in hits[first : bisect_right(ends, end, first)]}
            self._part(data, pos, end, number, t, anchors)
            number += data.count(b"\n", pos, after)
            pos = after
        self._number = number + data.count(b"\n", pos)
        self._inside = not data.endswith((b"\n", b"\r"))
        self._tail = (self._tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        self._bytes += len(data)
        self._times.append((self._bytes, t))
        while len(self._times) > 1 and self._times[1][0] <= self._bytes - TAIL_BYTES:
            del self._times[0]

    @staticmethod
    def _start_of(data: bytes, pos: int, hit: int) -> int:
        """Return where to begin for a hit that ends at `hit`: at the beginning of its line, if that is not far away."""
        low = max(pos, hit - text.LONGEST_LINE + OVERLAP)
        start = max(data.rfind(b"\n", low, hit), data.rfind(b"\r", low, hit)) + 1
        return start or (pos if low == pos else max(pos, hit - BEFORE_HIT))

    @staticmethod
    def _end_of(data: bytes, pos: int) -> tuple[int, int]:
        """Return the end of the part of a line that begins at `pos`, and the begin of the next; parts of a long line overlap."""
        match = _ENDS.search(data, pos, pos + text.LONGEST_LINE)
        if match is not None:
            return match.start(), match.end()
        end = min(len(data), pos + text.LONGEST_LINE)
        return end, end if end == len(data) else end - OVERLAP

    def _part(self, data: bytes, start: int, end: int, number: int, t: float, anchors: set[int]) -> None:  # noqa: PLR0913, PLR0917 (a line)
        whole = data[start - 1] in b"\r\n" if start else not self._inside
        line = text.read(data[start:end], whole=whole)
        if whole and (rest := self._without_prefix(line)) is not None:
            line = rest
        if (exception := text.error_handler_exception(line.text)) and self._before(data, start).endswith('"message": {'):
            line = replace(line, text=exception, echo=False)
        if line.echo and (notice := footers.without_command(line.text)):
            line = replace(line, text=notice, echo=False)
        quoted = self._finder.feed(line, number, t)
        for traceback in self._finder.take():
            if not traceback.is_of_a_tracker:
                self._traceback(traceback)
        if quoted or self._finder.raises(line, number):
            self._quoted.append(number)
        if quoted and (before := before_header(line.text)):  # a launcher's record that does not end its own line
            line, quoted = replace(line, text=before), False
        if quoted or line.echo or not line.text:
            return
        if line.rank is None and b"exitcode" in data[start:end]:  # of torchrun's table, which names the rank in the row before
            line = replace(line, rank=footers.rank_of(self._before(data, start)))
        self._line(line, number, t, partial(self._anchors, raw=data[start:end], known=anchors))

    def _without_prefix(self, line: Line) -> Line | None:
        """Return a line without the prefix that the log's lines share, if what follows is of a traceback or of an end; else None.

        A logger's own lines keep their prefix: it shows that they are of no traceback.
        """
        self._of_prefixed = self._of_prefixed and self._finder.reading
        if line.kernel is not None or not line.text:
            return None
        rest = self._prefixes.without(line.text)
        if rest is None or not (self._of_prefixed or text.is_of_a_failure(rest)):
            return None
        self._of_prefixed = True
        inner = text.read(rest.encode("utf-8", "replace"))
        return replace(inner, rank=line.rank if inner.rank is None else inner.rank, node=inner.node or line.node)

    def _anchors(self, unit: str, raw: bytes = b"", known: Iterable[int] = ()) -> Iterable[int]:
        """Return the anchors of a unit. found: those of the raw line, which hold if the unit is in it unchanged.

        Colours, NULs and JSON escapes may split an anchor in the raw bytes that is whole in the unit.
        """
        encoded = unit.encode("utf-8", "replace")
        return known if encoded in raw else {index for index, _ in self._scanner.hits(encoded)}

    def _before(self, data: bytes, start: int) -> str:
        """Return the line before the one that begins there."""
        before = (self._tail[-OVERLAP:] + data[:start] if start < OVERLAP else data[start - OVERLAP : start]).rstrip(b"\r\n")
        return text.read(before[before.rfind(b"\n") + 1 :]).text

    def _line(self, line: Line, number: int, t: float, anchors: Callable[[str], Iterable[int]]) -> None:
        rank = line.rank if line.rank is not None else self._rank
        node = line.node or self._node
        member = footers.member(line.text)
        for fact in (*footers.read(line.text), *((member,) if member else ())):
            if len(self._facts) >= MOST_HITS:
                del self._facts[MOST_HITS // 2]  # the first ends show who began, the last ones are the launcher's table
            self._facts.append(replace(fact, line=number, rank=fact.rank if fact.rank is not None else rank, node=fact.node or node))
        row_matches = matches(self._catalogue, line.text, "line", anchors(line.text))
        if line.kernel is not None and not (row_matches and row_matches[0].row.benign):
            of_kernel = matches(self._catalogue, line.kernel, "kernel", anchors(line.kernel))
            row_matches += [match for match in of_kernel if match.row not in [f.row for f in row_matches]]
        if not row_matches and line.kernel is None and text.is_error(line.text):
            row_matches = matches(self._catalogue, line.text, "logged", anchors(line.text))
        for match in row_matches:
            if match.row.benign:
                self._quoted.append(number)
                continue
            source = "kernel" if line.kernel is not None and "kernel" in match.row.where else "log"
            fact = _evidence(match, source, line.text, rank, node, number, t or float(number), free_text=True)
            self._hits.add(fact.name, fact.rank, fact)

    def _traceback(self, trace: Traceback) -> None:
        """Keep the evidence of a traceback: each exception that a row matches, and the last exception with its frames."""
        rank = trace.rank if trace.rank is not None else self._rank
        node = trace.node or self._node
        if not trace.raised:
            cut = f"a traceback that begins in line {trace.first_line} and does not end"
            self._facts.append(
                Evidence("log", "cut_traceback", cut, rank, trace.t or float(trace.last_line), line=trace.last_line, node=node)
            )
            return
        parts: list[Evidence] = []
        strongest: PrintedException | None = None
        surest = -1.0
        harmless = False
        for raised in trace.raised:
            came_through = calls(raised.frames)
            known = of_exception(self._catalogue, raised.text, self._anchors(raised.text), came_through)
            if not known and "\n" in raised.text:
                known = self._unfolded(raised, came_through)
            harmless = any(match.row.benign for match in known)
            for match in known:
                if match.row.benign:
                    continue
                fact = _evidence(match, "log", raised.text, rank, node, raised.line, trace.t or float(raised.line), free_text=True)
                parts.append(fact)
                weight = match.row.weight - (ANY_CAUSE in match.row.consequence_of)
                if weight > surest:
                    strongest, surest = raised, weight
        if strongest is None and harmless:
            return
        strongest = strongest or trace.root
        fact_of = partial(Evidence, "log", rank=rank, t=trace.t or float(strongest.line), free_text=True, line=strongest.line, node=node)
        parts.append(fact_of(name="exception", text=strongest.text[:KEPT_TEXT]))
        # exceptions raised from it have the frames of the wrappers
        until = trace.raised.index(strongest) + 1 if strongest.caused_next else len(trace.raised)
        shown = (frame for raised in trace.raised[:until] for frame in raised.frames)
        frames = [f'  File "{frame.path}", line {frame.line}, in {frame.function}' for frame in shown]
        if frames:
            parts.append(fact_of(name="traceback", text="\n".join(frames)[-KEPT_TEXT:]))
        passed_on = any(exits.passes_on(raised.kind) for raised in trace.raised)
        if len(self._tracebacks) >= MOST_TRACEBACKS:
            del self._tracebacks[MOST_TRACEBACKS // 2]
        self._tracebacks.append((_Written((trace.rank, trace.node), trace.whole, trace.last_line, trace.thread, passed_on), parts))

    def _unfolded(self, raised: PrintedException, came_through: str) -> list[Match]:
        """Return the rows that match a message whose lines are joined: terminals and boxes break it, at a space or anywhere.

        A message about a value may quote it in further lines, so there the match must begin in the first line.
        """
        first = raised.text.find("\n")
        for unit in (_BREAK.sub(" ", raised.text), raised.text.replace("\n", "")):
            row_matches = matches(self._catalogue, unit, "exception", self._anchors(unit), came_through)
            if raised.kind in OF_VALUES:
                row_matches = [match for match in row_matches if match.start <= first and first >= NARROWEST_TERMINAL]
            if row_matches:
                return row_matches
        return []

    def _afterwards(self) -> list[Evidence]:
        """Return the evidence in the stream's last lines that training continued, or ended well."""
        facts = self._progress()
        t = self._times[-1][1] if self._times else 0.0
        facts += log_end.ended_well(self._tail, self._number, self._rank, t)
        raised = max((fact.line for _, parts in self._tracebacks for fact in parts), default=0)
        again = not any(fact.line > raised for fact in self._facts)  # a footer after it is of the run that failed
        facts += log_end.trained_on_without_number(self._tail, self._number, self._rank, t)
        return facts + log_end.begun_again(self._tail, self._number, raised) if again else facts

    def _progress(self) -> list[Evidence]:
        """Return the lines of PROGRESS_AFTERWARDS, counted from the end of the stream."""
        facts: list[Evidence] = []
        seen, end = 0, len(self._tail)
        number, quoted = self._number, frozenset(self._quoted)
        while end > 0 and len(facts) < len(PROGRESS_AFTERWARDS):
            start = max(self._tail.rfind(b"\n", 0, end), self._tail.rfind(b"\r", 0, end)) + 1
            number -= self._tail[end : end + 1] == b"\n"
            line = text.plain(self._tail[start:end][: text.LONGEST_LINE].decode("utf-8", "replace"))
            if number not in quoted and log_end.tells_progress(line):
                seen += 1
                for name in (name for name, needed in PROGRESS_AFTERWARDS.items() if needed == seen):
                    t = next((t for read, t in self._times if read >= self._bytes - len(self._tail) + end), 0.0)
                    facts.append(Evidence("log", name, line[:200], self._rank, t or float(number), free_text=True, line=number))
            end = start - 1
        return facts


def claims(fact: Evidence, catalogue: Catalogue, trace: str = "") -> tuple[Evidence, ...]:
    """Return the claims of the rows that match a whole text: an error file's exception, or a record of the kernel's log.

    trace: the exception's traceback, for rows with `frames`.
    """
    unit = fact.text[: text.LONGEST_LINE]
    kernel = fact.source == "kernel"
    row_matches = matches(catalogue, unit, "kernel") if kernel else of_exception(catalogue, unit, came_through=calls(frames_in(trace)))
    claimed = (
        _evidence(match, fact.source, fact.text, fact.rank, fact.node, fact.line, fact.t, free_text=fact.free_text)
        for match in row_matches
        if not match.row.benign
    )
    return tuple(claimed)


def _evidence(  # noqa: PLR0913, PLR0917 (a match and its place)
    match: Match, source: str, unit: str, rank: int | None, node: str, number: int, t: float, *, free_text: bool
) -> Evidence:
    row = match.row
    named = next((value for name, value in match.values if name == "rank" and isinstance(value, int)), None)
    return Evidence(
        source,
        row.id,
        unit[:KEPT_TEXT],
        rank=named if named is not None else rank,
        t=t,
        free_text=free_text,
        fields=tuple((name, str(value)) for name, value in match.values),
        line=number,
        node=node,
        claim=Claim(row.cause, row.weight, row.transient, row.consequence_of),
    )
