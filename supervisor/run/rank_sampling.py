"""Reads the heartbeats of the running attempt, once for all who go by them: its progress, and whether it hangs."""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING

from checkpointing.io import staging
from health.model import Readings
from supervisor.core.events import ProgressObserved
from supervisor.core.failure import culprit
from supervisor.core.model import Phase
from supervisor.core.state import Stage
from supervisor.core.values import replace
from supervisor.job.identity import LOOK_FILE, SHM
from supervisor.observe import script_reasons
from supervisor.observe.hangs import devices, diagnosis, look, rank_progress
from supervisor.observe.hangs.watch import HangWatch
from supervisor.observe.ranks import heartbeats, start_files
from supervisor.observe.ranks.progress_sampler import START_CEILING_S, ProgressSampler
from supervisor.observe.ranks.step_times import NodeSteps
from supervisor.report import look_page
from supervisor.run.job_hangs import JobHangs
from supervisor.run.load_watch import LoadWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from supervisor.core.checkpoint_model import LoadedCheckpoint
    from supervisor.core.events import Event
    from supervisor.core.model import CheckpointRef, Hang, RankInfo, RankMemory
    from supervisor.core.state import Attempt
    from supervisor.core.step_shares import StepShares
    from supervisor.job.job import Job
    from supervisor.observe.hangs.look import Look
    from supervisor.observe.hangs.rank_progress import RankProgress
    from supervisor.observe.ranks.heartbeats import RankHeartbeat
    from supervisor.run.loop import Loop
    from supervisor.run.threads import Threads

#: While a rank is in one of these, the background reading of checkpoints leaves the disk to it.
SAVING = frozenset({Phase.CHECKPOINT, Phase.LOAD})
#: How long the end of an attempt is held up for its last heartbeats, where they are on a disk.
LAST_WAIT_S = 0.2


class RankSampling:
    """Samples one attempt at a time. Its methods are called on the loop's thread.

    is_ours: whether a path is a checkpoint of this job. on_heartbeats: gets the heartbeats of a running attempt, and when they were read.
    trained: gets, once for an attempt, its number and when its ranks came how far on the way to their first step (start_files.py).
    loss: returns the newest loss that was seen. memory: what each rank holds. shares: where a step goes. loaded: returns the checkpoints
    that the ranks of an attempt loaded. readings: returns the newest readings of the GPUs.
    """

    def __init__(  # noqa: PLR0913 (its user, and the other takers of the samples)
        self,
        job: Job,
        loop: Loop,
        threads: Threads,
        is_ours: Callable[[str], bool],
        on_heartbeats: Callable[[Sequence[RankHeartbeat], float], None],
        *,
        trained: Callable[[int, Mapping[str, int]], None],
        loss: Callable[[], float | None] = lambda: None,
        memory: Callable[[], tuple[RankMemory, ...]] = lambda: (),
        shares: Callable[[], StepShares | None] = lambda: None,
        loaded: Callable[[int], tuple[LoadedCheckpoint, ...]] = lambda _attempt: (),
        readings: Callable[[], Readings] = Readings,
    ) -> None:
        self._job, self._loop, self._threads, self._is_ours = job, loop, threads, is_ours
        self._on_heartbeats, self._trained = on_heartbeats, trained
        self._looks = RankLooks(loop, threads, readings)
        self._progress = ProgressSampler(loop.post, START_CEILING_S, is_ours, loss, memory, shares)
        self._loads = LoadWatch(loop, threads, loaded)
        self.job_hangs = JobHangs(job, loop, threads)
        self._hangs = HangWatch(loop.post, job.settings.hang, self._looks, nodes=self.job_hangs, suspended_s=suspended_s)
        self.job_hangs.watch = self._hangs
        self._directory: Path | None = None
        self._attempt, self._has_trained = 0, False
        self._step_times = NodeSteps()
        self.is_saving = False  # whether a rank here saved or loaded at the last look; any thread may read it

    def watch(self, attempt: int, resume: CheckpointRef | None) -> None:
        """Begin with a new attempt."""
        directory = self._directory = self._looks.directory = self._job.attempt_dir(attempt)
        self._attempt, self._has_trained, self.is_saving = attempt, False, False
        self._step_times = NodeSteps()
        self._progress.watch(attempt, directory, self._loop.clock.now(), resume)
        self._looks.begun[attempt] = time.time()
        self._hangs.watch(attempt)
        self.job_hangs.forget()
        self._loads.watch(attempt)

    def forget(self) -> None:
        """Nothing runs."""
        self._directory, self.is_saving = None, False

    @property
    def step_times(self) -> tuple[float | None, float | None]:
        """Return the seconds since any rank here ended a step of the newest attempt, and of its usual step. None: not known."""
        return self._step_times.since_s(time.monotonic_ns()), self._step_times.usual_s

    def sample(self, ranks: Sequence[RankInfo], *, last: bool = False) -> None:
        """Read the heartbeats and post the news: at once if they are in memory, else in a thread, which a disk may hold up.

        The `last` sample before the attempt's end posts every new step.
        """
        directory, now, state, attempt = self._directory, self._loop.clock.now(), self._loop.state, self._attempt
        step_times = self._step_times
        is_watched = state.stage is Stage.RUNNING and not last
        nodes = {
            "is_whole": state.attempt.world_size <= len(state.attempt.ranks),
            "is_shared": state.attempt.is_shared and len(state.attempt.members) > 1 and self.job_hangs.has_nodes,
            "is_over": 0 < len(state.attempt.ranks) <= len(left_with_0(state.attempt)),
        }
        if directory is None:
            return

        def work() -> None:
            beats = heartbeats.read(directory / "heartbeat")
            step_times.take(beats)
            self.is_saving = not last and any(beat.phase in SAVING for beat in beats)
            if not last:
                self._loads.sample(directory)
            self._progress.sample(now, ranks, beats, last=last)
            if not self._has_trained and beats and len(beats) >= len(ranks) and all(beat.made_first_round for beat in beats):
                self._post_start(attempt, directory, len(beats))
            if is_watched:
                self._threads.observe("hangs", lambda: self._hangs.sample(now, beats, ranks, **nodes))
                self._threads.observe("loss and pace", lambda: self._on_heartbeats(beats, now))

        if self._job.scratch.is_relative_to(SHM):
            work()
        else:
            self._threads.recur("heartbeats", work, wait_s=LAST_WAIT_S if last else 0.0)

    def _post_start(self, attempt: int, directory: Path, ranks: int) -> None:
        moments = start_files.read(directory, ranks)
        if moments is not None:
            self._has_trained = True
            self._loop.call_soon(lambda: self._trained(attempt, moments))

    def post_last_progress(self) -> bool:
        """Post the progress that the ranks of a killed supervisor made until they died with it; False if their heartbeats are gone."""
        attempt, now = self._loop.state.attempt, self._loop.clock.now()
        directory = self._job.attempt_dir(attempt.number)
        beats = heartbeats.read(directory / "heartbeat")
        if not beats:
            return False
        events: list[Event] = []
        last_sampler = ProgressSampler(events.append, math.inf, self._is_ours)
        last_sampler.watch(attempt.number, directory, attempt.began_t, attempt.resume)
        last_sampler.sample(now, (), beats, last=True)
        for event in events:
            if isinstance(event, ProgressObserved):  # their other events belong to a stop that is over
                self._loop.post(event)
        return True


