"""Takes a look at the ranks of this node: what each of them, and each process below it, does now.

All processes are read at once, each by a thread of its own that may never come back: reading /proc of a process in a dead file system can
block. A process without an answer by the deadline is left out, and the look shows it.

A look disturbs its subject: the signal wakes the main thread, and the recorder's thread needs CPU time. So a process's counters are read
before it is asked for anything (`before`) and again when all has been answered (`after`). Two looks are compared from the `after` of the
first to the `before` of the second, and only neighbours are.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.core.model import Phase, RankInfo
from supervisor.core.numeric import rank_list
from supervisor.core.values import Struct, replace
from supervisor.guardian import process_tree
from supervisor.instrument._supervise_shim.layout import start_ticks_of
from supervisor.observe.hangs import awaited, frames, polled, procfs, py_spy, recorder
from supervisor.observe.hangs.awaited import Awaited, Surroundings
from supervisor.observe.hangs.frames import ThreadStack
from supervisor.observe.hangs.procfs import ProcessCounters, ThreadWait
from supervisor.observe.hangs.recorder import RecordedCollectives
from supervisor.observe.processes import stack_dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from supervisor.observe.ranks.heartbeats import RankHeartbeat

ANSWER_S = 2.0
#: For what the functions of a rank's main thread hold: one that polls answers at once.
VALUES_S = 0.5
#: A shorter wait for a file does not count.
MOMENT_S = 0.5
#: So many of the processes that one rank started are read.
MOST_WORKERS = 32
#: So many descriptors of one process are read.
MOST_DESCRIPTORS = 1024
#: The greatest descriptor of a process's output.
_OUTPUT_FD = 2
_ANOTHER_PROGRAM = "it runs another program"
NOT_ASKED = RecordedCollectives(unreadable="it was not asked")


class ProcessLook(Struct, frozen=True):
    """One process. `waits` None: it did not answer in time. `stacks`: the main thread first; `no_stacks`: why there are none.

    before, after: its counters at the two ends of this look, None where they could not be read. awaits: what its main thread waits for.
    socket_bytes: that went over its connections so far. files: the files that it has open, each with how far it has read or written it;
    writing: the paths of those that are open for writing, without its output.
    """

    pid: int
    start_ticks: int
    name: str = ""
    waits: ThreadWait | None = None
    stacks: tuple[ThreadStack, ...] = ()
    no_stacks: str = ""
    before: ProcessCounters | None = None
    after: ProcessCounters | None = None
    awaits: tuple[Awaited, ...] = ()
    socket_bytes: int = 0
    files: tuple[tuple[str, int], ...] = ()
    writing: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """The letter of its state; "" if it is gone, "?" if it did not answer."""
        return "?" if self.waits is None else self.waits.state

    @property
    def is_gone(self) -> bool:
        """Whether it ended: nothing is left, or a zombie."""
        return self.state in {"", "Z", "X"}


class RankLook(Struct, frozen=True):
    """One rank. workers: the processes below it that run its program, such as a DataLoader's workers. helpers: those that run another one.

    phase, steps, step, total, script_over: of its heartbeat, None or False without one; so is world, the number of ranks that its process
    group is to have. total: the step with which its training ends. left_with_0: it ended, and its exit code was 0. device: what its GPU
    does, as people are shown it; "" unknown.
    """

    rank: int
    local_rank: int
    process: ProcessLook
    workers: tuple[ProcessLook, ...] = ()
    collectives: RecordedCollectives = NOT_ASKED
    phase: Phase | None = None
    steps: int | None = None
    step: int | None = None
    helpers: tuple[ProcessLook, ...] = ()
    world: int | None = None
    script_over: bool = False
    left_with_0: bool = False
    total: int | None = None
    device: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left for it to train: its script is over, or made the last step that was named and is in no other phase."""
        made_all = self.step is not None and self.total is not None and self.step >= self.total
        return self.script_over or (made_all and self.phase in {Phase.TRAIN, Phase.UNKNOWN})


class Look(Struct, frozen=True):
    """All ranks of this node, by rank. t: CLOCK_MONOTONIC seconds at which it began; took_s: how long it took."""

    t: float
    ranks: tuple[RankLook, ...]
    took_s: float = 0.0


