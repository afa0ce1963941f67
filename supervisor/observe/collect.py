"""Collects all evidence of one failed attempt from its sources.

Files can hang, so each source runs in its own thread, and all share one deadline. A source that fails or is late adds that fact as
evidence (`observer/failed`, `observer/overdue`); it is never a failure of the job.
"""

from __future__ import annotations

import signal
import threading
import time
from types import MappingProxyType
from typing import TYPE_CHECKING

from supervisor.classify import exits as exits_of
from supervisor.classify import redact
from supervisor.classify.logs import match
from supervisor.classify.logs.match import Reader
from supervisor.classify.logs.text import kernel_message
from supervisor.classify.logs.tracebacks import direct_causes, up_to_root
from supervisor.core.model import Evidence
from supervisor.core.units import bytes_text
from supervisor.core.values import replace
from supervisor.observe.log_watch import AGENT
from supervisor.observe.processes.launched_ranks import VanishedRank
from supervisor.observe.ranks import error_files, heartbeats, save_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from supervisor.core.model import RankExit, RankInfo
    from supervisor.guardian.messages import StreamTail
    from supervisor.job.clock import Clock
    from supervisor.observe.log_watch import Signatures, StreamRead
    from supervisor.observe.ranks.heartbeats import GpuMemory

#: Lines of a rank's last output that are worth keeping with an incident.
TAIL_LINES = 12
#: So many last characters decide whether a log ends as its stream does.
SAME_END = 200
#: Line numbers are a stream's own; this tells those of one process's streams apart, because evidence names no stream.
LINES_APART = 1_000_000_000
#: Facts that only compare the lines of one file with each other.
LINES_ONLY = frozenset({"read", "last_progress"})
#: A command ends so soon after its program failed, at the latest: a launcher checks now and then.
FOLLOWS_NS = 30 * 10**9
#: The text for a rank that was reaped before its end could be seen.
GONE = "it is gone, and nobody saw how it ended"
#: KILL follows TERM after the grace, as nearly as the two are measured.
GRACE_MARGIN_S = 0.25


def together(sources: Mapping[str, Callable[[], Iterable[Evidence]]], deadline_s: float) -> list[Evidence]:
    """Ask all sources at once. A source that fails or is late adds that fact, and delays no other."""
    answers: dict[str, list[Evidence]] = {}

    def ask(name: str, source: Callable[[], Iterable[Evidence]]) -> None:
        try:
            answers[name] = list(source())
        except Exception as error:  # noqa: BLE001 (whatever it is, the verdict must not wait for it)
            answers[name] = [Evidence("observer", "failed", f"{name}: {error}")]
        pending.release()

    pending = threading.Semaphore(0)
    asked = 0
    for name, source in sources.items():
        try:
            threading.Thread(target=ask, args=(name, source), name=f"evidence-{name}", daemon=True).start()
        except RuntimeError:  # a limit on threads that loaders use up: one after the other, then
            ask(name, source)
        asked += 1
    until = time.monotonic() + deadline_s
    for _ in range(asked):
        pending.acquire(timeout=max(0.0, until - time.monotonic()))
    silent = [Evidence("observer", "overdue", name) for name in sources if name not in answers]
    return [fact for name in sources for fact in answers.get(name, ())] + silent


def _gpu_memory(rank: int, memory: GpuMemory) -> Evidence:
    """Return what torch's allocator held of a rank's GPU when it was read last: at a step's end, or at an exception."""
    text = f"{bytes_text(memory.allocated)} allocated and {bytes_text(memory.reserved)} reserved of {bytes_text(memory.limit)}"
    text += f", {bytes_text(memory.peak)} at most"
    text += f"; {bytes_text(memory.unused)} reserved and not allocated" if memory.unused else ""
    text += f", {bytes_text(memory.split)} of it in blocks that are used in part" if memory.unused and memory.split else ""
    return Evidence("heartbeat", "gpu_memory", text, rank, fields=(("reserved", str(memory.reserved)),))


