"""Classifies the evidence of one incident: what failed first, where, and how sure the answer is.

The evidence comes from a failed job or from a log (logs/match.py). There is always one Verdict: UNKNOWN if no evidence is convincing,
NONE if a log shows no failure.

Every fact that supports a cause is a candidate. Three rules choose, in this order:

1. *Causality.* A candidate that may merely follow from another one's cause (a peer's "connection closed", a watchdog's timeout, TERM)
   does not count beside that cause. A failure that more training followed was survived, and counts little.
2. *Sureness.* Among the remaining candidates the surest class counts: a kernel's record before a guess by type.
3. *First in time wins over loud.* torch's own "Root Cause" names the victim as often as the culprit, because peers of a dead rank fail
   with longer messages than it did.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from supervisor.classify import admissible, caches, exits, peers, unsynced
from supervisor.classify.candidate import CONVINCING, CauseCandidate
from supervisor.classify.exceptions import RACE, REASON, UNCAUGHT, Exceptions
from supervisor.classify.fingerprint import fingerprint, frames_of, place_of
from supervisor.classify.gpu import memory as gpu_memory
from supervisor.classify.gpu import xid
from supervisor.classify.logs import footers
from supervisor.classify.logs.tracebacks import OF_VALUES
from supervisor.core.model import Cause, Evidence, Verdict
from supervisor.core.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from supervisor.core.model import Claim


ENDS = frozenset({"exit", "launcher"})
#: A sentence on the place where the ranks were to meet (observe/host/meeting.py): it explains a failed rendezvous, and nothing else.
MEETING = ("network", "meeting")
#: Ends that need not be failures, as (name, text): exit code 0, and the launcher's TERM.
NO_FAILURES = frozenset({("exit_code", "0"), ("signal", "15")})

#: The factor for the weight of a claim that more training followed.
SURVIVED = 0.5
#: Above this weight a kernel record in a log counts even if training followed: someone pasted it because it mattered.
LIGHT = 0.75
#: The field of an exit code that the program chose: its 137 is not a shell's code for a signal.
OWN_CODE = ("by", "program")
#: A bar that is full, a count that is reached.
_FULL = re.compile(r"\b100%|(?<![\d.])(\d{1,9})/\1(?![\d.])")
#: The most for a warning: Python's ("/opt/x.py:12: UserWarning: text"), and one of torch's C++ ("[W322 13:31:40.551 TCPStore.cpp:125]"),
#: which the other ranks print at the end of any peer, a good end too.
OF_A_WARNING = 0.7
OF_A_NATIVE_WARNING = 0.35
_WARNING = re.compile(
    r"\s{0,8}(?:\S{1,400}:\d+: [A-Z]\w{0,60}Warning: |(?P<native>\[W(?:\d{3,4} )?[\d:. ]{0,24}\w{1,60}\.(?:cpp|h|cc):\d+\]))"
)
#: The most for an exception that only a log's tail shows: it may be an old one.
OF_A_TAIL = 0.6
#: The confidence in NONE: the program reported a good end; it trained, and the last line is no unfinished step; the log shows neither;
#: it stops in mid-run.
ENDED_WELL, TRAINED, NO_SIGN, MID_RUN = 0.9, 0.8, 0.6, 0.5
#: Subtracted from the confidence if another cause is as sure.
DISPUTED = 0.1
SUMMARY_CHARACTERS = 160
MOST_BECAUSE = 10
MOST_OF_A_KIND = 16
MOST_FACTS = 40
#: The host's facts that belong to a verdict, by its cause (observe/host/job_files.py).
_OF_DISKS = {Cause.DISK_FULL: "job_files", Cause.CACHE_CORRUPT: "cache_file"}


def classify(evidence: Iterable[Evidence]) -> Verdict:
    """Return the verdict on this evidence."""
    facts = admissible.facts_of_this_run(tuple(evidence))
    trained = max((f.line for f in facts if f.name == "last_progress"), default=0)
    # in a log, an end before the last training belongs to another process
    facts = _with_ranks(tuple(f for f in facts if not (f.source == "exit" and 0 < f.line < trained)))
    facts = caches.claimed(facts, {name for _, name in UNCAUGHT})
    exceptions = Exceptions(facts)
    candidates = _candidates(facts, exceptions)
    allowed = admissible.admissible(candidates, facts)
    roots = _roots(allowed)
    if not roots or roots[0].claim.weight < CONVINCING:
        return _unconvinced(facts, allowed, candidates)
    return _verdict(roots, candidates, facts, exceptions)


def _with_ranks(facts: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """Return the facts. An end without rank gets the rank that another line names for its pid."""
    ranks: dict[str, set[int]] = {}
    for fact in facts:
        if fact.source == "exit" and fact.rank is not None and (pid := _field(fact, "pid")):
            ranks.setdefault(pid, set()).add(fact.rank)
    if not ranks:
        return facts
    known = ((f, ranks.get(_field(f, "pid"), set()) if f.source == "exit" and f.rank is None else set()) for f in facts)
    return tuple(replace(fact, rank=next(iter(found))) if len(found) == 1 else fact for fact, found in known)


def _field(fact: Evidence, name: str) -> str:
    return next((value for key, value in fact.fields if key == name), "")


def _candidates(facts: Sequence[Evidence], exceptions: Exceptions) -> list[CauseCandidate]:
    """Return a candidate for each fact that supports a cause."""
    afterwards = _trained_until(facts)
    recently = _trained_until(facts, "recent_progress")
    lately = _trained_until(facts, "last_progress")
    ended = _has_failed_end(facts, afterwards)
    found: list[CauseCandidate] = []
    for fact in facts:
        candidate = _candidate(fact, exceptions)
        if candidate is None:
            continue
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
        found.append(candidate)
    return _few_of_each(found)


def _of_a_warning(candidate: CauseCandidate, most: float) -> CauseCandidate:
    """Return a candidate that only a warning shows: it ended nothing, so any other cause goes before it."""
    claim = replace(candidate.claim, weight=min(candidate.claim.weight, most), consequence_of=exits.ANY)
    return replace(candidate, claim=claim)


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


def _trained_until(facts: Sequence[Evidence], name: str = "progress") -> float:
    """Return when (in a log: at which line) training was last seen, 0 if never."""
    return max((f.t for f in facts if f.name == name), default=0.0)


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
    if kind in exits.OF_LAUNCHERS or footers.read(fact.text.split("\n", 1)[0]):
        return None
    if kind in exits.SENT_FROM_OUTSIDE:
        return exits.by_exception(fact.text)
    claim = next((claim for part, kinds, claim in exits.BY_FRAME if part in trace and (not kinds or kind in kinds)), None)
    claim = claim or exits.by_exception(fact.text)
    if claim is None:
        claim = exits.OF_A_PEER if exits.is_consequence(fact.text) else exits.ANY_EXCEPTION
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


def _roots(candidates: Sequence[CauseCandidate]) -> list[CauseCandidate]:
    """Return the candidates that follow from no other candidate, the surest class and the earliest first."""
    convincing = [c for c in candidates if c.claim.weight >= CONVINCING]
    left = [c for c in convincing if not any(_follows(c, other) and not _follows(other, c) for other in convincing)]
    return sorted(left or convincing, key=lambda c: (c.level, c.fact.t or float("inf"), -c.claim.weight))


def _follows(candidate: CauseCandidate, other: CauseCandidate) -> bool:
    """Whether a candidate may be a mere consequence of another."""
    own_claim, cause = candidate.claim, other.claim.cause
    if own_claim.cause == cause:
        return False
    if other.fact.name == "exit_code" and not other.fact.t and candidate.fact.name not in {"signal", "exit_code"}:
        return False  # a launcher's table has the codes of all ranks, the victims' too
    if "*" in own_claim.consequence_of:
        return "*" not in other.claim.consequence_of or cause.value in own_claim.consequence_of
    if cause.value in own_claim.consequence_of or _follows_own_exception(candidate, other) or _is_launchers_kill(candidate, other):
        return True
    return _follows_peer(candidate, other)


def _follows_own_exception(candidate: CauseCandidate, other: CauseCandidate) -> bool:
    """Whether an abort follows from the exception of the same rank: running C++ threads abort an interpreter that ends.

    If one of the ranks is unknown, the exception must stand before the abort and be no consequence of a peer's end.
    """
    aborted = candidate.guess and candidate.fact.name == "signal" and candidate.fact.text == "6"
    if not aborted or other.fact.name != "exception":
        return False
    if candidate.rank is not None and other.rank is not None:
        return candidate.rank == other.rank
    local = _field(candidate.fact, "local")
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


def _unconvinced(facts: Sequence[Evidence], allowed: Sequence[CauseCandidate], candidates: Sequence[CauseCandidate]) -> Verdict:
    """Return the verdict if no candidate is convincing: UNKNOWN if something failed, NONE for the log of a healthy job."""
    afterwards = _trained_until(facts)
    good_end = admissible.good_end_time(facts)
    shown = {f.line for f in facts if f.name == "traceback"}
    failed = [
        f
        for f in facts
        if (f.source in ENDS and f.text != "0" and not 0 < f.line < afterwards)
        or (
            ((f.source, f.name) in UNCAUGHT or f.name == "cut_traceback")
            and not 0 < f.t < (afterwards if f.line in shown else max(afterwards, good_end))
        )
    ]
    best = max(allowed, key=lambda c: c.claim.weight, default=None)
    rival = max((c for c in candidates if c.claim.cause is not Cause.UNKNOWN), key=lambda c: c.claim.weight, default=None)
    signs = [f for f in facts if (f.source, f.name, f.text) != ("exit", "exit_code", "0")]
    if best is None and not failed and signs and all(f.source == "log" or (f.source == "kernel" and f.line > 0) for f in signs):
        return _no_failure(facts, good_end)
    if best is None and not failed:
        return Verdict(Cause.UNKNOWN, 0.1, "the attempt ended and left no evidence", "unknown:no-evidence", because=tuple(facts[:3]))
    first = best.fact if best else next((f for f in failed if f.source in ENDS), failed[0])
    summary = f"{_who(first, facts)} {_how(first)}" if first.source in ENDS else _short(first.text)
    return Verdict(
        cause=Cause.UNKNOWN,
        confidence=best.claim.weight if best else 0.2,
        summary=summary,
        fingerprint=fingerprint(
            Cause.UNKNOWN, first.name, _how(first) if first.source in ENDS else first.text, (), _phase(facts, first.rank)
        ),
        rank=first.rank,
        because=(first, *_last_output(first, facts), *_beside(first.rank, facts, first)),
        runner_up=rival.claim.cause if rival else None,
        runner_up_confidence=rival.claim.weight if rival else 0.0,
    )


def _last_output(first: Evidence, facts: Sequence[Evidence]) -> list[Evidence]:
    """Return the last output of a rank that ended without an exception: `sys.exit("text")` leaves no other trace of its text."""
    names = ("err", "both", "out")
    own = [f for f in facts if f.source == "tail" and f.name in names and f.rank == first.rank and f.text.strip()]
    return sorted(own, key=lambda f: names.index(f.name))[:1] if first.source in ENDS else []


def _no_failure(facts: Sequence[Evidence], good_end: float) -> Verdict:
    """Return NONE, as sure as logs without a sign of a failure have proven healthy (docs/explanation/classification.md, reliability)."""
    if _stops_in_mid_run(facts, good_end):
        return Verdict(Cause.NONE, MID_RUN, "no sign of a failure; the log stops in mid-run", "none")
    if good_end:
        return Verdict(Cause.NONE, ENDED_WELL, "no sign of a failure", "none")
    trained = any(f.name == "last_progress" for f in facts)
    return Verdict(Cause.NONE, TRAINED if trained else NO_SIGN, "no sign of a failure", "none")


def _stops_in_mid_run(facts: Sequence[Evidence], good_end: float) -> bool:
    """Whether the last line of a log is a step of training, or a bar that is not full: nothing says that the program came to its end."""
    read = max((f.line for f in facts if f.name == "read"), default=0)
    last = next((f for f in facts if f.name == "last_progress"), None)
    return last is not None and not good_end and last.line >= read - 1 and not _FULL.search(last.text)


def _verdict(
    roots: Sequence[CauseCandidate], candidates: Sequence[CauseCandidate], facts: Sequence[Evidence], exceptions: Exceptions
) -> Verdict:
    best = roots[0]
    exception = exceptions.beside(best.fact)
    trace = exceptions.trace(exception) if exception else ""
    cause = best.claim.cause
    same = [c for c in roots if c.claim.cause is cause]
    rank = best.rank if best.rank is not None else _rank_of_the_only_end(facts)
    others = sorted((c for c in candidates if c.claim.cause not in {cause, Cause.UNKNOWN}), key=lambda c: -c.claim.weight)
    rival = next((c for c in roots if c.claim.cause is not cause), None) or (others[0] if others else None)
    surest = max(c.claim.weight for c in same)
    disputed = rival is not None and rival in roots and rival.level <= best.level
    fields = _fields(best, same, facts, exception, trace)
    differs = ""
    if cause is Cause.DDP_UNSYNCED:
        fields |= unsynced.call_sites(fields, facts, exceptions)
        differs = unsynced.summary(fields)
    if cause is Cause.DDP_UNSYNCED or (best.fact.source, best.fact.name) == RACE:
        reasons = [fact.text for fact in facts if (fact.source, fact.name) == REASON]
        fields = {"reason": reasons[0], **fields} if reasons else fields
    nowhere = [f for f in facts if (f.source, f.name) == MEETING] if cause is Cause.RENDEZVOUS else []
    return Verdict(
        cause=cause,
        confidence=round(surest - (DISPUTED if disputed else 0.0), 3),
        summary=differs or (nowhere[0].text if nowhere else _summary(best, facts, exception)),
        fingerprint=_fingerprint(best, facts, exception, trace),
        rank=rank,
        transient=best.claim.transient,
        because=(*nowhere[:1], *_because(best, rank, same, candidates, facts, exception)),
        facts=tuple(fields.items())[:MOST_FACTS],
        gpu=next((fields[name] for name in ("gpu_uuid", "uuid", "pci", "pci_id", "gpu") if name in fields), ""),
        node=next((c.fact.node for c in same if c.fact.node), fields.get("node", "")),
        runner_up=rival.claim.cause if rival else None,
        runner_up_confidence=round(rival.claim.weight, 3) if rival else 0.0,
    )


def _rank_of_the_only_end(facts: Sequence[Evidence]) -> int | None:
    """Return the rank with a failed end other than the launcher's TERM, if there is exactly one."""
    ended = {f.rank for f in facts if f.source in ENDS and (f.name, f.text) not in NO_FAILURES and f.name in {"signal", "exit_code"}}
    ended.discard(None)
    return next(iter(ended)) if len(ended) == 1 else None


