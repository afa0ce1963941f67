"""Decides which candidates may be the cause: the end of a rank outranks its output.

A log holds more than its program's own failure: caught errors, printed data, lines of other processes, the attempt before. So these rules
put the known end of a rank before the text. Candidates that are not admissible stay in the verdict as further evidence.

1. *A run ends with its launcher's footer.* If a rank fails in a second footer, everything before the end of the first is another run. So is
   everything before the last traceback if the lines after it are those with which the log began: that is a new run.
2. *The end outranks the output.* The exception that ended a rank (its error file's, else its last whole traceback) outranks its other
   output, unless that exception may follow from it: a closed connection, a lost worker, a launcher that passes an error on. If no rank is
   named, a footer between the two separates the processes of two nodes. A person's Ctrl-C may follow from another exception, not from text.
3. *A signal is not an exception.* A process that died of SEGV or KILL did not die of an exception of which its log has a single line.
4. *A rank that we ended is not a culprit.* Its own text does not accuse it while the end of another rank names a cause.
5. *A logged error needs a peer that waited.* An error that a rank logged and survived explains the time-out of another rank, and nothing
   else: not a kill, and no wait of the rank that logged it.
6. *A survived cause never changes the job.* If training continued, or ended well, text alone does not prove such a cause.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from supervisor.classify import exits
from supervisor.classify.expressions import expression
from supervisor.classify.logs.rows import LOGGED
from supervisor.core.causes import causes_where
from supervisor.core.model import Cause

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from supervisor.classify.judgement.candidate import CauseCandidate
    from supervisor.core.model import Evidence

#: Causes for which recovery does more than a restart. A wrong one does harm, UNKNOWN does not.
JOB_CHANGING = causes_where(lambda row: row.changes_job)
#: Causes that can end a process by KILL. An error ends it in another way.
KILLS = causes_where(lambda row: row.ends_by_kill)
#: Causes in the program and its libraries. No record of the kernel explains them, and a missing module follows from no other cause.
_OF_PROGRAMS = frozenset({Cause.USER_CODE, Cause.DEPENDENCY})
EXCEPTIONS = frozenset({"exception", "last_exception"})
#: Signatures of a wait that ended by its time-out, beside those of NCCL.
_TIMED_OUT = frozenset({"gloo_error.timeout", "gloo_error.wait", "gloo_error.barrier", "gloo_error.keys"})
_KILL = "9"
#: Signals that no exception ends in: faults and KILL. A C++ exception ends in ABRT, and TERM comes from outside.
_NO_EXCEPTIONS_END = frozenset({"4", "7", "8", _KILL, "11"})
_ANY = "*"
#: One line of an exception as Python prints it. Programs also print such lines for exceptions that they caught or read elsewhere.
ONE_LINE = expression(r"[ \t]*[A-Za-z_][\w.]*(?:Error|Exception|OutOfMemory)(?:: .*)?", re.DOTALL)


def facts_of_this_run(facts: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """Return the facts without those of an earlier run in the same log."""
    footers: dict[int | None, list[int]] = {}
    for fact in facts:
        if _in_table(fact):
            footers.setdefault(fact.rank, []).append(fact.line)
    ran = sorted(f.line for f in facts if f.source == "log" and (f.name in EXCEPTIONS or f.name == "progress"))
    pairs = ((first, last) for lines in footers.values() for first, last in pairwise(lines))
    over = max((first for first, last in pairs if bisect_right(ran, first) < bisect_left(ran, last)), default=0)
    over = max((f.line for f in facts if f.name == "begun_again"), default=over)
    return tuple(fact for fact in facts if not 0 < fact.line <= over or fact.source in {"observer", "heartbeat"})


def _in_table(fact: Evidence) -> bool:
    """Whether a fact comes from the table that torchrun prints at its end."""
    return fact.source == "exit" and fact.line > 0 and next((v for k, v in fact.fields if k == "line"), "").startswith("exitcode")


def admissible(candidates: Sequence[CauseCandidate], facts: Sequence[Evidence]) -> list[CauseCandidate]:
    """Return the candidates that may be the cause."""
    ends = [c for c in candidates if _ended_its_rank(c)]
    ended = {f.rank for f in facts if f.name == exits.ENDED_BY_US}
    signals = [f for f in facts if f.source == "exit" and f.name == "signal" and f.text in _NO_EXCEPTIONS_END]
    good_end = good_end_time(facts)
    tables = sorted(f.line for f in facts if _in_table(f))
    raised = {f.line for f in facts if f.name in EXCEPTIONS}
    return [
        c
        for c in candidates
        if not (c.survived and c.claim.cause in JOB_CHANGING)
        and not any(_outranks(end, c, ended, tables) and not _interrupted(end, c, raised) for end in ends)
        and not any(_ruled_out_by_signal(c, signal) for signal in signals)
        and (not is_logged(c.fact) or any(_waited_for(c, other) for other in candidates))
        and not (_is_text(c.fact) and c.claim.cause in JOB_CHANGING and c.fact.t < good_end)
    ]


def is_logged(fact: Evidence) -> bool:
    """Whether a fact is an error that a rank logged before it continued (signatures/logged.toml)."""
    return fact.name.endswith(LOGGED)


def _waited_for(logged: CauseCandidate, other: CauseCandidate) -> bool:
    """Whether another rank's wait ended by its time-out. A rank that is not known may be another one."""
    is_wait = other.claim.cause is Cause.NCCL_TIMEOUT or other.fact.name in _TIMED_OUT
    return is_wait and (logged.rank is None or other.rank is None or other.rank != logged.rank)