def take(  # noqa: PLR0913 (facts of the ranks, by name)
    ranks: tuple[RankInfo, ...],
    directory: Path,
    *,
    deadline_s: float = 10.0,
    beats: Mapping[int, RankHeartbeat] | None = None,
    begun: Mapping[int, float] | None = None,
    left_with_0: Collection[int] = (),
) -> Look:
    """Return what the ranks do now, after `deadline_s` seconds at most. It blocks: call it in a thread.

    directory: the attempt's. beats: heartbeats by rank; a wrapper's pid is replaced by that of the process that trains. begun: when each
    attempt of this run began, in Unix seconds. left_with_0: the ranks that ended with that exit code.
    """
    began, beats, around = time.monotonic(), beats or {}, Surroundings(begun)
    until = began + deadline_s
    processes = process_tree.snapshot()
    looks = {}
    for info in ranks:
        beat = beats.get(info.rank)
        trains = beat if beat is not None and beat.start_ticks >= info.start_ticks else info
        look = RankLook(info.rank, info.local_rank, ProcessLook(trains.pid, trains.start_ticks), left_with_0=info.rank in left_with_0)
        if beat is not None:
            look = replace(look, phase=beat.phase, steps=beat.steps, step=beat.step, world=beat.world)
            look = replace(look, script_over=beat.script_over, total=beat.total)
        looks[info.rank] = look
    answers = _Answers()
    for look in looks.values():
        answers.ask((look.rank, 0), partial(_rank_process, look, directory, until, around))
        below = process_tree.below(look.process.pid, processes)[:MOST_WORKERS]
        for child in below:
            answers.ask((look.rank, child.pid), partial(_worker, look, child, directory, until, around))
    answers_by_process = answers.wait(until)
    assembled = tuple(_assembled(look, answers_by_process) for _, look in sorted(looks.items()))
    return Look(began, _with_peers(assembled), time.monotonic() - began)


def _with_peers(looks: Sequence[RankLook]) -> tuple[RankLook, ...]:
    """Return the looks with the rank that each waits for, where that rank is on this node."""
    rank_of = {process.pid: look.rank for look in looks for process in (look.process, *look.workers, *look.helpers)}

    def named(thing: Awaited, own: int) -> Awaited:
        ranks = tuple(sorted({rank_of[pid] for pid in thing.pids if rank_of.get(pid, own) != own}))
        return replace(thing, ranks=ranks, text=f"{thing.text} ({rank_list(ranks)})") if ranks and not thing.of_store else thing

    def with_peers(look: RankLook) -> RankLook:
        awaits = tuple(named(thing, look.rank) for thing in look.process.awaits)
        return replace(look, process=replace(look.process, awaits=awaits)) if awaits != look.process.awaits else look

    return tuple(map(with_peers, looks))


def with_beats(ranks: Sequence[RankInfo], beats: Sequence[RankHeartbeat]) -> tuple[RankInfo, ...]:
    """Return the ranks, and those that only their heartbeats show: torch.multiprocessing starts them below a process that we started."""
    known = {info.rank for info in ranks}
    unknown = [RankInfo(beat.rank, beat.local_rank, beat.pid, beat.start_ticks) for beat in beats if beat.rank not in known]
    return (*ranks, *(info for info in unknown if start_ticks_of(info.pid) == info.start_ticks))