def _fingerprint(best: CauseCandidate, facts: Sequence[Evidence], exception: Evidence | None, trace: str) -> str:
    fact = best.fact
    phase = _phase(facts, fact.rank)
    if fact.name in {"signal", "exit_code"}:
        return fingerprint(best.claim.cause, exits.signal_name(fact.text) if fact.name == "signal" else f"exit {fact.text}", "", (), phase)
    if exception is None:
        return fingerprint(best.claim.cause, "", fact.name if fact.claim else fact.text, (), phase)
    kind = exits.exception_type(exception.text)
    detail = fact.name if fact.claim else exception.text.partition(":")[2]
    return fingerprint(best.claim.cause, kind, detail, frames_of(trace), phase)


def _fields(
    best: CauseCandidate, same: Sequence[CauseCandidate], facts: Sequence[Evidence], exception: Evidence | None, trace: str
) -> dict[str, str]:
    """Return the facts that recovery needs: fields of the verdict's evidence, the exception's type and place, the culprit's end."""
    found: dict[str, str] = dict(best.fact.fields) if best.fact.claim else {}
    for candidate in same:
        if candidate.fact.claim is not None and (candidate.rank == best.rank or candidate.fact.name == best.fact.name):
            for name, value in candidate.fact.fields:
                found.setdefault(name, value)
    if exception is not None:
        found.setdefault("exception", exits.exception_type(exception.text))
        if place := place_of(trace):
            found.setdefault("file", place.path)
            found.setdefault("line", str(place.line))
            found.setdefault("function", place.function)
    for fact in facts:
        if fact.source in ENDS and fact.name in {"signal", "exit_code"} and fact.rank == best.rank:
            found.setdefault(fact.name, fact.text)
    for name, value in xid.explained(found.get("xid", "")).items():
        found.setdefault(name, value)
    found = _of_cause(best, found, facts, exception) | found
    own = {pid for fact in facts if fact.source == "exit" or fact.name == "member" if (pid := _field(fact, "pid"))}
    return found | gpu_memory.holders(found, own)