def exits(  # noqa: PLR0913  facts of the ends, each by name
    deaths: Iterable[RankExit],
    clock: Clock,
    grace_s: float,
    ends: Iterable[RankExit | VanishedRank] = (),
    pids: Mapping[int, int] = MappingProxyType({}),
    *,
    stopped_t: float | None = None,
) -> tuple[Evidence, ...]:
    """Return the deaths as evidence, and who left with 0 before them. ends, pids: of ranks that the command started; it is their launcher.

    The first failure ends the attempt, or we do at `stopped_t`: who dies of TERM after it, or of KILL after it and the grace, was ended
    by us.
    """
    facts = []
    first: RankExit | None = None
    for death in sorted((*deaths, *ends), key=lambda death: death.at_ns):
        if isinstance(death, VanishedRank):
            if first is None:  # after a failure, a rank that goes was ended
                t, fields = clock.at_monotonic_ns(death.at_ns), (("pid", str(death.pid)),)  # a shell may print how that pid ended
                facts.append(Evidence("exit", "vanished", GONE, rank=death.rank, t=t, fields=fields))
            continue
        t = clock.at_monotonic_ns(death.at_ns)
        if death.rank < 0 or (not death.failed and (first is not None or (stopped_t is not None and t >= stopped_t))):
            continue  # after a failure, or our stop, a rank that leaves with 0 was asked to
        name, text = ("signal", str(death.signal)) if death.signal is not None else ("exit_code", str(death.code))
        is_term = (
            death.signal == signal.SIGTERM or death.code == exits_of.OF_A_SIGNAL + signal.SIGTERM
        )  # or a handler of it saved, and left so
        end_t = stopped_t if first is None else clock.at_monotonic_ns(first.at_ns)
        by_kill = death.signal == signal.SIGKILL
        if end_t is not None and t >= end_t and (is_term or (by_kill and t - end_t > grace_s - GRACE_MARGIN_S)):
            name = exits_of.ENDED_BY_US
        first = first or (death if death.failed else None)
        if pids.get(death.rank, death.pid) != death.pid:
            facts.append(Evidence("launcher", name, text, t=t))
            facts.append(Evidence("launcher", "who", "the command"))
            continue
        facts.append(Evidence("exit", name, text, rank=death.rank, t=t, fields=(("pid", str(death.pid)),)))
    return tuple(facts)


def beats(path: Path, clock: Clock, with_children: Collection[int | None] = ()) -> tuple[Evidence, ...]:
    """Return the last phase, step and step count of every rank that ever had a heartbeat, its loader's workers, and its end.

    with_children: ranks that have processes of their own. They may be the workers of a loader that is not torch's.
    """
    facts = []
    for beat in heartbeats.read(path):
        facts.append(Evidence("heartbeat", "phase", str(beat.phase), rank=beat.rank))
        facts.append(Evidence("heartbeat", "steps", str(max(beat.steps, 0)), rank=beat.rank))
        if beat.step is not None:
            facts.append(Evidence("heartbeat", "step", str(beat.step), rank=beat.rank))
        if beat.loader or (beat.torch_loaded and beat.rank not in with_children):
            facts.append(Evidence("heartbeat", "loader", "workers" if beat.loader else "none", rank=beat.rank))
        if beat.gpu_memory is not None:
            facts.append(_gpu_memory(beat.rank, beat.gpu_memory))
        if beat.unlimited:
            facts.append(Evidence("heartbeat", "gathers", "without a limit", rank=beat.rank))
        if beat.total is not None:
            facts.append(Evidence("heartbeat", "total", str(beat.total), rank=beat.rank))
        if beat.over_ns is not None:
            t = clock.at_monotonic_ns(beat.over_ns)
            facts.append(Evidence("heartbeat", "script_over", "its script was over", rank=beat.rank, t=t))
        facts += _beyond_imports(beat.rank, optimizer=beat.optimizer_made, ran=beat.ran)
    return tuple(facts)


def saves(directory: Path) -> tuple[Evidence, ...]:
    """Return how often a rank ended a save to one location in this attempt; nothing where none did.

    Once may be the state before the first step. Twice to one location is a training that gets on, whatever it trains with.
    """
    most = save_logs.most_saves(directory)
    return (Evidence("heartbeat", "saves", str(most)),) if most else ()


def errors(
    directory: Path, ranks: Sequence[RankInfo], clock: Clock, since_ns: int = 0, deaths: Iterable[RankExit] = ()
) -> tuple[Evidence, ...]:
    """Return the exceptions that ranks wrote themselves since the attempt began, each proven to be of one of `ranks`."""
    facts: list[Evidence] = []
    scan = error_files.read(directory, ranks, since_ns=since_ns)
    program = _of_the_command(scan, ranks, deaths) if not heartbeats.read(directory / "heartbeat") else None
    for error in scan.errors:
        if error is program:
            error = replace(error, rank=ranks[0].rank)  # noqa: PLW2901  the same report, with a name
            facts += _as_a_beat(error)
        facts += _of_error(error, clock)
    return tuple(facts)


def _of_error(error: error_files.ErrorReport, clock: Clock) -> Iterable[Evidence]:
    kind, t = error.exc_type.removeprefix("builtins."), clock.at_monotonic_ns(error.t_ns)
    # cut as a claim's text is, so that the two are known to be of one exception
    yield Evidence("error_file", "exception", f"{kind}: {error.message}"[: match.KEPT_TEXT], rank=error.rank, t=t)
    yield Evidence("error_file", "traceback", error.traceback, rank=error.rank, t=t)
    if error.peer:
        yield Evidence("error_file", "peer", error.peer, rank=error.rank, t=t)


