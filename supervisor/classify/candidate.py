"""One cause that one fact of an incident speaks for."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.model import Claim, Evidence


@dataclass(frozen=True, slots=True)
class CauseCandidate:
    """A cause that one fact speaks for. `guess`: no signature said so, only the kind of the end. `survived`: more training followed."""

    fact: Evidence
    claim: Claim
    guess: bool = False
    survived: bool = False

    @property
    def rank(self) -> int | None:
        """The rank that it is about."""
        return self.fact.rank

    @property
    def level(self) -> int:
        """Its class: 0 is the surest."""
        return next((i for i, least in enumerate(CLASSES) if self.claim.weight >= least), len(CLASSES))


#: Below this nothing is convincing, and nothing is a cause of something else.
CONVINCING = 0.4


#: Candidates within one class are told apart by time alone.
CLASSES = (0.9, 0.75, 0.55, CONVINCING)
