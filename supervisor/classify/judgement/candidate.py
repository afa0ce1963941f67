"""A possible cause of an incident, with the fact that supports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Claim, Evidence
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The sources of the end of a process.
ENDS = frozenset({"exit", "launcher"})


class CauseCandidate(Struct, frozen=True):
    """A possible cause. guess: no signature matched, only the kind of the end is known. survived: more training followed."""

    fact: Evidence
    claim: Claim
    guess: bool = False
    survived: bool = False

    @property
    def rank(self) -> int | None:
        """The rank that the fact is about."""
        return self.fact.rank

    @property
    def level(self) -> int:
        """The class of its weight, as an index of CLASSES: 0 is the surest."""
        return next((i for i, least in enumerate(CLASSES) if self.claim.weight >= least), len(CLASSES))


#: A candidate below this weight is not convincing: it is not a verdict, and nothing follows from it.
CONVINCING = 0.4


#: The least weight of each class. Within one class the earliest candidate wins.
CLASSES = (0.9, 0.75, 0.55, CONVINCING)


def field_of(fact: Evidence, name: str) -> str:
    """Return a field of a fact, "" where it has none of this name."""
    return next((value for key, value in fact.fields if key == name), "")


def trained_until(facts: Sequence[Evidence], name: str = "progress") -> float:
    """Return when (in a log: at which line) training was last seen, 0 if never."""
    return max((f.t for f in facts if f.name == name), default=0.0)