def _of_cause(best: CauseCandidate, found: Mapping[str, str], facts: Sequence[Evidence], exception: Evidence | None) -> dict[str, str]:
    """Return what a remedy of this cause depends on (remedies.py)."""
    cause = best.claim.cause
    if cause is Cause.STORAGE_REMOTE:
        return _other_end(best, facts, exception)
    if cause is Cause.USER_CODE and found.get("exception") in exits.OF_NETWORKS:
        return {name: peer for name, peer in _other_end(best, facts, exception).items() if name == "peer"}
    if cause is Cause.HOST_OOM:
        return {"killed": "child"} if _killed_a_child(found, facts) else {}
    of_host = (
        f for f in facts if (f.source, f.name) == ("host", _OF_DISKS.get(cause)) and (best.rank is None or f.rank in {None, best.rank})
    )
    return next((dict(fact.fields) for fact in of_host), {})


def _killed_a_child(found: Mapping[str, str], facts: Sequence[Evidence]) -> bool:
    """Whether the process that was killed for want of memory is known, and was a child of a rank: a loader's worker."""
    if any("DataLoader worker" in fact.text for fact in facts):
        return True
    ranks = {_field(fact, "pid") for fact in facts if fact.source == "exit"}
    return bool(found.get("pid") and ranks) and found["pid"] not in ranks


