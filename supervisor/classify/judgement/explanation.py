"""Explains a judgement to a person: the evidence, its ranking, and the row that would have named the cause."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from supervisor.classify.expressions import expression
from supervisor.classify.judgement.candidate import CONVINCING, CauseCandidate
from supervisor.classify.judgement.roots import explained_by
from supervisor.core.model import Cause
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from supervisor.classify.engine import VerdictGrounds
    from supervisor.core.model import Evidence

#: Characters of an example line in a row's pattern.
_LONGEST_EXAMPLE = 160
_SHORTEST_ANCHOR = 4
_FIGURES = expression(r"\d+(?:\\\.\d+)?")
_STEADY = expression(r"[A-Za-z][A-Za-z' ]{2,80}[A-Za-z]")


class Weighed(Struct, frozen=True):
    """A candidate, and what became of it, as a phrase: "the cause", "follows from …"."""

    candidate: CauseCandidate
    fate: str


def weighed(grounds: VerdictGrounds) -> tuple[Weighed, ...]:
    """Return the weighed candidates, in the order of the log."""
    return tuple(Weighed(candidate, _fate(candidate, grounds)) for candidate in grounds.candidates)


def _fate(candidate: CauseCandidate, grounds: VerdictGrounds) -> str:
    if candidate not in grounds.allowed:
        return "no cause: training continued after it" if candidate.survived else "outranked by how a rank or the log ended"
    if grounds.roots and candidate.claim.cause is grounds.verdict.cause and candidate in grounds.roots:
        return "the cause" if candidate is grounds.roots[0] else "says the same"
    if candidate.claim.weight < CONVINCING:
        return f"too weak: below {CONVINCING:g}"
    root = explained_by(candidate, grounds.allowed)
    if root is not None:
        return f"may follow from {root.claim.cause.value} ({_place(root.fact)})"
    first = grounds.roots[0]
    return f"less sure than {_place(first.fact)}" if candidate.level > first.level else f"later than {_place(first.fact)}"


def _place(fact: Evidence) -> str:
    return f"line {fact.line}" if fact.line else fact.source


def row_for(text: str, cause: Cause) -> str:
    """Return the row of a signature file that matches a line: its anchor is the longest phrase without figures, figures match any."""
    line = text.strip().split("\n", 1)[0][:_LONGEST_EXAMPLE]
    anchor = max(_STEADY.findall(line), key=len, default="")
    pattern = _FIGURES.sub(r"\\d+", re.escape(line).replace(r"\ ", " "))
    if len(anchor) < _SHORTEST_ANCHOR or "'''" in pattern:
        return ""
    named = cause.value if cause not in {Cause.NONE, Cause.UNKNOWN} else "data_error"
    return (
        "[[signature]]\n"
        f'id = "our.{named}"\n'
        f'cause = "{named}"          # see `supervise classify --rules` for the causes, or a name of your own\n'
        'where = ["exception", "line"]\n'
        f"anchors = ['''{anchor}''']\n"
        f"pattern = '''{pattern}'''\n"
        "weight = 0.9"
    )
