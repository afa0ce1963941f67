r"""Reads the end of a log again where no row was sure of it: normalised first, then with the rows and the closed lists.

Normalised means: a record's texts in place of the record (JSON, `key="value"`, a repr with `\n` in it), one line for each thing that a
line says (records that were glued together, an exception after any prefix), no colours, no prefixes, and folded lines joined.

    {"lvl":"error","rank":5,"exc":"torch.OutOfMemoryError: CUDA out of memory. Tried …"}    torch.OutOfMemoryError: CUDA out of memory. …
    E0212 10:30:44 77 compile_worker] ImportError: x.so: undefined symbol: _ZN3c10          ImportError: x.so: undefined symbol: _ZN3c10
    RuntimeError('CUDA error: unspecified launch failure')                                  RuntimeError: CUDA error: unspecified …

Left out is what ended nothing: a line before the last training, or that says that the program continues (a warning, a retry), and the
questions and hints of help texts. All that is found here is capped (closed_lists.MOST): nobody knows who wrote it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING

from supervisor.classify import exception_table, exits
from supervisor.classify.expressions import expression
from supervisor.classify.logs import closed_lists, footers, log_end, text
from supervisor.classify.logs.rows import ANY_CAUSE, LOGGED
from supervisor.core.model import Cause, Evidence
from supervisor.core.values import Struct, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

#: A claim of this weight needs no second look.
SURE = 0.6

#: Keys of a log's record: what makes an object one, and what holds its texts. Training data may be JSON too, with a "text" of anything.
_OF_ERRORS = "exc|exc_info|exc_text|exception|error|err|stack|stacktrace|stack_trace|traceback|stderr"
_RECORD = expression(rf"[\"'](?i:level|levelname|lvl|severity|logger|{_OF_ERRORS})[\"']\s{{0,4}}:")
_KEYS = rf"{_OF_ERRORS}|msg|message|log|event|reason|details?"
_VALUE = expression(rf"[\"'](?i:{_KEYS})[\"']\s{{0,4}}:\s{{0,4}}(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)')")
_FIELD = expression(rf"\b(?i:{_KEYS})=(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)')")
_ESCAPE = expression(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": ""}
_KIND = (
    r"(?:(?:[A-Za-z_]\w*\.){0,8}[A-Z]\w*(?:Error|Exception|Interrupt|OutOfMemory|Failure)"
    r"|(?:[a-z_]\w*\.){1,8}(?:errors?|exceptions?|_exceptions)\.[A-Z]\w*)"
)
#: Where in a line another thing begins that stood on a line of its own: an exception after a prefix (prose has a word before it).
_BEGINS = expression(
    rf"(?:(?<=[\]:>|)}}=-]\s)|(?<=[\]:>|=(\t])|(?<=failed with )|(?<=raised )|(?<=due to )|(?<=caused by ))(?={_KIND}(?:: |\(['\"]))"
    r"|(?<=[^\s\"'`])(?=Traceback \(most recent call last\)|\[rank\d{1,6}\]:|terminate called |what\(\): )"
    r"|(?<=[^\s\"'`])(?=slurmstepd: |srun: error: |NVRM: )"
    r"|(?<=[^\s\d:T\"'`-])(?=\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)"
    r"|(?<=[^\s>\"'`])(?=  File \"[^\"\n]{1,400}\", line \d)"
)
_REPR = expression(rf"(?P<kind>{_KIND})\((?P<quote>['\"])(?P<message>.*?)(?P=quote),?\)", re.DOTALL)
#: A line of which no failure follows. In order: the program continued; a failure is a possibility, or a text about one; a value is named;
#: somebody's words are told; a sample of data is printed; the line is a warning or less.
_HARMLESS = expression(
    r"(?i:\b(?:retry(?:ing)?|re-?tried|attempt \d|fall(?:s|ing)? ?back|skip(?:s|ping|ped)?|ignor(?:es?|ed|ing)|continu(?:es?|ing)|going on|"
    r"goes on|left out|leaving out|left random|instead|recovered|resolved|succeeded|will be used|(?:is|are) (?:off|used|disabled|complete)|"
    r"not used|taking|reading (?:the|it)|keeping|kept|counting in|building it|training on|resum(?:es?|ed|ing)|starts? fresh|"
    r"trying|tokenizing again|loading in this process|waiting for it)\b)"
    r"|(?i:\bif (?:you|this|it|your)\b|\bhow (?:to|do|can)\b|\bmake sure\b|\bwould\b|\bplease help\b|\bchangelog\b|\bnote\b|\?\s*$)"
    r"|(?:^|[,;:)-]) using\b"
    r"|(?i:\b(?:said|wrote|asked|quoted?|poster|troubleshooting|policy|I (?:got|get|had|have|saw)|when (?:a|an|the|you))\b)"
    r"|(?i:\b(?:completion|prompt|sample|samples|answer|question|label|document)\b ?[\d#]{0,8}:)"
    r"|(?<![A-Z] )(?<![\w-])WARN(?:ING)?\b"
    r"|(?<![\w-])(?:INFO|DEBUG|TRACE|NOTICE)\b|\b(?i:level|lvl|severity)\"?[=:] ?\"?(?i:warn|info|debug)"
    r"|\w{1,40}Warning: |^\s{0,8}(?:warning|hint|tip): |\[W\d{0,4}[ \d]"
)
#: A line that quotes: source code, a comment, an item of a list, a text in quotation marks, a message that any process may write to the
#: kernel's buffer.
_QUOTES = expression(r"\s*(?:#|//|raise |except |-{1,2} [\"'`]|[\"'`].*[\"'`],?\s*$|\d{1,4},\d+,\d+,[^;]{1,80};)")
#: Words that outrank those: whatever it did next, the line says that it is an error of the last kind.
_FATAL = expression(r"\b(?:FATAL|CRITICAL|fatal error|(?i:giving up|abort(?:ing|ed)?|unrecoverable))\b")
_LOGFMT = expression(r"\b(?:level|lvl|severity)=")
#: A line so far to the right continues with the help text of the option above it.
_HELP = " " * 8


def is_harmless(line: str) -> bool:
    """Whether a line ended nothing: the program continued, or the line only speaks of failures, and no word says that it was fatal."""
    return _HARMLESS.search(line) is not None and _FATAL.search(line) is None


def unwrapped(line: str) -> list[str]:
    """Return the things that a line says, each as if it stood on a line of its own; nothing of an object that is not a record of a log."""
    in_object = _VALUE.findall(line) if _RECORD.search(line) else []
    if not in_object and line.lstrip().startswith(("{", '"')):
        return []
    values = [first or second for first, second in (in_object or _FIELD.findall(line))]
    whole = "\n".join(map(_unescaped, values)) if values else line
    if not values and "\\n" in line and ("Error" in line or "Traceback" in line):
        whole = _unescaped(line)
    parts: list[str] = []
    for piece in whole.split("\n"):
        parts += [_REPR.sub(r"\g<kind>: \g<message>", begun.rstrip()) for begun in _BEGINS.split(piece) if begun.strip()]
    return parts


def _unescaped(value: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), value)


class _Part(Struct, frozen=True):
    """A statement of a line. number: of its line. line: as it was written, without colours.

    only_end: the line is left out but for the end of a process that it reports: an operator logs a pod's end as a warning.
    """

    text: str
    number: int
    line: str
    only_end: bool = False


def _parts(tail: bytes, number: int, judged: AbstractSet[int]) -> Iterator[_Part | None]:
    """Yield what the lines say; None in place of a line that is left out. judged: lines that are left out."""
    of_help = False
    for at, raw in enumerate(tail.split(b"\n"), start=number - tail.count(b"\n")):
        shown = text.behind_bars(text.plain(raw[-text.LONGEST_LINE :].decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]))
        of_help = (text.is_echo(shown) and not _LOGFMT.search(shown)) or (of_help and shown.startswith(_HELP))
        if (at in judged and "\\n" not in shown) or of_help or not shown.strip() or _QUOTES.match(shown):
            yield None
            continue
        if is_harmless(shown):
            yield from (_Part(piece, at, shown, only_end=True) for piece in unwrapped(shown) if footers.read(piece))
            yield None
            continue
        line = text.read(shown.encode("utf-8", "replace"))
        if line.kernel is not None:
            yield None
            continue
        for piece in unwrapped(line.text):
            yield _Part(piece, at, shown)


class Tail(Struct, frozen=True):
    """The end of a stream. number: of its last line. since: the last line of training, or of a good end, 0 if none.

    judged: the numbers of lines that are of exceptions. t: when the last line came, 0 if only the order of the lines is known.
    """

    data: bytes
    number: int
    since: int
    judged: frozenset[int]
    rank: int | None
    t: float


def look(tail: Tail, read: Callable[[bytes], Sequence[Evidence]], known: Sequence[Evidence]) -> list[Evidence]:
    """Return the further evidence at the end of a log, capped. read: returns the evidence in the bytes of a log."""
    # what a program logs of a remote store it has often tried again or left out: it counts only beside a peer that waited
    stated = {
        (fact.claim.cause, fact.line)
        for fact in known
        if fact.claim is not None
        and (fact.claim.weight >= SURE or (fact.name.endswith(LOGGED) and fact.claim.cause is Cause.STORAGE_REMOTE))
    }
    ended = any(fact.source == "exit" for fact in known)
    return [
        fact
        for fact in _evidence_of(tail, read)
        if not (fact.claim is not None and (fact.claim.cause, fact.line) in stated) and not (ended and fact.source == "exit")
    ]


def _evidence_of(tail: Tail, read: Callable[[bytes], Sequence[Evidence]]) -> list[Evidence]:
    end = tail.data[_start_of(tail) :]
    parts = list(_parts(end, tail.number, tail.judged))
    ends = [
        replace(fact, line=part.number, rank=fact.rank if fact.rank is not None else tail.rank)
        for part in parts
        if part is not None and part.only_end
        for fact in footers.read(part.text)
    ]
    parts = [None if part is None or part.only_end else part for part in parts]
    whole = [part for part in parts if part is not None]
    if not whole:
        return ends
    numbers = [part.number for part in whole]
    facts = [*_by_rows("\n".join(part.text for part in whole).encode("utf-8", "replace"), numbers, tail.t, read)]
    if not any(fact.claim is not None for fact in facts):
        data, folded = log_end.unfolded(end, tail.number)
        facts += _by_rows(data, folded, tail.t, read) if data else []
    stated = {(fact.claim.cause, fact.line) for fact in facts if fact.claim is not None}
    return ends + facts + [fact for fact in _listed(parts, tail.rank, tail.t) if fact.claim and (fact.claim.cause, fact.line) not in stated]


def _start_of(tail: Tail) -> int:
    """Return where the line after `since` begins, 0 if that is not in the data."""
    start = len(tail.data)
    for _ in range(tail.number - tail.since):
        start = tail.data.rfind(b"\n", 0, start)
        if start < 0:
            return 0
    return start + 1


def _by_rows(data: bytes, numbers: Sequence[int], t: float, read: Callable[[bytes], Sequence[Evidence]]) -> Iterator[Evidence]:
    """Yield what rows and tracebacks say about normalised lines; an exception without frames only where its class is telling."""
    facts = read(data + b"\n")
    framed = {fact.line for fact in facts if fact.name == "traceback"}
    for fact in facts:
        line = numbers[min(fact.line, len(numbers)) - 1] if fact.line else 0
        moved = replace(fact, line=line, t=t or float(line), free_text=True)
        if fact.name.endswith(LOGGED):  # counts only beside a peer that waited
            continue
        if fact.claim is not None:
            weight = min(fact.claim.weight, closed_lists.MOST)
            yield replace(moved, claim=replace(fact.claim, weight=weight, consequence_of=(ANY_CAUSE,)))
        elif fact.source == "exit":
            yield replace(moved, t=0.0)
        elif fact.line in framed:
            yield moved
        elif fact.name == "exception" and (stated := exception_table.stated(fact.text)) is not None:
            claim = replace(stated, weight=min(stated.weight, closed_lists.MOST), consequence_of=(ANY_CAUSE,))
            yield replace(moved, name=f"exception.{exits.exception_type(fact.text)}", claim=claim)


def _listed(parts: Sequence[_Part | None], rank: int | None, t: float) -> list[Evidence]:
    """Return what the closed lists find. Later words of one line happened later."""
    squashed: list[str] = []
    starts: list[int] = []
    of_parts: list[_Part] = []
    length = 0
    facts: list[Evidence] = []
    for part in parts:
        if part is not None and (claim := closed_lists.claim_of_xid(part.text)) is not None:
            when = t or float(part.number)
            facts.append(
                Evidence("log", f"listed.{claim.cause.value}", part.line[:2000], rank, when, free_text=True, line=part.number, claim=claim)
            )
        piece = closed_lists.squashed(part.text) if part is not None else "\0"
        if part is not None:
            starts.append(length)
            of_parts.append(part)
        squashed.append(piece)
        length += len(piece)
    for hit in closed_lists.hits("".join(squashed)):
        at = bisect_right(starts, hit.start) - 1
        part = of_parts[max(at, 0)]
        when = t or part.number + min(hit.start - starts[max(at, 0)], 9999) / 10000
        facts.append(Evidence("log", hit.name, part.line[:2000], rank, when, free_text=True, line=part.number, claim=hit.claim))
    return facts


def is_weak(facts: Sequence[Evidence]) -> bool:
    """Whether nothing that was found names a cause surely, or only what may follow from any other cause."""
    return not any(
        fact.claim is not None
        and fact.claim.weight >= SURE
        and fact.claim.cause is not Cause.UNKNOWN
        and ANY_CAUSE not in fact.claim.consequence_of
        for fact in facts
    )
