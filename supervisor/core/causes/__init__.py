"""All causes, one row for each, in the files of their subjects (row.py has the columns). Pure.

docs/reference/causes.md and the ladders of docs/explanation/recovery.md are written from this table.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from supervisor.core.causes import gpus, memory, program, ranks, storage
from supervisor.core.causes.row import GUARDS, LAST, PROGRAM, SUSPECTS, CauseRow, Family, Hint, line
from supervisor.core.model import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ADVICE", "CAUSE_TABLE", "GUARDS", "LAST", "MEANING", "OWN_CAUSE", "SUSPECTS", "CauseRow", "Family", "Hint", "causes_where"]

_ROWS = memory.ROWS | gpus.ROWS | ranks.ROWS | storage.ROWS | program.ROWS
#: Facts of a verdict of a cause of the user's own: the words of its signature.
MEANING, ADVICE = "meaning", "advice"
#: The row of each cause that only a signature of the user's names (`Cause.is_own`).
OWN_CAUSE = CauseRow(
    meaning="A failure that a signature of your own names",
    proof="a row of your own signature file",
    ladder=(*SUSPECTS, *PROGRAM),
    hints=(line(f"{{{ADVICE}}}", "correct what your signature names; with advice = in it this line is yours"),),
)


class _Rows(dict[Cause, CauseRow]):
    """The rows of our causes; for a cause of the user's own, OWN_CAUSE."""

    def __missing__(self, cause: Cause) -> CauseRow:
        return OWN_CAUSE


CAUSE_TABLE: Mapping[Cause, CauseRow] = MappingProxyType(_Rows({cause: _ROWS[cause] for cause in Cause}))


def causes_where(holds: Callable[[CauseRow], object]) -> frozenset[Cause]:
    """Return those of our causes for whose rows `holds` is true."""
    return frozenset(cause for cause, row in CAUSE_TABLE.items() if holds(row))