def errors_of_ranks(directory: Path, ranks: Sequence[RankInfo], clock: Clock, since_ns: int) -> tuple[Evidence, ...]:
    """Return the exceptions that ended ranks of an attempt, also of those that the command started again after that."""
    ranks_errors = error_files.read(directory, ranks, since_ns=since_ns).errors
    return tuple(fact for error in ranks_errors if error.rank is not None for fact in _of_error(error, clock))


def hidden(facts: Iterable[Evidence], trained_t: float) -> tuple[Evidence, ...]:
    """Return what shows that ranks failed after `trained_t`, when a training last began; nothing if none failed by itself.

    An earlier failure was made good. A rank that was asked to end did as its command wanted, which then left with 0.
    """
    kept = tuple(fact for fact in facts if fact.source not in {"exit", "error_file"} or fact.t > trained_t)
    is_failure = any(
        (fact.source, fact.name) == ("error_file", "exception")
        or (fact.source == "exit" and fact.name == "signal" and not exits_of.was_asked(None, int(fact.text)))
        or (fact.source == "exit" and fact.name == "exit_code" and fact.text != "0" and not exits_of.was_asked(int(fact.text), None))
        for fact in kept
    )
    return kept if is_failure else ()


def _of_the_command(scan: error_files.ErrorScan, ranks: Sequence[RankInfo], deaths: Iterable[RankExit]) -> error_files.ErrorReport | None:
    """Return the exception of the program that a plain command ran as its only rank; None where that is not sure.

    A launcher of one process gives it no RANK (`accelerate launch` of one), and one that failed before it trained has claimed none: it is
    the one process whose exception the command's own end followed at once. An exception of a helper long before is not.
    """
    death = next((death for death in deaths if len(ranks) == 1 and death.rank == ranks[0].rank and death.failed), None)
    if death is None:
        return None
    candidates = [error for error in scan.unclaimed if exits_of.exception_type(error.exc_type) not in exits_of.OF_LAUNCHERS]
    near = [error for error in candidates if 0 <= death.at_ns - error.t_ns <= FOLLOWS_NS]
    return near[0] if len({error.pid for error in near}) == 1 else None


def _as_a_beat(error: error_files.ErrorReport) -> Iterable[Evidence]:
    """Yield what the heartbeat of a rank that had none yet would hold."""
    yield Evidence("heartbeat", "phase", str(error.phase), rank=error.rank)
    yield Evidence("heartbeat", "steps", str(max(error.steps, 0)), rank=error.rank)
    if error.step is not None:
        yield Evidence("heartbeat", "step", str(error.step), rank=error.rank)
    yield from _beyond_imports(error.rank, optimizer=error.optimizer, ran=error.ran)


def _beyond_imports(rank: int | None, *, optimizer: bool, ran: bool) -> Iterable[Evidence]:
    """Yield what shows how far a rank without a step came."""
    if optimizer:
        yield Evidence("heartbeat", "optimizer", "made", rank=rank)
    if ran:
        yield Evidence("heartbeat", "ran", "more than imports", rank=rank)


