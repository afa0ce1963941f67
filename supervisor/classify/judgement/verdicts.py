"""Puts a verdict together: of the roots, of evidence that convinces nobody, of a log in which nothing failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify import exception_table, exits, peers, unsynced
from supervisor.classify.exceptions import RACE, REASON, UNCAUGHT, Exceptions
from supervisor.classify.expressions import expression
from supervisor.classify.fingerprint import fingerprint, frames_of, place_of
from supervisor.classify.gpu import memory as gpu_memory
from supervisor.classify.gpu import xid
from supervisor.classify.judgement import admissible
from supervisor.classify.judgement.candidate import ENDS, CauseCandidate, field_of, trained_until
from supervisor.core.model import Cause, Evidence, FailureVerdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: A sentence on the place where the ranks were to meet (observe/host/meeting.py): it explains a failed rendezvous, and nothing else.
MEETING = ("network", "meeting")
#: Ends that need not be failures, as (name, text): exit code 0, and the launcher's TERM.
NO_FAILURES = frozenset({("exit_code", "0"), ("signal", "15")})
#: A bar that is full, a count that is reached.
_FULL = expression(r"\b100%|(?<![\d.])(\d{1,9})/\1(?![\d.])")
#: The confidence in NONE: the program reported a good end; it trained, and the last line is not an unfinished step; the log stops mid-run.
ENDED_WELL, TRAINED, MID_RUN = 0.9, 0.8, 0.5
#: The confidence in UNKNOWN if a log shows no failure, and neither training nor an end.
NO_SIGN = 0.3
#: The fingerprint of that.
NOT_EARNED = "unknown:no-sign"
#: Subtracted from the confidence if another cause is as sure.
DISPUTED = 0.1
SUMMARY_CHARACTERS = 160
MOST_BECAUSE = 10
MOST_FACTS = 40
#: The host's facts that belong to a verdict, by its cause (observe/host/job_files.py).
_OF_DISKS = {Cause.DISK_FULL: "job_files", Cause.CACHE_CORRUPT: "cache_file"}


def unconvinced(facts: Sequence[Evidence], allowed: Sequence[CauseCandidate], candidates: Sequence[CauseCandidate]) -> FailureVerdict:
    """Return the verdict if no candidate is convincing: UNKNOWN if something failed, NONE for the log of a healthy job."""
    afterwards = trained_until(facts)
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
        return FailureVerdict(Cause.UNKNOWN, 0.1, "the attempt ended and left no evidence", "unknown:no-evidence", because=tuple(facts[:3]))
    first = best.fact if best else next((f for f in failed if f.source in ENDS), failed[0])
    summary = f"{_subject(first, facts)} {_ending(first)}" if first.source in ENDS else _short(first.text)
    return FailureVerdict(
        cause=Cause.UNKNOWN,
        confidence=best.claim.weight if best else 0.2,
        summary=summary,
        fingerprint=fingerprint(
            Cause.UNKNOWN, first.name, _ending(first) if first.source in ENDS else first.text, (), _phase(facts, first.rank)
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


def _no_failure(facts: Sequence[Evidence], good_end: float) -> FailureVerdict:
    """Return NONE where it is earned, by training or by a good end, as sure as such logs have proven healthy; else UNKNOWN.

    docs/reference/classification-scores.md has the figures.
    """
    if _stops_in_mid_run(facts, good_end):
        return FailureVerdict(Cause.NONE, MID_RUN, "no sign of a failure; the log stops in mid-run", "none")
    if good_end:
        return FailureVerdict(Cause.NONE, ENDED_WELL, "no sign of a failure", "none")
    left_well = any((f.source, f.name, f.text) == ("exit", "exit_code", "0") for f in facts)
    if left_well or any(f.name == "last_progress" for f in facts):
        return FailureVerdict(Cause.NONE, TRAINED, "no sign of a failure", "none")
    return FailureVerdict(Cause.UNKNOWN, NO_SIGN, "no sign of a failure, but neither training nor an end is seen", NOT_EARNED)


def _stops_in_mid_run(facts: Sequence[Evidence], good_end: float) -> bool:
    """Whether the last line of a log is a step of training, or a bar that is not full: nothing says that the program came to its end."""
    read = max((f.line for f in facts if f.name == "read"), default=0)
    last = next((f for f in facts if f.name == "last_progress"), None)
    return last is not None and not good_end and last.line >= read - 1 and not _FULL.search(last.text)


def verdict(
    roots: Sequence[CauseCandidate], candidates: Sequence[CauseCandidate], facts: Sequence[Evidence], exceptions: Exceptions
) -> FailureVerdict:
    """Return the verdict on the first of these roots, the rest as its evidence and its rival."""
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
    return FailureVerdict(
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
    fields: dict[str, str] = dict(best.fact.fields) if best.fact.claim else {}
    for candidate in same:
        if candidate.fact.claim is not None and (candidate.rank == best.rank or candidate.fact.name == best.fact.name):
            for name, value in candidate.fact.fields:
                fields.setdefault(name, value)
    if exception is not None:
        fields.setdefault("exception", exits.exception_type(exception.text))
        if place := place_of(trace):
            fields.setdefault("file", place.path)
            fields.setdefault("line", str(place.line))
            fields.setdefault("function", place.function)
    for fact in facts:
        if fact.source in ENDS and fact.name in {"signal", "exit_code"} and fact.rank == best.rank:
            fields.setdefault(fact.name, fact.text)
    for name, value in xid.explained(fields.get("xid", "")).items():
        fields.setdefault(name, value)
    fields = _of_cause(best, fields, facts, exception) | fields
    own = {pid for fact in facts if fact.source == "exit" or fact.name == "member" if (pid := field_of(fact, "pid"))}
    return fields | gpu_memory.holders(fields, own)


def _of_cause(best: CauseCandidate, fields: Mapping[str, str], facts: Sequence[Evidence], exception: Evidence | None) -> dict[str, str]:
    """Return what a remedy of this cause depends on (remedies.py)."""
    cause = best.claim.cause
    if cause is Cause.STORAGE_REMOTE:
        return _other_end(best, facts, exception)
    if cause is Cause.USER_CODE and fields.get("exception") in exception_table.OF_NETWORKS:
        return {name: peer for name, peer in _other_end(best, facts, exception).items() if name == "peer"}
    if cause is Cause.HOST_OOM:
        return {"killed": "child"} if _killed_a_child(fields, facts) else {}
    of_host = (
        f for f in facts if (f.source, f.name) == ("host", _OF_DISKS.get(cause)) and (best.rank is None or f.rank in {None, best.rank})
    )
    return next((dict(fact.fields) for fact in of_host), {})


def _killed_a_child(fields: Mapping[str, str], facts: Sequence[Evidence]) -> bool:
    """Whether the process that was killed for want of memory is known, and was a child of a rank: a loader's worker."""
    if any("DataLoader worker" in fact.text for fact in facts):
        return True
    ranks = {field_of(fact, "pid") for fact in facts if fact.source == "exit"}
    return bool(fields.get("pid") and ranks) and fields["pid"] not in ranks