class _Answers:
    """Answers of threads that are not waited for beyond a deadline. Keyed by rank and pid, 0 for the rank's own process."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._open = 0
        self._found: dict[tuple[int, int], RankLook | ProcessLook | None] = {}

    def ask(self, key: tuple[int, int], work: Callable[[], RankLook | ProcessLook | None]) -> None:
        """Start a thread that answers."""

        def run() -> None:
            try:
                answer = work()
            except Exception:  # noqa: BLE001 - a process that goes meanwhile; the look shows that it did not answer
                answer = None
            with self._lock:
                self._found[key] = answer
                self._open -= 1
                self._lock.notify_all()

        with self._lock:
            self._open += 1
        threading.Thread(target=run, name="look", daemon=True).start()

    def wait(self, until: float) -> dict[tuple[int, int], RankLook | ProcessLook | None]:
        """Return the answers that came by `until` on the monotonic clock."""
        with self._lock:
            self._lock.wait_for(lambda: not self._open, timeout=max(0.0, until - time.monotonic()))
            return dict(self._found)


def _assembled(look: RankLook, answers: dict[tuple[int, int], RankLook | ProcessLook | None]) -> RankLook:
    answer = answers.get((look.rank, 0))
    below = sorted(
        (process for (rank, _), process in answers.items() if rank == look.rank and isinstance(process, ProcessLook)),
        key=lambda process: process.pid,
    )
    workers = tuple(process for process in below if process.no_stacks != _ANOTHER_PROGRAM)
    helpers = tuple(process for process in below if process.no_stacks == _ANOTHER_PROGRAM)
    return replace(answer if isinstance(answer, RankLook) else look, workers=workers, helpers=helpers)


def _rank_process(look: RankLook, directory: Path, until: float, around: Surroundings) -> RankLook:
    process = _process(look.process, directory, until, around)
    if process.is_gone or process.state in "tT":
        reason = "it is gone" if process.is_gone else "it is stopped"
        return replace(look, process=process, collectives=RecordedCollectives(unreadable=reason))
    collectives = recorder.request(directory, process.pid, deadline_s=_left(until))
    return replace(look, process=replace(process, after=procfs.counters(process.pid, time.monotonic())), collectives=collectives)


def _worker(look: RankLook, child: process_tree.ProcessStat, directory: Path, until: float, around: Surroundings) -> ProcessLook:
    """Return a look at a process below a rank. Of one that runs another program (a compiler, a shell) the counters alone are read."""
    process = ProcessLook(child.pid, child.start_ticks)
    if procfs.executable(child.pid) == procfs.executable(look.process.pid):
        return _process(process, directory, until, around, forked_by=look.process.pid)
    counters = procfs.counters(child.pid, time.monotonic())
    return replace(process, waits=ThreadWait(child.state), no_stacks=_ANOTHER_PROGRAM, before=counters, after=counters)


def _process(look: ProcessLook, directory: Path, until: float, around: Surroundings, *, forked_by: int = 0) -> ProcessLook:
    pid = look.pid
    if start_ticks_of(pid) != look.start_ticks:
        left = process_tree.read(pid)
        state = "Z" if left is not None and left.start_ticks == look.start_ticks else ""
        return replace(look, waits=ThreadWait(state), no_stacks="it is gone")
    before = procfs.counters(pid, time.monotonic())
    waits = _lasting(pid)
    files, writing, socket_bytes = _descriptors(pid, around)
    awaits = awaited.of_call(pid, waits, around)
    stacks, reason = _stacks(look, waits, directory, until, forked_by)
    if not forked_by and not awaits and _may_poll(waits, stacks) and _left(until) > 2 * VALUES_S:
        line = stack_dumps.request_values(pid, look.start_ticks, directory, deadline_s=VALUES_S)
        awaits = awaited.of_polled(pid, polled.polled(polled.read(line), _source), around)
    after = procfs.counters(pid, time.monotonic())
    return replace(
        look,
        name=procfs.command_name(pid),
        waits=waits,
        stacks=stacks,
        no_stacks=reason,
        before=before,
        after=after,
        awaits=awaits,
        socket_bytes=socket_bytes,
        files=files,
        writing=writing,
    )


def _may_poll(waits: ThreadWait, stacks: tuple[ThreadStack, ...]) -> bool:
    """Return whether the main thread may be in a loop that polls: it sleeps in Python's code, not in torch's nor in C below the user's."""
    inner = stacks[0].innermost if stacks else None
    if inner is None or waits.state != "S" or inner.module.startswith(("torch/distributed/", "torch/autograd/", "torch/cuda/")):
        return False
    return inner.is_standard or not waits.wchan.startswith("futex")


def _source(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _descriptors(pid: int, around: Surroundings) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...], int]:
    """Return the files that a process has open, its place in each, those that it may write, and the bytes of its connections so far."""
    files, writing, moved = [], [], 0
    for fd in procfs.descriptors(pid)[:MOST_DESCRIPTORS]:
        link = procfs.link(f"/proc/{pid}/fd/{fd}")
        if link.startswith("socket:["):
            connection = around.connections.of(int(link[8:-1]))
            moved += connection.moved_bytes if connection is not None else 0
        elif link.startswith("/") and not link.startswith(("/dev/", "/proc/", "/memfd:")):
            place, is_writable = procfs.opened(pid, fd)
            files.append((link, place))
            writing += [link] if is_writable and fd > _OUTPUT_FD else []
    return tuple(files), tuple(writing), moved


def _lasting(pid: int) -> ThreadWait:
    """Return what the main thread does; a wait for a file only if it lasts: each read of a file is one for a moment."""
    until = time.monotonic() + MOMENT_S
    while _waits_for_file(waits := procfs.waits(pid)) and time.monotonic() < until:
        time.sleep(stack_dumps.POLL_S)
    return waits


def _waits_for_file(waits: ThreadWait) -> bool:
    return waits.state == "D" or waits.file is not None


def _stacks(look: ProcessLook, waits: ThreadWait, directory: Path, until: float, forked_by: int) -> tuple[tuple[ThreadStack, ...], str]:
    """Return a process's stacks, or none and why. One that waits for a file gets no signal: it could not answer, and the call may fail."""
    if _waits_for_file(waits):
        reason = "it waits for a file, and answers no signal meanwhile"
    else:
        text = stack_dumps.request(look.pid, look.start_ticks, directory, deadline_s=_left(until), forked_by=forked_by)
        if stacks := frames.parse(text):
            return stacks, ""
        reason = text.partition(f"process {look.pid}: ")[2] or text
    stacks, other = py_spy.stacks(look.pid, deadline_s=_left(until))
    return stacks, "" if stacks else f"{reason}; {other}"


def _left(until: float) -> float:
    """Return how long one answer may take."""
    return max(0.0, min(ANSWER_S, until - time.monotonic()))