def of_launcher(facts: Iterable[Evidence], own_facts: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return the launcher's facts; what torch's @record wrote only for ranks whose instrumentation wrote nothing, by `found`."""
    reported = {fact.rank for fact in own_facts if fact.source == "error_file"}
    return tuple(fact for fact in facts if fact.source != "error_file" or fact.rank not in reported)


def claims(facts: Iterable[Evidence], signatures: Signatures) -> tuple[Evidence, ...]:
    """Return the signatures' claims about the exceptions among the facts, each with the frames from the same source and rank.

    An exception that was raised `from` another one has the claims of both: a library raises an exception of its own `from` the cause.
    """
    facts = tuple(facts)
    catalogue, _ = signatures()
    traces = {(fact.source, fact.rank): fact.text for fact in facts if fact.name == "traceback"}
    claimed: list[Evidence] = []
    for fact in facts:
        if fact.name == "exception":
            trace = traces.get((fact.source, fact.rank), "")
            for text, trace_part in direct_causes(trace):
                claimed += match.claims(replace(fact, text=text[: match.KEPT_TEXT]), catalogue, trace_part)
            claimed += match.claims(fact, catalogue, trace)
    return tuple(claimed)


def rooted(facts: Iterable[Evidence], claims: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return the facts of error files. An exception that no signature knows, and that was raised `from` another one, is that root."""
    facts = tuple(facts)
    known = {fact.rank for fact in claims}
    roots = {fact.rank: up_to_root(fact.text) for fact in facts if fact.name == "traceback" and fact.rank not in known}
    return tuple(_rooted(fact, *roots.get(fact.rank, ("", ""))) for fact in facts)


def _rooted(fact: Evidence, root: str, trace: str) -> Evidence:
    if root and fact.name == "exception":
        return replace(fact, text=root[: match.KEPT_TEXT])
    return replace(fact, text=trace) if root and fact.name == "traceback" else fact


def logs(read: Iterable[StreamRead], *, launches: bool) -> tuple[Evidence, ...]:
    """Return the logs' evidence, each line with its rank.

    `launches`: the process treated as rank 0 is a launcher of several ranks, so that a line without a prefix may be any rank's.
    """
    facts: list[Evidence] = []
    for stream in read:
        rank = None if stream.rank == AGENT or launches else stream.rank
        apart = LINES_APART * ((stream.name == "out") + 2 * (stream.rank == AGENT))
        facts += (
            replace(_of_a_program(fact), rank=rank if fact.rank is None else fact.rank, line=fact.line + apart)
            for fact in stream.evidence
            if fact.name not in LINES_ONLY
        )
        name = "the launcher" if stream.rank == AGENT else f"rank {stream.rank}"
        if stream.skipped:
            facts.append(Evidence("observer", "skipped", f"{stream.skipped} bytes of {name}'s output were not read", rank=rank))
        if stream.gaps:
            facts.append(
                Evidence("observer", "skipped", f"some of {name}'s output may have been rotated away before it was read", rank=rank)
            )
        if stream.problem:
            facts.append(Evidence("observer", "failed", f"logs of {name}: {stream.problem}", rank=rank))
    return tuple(facts)


def _of_a_program(fact: Evidence) -> Evidence:
    """Return a line that a program printed, never as the kernel's own, even where it looks so: kernel_watch.py reads the kernel's log."""
    if fact.claim is None or (fact.source != "kernel" and kernel_message(fact.text)[0] is None):
        return fact
    return replace(fact, source="log", name="kernel_text", free_text=True, claim=None)


def tails(kept: Iterable[StreamTail], read: Iterable[StreamRead], signatures: Signatures, now: float) -> tuple[Evidence, ...]:
    """Return the last lines of each stream.

    Where the stream's log does not end as the stream does (a disk that took no more of it, or none) its last lines are read for
    signatures, too.
    """
    ends = {(stream.rank, stream.name): stream.end.decode("utf-8", "replace") for stream in read if not stream.problem}
    facts: list[Evidence] = []
    for tail in kept:
        text, rank = tail["text"], tail["rank"] if tail["rank"] >= 0 else None
        lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
        if not lines:
            continue
        facts.append(Evidence("tail", tail["name"], "\n".join(lines[-TAIL_LINES:]), rank=rank, free_text=True))
        end = ends.get((tail["rank"], tail["name"]))
        if end is None or not end.endswith(text[-SAME_END:]):
            reader = Reader(*signatures(), rank=rank)
            reader.feed(text.encode("utf-8", "replace"), now)
            facts += (
                replace(_of_a_program(fact), line=fact.line + 4 * LINES_APART) for fact in reader.finish(now) if fact.name not in LINES_ONLY
            )
    return tuple(facts)


#: The bytes of one fact in a decision's record: the journal is not an archive, evidence.json beside the card has all of it.
RECORDED_CHARACTERS = 2000


#: And of one line of a traceback: a long message must not push the frames out.
_RECORDED_LINE = 400


def without_secrets(facts: Iterable[Evidence]) -> list[Evidence]:
    """Return the facts with each likely secret as a digest: they go into the journal, incident files and alerts.

    Their claims were read from the original texts.
    """
    return [
        replace(fact, text=redact.text(fact.text), fields=tuple((name, redact.text(value)) for name, value in fact.fields))
        for fact in facts
    ]


def trimmed(facts: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return the facts with long texts cut: an exception keeps its type and how it begins, all else its end."""
    return tuple(replace(fact, text=_cut(fact)) if len(fact.text) > RECORDED_CHARACTERS else fact for fact in facts)


def _cut(fact: Evidence) -> str:
    if fact.name in {"exception", "last_exception"} or fact.claim is not None:
        return _beginning(fact.text, RECORDED_CHARACTERS)
    text = "\n".join(_beginning(line, _RECORDED_LINE) for line in fact.text.split("\n")) if fact.name == "traceback" else fact.text
    return text if len(text) <= RECORDED_CHARACTERS else "…" + text[-RECORDED_CHARACTERS:]


def _beginning(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"
