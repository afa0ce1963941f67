r"""Signatures: rows of TOML that name the cause of a text.

A row that is wrong becomes a Problem and does not affect the other rows. A row of the user's may name a cause of its own:
`meaning` and `advice` explain that to a person.

    [[signature]]
    id = "cuda_oom.torch"
    cause = "cuda_oom"
    where = ["exception", "line"]
    anchors = ["CUDA out of memory"]
    pattern = '^CUDA out of memory\. Tried to allocate (?P<asked>[\d.]+ .iB)'
    weight = 0.97
    consequence_of = []
    transient = true
    note = "torch 1.4 to 2.13"
    source = "https://..., read 2026-11-21"
    [signature.fields]
    asked = "bytes"

An *anchor* is a literal that every match of the pattern contains. A scanner searches for the anchors of all rows at once, and a pattern
is tried only where one of its anchors was found. So anchors must not be common words.

A row for kernel messages may name messages of the kernel's catalogue (health/kernellog/messages.toml) in place of anchors. It matches
where one of them does; its pattern, if it has one, is searched in the same message.

    messages = ["xid.link.registers"]
    pattern = '(?P<unit>\w+) Fatal\b'

A row for exceptions may also ask where the exception was raised: its pattern `frames` is searched in the frames of the traceback, one a
line, outermost first, as "path:function" with forward slashes. An EOFError alone proves little, one from torch/serialization.py much.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from supervisor.classify.expressions import expression
from supervisor.classify.logs.patterns import MessagePattern, OwnPattern, Pattern, groups_of
from supervisor.classify.logs.user_patterns import UserPattern
from supervisor.core.causes import ADVICE, CAUSE_TABLE, MEANING
from supervisor.core.model import ANY_OWN_CAUSE, Cause
from supervisor.errors import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from supervisor.classify.logs.patterns import KernelMessage, PatternMatch

    Messages = Mapping[str, tuple[KernelMessage, ...]]

#: The units of text in which a pattern can be searched; see classify/logs/match.py.
PLACES = ("exception", "line", "kernel", "logged")
#: The end of the names of signatures that are searched in lines which call themselves an error.
LOGGED = ".survived"
#: Shorter anchors are too common: each occurrence costs a search.
SHORTEST_ANCHOR = 4
ANY_CAUSE = "*"
#: In `consequence_of`: every other cause that breaks the collectives of the peers (core/causes).
BREAKS_COLLECTIVES = "@breaks_collectives"
#: The longest `meaning` and `advice`, in characters.
_LONGEST_WORDS = 200
#: The field for the failed rank. A larger number is not a rank.
RANK = "rank"
MOST_RANKS = 1_000_000
_CAUSES = frozenset(cause.value for cause in Cause)

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_AMOUNT = expression(r"\s*([\d,]+(?:\.\d+)?)\s*(?:([kmgtp]?)(?:i?b|bytes)?)?\s*", re.IGNORECASE)
_DURATION = expression(r"\s*(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|sec|secs|seconds?|m|min|minutes?|h|hours?)?\s*", re.IGNORECASE)
_MILLISECONDS = frozenset({"ms", "millisecond", "milliseconds"})
_CLOCK = expression(r"\s*(\d+):(\d\d):(\d\d(?:\.\d+)?)\s*")

Value = int | float | str


def _bytes(text: str) -> int:
    """Read "2.00 GiB" as 2147483648; a bare number is bytes; kB as the kernel writes it is 1024."""
    match = _AMOUNT.fullmatch(text)
    if match is None:
        msg = f"not an amount of memory: {text[:40]!r}"
        raise ValueError(msg)
    return int(float(match[1].replace(",", "")) * _UNITS[(match[2] or "").lower()])


def _seconds(text: str) -> float:
    """Read "600000 milliseconds" as 600.0, "0:30:00" as 1800.0; a bare number is seconds."""
    if clock := _CLOCK.fullmatch(text):
        return int(clock[1]) * 3600 + int(clock[2]) * 60 + float(clock[3])
    match = _DURATION.fullmatch(text)
    if match is None:
        msg = f"not a duration: {text[:40]!r}"
        raise ValueError(msg)
    unit = (match[2] or "s").lower()
    scale = 0.001 if unit in _MILLISECONDS else {"s": 1.0, "m": 60.0, "h": 3600.0}[unit[0]]
    return float(match[1]) * scale


def _int(text: str) -> int:
    return int(text.replace(",", ""), 16) if text.lower().startswith("0x") else int(text.replace(",", ""))


FIELD_TYPES: dict[str, Callable[[str], Value]] = {"bytes": _bytes, "int": _int, "float": float, "seconds": _seconds, "str": str}


@dataclass(frozen=True, slots=True)
class Signature:
    """A row. fields: named groups of the pattern, with the names of their types. benign: the row excludes its text from all others.

    meaning: a cause of the user's own as a sentence for the card, advice: what a person does about it; each "" where the row has none.

    frames: a pattern that must be found in the frames of the exception's traceback.
    """

    id: str
    cause: Cause
    where: tuple[str, ...]
    anchors: tuple[str, ...]
    pattern: Pattern
    weight: float
    consequence_of: tuple[str, ...] = ()
    transient: bool = False
    benign: bool = False
    meaning: str = ""
    advice: str = ""
    note: str = ""
    source: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    frames: Pattern | None = None
    origin: str = field(default="", compare=False)

    def values(self, match: PatternMatch) -> dict[str, Value]:
        """Return the row's words, and the fields of a match without empty groups, texts that are not of their type, impossible ranks."""
        values: dict[str, Value] = {name: words for name, words in ((MEANING, self.meaning), (ADVICE, self.advice)) if words}
        for name, kind in self.fields:
            text = match[name]
            if text is None:
                continue
            try:
                value = FIELD_TYPES[kind](text)
            except (ValueError, OverflowError):
                continue
            if name != RANK or (isinstance(value, int) and 0 <= value < MOST_RANKS):
                values[name] = value
        return values


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a row is not in use, or a whole file if id is ""."""

    origin: str
    id: str
    text: str

    def __str__(self) -> str:
        """For people."""
        return f"signature {self.id or '(whole file)'} of {self.origin} is not in use: {self.text}"


def parse(
    text: str, origin: str, messages: Messages | None = None, *, tested: bool = False
) -> tuple[tuple[Signature, ...], tuple[Problem, ...]]:
    """Return the rows of a TOML file's text and the faults of those that are not among them. `origin` names the file.

    messages: by name, the kernel messages that rows may name.
    tested: the rows are built-in. Their patterns are compiled at their first use: all of them are known to be right, and most are never
    used. Those of the user's rows are refused if they may be slow (user_patterns.py).
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return (), (Problem(origin, "", f"not TOML: {error}"),)
    tables = document.get("signature", [])
    if not isinstance(tables, list):
        return (), (Problem(origin, "", "rows are written as [[signature]]"),)
    rows: list[Signature] = []
    problems = [Problem(origin, name, f"rows are written as [[signature]], not {name!r}") for name in document if name != "signature"]
    if not tables and not problems:
        problems.append(Problem(origin, "", "there is no row in it; rows are written as [[signature]]"))
    causes = (table["cause"] for table in tables if isinstance(table, dict) and isinstance(table.get("cause"), str))
    own_causes = frozenset(causes) - _CAUSES if not tested else frozenset()
    for number, table in enumerate(tables, 1):
        name = table.get("id") if isinstance(table, dict) else None
        shown = name if isinstance(name, str) and name else f"number {number}"
        try:
            row = _row(table, _Patterns(origin, tested=tested, own_causes=own_causes), messages or {})
            if any(row.id == other.id for other in rows):
                raise ValueError("its id is used twice in this file")  # noqa: TRY301 (one way out for all that is wrong with a row)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            problems.append(Problem(origin, shown, f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)))
        else:
            rows.append(row)
    return tuple(rows), tuple(problems)