class RankLooks:
    """Takes looks at the ranks in worker threads (watch.Looks), and keeps the page of the newest in the attempt's directory.

    begun: when each attempt of this run began, in Unix seconds, as file times are.
    """

    def __init__(self, loop: Loop, threads: Threads, readings: Callable[[], Readings] = Readings) -> None:
        self._loop, self._threads, self._readings = loop, threads, readings
        self.directory: Path | None = None
        self.begun: dict[int, float] = {}

    def start(self, ranks: Sequence[RankInfo], beats: Sequence[RankHeartbeat], done: Callable[[Look | None], None]) -> None:
        """Take a look in a thread. From any thread."""
        directory, begun, state = self.directory, dict(self.begun), self._loop.state
        over = left_with_0(state.attempt)
        gpu_of = {info.rank: culprit.gpu_of_rank(state, info.rank) for info in ranks}

        def work() -> None:
            taken = None
            try:
                if directory is not None:
                    known = {beat.rank: beat for beat in beats}
                    taken = look.take(look.with_beats(ranks, beats), directory, beats=known, begun=begun, left_with_0=over)
                    taken = devices.named(taken, self._readings(), gpu_of, time.time())
                    self._keep(look_page.text_of(taken))
            finally:
                done(taken)

        self._loop.call_soon(lambda: self._threads.start("look", work, awaited=False))

    def compare(self, first: Look, second: Look) -> RankProgress:
        """Return what moved from one look to the next."""
        return rank_progress.compare(first, second)

    def hang(self, first: Look, second: Look, *, still_s: float, limit_s: float, calibrated: bool) -> Hang:
        """Return what two looks agree on, and keep it with the page, before anybody hears of it."""
        hang = diagnosis.hang(first, second, still_s=still_s, limit_s=limit_s, calibrated=calibrated)
        ranks = diagnosis.compared(first, second, rank_progress.RankProgress())
        hang = replace(hang, reason=script_reasons.of_hang(ranks, hang))
        self._keep(look_page.text_of(second, hang))
        return hang

    def _keep(self, text: str) -> None:
        if self.directory is not None:
            with contextlib.suppress(OSError):  # its reader reports that it is missing
                staging.write(str(self.directory / LOOK_FILE), text.encode(errors="replace"), is_durable=False)


def left_with_0(attempt: Attempt) -> frozenset[int]:
    """Return the ranks that ended with exit code 0."""
    return frozenset(death.rank for death in attempt.deaths if not death.failed)


def suspended_s() -> float:
    """Return how long this machine was suspended since it started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
