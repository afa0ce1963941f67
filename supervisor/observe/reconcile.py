"""Drops or downgrades evidence that other evidence contradicts, before it is classified.

A signature knows only a text; this module knows what became of the process that wrote it. Example: an error message does not explain a
rank that SIGKILL ended, and a warning before the last ten seconds of training caused no failure. It also bounds how many facts a journal
must hold.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from supervisor.classify import exception_table, exits
from supervisor.classify.engine import OWN_CODE
from supervisor.classify.exceptions import UNCAUGHT
from supervisor.classify.judgement.admissible import JOB_CHANGING, KILLS, ONE_LINE, is_logged
from supervisor.classify.logs.tracebacks import HANDLED
from supervisor.core.model import Cause, Evidence
from supervisor.core.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.core.model import Claim, RankExit
    from supervisor.job.clock import Clock
    from supervisor.observe.ranks.heartbeats import RankHeartbeat

#: Steps of a rank that continues for a moment after another has failed prove nothing yet.
STILL_GOING_S = 10.0
#: A killed process may hold on for this many seconds, while its memory is taken away; nor does a loader miss its workers at once.
LINGERS_S = 300.0
#: By so much a count is read later than it changed, at most.
COUNTED_S = 10.0
#: The text of torch's DataLoader about a worker of its own that is gone; nothing else uses these words. In an error file it is not text.
OF_A_LOADER = (
    "RuntimeError: DataLoader worker (pid",
    "RuntimeError: DataLoader timed out after ",
    "RuntimeError: Pin memory thread exited",
)
BY_THE_LOADER = 0.95
#: Exceptions of who had a process of its own killed.
OF_A_KILLED_CHILD = exception_table.OF_A_GONE_WORKER | {
    "BrokenProcessPool",
    "TerminatedWorkerError",
    "ProcessExitedException",
    "WorkerCrashedError",
}
MOST_OF_LOGS = 256


def reconciled(facts: Iterable[Evidence], deaths: Sequence[RankExit], beats: Sequence[RankHeartbeat], clock: Clock) -> tuple[Evidence, ...]:
    """Return the facts, without or with less of what others contradict."""
    failed = [death for death in deaths if death.failed and death.at_ns]
    died = {death.rank: clock.at_monotonic_ns(death.at_ns) for death in failed}
    first = min(died.values(), default=None)
    facts = _without_interrupts_of_one_rank(with_printed_ends(tuple(facts)), deaths, beats)
    killed = frozenset(fact.rank for fact in facts if (fact.source, fact.name, fact.text) == ("exit", "signal", str(int(signal.SIGKILL))))
    trained = _trained_until(beats, clock)
    # a rank with a heartbeat was a Python program, not a shell that exits with 137 for a killed child
    speaking = {death.rank for death in failed} & {death.rank for death in deaths if death.pid in {beat.pid for beat in beats}}
    # and would have written down the exception that ended it: without that, what its log quotes is one that it caught
    wrote = {fact.rank for fact in facts if (fact.source, fact.name) == ("error_file", "exception")}
    without_exception = frozenset(
        fact.rank for fact in facts if fact.name in {"exit_code", exits.ENDED_BY_US} and fact.rank in speaking - wrote
    )
    handled = _handled(facts)
    stepped = {beat.rank: clock.at_monotonic_ns(beat.last_step_ns) for beat in beats if beat.last_step_ns is not None}
    # every rank made a step after what one of them had logged: nobody waited for it
    stepped_on = min(stepped.values()) if len(stepped) == len(beats) and stepped else 0.0
    quoted = {(fact.rank, fact.line) for fact in facts if fact.rank in without_exception and fact.source == "log" and _is_printed(fact)}
    gone = [fact.t for fact in facts if _is_a_kill(fact) and not (fact.name == "exit_code" and fact.rank in speaking)]
    kept: list[Evidence] = []
    of_logs: list[Evidence] = []
    for fact in facts:
        if fact.source == "log":
            adjusted = replace(fact, t=min(fact.t, died.get(_rank(fact), fact.t)))
            if (fact.rank, fact.line) in quoted or (is_logged(fact) and fact.t < stepped_on):
                continue
            if fact.rank in without_exception and _is_raised(fact) and fact.t < stepped.get(_rank(fact), 0.0):
                continue
            if fact.rank in without_exception or _is_of(fact, handled):
                adjusted = replace(adjusted, free_text=True)
            of_logs += _of_log(adjusted, fact.rank in killed, first, trained)
        elif (fact.source, fact.name) == ("exit", "exit_code") and fact.rank in speaking:
            kept.append(replace(fact, fields=(*fact.fields, OWN_CODE)))
        elif fact.source == "kernel" and fact.claim is not None and fact.t < trained:
            kept.append(replace(fact, name="survived", claim=None))
        elif fact.source == "error_file" and fact.claim is not None:
            kept.append(_of_error_file(fact, fact.claim))
        elif (fact.source, fact.name) == ("cgroup", "oom_kill"):
            kept.append(_of_count(fact, gone, trained))
        else:
            kept.append(fact)
    return (*kept, *_fewer(of_logs))


def with_printed_ends(facts: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """Return the facts; a rank that vanished ended as its shell printed for its pid, when it vanished."""
    vanished = {pid for fact in facts if fact.name == "vanished" and (pid := dict(fact.fields).get("pid"))}
    printed = {pid: fact for fact in facts if fact.source == "exit" and fact.line and (pid := dict(fact.fields).get("pid")) in vanished}
    ends = (
        replace(fact, name=end.name, text=end.text)
        if fact.name == "vanished" and (end := printed.get(dict(fact.fields).get("pid", ""))) is not None
        else fact
        for fact in facts
    )
    return tuple(fact for fact in ends if fact not in printed.values())


def _without_interrupts_of_one_rank(
    facts: tuple[Evidence, ...], deaths: Sequence[RankExit], beats: Sequence[RankHeartbeat]
) -> tuple[Evidence, ...]:
    """Return the facts. If one rank of several died of INT, it was killed: Ctrl-C reaches all of them, and us."""
    interrupted = {death.rank for death in deaths if death.signal == signal.SIGINT or death.code == exits.OF_A_SIGNAL + signal.SIGINT}
    others = {death.rank for death in deaths} | {beat.rank for beat in beats}
    # one that was still ending when another's end was seen died of the supervisor's own signal; its exception remains
    raised = {fact.rank for fact in facts if _is_interrupt(fact)}
    if len(interrupted) != 1 or raised - interrupted or not any(rank >= 0 for rank in others - interrupted):
        return facts
    claim = exits.ONE_RANK_INTERRUPTED
    of_the_end = replace(claim, weight=exits.BY_SIGNAL[signal.SIGINT].weight, consequence_of=exits.ANY)
    ends = {(name, str(number)) for name, number in (("signal", int(signal.SIGINT)), ("exit_code", exits.OF_A_SIGNAL + signal.SIGINT))}

    def judged(fact: Evidence) -> Evidence:
        if fact.rank in interrupted and fact.source == "exit" and (fact.name, fact.text) in ends:
            return replace(fact, claim=of_the_end)
        if fact.rank in interrupted and fact.claim is None and _is_interrupt(fact):
            return replace(fact, claim=claim)
        return fact

    return tuple(judged(fact) for fact in facts)


def _is_interrupt(fact: Evidence) -> bool:
    """Whether it is a KeyboardInterrupt that ended a rank."""
    return (fact.source, fact.name) in UNCAUGHT and exits.exception_type(fact.text) in exception_table.SENT_FROM_OUTSIDE


def _rank(fact: Evidence) -> int:
    return -1 if fact.rank is None else fact.rank


def _of_error_file(fact: Evidence, claim: Claim) -> Evidence:
    """Return a claim on the exception that ended a rank: a loader's own words are surer there than as some line of a log."""
    if claim.cause is not Cause.DATALOADER_WORKER or not fact.text.startswith(OF_A_LOADER):
        return fact
    return replace(fact, claim=replace(claim, weight=max(claim.weight, BY_THE_LOADER)))