_KNOWN = frozenset(
    {
        "id",
        "cause",
        "where",
        "anchors",
        "messages",
        "pattern",
        "weight",
        "consequence_of",
        "transient",
        "benign",
        MEANING,
        ADVICE,
        "note",
        "source",
        "fields",
        "frames",
    }
)


@dataclass(frozen=True, slots=True)
class _Patterns:
    """Makes the patterns of the rows of one file. own_causes: those that it names and that are not built-in."""

    origin: str
    tested: bool
    own_causes: frozenset[str] = frozenset()

    def compiled(self, expression: str) -> tuple[Pattern, tuple[str, ...]]:
        """Return a pattern and its groups. Raises ValueError, but not for a tested one."""
        if self.tested:
            return OwnPattern(expression), groups_of(expression)
        pattern = UserPattern(expression)
        return pattern, pattern.groups


def _row(table: Any, patterns: _Patterns, messages: Messages) -> Signature:  # noqa: ANN401 (whatever TOML holds)
    _need(isinstance(table, dict), "not a table")
    unknown = sorted(set(table) - _KNOWN)
    _need(not unknown, f"unknown key {', '.join(unknown)}")
    name = _string(table, "id")
    cause = _string(table, "cause")
    _require_cause(cause, users=not patterns.tested)
    benign = _flag(table, "benign")
    _need(benign == (cause == Cause.NONE), 'cause = "none" and benign = true go together')
    where = _strings(table, "where")
    _need(bool(where) and set(where) <= set(PLACES), f"where is a list of {', '.join(PLACES)}")
    if "messages" in table:
        anchors, pattern, groups = _of_messages(table, patterns, messages)
    else:
        anchors, pattern, groups = _own(table, patterns)
    weight = table.get("weight", 0.0 if benign else None)
    _need(isinstance(weight, (int, float)) and not isinstance(weight, bool) and 0 <= weight <= 1, "weight is a number from 0 to 1")
    after = _strings(table, "consequence_of")
    if BREAKS_COLLECTIVES in after:
        peers = (*(other.value for other, row in CAUSE_TABLE.items() if row.breaks_collectives and other != cause), ANY_OWN_CAUSE)
        after = tuple(dict.fromkeys((*(other for other in after if other != BREAKS_COLLECTIVES), *peers)))
    wrong = [other for other in after if other not in {ANY_CAUSE, ANY_OWN_CAUSE, *patterns.own_causes, *_CAUSES}]
    _need(not wrong, f"consequence_of: no such cause: {wrong}")
    meaning, advice = (_words(table, key) for key in (MEANING, ADVICE))
    _need(not (meaning or advice) or Cause(cause).is_own, f"{MEANING} and {ADVICE} go with a cause of your own")
    frames = None
    if "frames" in table:
        frames, _ = patterns.compiled(_string(table, "frames"))
    _need(frames is None or where == ("exception",), 'frames go with where = ["exception"]')
    fields = table.get("fields", {})
    _need(isinstance(fields, dict), "fields is a table of group = type")
    for group, kind in fields.items():
        _need(group in groups, f"fields: the pattern has no group {group!r}")
        _need(kind in FIELD_TYPES, f"fields: {group} is none of {', '.join(FIELD_TYPES)}")
    return Signature(
        id=name,
        cause=Cause(cause),
        where=where,
        anchors=anchors,
        pattern=pattern,
        weight=float(weight),
        consequence_of=after,
        transient=_flag(table, "transient"),
        benign=benign,
        meaning=meaning,
        advice=advice,
        note=str(table.get("note", "")),
        source=str(table.get("source", "")),
        fields=tuple(fields.items()),
        frames=frames,
        origin=patterns.origin,
    )


