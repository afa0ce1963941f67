"""What ended each rank, and what it therefore outranks.

In: the candidates of one incident and its facts. Out: which of them may be a cause at all; the others stay beside the verdict, as what
else was said. Nothing here fails, nothing is kept.

A log holds more than its program's own failure: errors that were caught, data that is printed, other processes' lines, the attempt before
this one. What is only text is therefore heard after what is known of the end, by these rules:

1. *A run ends with its launcher's footer.* Where a rank fails in a second footer, all before the end of the first one is another run.
2. *The end speaks.* The exception that ended a rank (its error file's, else its last whole traceback) outranks what else its output says,
   unless that exception may itself follow from it: a closed connection, a worker that is gone, a launcher that hands on. Where no rank is
   named, a footer between the two parts one node's processes from another's.
3. *A signal is no exception.* A process that died of SEGV or KILL did not die of the exception of which a single line stands in its log.
4. *Who was ended is no culprit.* A rank that we ended is not accused by its own text while another one's end speaks.
5. *What changes a job must not be survived.* Where training went on, or came to its own good end, such a cause is not told by text.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from supervisor.classify import exits
from supervisor.core.model import Cause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.classify.candidate import CauseCandidate
    from supervisor.core.model import Evidence

#: The causes to which recovery answers with more than a restart: a wrong one does harm, and UNKNOWN does not.
JOB_CHANGING = frozenset(
    {
        *(Cause.CUDA_OOM, Cause.HOST_OOM, Cause.DISK_FULL, Cause.NAN_LOSS, Cause.CHECKPOINT_CORRUPT, Cause.CHECKPOINT_MISMATCH),
        *(Cause.GPU_ECC, Cause.GPU_LOST, Cause.GPU_XID_OTHER, Cause.GPU_DRIVER, Cause.NVLINK),
    }
)
#: What can have a process killed by KILL. Whatever else it wrote before, an error ends a program in another way.
KILLS = frozenset({Cause.HOST_OOM, Cause.PREEMPTED, Cause.KILLED_UNKNOWN})
EXCEPTIONS = frozenset({"exception", "last_exception"})
_KILL = "9"
#: A fault of the program's own, and KILL. ABRT is how a C++ exception ends, and TERM comes from outside.
_NO_EXCEPTIONS_END = frozenset({"4", "7", "8", _KILL, "11"})
_ANY = "*"
#: One line that Python prints of an exception; programs print it of those that they caught, or read somewhere.
ONE_LINE = re.compile(r"[ \t]*[A-Za-z_][\w.]*(?:Error|Exception|OutOfMemory)(?:: .*)?", re.DOTALL)


def this_run(facts: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """Return the facts without those of an earlier run that is told of in the same log."""
    told: dict[int | None, list[int]] = {}
    for fact in facts:
        if _in_table(fact):
            told.setdefault(fact.rank, []).append(fact.line)
    ran = sorted(f.line for f in facts if f.source == "log" and (f.name in EXCEPTIONS or f.name == "progress"))
    pairs = ((first, last) for lines in told.values() for first, last in pairwise(lines))
    over = max((first for first, last in pairs if bisect_right(ran, first) < bisect_left(ran, last)), default=0)
    return tuple(fact for fact in facts if not 0 < fact.line <= over or fact.source in {"observer", "heartbeat"})


def _in_table(fact: Evidence) -> bool:
    """Whether it is of the table with which torchrun ends."""
    return fact.source == "exit" and fact.line > 0 and next((v for k, v in fact.fields if k == "line"), "").startswith("exitcode")


def heard(candidates: Sequence[CauseCandidate], facts: Sequence[Evidence]) -> list[CauseCandidate]:
    """Return the candidates that may be a cause."""
    telling = [c for c in candidates if _ended_its_rank(c)]
    ended = {f.rank for f in facts if f.name == "ended_by_us"}
    signals = [f for f in facts if f.source == "exit" and f.name == "signal" and f.text in _NO_EXCEPTIONS_END]
    well = well_ended(facts)
    tables = sorted(f.line for f in facts if _in_table(f))
    return [
        c
        for c in candidates
        if not (c.survived and c.row.cause in JOB_CHANGING)
        and not any(_outranks(end, c, ended, tables) for end in telling)
        and not any(_is_no_end(c, signal) for signal in signals)
        and not (_is_text(c.fact) and c.row.cause in JOB_CHANGING and c.fact.t < well)
    ]


def well_ended(facts: Sequence[Evidence]) -> float:
    """Return when (in a log: on which line) the program said that it came to its good end; 0 where it did not."""
    return max((f.t for f in facts if f.name == "ended_well"), default=0.0)


def _is_text(fact: Evidence) -> bool:
    """Whether it is known from lines alone: of a log, or such as look like the kernel's in one."""
    return fact.free_text and (fact.source == "log" or (fact.source == "kernel" and fact.line > 0))


def _ended_its_rank(candidate: CauseCandidate) -> bool:
    """Whether it is the exception that ended a rank, and one that says something of its own."""
    fact = candidate.fact
    if fact.free_text or fact.source not in {"log", "error_file"} or (fact.claim is None and fact.name not in EXCEPTIONS):
        return False
    return not exits.is_consequence(fact.text) and not exits.hands_on(fact.text)


def _outranks(end: CauseCandidate, other: CauseCandidate, ended: set[int | None], tables: Sequence[int]) -> bool:
    """Whether what ended a rank leaves no room for what else is said of it."""
    if not _is_text(other.fact) or _may_follow(end, other):
        return False
    if other.fact.source == "kernel" and end.row.cause is not Cause.USER_CODE:
        return False
    if other.rank in ended and other.rank is not None and end.rank != other.rank:
        return True
    if other.rank not in {None, end.rank} or end.fact.source == "error_file":
        return other.rank in {None, end.rank}
    between = bisect_left(tables, end.fact.line) - bisect_right(tables, other.fact.line)
    return end.row.cause is not other.row.cause and end.fact.line > other.fact.line and not between


def _may_follow(end: CauseCandidate, other: CauseCandidate) -> bool:
    after = end.row.after
    if _ANY in after:  # a module that is missing is weak as a mere line, for programs try imports; as the end it is no consequence
        return end.fact.claim is None or end.row.cause is not Cause.USER_CODE
    return other.row.cause.value in after


def _is_no_end(candidate: CauseCandidate, signal: Evidence) -> bool:
    """Whether a rank's signal leaves no room for a line that tells of an exception."""
    fact = candidate.fact
    if not _is_text(fact) or fact.source == "kernel" or candidate.row.cause not in JOB_CHANGING:
        return False
    if signal.text == _KILL and candidate.row.cause in KILLS:
        return False
    same = fact.rank is None or signal.rank is None or fact.rank == signal.rank
    return same and ONE_LINE.fullmatch(fact.text) is not None