def good_end_time(facts: Sequence[Evidence]) -> float:
    """Return when (in a log: on which line) the program reported a good end; 0 if it did not."""
    return max((f.t for f in facts if f.name == "ended_well"), default=0.0)


def _is_text(fact: Evidence) -> bool:
    """Whether only lines of a log show a fact; some of them may look like the kernel's."""
    return fact.free_text and (fact.source == "log" or (fact.source == "kernel" and fact.line > 0))


def _ended_its_rank(candidate: CauseCandidate) -> bool:
    """Whether a candidate is the exception that ended a rank, and neither a consequence nor a passed-on error."""
    fact = candidate.fact
    if fact.free_text or fact.source not in {"log", "error_file"} or (fact.claim is None and fact.name not in EXCEPTIONS):
        return False
    return not exits.is_consequence(fact.text) and not exits.refers_elsewhere(fact.text)


def _outranks(end: CauseCandidate, other: CauseCandidate, ended: set[int | None], tables: Sequence[int]) -> bool:
    """Whether the end of a rank rules out another candidate for it."""
    if not _is_text(other.fact) or _may_follow(end, other):
        return False
    if other.fact.source == "kernel" and end.claim.cause not in _OF_PROGRAMS:
        return False
    if other.rank in ended and other.rank is not None and end.rank != other.rank:
        return True
    if other.rank not in {None, end.rank} or end.fact.source == "error_file":
        return other.rank in {None, end.rank}
    between = bisect_left(tables, end.fact.line) - bisect_right(tables, other.fact.line)
    return end.claim.cause is not other.claim.cause and end.fact.line > other.fact.line and not between


def _interrupted(end: CauseCandidate, other: CauseCandidate, raised: AbstractSet[int]) -> bool:
    """Whether a person ended a job in which another exception had been raised: the process that raised it may have been another."""
    return end.claim.cause is Cause.INTERRUPTED and other.fact.line in raised


def _may_follow(end: CauseCandidate, other: CauseCandidate) -> bool:
    # a missing module is weak as a mere line, because programs try imports; as the end of a rank it is not a consequence
    if _ANY in end.claim.consequence_of:
        return end.fact.claim is None or end.claim.cause not in _OF_PROGRAMS
    return end.claim.names(other.claim.cause)


def _ruled_out_by_signal(candidate: CauseCandidate, signal: Evidence) -> bool:
    """Whether a rank's signal rules out an exception that is only one line of text."""
    fact = candidate.fact
    if not _is_text(fact) or fact.source == "kernel" or candidate.claim.cause not in JOB_CHANGING:
        return False
    if signal.text == _KILL and candidate.claim.cause in KILLS:
        return False
    same = fact.rank is None or signal.rank is None or fact.rank == signal.rank
    return same and ONE_LINE.fullmatch(fact.text) is not None