def _handled(facts: Sequence[Evidence]) -> dict[int | None, tuple[str, str]]:
    """Return what ranks wrote down of their end, in two: what they had handled when the last exception came, and what they had not."""
    quoting = {fact.rank for fact in facts if (fact.source, fact.name) == ("error_file", "exception") and HANDLED in fact.text}
    traces = ((fact.rank, fact.text) for fact in facts if (fact.source, fact.name) == ("error_file", "traceback"))
    parts = ((rank, text.rpartition(HANDLED)) for rank, text in traces if rank not in quoting)
    return {rank: (before, after) for rank, (before, _, after) in parts if before}


def _is_of(fact: Evidence, handled: dict[int | None, tuple[str, str]]) -> bool:
    """Whether a fact of a log is of an exception that its rank had handled before another one ended it."""
    before, after = handled.get(fact.rank, ("", ""))
    head = fact.text.split("\n", 1)[0].strip()
    return bool(head) and _is_raised(fact) and head in before and head not in after


def _is_raised(fact: Evidence) -> bool:
    return fact.claim is not None or fact.name in {"exception", "last_exception"}


def _is_printed(fact: Evidence) -> bool:
    """Whether a rank that exited without an exception printed it: the one line of an exception that would call for a change of the job."""
    return fact.free_text and fact.claim is not None and fact.claim.cause in JOB_CHANGING and ONE_LINE.fullmatch(fact.text) is not None


