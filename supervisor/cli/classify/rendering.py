"""Renders the answer of `supervise classify`: a JSON object, a page of labelled facts, or a line of a table.

Pure. The text has no control characters, no escapes, and no values that look secret. The page has the words of the card
(report/wording.py): what, where, do, evidence. A log says nothing of the action.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from supervisor.classify import redact, remedies
from supervisor.classify.judgement.verdicts import NOT_EARNED
from supervisor.core.model import Cause, Evidence, FailureVerdict
from supervisor.core.units import bytes_text
from supervisor.core.values import Struct
from supervisor.report import wording
from supervisor.report.layout import Fact, FactPage, Tone
from supervisor.report.table import Cell, Column, Table
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_EVIDENCE = 5
#: Fingerprints of logs that show no failure, and no training or good end either: the observation is in place of the failure.
_NOTHING_SEEN = frozenset({NOT_EARNED, "unknown:no-evidence", "unknown:not-text"})
#: Facts that the page shows under labels of their own.
_SHOWN = frozenset({"file", "line", "function"})


class Part(Struct, frozen=True):
    """A file of an incident: its name, and the number under which its first line is counted in the incident."""

    name: str
    first_line: int


class Answer(Struct, frozen=True):
    """The verdict about the log, or the logs, at `path`. `kinds` are the types of facts by name, as their signatures give them.

    strange: what the loss rules find strange at the end of the log. evidence: all that was found in it.
    """

    path: str
    verdict: FailureVerdict
    parts: tuple[Part, ...]
    kinds: Mapping[str, str]
    strange: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()

    def place(self, fact: Evidence) -> tuple[str, int]:
        """Return the file and the line of a fact; ("", 0) where they are not known."""
        at = bisect_right(self.parts, fact.line, key=lambda stretch: stretch.first_line) - 1
        if fact.line <= 0 or at < 0:
            return "", 0
        return self.parts[at].name, fact.line - self.parts[at].first_line + 1


def as_dict(answer: Answer) -> dict[str, Any]:
    """Return what `--json` prints."""
    verdict = answer.verdict
    runner_up = {"cause": verdict.runner_up.value, "confidence": verdict.runner_up_confidence} if verdict.runner_up else None
    return {
        "path": answer.path,  # as given, or as found in a directory
        "cause": verdict.cause.value,  # one of the causes
        "confidence": verdict.confidence,  # 0 to 1
        "rank": verdict.rank,  # of the culprit, null if the evidence does not name it
        "gpu": verdict.gpu or None,  # likewise: an index, a UUID or a PCI id
        "node": verdict.node or None,  # likewise
        "transient": verdict.transient,  # whether a second start of the same program may well succeed
        "fingerprint": verdict.fingerprint,  # equal for two occurrences of one failure
        "summary": clean(verdict.summary),  # a sentence
        "runner_up": runner_up,  # `cause` and `confidence` of the next most likely other cause, or null
        "facts": {name: redact.text(value) for name, value in verdict.facts},  # values from the evidence, all as text: bytes, seconds
        # what the loss rules find strange at the end of the log: a list of texts
        "strange": [redact.text(clean(text)) for text in answer.strange],
        "evidence": [evidence_document(answer, fact) for fact in verdict.because],  # the strongest first
    }


def page(answer: Answer) -> FactPage:
    """Return what a person reads about one log."""
    verdict = answer.verdict
    failed = verdict.cause is not Cause.NONE
    code, culprit = wording.code_text(verdict), _culprit(verdict)
    values = ", ".join(f"{name} {_amount(clean(value), answer.kinds.get(name, ''))}" for name, value in verdict.facts if name not in _SHOWN)
    facts = [
        Fact(wording.WHAT, _what(verdict), Tone.BAD if failed else Tone.GOOD),
        *(wording.where_facts(verdict, [culprit]) if culprit or code else []),
        Fact(wording.DO, _next(verdict)),
        *_evidence_facts(answer),
        *([Fact("cause", wording.judged_text(verdict))] if failed else []),
        *([Fact("or", f"{verdict.runner_up.value}, {100 * verdict.runner_up_confidence:.0f} % sure")] if verdict.runner_up else []),
        *(Fact(wording.STRANGE, redact.text(clean(text)), Tone.WARNING) for text in answer.strange),
        *([Fact("facts", values)] if values else []),
        *([Fact("fingerprint", verdict.fingerprint, Tone.FAINT)] if failed else []),
    ]
    return FactPage(answer.path, tuple(facts), Tone.BAD if failed else Tone.GOOD)


def _what(verdict: FailureVerdict) -> str:
    """Return what happened, as a sentence; of a log that shows nothing, the causes looked for."""
    return wording.capital(clean(verdict.summary)) if verdict.fingerprint in _NOTHING_SEEN else wording.what_text(verdict)


def _next(verdict: FailureVerdict) -> str:
    """Return what a person does, as a sentence."""
    text = clean(remedies.remedy(verdict))
    return text[:1].upper() + text[1:]


def _evidence_facts(answer: Answer) -> list[Fact]:
    """Return the evidence with its places: first what the verdict is on, then what merely follows from it."""
    verdict = answer.verdict
    own = [fact for fact in verdict.because if not wording.is_consequence(fact, verdict)]
    follows = [fact for fact in verdict.because if fact not in own]
    shown = (own[: MOST_EVIDENCE - bool(follows)] + follows)[:MOST_EVIDENCE]
    lines = [
        (f"{'a consequence: ' if fact in follows else ''}{_where(answer, fact)}{clean(text_of(fact))}", fact in follows) for fact in shown
    ]
    if not lines and verdict.cause is not Cause.NONE and verdict.fingerprint not in _NOTHING_SEEN:
        lines = [(clean(verdict.summary), False)]
    return [
        Fact(wording.EVIDENCE if number == 0 else "", line, Tone.FAINT if is_faint else Tone.PLAIN)
        for number, (line, is_faint) in enumerate(lines)
    ]


def answer_table(rows: Sequence[tuple[Cell | str, ...]]) -> Table:
    """Return the table of several logs. rows: of `row`."""
    columns = (Column("log"), Column("cause"), Column("sure", right=True), Column("rank", right=True), Column("what"))
    return Table(columns, tuple(rows))


def row(answer: Answer) -> tuple[Cell | str, ...]:
    """Return what the table has of one log."""
    verdict = answer.verdict
    rank = "" if verdict.rank is None else str(verdict.rank)
    summary = verdict.summary.removeprefix(f"rank {rank}").lstrip(": ") if rank else verdict.summary
    cause = Cell(verdict.cause.value, Tone.PLAIN if verdict.cause is Cause.NONE else Tone.BAD)
    return answer.path, cause, f"{100 * verdict.confidence:.0f} %", rank, summary


def text_of(fact: Evidence) -> str:
    """Return the text of a fact, in one line: of an exit the line that reports it, of a traceback the innermost frame."""
    if fact.name in {"signal", "exit_code"}:
        return dict(fact.fields).get("line") or f"{fact.name.replace('_', ' ')} {fact.text}"
    lines = [line.strip() for line in fact.text.splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[-1] if fact.name == "traceback" else " ".join(lines)


def evidence_document(answer: Answer, fact: Evidence) -> dict[str, Any]:
    """Return a fact as `--json` prints it; of several logs with its file."""
    name, line = answer.place(fact)
    row = {
        "line": line or None,  # its number, or null
        "rank": fact.rank,  # whose output it is
        "source": fact.source,  # what observed it
        "signature": fact.name if fact.claim is not None else None,  # null where none
        "text": redact.text(text_of(fact)),  # in one line
    }
    return row | {"file": name or None} if len(answer.parts) > 1 else row


def _where(answer: Answer, fact: Evidence) -> str:
    name, line = answer.place(fact)
    file = f"{name} " if name and len(answer.parts) > 1 else ""
    rank = "" if fact.rank is None or file else f"rank {fact.rank}: "
    return f"{file}line {line}: {rank}" if line else f"{fact.source}: {rank}"


def _culprit(verdict: FailureVerdict) -> str:
    named = (("rank", "" if verdict.rank is None else str(verdict.rank)), ("GPU", verdict.gpu), ("node", verdict.node))
    return ", ".join(f"{kind} {clean(name)}" for kind, name in named if name)


def _amount(text: str, kind: str) -> str:
    """Return an amount with its unit, as a person says it."""
    if kind == "seconds":
        return f"{text} s"
    return bytes_text(int(text)) if kind == "bytes" and text.isdecimal() else text