def _other_end(best: CauseCandidate, facts: Sequence[Evidence], exception: Evidence | None) -> dict[str, str]:
    """Return the address that did not answer, or refused, and whether it is the job's own service; {} where it is not known."""
    noted = (f.text for f in facts if (f.source, f.name) == ("error_file", "peer") and f.rank == best.rank)
    texts = (best.fact.text, *((exception.text,) if exception is not None else ()))
    peer = next(noted, "") or next((found for text in texts if (found := peers.peer_in(text))), "")
    if not peer:
        return {}
    own = peers.is_own(peer) and not peers.serves_data(best.fact.name)
    return {"peer": peer} | ({"own_service": "this machine" if peers.is_local(peer) else "a private network"} if own else {})


def _because(  # noqa: PLR0913, PLR0917 (what a verdict stands on)
    best: CauseCandidate,
    rank: int | None,
    same: Sequence[CauseCandidate],
    candidates: Sequence[CauseCandidate],
    facts: Sequence[Evidence],
    exception: Evidence | None,
) -> tuple[Evidence, ...]:
    """Return the evidence of a verdict: of the cause, then further facts about the culprit, then the consequences."""
    listed: list[Evidence] = [best.fact, *_beside(rank, facts, best.fact)]
    if exception is not None and exception.text != best.fact.text:
        listed.insert(1, exception)
    if best.guess and best.fact.name == "signal":  # the kernel's record of it may be in the log that could not be read
        listed += [fact for fact in facts if (fact.source, fact.name) == ("kernel", "not_observed")][:1]
    listed += [c.fact for c in same[1:4]]
    listed += [c.fact for c in candidates if c.claim.cause is not best.claim.cause][:4]
    kept: list[Evidence] = []
    for fact in listed:
        if not any(fact.text == other.text and fact.rank == other.rank and fact.line == other.line for other in kept):
            kept.append(fact)
    return tuple(kept[:MOST_BECAUSE])