def _own(table: dict[str, Any], patterns: _Patterns) -> tuple[tuple[str, ...], Pattern, AbstractSet[str]]:
    """Return the anchors and the pattern of a row, and the pattern's groups."""
    anchors = _strings(table, "anchors")
    _need(bool(anchors), "anchors: at least one")
    short = [anchor for anchor in anchors if len(anchor) < SHORTEST_ANCHOR or "\n" in anchor]
    _need(not short, f"anchors: {short} must have {SHORTEST_ANCHOR} characters or more, in one line")
    pattern, groups = patterns.compiled(_string(table, "pattern"))
    _need(patterns.tested or pattern.search("") is None, "pattern matches the empty text")
    return anchors, pattern, frozenset(groups)


def _of_messages(table: dict[str, Any], patterns: _Patterns, messages: Messages) -> tuple[tuple[str, ...], Pattern, AbstractSet[str]]:
    """Return the same of a row that names kernel messages."""
    _need(table["where"] == ["kernel"] and "anchors" not in table, 'messages go with where = ["kernel"], and without anchors')
    wanted = _strings(table, "messages")
    unknown = [name for name in wanted if name not in messages]
    _need(bool(wanted) and not unknown, f"messages: no such kernel message: {unknown}")
    forms = tuple(form for name in wanted for form in messages[name])
    detail: Pattern | None = None
    own: tuple[str, ...] = ()
    if "pattern" in table:
        detail, own = patterns.compiled(_string(table, "pattern"))
    groups = {group for form in forms for group in groups_of(form.expression)}.union(own)
    return tuple(dict.fromkeys(form.anchor for form in forms)), MessagePattern(forms, detail, own), groups


def _need(condition: bool, message: str) -> None:  # noqa: FBT001 (an assertion that speaks to the author of a row)
    if not condition:
        raise ValueError(message)


def _require_cause(name: str, *, users: bool) -> None:
    """Raise ValueError where no cause is called so. A row of the user's may name a new one, unless it looks like a misspelt one."""
    if name in _CAUSES:
        return
    near = nearest(name, _CAUSES, likeness=0.85)
    meant = f", did you mean {near}" if near else ""
    _need(users and not near, f"no such cause: {name!r}{meant}")
    try:
        Cause(name)
    except ValueError:
        _need(False, f"a cause of your own is called by 3 to 40 small letters, digits and underscores, not {name!r}")  # noqa: FBT003


def _words(table: dict[str, Any], key: str) -> str:
    """Return a line of text for people, "" where the row has none."""
    value = table.get(key, "")
    right = isinstance(value, str) and value.isprintable() and len(value) <= _LONGEST_WORDS
    _need(right, f"{key} is a text of one line, of {_LONGEST_WORDS} characters at the most")
    return str(value).strip().rstrip(".")


def _string(table: dict[str, Any], key: str) -> str:
    value = table[key]
    _need(isinstance(value, str) and bool(value), f"{key} is a text that is not empty")
    return str(value)


def _strings(table: dict[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    _need(isinstance(value, list) and all(isinstance(item, str) for item in value), f"{key} is a list of texts")
    return tuple(value)


def _flag(table: dict[str, Any], key: str) -> bool:
    value = table.get(key, False)
    _need(isinstance(value, bool), f"{key} is true or false")
    return bool(value)
