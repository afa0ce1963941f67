"""Shows how an answer came about (`supervise classify --explain`): a table of the candidates, and the row that a person would add."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.classify import redact
from supervisor.classify.engine import verdict_grounds
from supervisor.classify.judgement import explanation
from supervisor.cli.classify.rendering import text_of
from supervisor.core.model import Cause
from supervisor.report.layout import Fact, FactPage, Tone
from supervisor.report.table import Cell, Column, Table
from supervisor.report.text import clean

if TYPE_CHECKING:
    from supervisor.cli.classify.rendering import Answer
    from supervisor.core.model import Evidence

_MOST_ROWS = 24
#: The text of the row where the log names nothing for it.
_NO_TEXT = "the words of your error"


def table(answer: Answer, evidence: tuple[Evidence, ...]) -> Table:
    """Return a row for each candidate: its line, its rule, its claim, and its fate."""
    rows = []
    for weighed in explanation.weighed(verdict_grounds(evidence))[:_MOST_ROWS]:
        fact, claim = weighed.candidate.fact, weighed.candidate.claim
        name, line = answer.place(fact)
        place = f"{name} {line}" if name and len(answer.parts) > 1 else str(line or fact.source)
        tone = Tone.BAD if weighed.fate == "the cause" else Tone.PLAIN
        text = redact.text(clean(text_of(fact)))[:100]
        rows.append((place, Cell(fact.name, Tone.FAINT), claim.cause.value, f"{100 * claim.weight:.0f} %", Cell(weighed.fate, tone), text))
    columns = (Column("line", right=True), Column("rule"), Column("claims"), Column("sure", right=True), Column("is"), Column("seen"))
    return Table(columns, tuple(rows), title="the candidates", empty="Nothing in the log claims a cause.")


def row_page(answer: Answer) -> FactPage:
    """Return the row for the user's own signature file that would name the cause of such a log."""
    lines = _row(answer).split("\n")
    file = 'supervise.toml: [classify] signatures = ["signatures.toml"]; signatures.toml, with the cause that it is:'
    facts = [Fact("put into", file), *(Fact("row" if number == 0 else "", line, copied=True) for number, line in enumerate(lines))]
    return FactPage("a row of your own", tuple(facts))


def _row(answer: Answer) -> str:
    verdict = answer.verdict
    texts = (redact.text(clean(text_of(fact))) for fact in verdict.because)
    rows = (explanation.row_for(text, verdict.cause) for text in texts)
    return next(filter(None, rows), "") or explanation.row_for(_NO_TEXT, Cause.UNKNOWN)


def as_dict(answer: Answer, evidence: tuple[Evidence, ...]) -> dict[str, Any]:
    """Return the same for `--json`."""
    listed = [
        {
            "line": answer.place(weighed.candidate.fact)[1] or None,
            "rule": weighed.candidate.fact.name,
            "cause": weighed.candidate.claim.cause.value,
            "confidence": round(weighed.candidate.claim.weight, 3),
            "is": weighed.fate,
            "text": redact.text(clean(text_of(weighed.candidate.fact))),
        }
        for weighed in explanation.weighed(verdict_grounds(evidence))[:_MOST_ROWS]
    ]
    return {"weighed": listed, "row": _row(answer)}
