"""Removes candidates that follow from others; the rest are the roots of an incident."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify import exits
from supervisor.classify.exception_table import OF_VALUES
from supervisor.classify.judgement.candidate import CONVINCING, CauseCandidate, field_of
from supervisor.core.model import Cause

if TYPE_CHECKING:
    from collections.abc import Sequence


def roots(candidates: Sequence[CauseCandidate]) -> list[CauseCandidate]:
    """Return the candidates that follow from no other candidate, the surest class and the earliest first."""
    convincing = [c for c in candidates if c.claim.weight >= CONVINCING]
    left = [c for c in convincing if not any(_follows(c, other) and not _follows(other, c) for other in convincing)]
    return sorted(left or convincing, key=lambda c: (c.level, c.fact.t or float("inf"), -c.claim.weight))


def explained_by(candidate: CauseCandidate, candidates: Sequence[CauseCandidate]) -> CauseCandidate | None:
    """Return the candidate that this one follows from, None if there is none: the surest one."""
    others = (other for other in candidates if other.claim.weight >= CONVINCING and other is not candidate)
    causes = [other for other in others if _follows(candidate, other) and not _follows(other, candidate)]
    return max(causes, key=lambda other: other.claim.weight, default=None)


def _follows(candidate: CauseCandidate, other: CauseCandidate) -> bool:
    """Whether a candidate may be a mere consequence of another."""
    own_claim, cause = candidate.claim, other.claim.cause
    if own_claim.cause == cause:
        return False
    if other.fact.name == "exit_code" and not other.fact.t and candidate.fact.name not in {"signal", "exit_code"}:
        return False  # a launcher's table has the codes of all ranks, the victims' too
    if _is_stated(other) and (_is_mere_end_of(candidate, other) or (_is_of_a_peer(candidate) and cause not in exits.OF_PEERS)):
        return True
    if "*" in own_claim.consequence_of:
        return "*" not in other.claim.consequence_of or own_claim.names(cause)
    if own_claim.names(cause) or _follows_own_exception(candidate, other) or _is_launchers_kill(candidate, other):
        return True
    return _follows_peer(candidate, other)


def _is_mere_end_of(candidate: CauseCandidate, other: CauseCandidate) -> bool:
    """Whether a candidate only says that the other's rank aborted: watchdogs and C++ exceptions end in ABRT, a stated cause is first."""
    if candidate.rank != other.rank and None not in {candidate.rank, other.rank}:
        return False
    return candidate.claim.cause is Cause.UNKNOWN_NATIVE_ABORT and (candidate.guess or "*" in candidate.claim.consequence_of)


def _is_of_a_peer(candidate: CauseCandidate) -> bool:
    """Whether a candidate only says that another process is gone, which may follow from anything that is stated."""
    return candidate.claim.cause.value in exits.OF_PEERS and "*" in candidate.claim.consequence_of


def _is_stated(candidate: CauseCandidate) -> bool:
    """Whether a text states a cause, and more than that a peer is gone."""
    cause = candidate.claim.cause
    return not candidate.guess and cause not in {Cause.UNKNOWN_NATIVE_ABORT, Cause.USER_CODE, Cause.KILLED_UNKNOWN, Cause.GLOO_ERROR}


def _follows_own_exception(candidate: CauseCandidate, other: CauseCandidate) -> bool:
    """Whether an abort follows from the exception of the same rank: running C++ threads abort an interpreter that ends.

    If one of the ranks is unknown, the exception must stand before the abort and be no consequence of a peer's end.
    """
    aborted = candidate.guess and candidate.fact.name == "signal" and candidate.fact.text == "6"
    if not aborted or other.fact.name != "exception":
        return False
    if candidate.rank is not None and other.rank is not None:
        return candidate.rank == other.rank
    local = field_of(candidate.fact, "local")
    if local and other.rank is not None and other.rank < int(local):
        return False  # on any node, a rank is at least its local rank
    return 0 < other.fact.line < candidate.fact.line and "*" not in other.claim.consequence_of


def _is_launchers_kill(candidate: CauseCandidate, other: CauseCandidate) -> bool:
    """Whether a KILL follows from the exception that ended another rank, or its own: some launchers end the other ranks by KILL.

    It does if it came after the exception. A shell's notice ("line 14: 15944 Killed") has neither time nor rank. It comes late, so it
    follows from an exception that the loss of a peer does not raise: a wrong value.
    """
    killed = candidate.guess and candidate.fact.name == "signal" and candidate.fact.text == "9"
    raised, cause = other.fact, other.claim
    if not killed or raised.name != "exception" or (raised.source != "error_file" and raised.free_text) or "*" in cause.consequence_of:
        return False
    if candidate.fact.t and raised.t and not raised.line:
        return raised.t < candidate.fact.t
    return not candidate.fact.t and candidate.rank is None and exits.exception_type(raised.text) in OF_VALUES


def _follows_peer(candidate: CauseCandidate, other: CauseCandidate) -> bool:
    """Whether a guess by an exception's type follows from the signal that ended another rank, unless that came later.

    A rank that loses its peer fails in many ways, but none of them kills the peer.
    """
    if not candidate.guess or other.fact.name != "signal" or candidate.fact.name not in {"exception", "last_exception"}:
        return False
    if other.fact.text == "15" or _follows_own_exception(other, candidate) or (other.rank is not None and other.rank == candidate.rank):
        return False
    if _is_launchers_kill(other, candidate):
        return False
    return not (other.fact.t and candidate.fact.t) or other.fact.t < candidate.fact.t