def _trained_until(beats: Sequence[RankHeartbeat], clock: Clock) -> float:
    """Until when every rank surely trained; 0 where that is not known of one of them."""
    steps = [beat.last_step_ns for beat in beats]
    known = [step for step in steps if step is not None]
    return clock.at_monotonic_ns(min(known)) - STILL_GOING_S if known and len(known) == len(steps) else 0.0


def _of_log(fact: Evidence, killed: bool, first: float | None, trained: float) -> tuple[Evidence, ...]:  # noqa: FBT001 (one of four facts)
    """The rest of one. killed: its rank was killed, and not by the supervisor; first: the time of the first rank's failure."""
    if fact.name in {"progress", "recent_progress"}:
        return () if first is not None and fact.t >= first else (fact,)
    if killed:  # no exception ends like this: the last one was caught, or quoted
        explains = fact.claim is not None and fact.claim.cause in KILLS
        return (replace(fact, free_text=True),) if explains else ()
    return () if fact.free_text and fact.t < trained else (fact,)


def _is_a_kill(fact: Evidence) -> bool:
    """Return whether a fact is about a process that a KILL not our own ended: a rank, or a child of one."""
    if (fact.name, fact.text) in {("signal", "9"), ("exit_code", "-9"), ("exit_code", "137")}:
        return True
    if fact.claim is not None:
        return fact.claim.cause is Cause.DATALOADER_WORKER
    return (fact.source, fact.name) in UNCAUGHT and exits.exception_type(fact.text) in OF_A_KILLED_CHILD


def _of_count(fact: Evidence, gone: Sequence[float], trained: float) -> Evidence:
    """The rest of a counted kill: it may have been of anybody in the group, and long before the failure.

    `gone`: the time of each killed process, 0 where it is not known.
    """
    if fact.t < trained:
        return replace(fact, name="oom_kill_survived")
    near = [t or fact.t for t in gone if not t or -COUNTED_S <= t - fact.t <= LINGERS_S]
    return replace(fact, t=min(fact.t, *near)) if near else replace(fact, name="oom_kill_beside")


def _fewer(facts: Sequence[Evidence]) -> Sequence[Evidence]:
    """Return the facts of most weight: final tracebacks, then what a signature knows, first in time first."""
    if len(facts) <= MOST_OF_LOGS:
        return facts
    best = sorted(range(len(facts)), key=lambda i: (facts[i].free_text, facts[i].claim is None, facts[i].t))[:MOST_OF_LOGS]
    return (*(facts[i] for i in sorted(best)), Evidence("observer", "left_out", f"{len(facts) - MOST_OF_LOGS} more findings in the logs"))
