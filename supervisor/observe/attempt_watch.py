"""Starts and ends all watchers of one attempt together, and gives its sources of evidence.

The loop's thread calls it, except for the sources. Each source has a deadline and fails alone (collect.together). Whatever can wait for a
disk runs in its own thread.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.core.model import Evidence, RankInfo
from supervisor.core.values import Struct
from supervisor.guardian.messages import StreamTail
from supervisor.knobs.knob_set import ENV
from supervisor.launch import rendezvous_ports
from supervisor.observe import collect
from supervisor.observe.host import job_files, left_locks, meeting, resources
from supervisor.observe.host.interfaces import InterfaceWatch
from supervisor.observe.host.kernel_watch import KernelWatch
from supervisor.observe.host.oom_kills import OomKillCounter
from supervisor.observe.log_watch import LogWatch
from supervisor.observe.loss_watch import LossStream, LossWatch
from supervisor.observe.memory.watch import MemoryWatch
from supervisor.observe.pace.watch import PaceWatch
from supervisor.observe.processes import core_dumps
from supervisor.observe.processes.job_processes import JobProcesses
from supervisor.observe.processes.launched_ranks import LaunchedRanks
from supervisor.observe.ranks import heartbeats, late_paths, load_logs, nccl_logs, races, start_files
from supervisor.observe.reconcile import with_printed_ends

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.classify.losses.rules import LossRule
    from supervisor.core.events import Event
    from supervisor.core.model import RankExit, RankMemory
    from supervisor.core.step_shares import StepShares
    from supervisor.guardian.process_tree import ProcessStat
    from supervisor.job.clock import Clock
    from supervisor.job.job import Job
    from supervisor.observe.log_watch import Signatures, StreamRead
    from supervisor.observe.pace.judge import NodePace
    from supervisor.observe.ranks.heartbeats import RankHeartbeat

    Sources = Mapping[str, Callable[[], Iterable[Evidence]]]

#: The time that a source gets once the ranks are gone. The verdict waits for the slowest.
ANSWER_S = 1.5
#: Attempts whose beginning is remembered, to tell which one wrote a file.
MOST_BEGUN = 256
LOGS_S = 1.0
ENDS_S = 0.3  # for the thread that sees how ranks end
KERNEL_S = ANSWER_S - 0.2  # it answers at its deadline, complete or not


class LauncherFacts(Struct, frozen=True):
    """The facts of the ranks' parents: the guardian's last lines of each stream (waits for its answer), and the launcher's facts.

    overrides: what the attempt was started with instead of the user's own values (Run.overrides).
    """

    tails: Callable[[], list[StreamTail]]
    facts: Callable[[], tuple[Evidence, ...]]
    overrides: tuple[tuple[str, str], ...] = ()


class Watchers(Struct):
    """The watchers of one attempt. rank_ends: of a plain command that starts its ranks by itself. problem: why one is missing."""

    logs: LogWatch | None = None
    kernel: KernelWatch | None = None
    kills: OomKillCounter | None = None
    rank_ends: LaunchedRanks | None = None
    problem: str = ""

    def stop(self) -> None:
        """Nothing runs any more, and nobody asks why."""
        for watcher in (self.logs, self.kernel, self.rank_ends):
            if watcher is not None:
                watcher.stop()


class AttemptWatch:
    """The watchers of one job's current attempt. watchers: those of the newest; replaced at each beginning."""

    def __init__(self, job: Job, signatures: Signatures, clock: Clock, rules: tuple[LossRule, ...], post: Callable[[Event], None]) -> None:
        self._job, self._signatures, self._clock = job, signatures, clock
        self._rules, self._post = rules, post
        self._losses = LossWatch((), 0, post)
        self._pace = PaceWatch(0, post)
        self.job_processes = JobProcesses(os.getpid())
        self._memory = MemoryWatch(0, post, self.job_processes.below_ranks)
        self._shm = resources.SharedMemory()
        self._interfaces = InterfaceWatch(rendezvous_ports.of(job.command, job.environ).hosts, job.environ)
        self.watchers = Watchers()
        self._begun: deque[job_files.Begun] = deque(maxlen=MOST_BEGUN)
        self._staging: frozenset[str] = frozenset()
        self._saved_in: frozenset[str] = frozenset()

    def begin(self, attempt: int, *, plain: bool = False) -> None:
        """A new attempt starts; the last one is forgotten. plain: the command starts its ranks by itself."""
        self.stop()
        self._begun.append(job_files.Begun(attempt, self._clock.now()))
        self.job_processes.set_ranks(())
        watchers = Watchers(kills=OomKillCounter())  # files of the kernel's own: memory
        self._interfaces.begin()
        losses = self._losses = LossWatch(self._rules, attempt, self._post)
        self._pace = PaceWatch(attempt, self._post)
        self._memory = MemoryWatch(attempt, self._post, self.job_processes.below_ranks)

        def numbers(rank: int) -> LossStream | None:
            return losses.stream(None if rank < 0 or plain else rank)

        logs = LogWatch(Path(self._job.log_dir(attempt)), self._signatures, self._clock.now, numbers)
        kernel = KernelWatch(self._signatures, self.job_processes, self._clock)
        try:
            kernel.start()
            watchers.kernel = kernel
        except (OSError, RuntimeError) as error:  # no descriptor or no thread is free: counts are left
            watchers.problem = str(error)
        try:
            watchers.rank_ends = LaunchedRanks() if plain else None
            logs.start()
            watchers.logs = logs
        except RuntimeError as error:  # tails are left
            watchers.problem = str(error)
        self.watchers = watchers

    @property
    def rank_ends(self) -> LaunchedRanks | None:
        """How the ranks end that a plain command started by itself."""
        return self.watchers.rank_ends

    def tick(self, ranks: Sequence[RankInfo]) -> None:
        """Measure what gives no notice of a change."""
        self._shm.measure(self._clock.now())
        if self.watchers.kills is not None:
            self.watchers.kills.update(self._clock.now())
        if ranks:
            self.job_processes.set_ranks(ranks)

    def take_heartbeats(self, beats: Sequence[RankHeartbeat], t: float) -> None:
        """Take the heartbeats that were read. From the thread that read them."""
        if self.rank_ends is not None:
            self.rank_ends.add_claimed(RankInfo(beat.rank, beat.local_rank, beat.pid, beat.start_ticks) for beat in beats)
        self._losses.sample(beats, t)
        self._pace.sample(beats, t)
        self._memory.sample(beats, t)

    def node_pace(self) -> NodePace | None:
        """Return the pace of this node's ranks over the last minute or so; None: not known yet. From any thread."""
        return self._pace.node_pace

    def memory(self) -> tuple[RankMemory, ...]:
        """Return what each rank of this node held of the memory a moment ago, the worst first; (): not known yet. From any thread."""
        return self._memory.newest

    def step_shares(self) -> StepShares | None:
        """Return where the steps of this node's ranks go; None: not known. From any thread."""
        return self._pace.parts.shares

    def newest_loss(self) -> float | None:
        """Return the newest loss of the training; None: none was seen. From any thread."""
        return self._losses.newest

    def add_descendants(self, processes: Iterable[ProcessStat]) -> None:
        """Take the descendants of the guardian. From any thread."""
        processes = tuple(processes)
        self.job_processes.add_descendants(processes)
        if self.rank_ends is not None:
            self.rank_ends.add_descendants(processes)

    def read_now(self) -> None:
        """A rank died: its last output is read while the others are stopped, and while its shared memory is still there."""
        self._shm.measure(self._clock.now())
        if self.watchers.kills is not None:
            self.watchers.kills.update(self._clock.now(), now=True)
        if self.watchers.logs is not None:
            self.watchers.logs.read_now()

    def stop(self) -> None:
        """Nothing runs any more, and nobody asks why."""
        self.watchers.stop()
        self.watchers = Watchers()

    def sources(  # noqa: PLR0913, PLR0917  facts of the attempt
        self,
        attempt: int,
        watchers: Watchers,
        ranks: Sequence[RankInfo],
        since_ns: int,
        deaths: Sequence[RankExit],
        launcher: LauncherFacts,
    ) -> Sources:
        """Return the sources to ask about an attempt that has ended, and end the watching. From any thread.

        watchers: of that attempt. The next one may have begun meanwhile, where nobody waited for the evidence any longer.
        """
        directory = self._job.attempt_dir(attempt)
        logs, kernel, kills, memory = watchers.logs, watchers.kernel, watchers.kills, self._memory
        least_shm, problem, is_plain = self._shm.least, watchers.problem, watchers.rank_ends is not None
        read: list[StreamRead] = []
        was_read = threading.Event()
        raised: list[Evidence] = []
        were_raised = threading.Event()

        def of_logs() -> Iterable[Evidence]:
            try:
                if logs is None:
                    return (Evidence("observer", "failed", f"logs: {problem or 'nobody read them'}"),)
                read.extend(logs.finish(LOGS_S))
            finally:
                was_read.set()
            return collect.logs(read, launches=is_plain and len(heartbeats.read(directory / "heartbeat")) > 1)

        def of_tails() -> Iterable[Evidence]:
            kept = launcher.tails()
            was_read.wait(LOGS_S)
            return collect.tails(kept, tuple(read), self._signatures, self._clock.now())

        def of_network() -> Iterable[Evidence]:
            logged = nccl_logs.evidence(Path(self._job.log_dir(attempt)), {rank.pid: rank.rank for rank in ranks}, self._signatures)
            variables = {name.removeprefix(ENV): value for name, value in launcher.overrides if name.startswith(ENV)}
            interface = next((fact.text for fact in logged if fact.name == "interface"), "")
            peers = [value for fact in logged for name, value in fact.fields if name in {"peer", "other"}]
            return (*logged, *self._interfaces.evidence({**self._job.environ, **variables}, interface, peers))

        def of_meeting() -> Iterable[Evidence]:
            was_read.wait(LOGS_S)
            logged = [fact for stream in tuple(read) for fact in stream.evidence]
            return tuple(meeting.evidence(self._job.node, logged, rendezvous_ports.endpoint(self._job.command, self._job.environ)))

        def of_exceptions() -> Iterable[Evidence]:
            try:
                reported = collect.errors(directory, ranks, self._clock, since_ns, deaths)
                claims = collect.claims((*reported, *collect.of_launcher(launcher.facts(), reported)), self._signatures)
                raised.extend((*reported, *claims))
            finally:
                were_raised.set()
            late = late_paths.evidence(self._job.cwd, self._clock.at_monotonic_ns(since_ns), reported)
            return (*collect.rooted(reported, claims), *claims, *races.evidence(directory, ranks, reported), *late)

        def of_files() -> Iterable[Evidence]:
            self._staging |= job_files.staging_patterns(directory)
            self._saved_in |= job_files.saved_directories(directory)
            were_raised.wait(LOGS_S)
            places = [*(place for name, place in self._places() if name == "checkpoints"), *self._saved_in]
            full = job_files.on_full_disk(raised, places, tuple(self._begun), str(self._job.cwd), self._staging)
            begun = tuple(self._begun)
            return (*full, *job_files.of_caches(raised, self._job.environ, begun), *left_locks.evidence(self._job.environ, begun))

        return {
            "exceptions": of_exceptions,
            "heartbeats": lambda: collect.beats(directory / "heartbeat", self._clock, self.job_processes.with_children),
            "saves": lambda: collect.saves(directory),
            "files": of_files,
            "loads": lambda: load_logs.evidence(directory, ranks),
            "logs": of_logs,
            "tails": of_tails,
            "network": of_network,
            "meeting": of_meeting,
            "kernel": lambda: kernel.finish(KERNEL_S) if kernel else (Evidence("kernel", "not_observed", problem or "nobody read it"),),
            "cgroup": lambda: kills.finish(self._clock.now()) if kills else (),
            "memory": memory.evidence,
            "host": lambda: resources.evidence(self._places(), least_shm, deaths),
            "cores": lambda: core_dumps.evidence(deaths, self._job.cwd, self._clock),
        }

    def hidden(self, attempt: int, ranks: Sequence[RankInfo], since_ns: int, grace_s: float) -> tuple[Evidence, ...]:
        """Return the failure of a rank that a command hides which left with 0; nothing where none is known. From any thread."""
        if self.rank_ends is None:
            return ()
        directory, clock, started, logs = self._job.attempt_dir(attempt), self._clock, self.rank_ends, self.watchers.logs

        def look() -> Iterable[Evidence]:
            started.wait_for_ends(ENDS_S)
            moments = start_files.read(directory, 1)
            trained_t = 0.0 if moments is None else clock.at_monotonic_ns(moments["first_step"])
            # where nobody sees who trains, the last launch alone counts
            ends = collect.exits((), clock, grace_s, started.last_ends if moments is None else (*started.earlier, *started.last_ends))
            if logs is not None and any(fact.name == "vanished" for fact in ends):  # a shell has printed how, if it was by a signal
                ends = with_printed_ends((*ends, *(f for f in collect.logs(logs.finish(LOGS_S), launches=True) if f.source == "exit")))
            reported = collect.errors_of_ranks(directory, (*ranks, *started.all_ranks), clock, since_ns)
            claims = collect.claims(reported, self._signatures)
            facts = (*ends, *collect.rooted(reported, claims), *claims, *collect.beats(directory / "heartbeat", self._clock))
            return collect.hidden(facts, trained_t)

        return tuple(fact for fact in collect.together({"ends": look}, ANSWER_S) if fact.source != "observer")

    def _places(self) -> list[tuple[str, str]]:
        patterns = self._job.settings.checkpoints.paths
        checkpoints = [("checkpoints", str(self._job.cwd / os.path.dirname(pattern.partition("*")[0]))) for pattern in patterns]  # noqa: PTH120 (a pattern)
        return [*checkpoints, ("working directory", str(self._job.cwd)), ("state", str(self._job.state))]
