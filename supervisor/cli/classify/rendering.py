"""Renders the answer of `supervise classify`: a JSON object, a page of at most 15 lines, or a line of a table.

Pure. The text has no control characters, no escapes, and no values that look secret.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisor.classify import redact
from supervisor.classify.causes import EXPLANATIONS
from supervisor.core.model import Cause, Verdict
from supervisor.report.text import WIDTH, clean, laid_out

if TYPE_CHECKING:
    from supervisor.core.model import Evidence

MOST_LINES = 15
MOST_EVIDENCE = 5
_LABEL = 13
#: More lines that a row may fold into while there is room.
_FOLDED = {"cause": 1, "evidence": 1, "facts": 1, "to do": 2}
_KIB = 1024
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_LONGEST_PATH = 48
_LONGEST_CAUSE = max(len(cause) for cause in Cause)


@dataclass(frozen=True, slots=True)
class Part:
    """A file of an incident: its name, and the number under which its first line is counted in the incident."""

    name: str
    first_line: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict about the log, or the logs, at `path`. `kinds` are the types of facts by name, as their signatures give them."""

    path: str
    verdict: Verdict
    parts: tuple[Part, ...]
    kinds: Mapping[str, str]

    def place(self, fact: Evidence) -> tuple[str, int]:
        """Return the file and the line in it where a fact stands; ("", 0) where that is not known."""
        at = bisect_right(self.parts, fact.line, key=lambda part: part.first_line) - 1
        if fact.line <= 0 or at < 0:
            return "", 0
        return self.parts[at].name, fact.line - self.parts[at].first_line + 1


def as_dict(answer: Answer) -> dict[str, Any]:
    """Return what `--json` prints (docs/classification.md)."""
    verdict = answer.verdict
    runner_up = {"cause": verdict.runner_up.value, "confidence": verdict.runner_up_confidence} if verdict.runner_up else None
    return {
        "path": answer.path,
        "cause": verdict.cause.value,
        "confidence": verdict.confidence,
        "rank": verdict.rank,
        "gpu": verdict.gpu or None,
        "node": verdict.node or None,
        "transient": verdict.transient,
        "fingerprint": verdict.fingerprint,
        "summary": clean(verdict.summary),
        "runner_up": runner_up,
        "facts": {name: redact.text(value) for name, value in verdict.facts},
        "evidence": [_evidence(answer, fact) for fact in verdict.because],
    }


def page(answer: Answer) -> str:
    """Return what a person reads about one log."""
    verdict = answer.verdict
    rows = [("cause", f"{verdict.cause.value}: {EXPLANATIONS[verdict.cause].meaning}"), ("sure", _sure(verdict))]
    if culprit := _culprit(verdict):
        rows.append(("culprit", culprit))
    lines = [f"{_where(answer, fact)}{clean(text_of(fact))}" for fact in verdict.because[:MOST_EVIDENCE]]
    if not lines and verdict.cause is not Cause.NONE:
        lines = [clean(verdict.summary)]
    rows += [("evidence" if i == 0 else "", line) for i, line in enumerate(lines)]
    if verdict.facts:
        rows.append(("facts", ", ".join(f"{name} {_amount(clean(value), answer.kinds.get(name, ''))}" for name, value in verdict.facts)))
    rows.append(("to do", EXPLANATIONS[verdict.cause].remedy))
    unmarked = [(label, "", text) for label, text in rows]
    return laid_out(answer.path, unmarked, WIDTH, MOST_LINES, label_width=_LABEL, folds=lambda label: _FOLDED.get(label, 0))


def row(answer: Answer, width: int) -> str:
    """Return the line of a table; `width` is that of the column of paths."""
    verdict = answer.verdict
    path = clean(answer.path)
    path = path if len(path) <= _LONGEST_PATH else f"...{path[3 - _LONGEST_PATH :]}"
    rank = "" if verdict.rank is None else f"rank {verdict.rank}"
    summary = clean(verdict.summary).removeprefix(rank).lstrip(": ") if rank else clean(verdict.summary)
    cause = f"{verdict.cause.value:<{_LONGEST_CAUSE}} {verdict.confidence:4.2f}"
    return f"{path:<{min(width, _LONGEST_PATH)}}  {cause}  {rank:<9} {summary}".rstrip()


def text_of(fact: Evidence) -> str:
    """Return the text of a fact, in one line: of an exit the line that reports it, of a traceback the innermost frame."""
    if fact.name in {"signal", "exit_code"}:
        return dict(fact.fields).get("line") or f"{fact.name.replace('_', ' ')} {fact.text}"
    lines = [line.strip() for line in fact.text.splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[-1] if fact.name == "traceback" else " ".join(lines)


def _evidence(answer: Answer, fact: Evidence) -> dict[str, Any]:
    name, line = answer.place(fact)
    row = {
        "line": line or None,
        "rank": fact.rank,
        "source": fact.source,
        "signature": fact.name if fact.claim is not None else None,
        "text": redact.text(text_of(fact)),
    }
    return row | {"file": name or None} if len(answer.parts) > 1 else row


def _where(answer: Answer, fact: Evidence) -> str:
    name, line = answer.place(fact)
    file = f"{name} " if name and len(answer.parts) > 1 else ""
    rank = "" if fact.rank is None or file else f"rank {fact.rank}: "
    return f"{file}line {line}: {rank}" if line else f"{fact.source}: {rank}"


def _sure(verdict: Verdict) -> str:
    kind = ", transient" if verdict.transient else ""
    other = f"; else {verdict.runner_up.value}, {100 * verdict.runner_up_confidence:.0f} %" if verdict.runner_up else ""
    return f"{100 * verdict.confidence:.0f} %{kind}{other}; fingerprint {clean(verdict.fingerprint)}"


def _culprit(verdict: Verdict) -> str:
    named = (("rank", "" if verdict.rank is None else str(verdict.rank)), ("GPU", verdict.gpu), ("node", verdict.node))
    return ", ".join(f"{what} {clean(which)}" for what, which in named if which)


def _amount(text: str, kind: str) -> str:
    """Return an amount with its unit, as a person says it."""
    if kind == "seconds":
        return f"{text} s"
    if kind != "bytes" or not text.isdigit():
        return text
    size, unit = float(text), 0
    while size >= _KIB and unit < len(_UNITS) - 1:
        size, unit = size / _KIB, unit + 1
    return f"{size:.2f} {_UNITS[unit]}" if unit else f"{text} bytes"
