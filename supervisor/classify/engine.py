"""Classifies the evidence of one incident: what failed first, where, and how sure the answer is.

The evidence comes from a failed job or from a log (logs/match.py). There is always one FailureVerdict: UNKNOWN
if no evidence is convincing, NONE if a log shows no failure.

Every fact that supports a cause is a candidate. Three rules choose, in this order:

1. *Causality.* A candidate that may merely follow from another one's cause (a peer's "connection closed", a watchdog's timeout, TERM)
   does not count beside that cause. A failure that more training followed was survived, and counts little.
2. *Sureness.* Among the remaining candidates the surest class counts: a kernel's record before a guess by type.
3. *First in time wins over loud.* torch's own "Root Cause" names the victim as often as the culprit, because peers of a dead rank fail
   with longer messages than it did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify import caches, exception_table, exits
from supervisor.classify.exceptions import UNCAUGHT, Exceptions
from supervisor.classify.expressions import expression
from supervisor.classify.judgement import admissible
from supervisor.classify.judgement.candidate import CONVINCING, ENDS, CauseCandidate, field_of, trained_until
from supervisor.classify.judgement.roots import roots
from supervisor.classify.judgement.verdicts import unconvinced, verdict
from supervisor.classify.logs import footers
from supervisor.core.model import Cause, FailureVerdict
from supervisor.core.values import Struct, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.core.model import Claim, Evidence


#: The factor for the weight of a claim that more training followed.
SURVIVED = 0.5
#: Above this weight a kernel record in a log counts even if training followed: someone pasted it because it mattered.
LIGHT = 0.75
#: The field of an exit code that the program chose: its 137 is not a shell's code for a signal.
OWN_CODE = ("by", "program")
#: The most for a warning: Python's ("/opt/x.py:12: UserWarning: text"), and one of torch's C++ ("[W322 13:31:40.551 TCPStore.cpp:125]"),
#: which the other ranks print at the end of any peer, a good end too.
OF_A_WARNING = 0.7
OF_A_NATIVE_WARNING = 0.35
_WARNING = expression(
    r"\s{0,8}(?:\S{1,400}:\d+: [A-Z]\w{0,60}Warning: |(?P<native>\[W(?:\d{3,4} )?[\d:. ]{0,24}\w{1,60}\.(?:cpp|h|cc):\d+\]))"
)
#: The most for an exception that only a log's tail shows: it may be an old one.
OF_A_TAIL = 0.6
MOST_OF_A_KIND = 16


class VerdictGrounds(Struct, frozen=True):
    """How a verdict came about. candidates: all; allowed: those that may be the cause; roots: those that follow from no other."""

    verdict: FailureVerdict
    candidates: tuple[CauseCandidate, ...]
    allowed: tuple[CauseCandidate, ...]
    roots: tuple[CauseCandidate, ...]


def classify(evidence: Iterable[Evidence]) -> FailureVerdict:
    """Return the verdict on this evidence."""
    return verdict_grounds(evidence).verdict


def verdict_grounds(evidence: Iterable[Evidence]) -> VerdictGrounds:
    """Return the verdict on this evidence, and the weighed candidates."""
    facts = admissible.facts_of_this_run(tuple(evidence))
    trained = max((f.line for f in facts if f.name == "last_progress"), default=0)
    # in a log, an end before the last training belongs to another process
    facts = _with_ranks(tuple(f for f in facts if not (f.source == "exit" and 0 < f.line < trained)))
    facts = caches.claimed(facts, {name for _, name in UNCAUGHT})
    exceptions = Exceptions(facts)
    candidates = _candidates(facts, exceptions)
    allowed = admissible.admissible(candidates, facts)
    first = roots(allowed)
    convinced = bool(first) and first[0].claim.weight >= CONVINCING
    result = verdict(first, candidates, facts, exceptions) if convinced else unconvinced(facts, allowed, candidates)
    return VerdictGrounds(result, tuple(candidates), tuple(allowed), tuple(first) if convinced else ())


def _with_ranks(facts: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """Return the facts. An end without rank gets the rank that another line names for its pid."""
    ranks: dict[str, set[int]] = {}
    for fact in facts:
        if fact.source == "exit" and fact.rank is not None and (pid := field_of(fact, "pid")):
            ranks.setdefault(pid, set()).add(fact.rank)
    if not ranks:
        return facts
    known = ((f, ranks.get(field_of(f, "pid"), set()) if f.source == "exit" and f.rank is None else set()) for f in facts)
    return tuple(replace(fact, rank=next(iter(fact_ranks))) if len(fact_ranks) == 1 else fact for fact, fact_ranks in known)


def _candidates(facts: Sequence[Evidence], exceptions: Exceptions) -> list[CauseCandidate]:
    """Return a candidate for each fact that supports a cause."""
    afterwards = trained_until(facts)
    recently = trained_until(facts, "recent_progress")
    lately = trained_until(facts, "last_progress")
    ended = _has_failed_end(facts, afterwards)
    candidates: list[CauseCandidate] = []
    for fact in facts:
        candidate = _candidate(fact, exceptions)
        if candidate is None:
            continue
        candidate = _in_mid_run(candidate, lately)
        if match := _WARNING.match(fact.text):
            candidate = _of_a_warning(candidate, OF_A_NATIVE_WARNING if match["native"] else OF_A_WARNING)
            recent = lately
        else:
            recent = recently
        if _may_be_survived(fact) and 0 < fact.t < (afterwards if exceptions.uncaught.knows(fact) else recent):
            if not ended:
                continue
            if fact.free_text:
                claim = replace(candidate.claim, weight=candidate.claim.weight * SURVIVED)
                candidate = replace(candidate, claim=claim, survived=True)
        candidates.append(candidate)
    return _few_of_each(candidates)


def _of_a_warning(candidate: CauseCandidate, most: float) -> CauseCandidate:
    """Return a candidate that only a warning shows: it ended nothing, so any other cause goes before it."""
    claim = replace(candidate.claim, weight=min(candidate.claim.weight, most), consequence_of=exits.ANY)
    return replace(candidate, claim=claim)


def _in_mid_run(candidate: CauseCandidate, trained: float) -> CauseCandidate:
    """Return a candidate. Communicators are made before the first step, so an error that CUDA gives NCCL after it is of the device."""
    fact, claim = candidate.fact, candidate.claim
    if claim.cause is not Cause.NCCL_INIT or not 0 < trained < fact.t or "cuda" not in fact.text.lower():
        return candidate
    return replace(candidate, claim=replace(claim, cause=Cause.CUDA_ILLEGAL_ACCESS))


def _may_be_survived(fact: Evidence) -> bool:
    """Whether later training can prove that a fact ended nothing: it can for lines of a log and for light kernel records."""
    light = fact.claim is not None and fact.claim.weight < LIGHT
    return fact.source == "log" or (fact.source == "kernel" and fact.line > 0 and light)


def _few_of_each(candidates: Sequence[CauseCandidate]) -> list[CauseCandidate]:
    """Return the first candidates of each kind in time: a thousand ranks that fail alike add no information."""
    counts: dict[tuple[str, str, Cause], int] = {}
    kept: list[CauseCandidate] = []
    for candidate in sorted(candidates, key=lambda c: c.fact.t or float("inf")):
        kind = (candidate.fact.source, candidate.fact.name, candidate.claim.cause)
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= MOST_OF_A_KIND:
            kept.append(candidate)
    return kept


def _has_failed_end(facts: Sequence[Evidence], afterwards: float) -> bool:
    """Whether a process failed after the last training."""
    return any(
        (f.source in ENDS and f.name in {"signal", "exit_code"} and f.text != "0" and (not f.line or f.line > afterwards))
        or ((f.source, f.name) in UNCAUGHT and not f.free_text and f.t > afterwards)
        for f in facts
    )


def _candidate(fact: Evidence, exceptions: Exceptions) -> CauseCandidate | None:
    if fact.claim is not None:
        return CauseCandidate(fact, fact.claim)
    if (fact.source, fact.name) in UNCAUGHT:
        claim = None if exceptions.claims.knows(fact) else _exception_claim(fact, exceptions.trace(fact))
        return CauseCandidate(fact, claim, guess=True) if claim else None
    if fact.source in ENDS and fact.name in {"signal", "exit_code"}:
        return _end_candidate(fact)
    claim = exits.BY_FACT.get((fact.source, fact.name))
    return CauseCandidate(fact, claim) if claim else None


def _exception_claim(fact: Evidence, trace: str) -> Claim | None:
    kind = exits.exception_type(fact.text)
    if kind in exits.OF_LAUNCHERS or any(end.name != "end" for end in footers.read(fact.text.split("\n", 1)[0])):
        return None
    claim = exception_table.claim_of(fact.text, trace)
    if claim.cause is Cause.USER_CODE and fact.source == "error_file" and exception_table.is_own_mistake(fact.text):
        claim = exception_table.OWN_MISTAKE
    return replace(claim, weight=min(claim.weight, OF_A_TAIL)) if fact.source == "tail" else claim


def _end_candidate(fact: Evidence) -> CauseCandidate | None:
    try:
        number = int(fact.text)
    except ValueError:
        return None
    signum = number if fact.name == "signal" else None if OWN_CODE in fact.fields else footers.signal_of(number)
    if signum is not None:
        return CauseCandidate(fact, exits.BY_SIGNAL.get(signum, exits.ANY_SIGNAL), guess=True)
    if number == 0:
        return None
    return CauseCandidate(fact, exits.PLAIN_EXIT_CODE if number == 1 else exits.OWN_EXIT_CODE, guess=True)