def _beside(rank: int | None, facts: Sequence[Evidence], besides: Evidence) -> list[Evidence]:
    """Return the exit code, signal, phase and step of a rank, and whether it has loader workers."""
    own = [f for f in facts if f.rank == rank and f is not besides]
    names = ("exit_code", "signal", "phase", "step", "loader")
    return [f for f in (next((f for f in own if f.name == name), None) for name in names) if f is not None]


def _phase(facts: Sequence[Evidence], rank: int | None) -> str:
    return next((f.text for f in facts if f.source == "heartbeat" and f.name == "phase" and f.rank == rank), "")


def _who(fact: Evidence, facts: Sequence[Evidence]) -> str:
    if fact.rank is not None:
        return f"rank {fact.rank}"
    if fact.source in {"log", "exit"} and fact.line:
        return "a process"
    return next((f.text for f in facts if f.name == "who" and f.rank is None), "the launcher")


def _how(fact: Evidence) -> str:
    return f"was killed by {exits.signal_name(fact.text)}" if fact.name == "signal" else f"exited with code {fact.text}"


def _summary(best: CauseCandidate, facts: Sequence[Evidence], exception: Evidence | None) -> str:
    fact = best.fact
    if fact.source in ENDS and fact.name in {"signal", "exit_code"}:
        return f"{_who(fact, facts)} {_how(fact)}"
    if fact.source == "hang" or (fact.source, fact.name) == RACE:  # names its ranks by itself
        return fact.text
    if fact.source == "kernel":
        return f"the kernel reports: {_short(fact.text)}"
    if exception is not None:
        return f"{_who(fact, facts)} raised {_short(fact.text)}"
    whose = f"rank {fact.rank}: " if fact.rank is not None else ""
    # a sentence about a checkpoint is ours and ends with what to do, behind paths that may be long
    return f"{whose}{fact.text if fact.source == 'checkpoint' else _short(fact.text)}"


def _short(text: str) -> str:
    first = text.strip().split("\n", 1)[0]
    return first if len(first) <= SUMMARY_CHARACTERS else first[: SUMMARY_CHARACTERS - 1] + "…"