def _other_end(best: CauseCandidate, facts: Sequence[Evidence], exception: Evidence | None) -> dict[str, str]:
    """Return the address that did not answer, or refused, and whether it is the job's own service; {} where it is not known."""
    noted = (f.text for f in facts if (f.source, f.name) == ("error_file", "peer") and f.rank == best.rank)
    texts = (best.fact.text, *((exception.text,) if exception is not None else ()))
    peer = next(noted, "") or next((peer_address for text in texts if (peer_address := peers.peer_in(text))), "")
    if not peer:
        return {}
    own = peers.is_own(peer) and not peers.serves_data(best.fact.name)
    return {"peer": peer} | ({"own_service": "this machine" if peers.is_local(peer) else "a private network"} if own else {})


def _because(  # noqa: PLR0913, PLR0917 (what a verdict is on)
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
    # a rank that raised the same is not a victim of the first: its own exception says more than its exit code
    raised = ("", "", "") if exception is None else (exception.source, exception.name, exception.text)
    alike = {f.rank: f for f in facts if (f.source, f.name, f.text) == raised}
    listed += [_instead(c.fact, alike) for c in candidates if c.claim.cause is not best.claim.cause][:4]
    unequal: list[Evidence] = []
    for fact in listed:
        if not any(fact.text == other.text and fact.rank == other.rank and fact.line == other.line for other in unequal):
            unequal.append(fact)
    return tuple(unequal[:MOST_BECAUSE])


def _instead(fact: Evidence, alike: Mapping[int | None, Evidence]) -> Evidence:
    return alike.get(fact.rank, fact) if fact.source == "exit" and fact.name == "exit_code" else fact


def _beside(rank: int | None, facts: Sequence[Evidence], besides: Evidence) -> list[Evidence]:
    """Return the exit code, signal, phase and step of a rank, and whether it has loader workers."""
    own = [f for f in facts if f.rank == rank and f is not besides]
    names = ("exit_code", "signal", "phase", "step", "loader", "gathers")
    return [f for f in (next((f for f in own if f.name == name), None) for name in names) if f is not None]


def _phase(facts: Sequence[Evidence], rank: int | None) -> str:
    return next((f.text for f in facts if f.source == "heartbeat" and f.name == "phase" and f.rank == rank), "")


def _subject(fact: Evidence, facts: Sequence[Evidence]) -> str:
    if fact.rank is not None:
        return f"rank {fact.rank}"
    if fact.source in {"log", "exit"} and fact.line:
        return "a process"
    return next((f.text for f in facts if f.name == "who" and f.rank is None), "the launcher")


def _ending(fact: Evidence) -> str:
    if fact.name == "end":  # no code is known
        return fact.text
    return f"was killed by {exits.signal_name(fact.text)}" if fact.name == "signal" else f"exited with code {fact.text}"


def _summary(best: CauseCandidate, facts: Sequence[Evidence], exception: Evidence | None) -> str:
    fact = best.fact
    if fact.source in ENDS and fact.name in {"signal", "exit_code"}:
        return f"{_subject(fact, facts)} {_ending(fact)}"
    if fact.source == "hang" or (fact.source, fact.name) == RACE:  # names its ranks by itself
        return fact.text
    if fact.source == "kernel":
        return f"the kernel reports: {_short(fact.text)}"
    if exception is not None:
        return f"{_subject(fact, facts)} raised {_short(fact.text)}"
    whose = f"rank {fact.rank}: " if fact.rank is not None else ""
    # a sentence about a checkpoint is supervise's own and ends with what to do, after paths that may be long
    return f"{whose}{fact.text if fact.source == 'checkpoint' else _short(fact.text)}"


def _short(text: str) -> str:
    first = text.strip().split("\n", 1)[0]
    return first if len(first) <= SUMMARY_CHARACTERS else first[: SUMMARY_CHARACTERS - 1] + "…"
