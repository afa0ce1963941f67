"""Watches the heartbeats of this node's ranks: suspects a hang, and has the ranks examined.

Once a second it gets the heartbeats. It reads no clock and starts no thread: time and looks come from outside. A suspicion proves nothing;
two looks decide (judge.py).

    still for longer than the limit        HangSuspected; look 1; after CONFIRM_S, look 2, and the judgement
    a sign of life                         HangCleared
    a pause that is not the job's          the stillness begins anew

Where the job has other nodes, a look at all of them decides: the watch asks for it, and answers when one is wanted (all_nodes.py).
"""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from supervisor.core.model import Phase
from supervisor.core.values import Struct, replace
from supervisor.observe.hangs import procfs
from supervisor.observe.hangs.judge import RELOOK_S, Comparison, HangJudge, Suspicion
from supervisor.observe.hangs.threshold import Limit, StepTimes
from supervisor.observe.ranks.heartbeats import LEAST_APART_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisor.config.watch_settings import HangSection
    from supervisor.core.events import HangCleared, HangConfirmed, HangSuspected
    from supervisor.core.model import Hang, RankInfo
    from supervisor.observe.ranks.heartbeats import RankHeartbeat

L = TypeVar("L")
L_contra = TypeVar("L_contra", contravariant=True)

#: So long without a sample means that we did not run ourselves: stopped, paused with the machine, or held up by a disk.
PAUSE_S = 5.0
#: CLOCK_BOOTTIME continues while the machine is suspended, CLOCK_MONOTONIC does not.
SUSPENDED_S = 1.0
#: A look that has not come by then never comes.
LOOK_LOST_S = 30.0
#: A look of all nodes without an answer is asked for again after so long, then after twice that, up to RELOOK_S.
ASK_AGAIN_S = 60.0
#: In a minute, so many bytes read or written are a checkpoint; fewer may be a log.
GROWTH_BYTES = 1 << 20
GROWTH_S = 60.0
#: A checkpoint that was mapped into memory is read after its load, while it is put into the model.
MOVES_FILES = {Phase.CHECKPOINT: "writes", Phase.LOAD: "reads", Phase.INIT: "reads"}


class Looks(Comparison[L], Protocol[L]):
    """Takes looks, and compares them."""

    def start(self, ranks: Sequence[RankInfo], beats: Sequence[RankHeartbeat], done: Callable[[L | None], None]) -> None:
        """Take a look in another thread, and call `done` with it there; with None if it failed."""
        ...


class Stillness(Struct, frozen=True):
    """How long the ranks of one node show no sign of life. still_s: None without a heartbeat.

    since_t: of the last sign, or of our own pause. limit: how long they may be still. life: the last sign, "" where it was a pause.
    has_trained: one of them made a step.
    """

    still_s: float | None
    since_t: float
    limit: Limit
    life: str = ""
    has_trained: bool = False


class AllNodes(Protocol[L_contra]):
    """The looks at all nodes of the job, as far as one node takes part in them. Called in any thread."""

    def ask(self, text: str) -> None:
        """Ask for a look at all nodes, for the reason that `text` gives."""
        ...

    def answer(self, number: int, look: L_contra | None, stillness: Stillness) -> None:
        """Return this node's part of a look; None: it failed."""
        ...


class HangWatch(Generic[L]):
    """Watches one attempt at a time. Its methods are called one at a time, but `want`, in any thread, like a look's answer."""

    def __init__(  # noqa: PLR0913 (its parts, by name)
        self,
        post: Callable[[HangSuspected | HangConfirmed | HangCleared], None],
        limits: HangSection,
        looks: Looks[L],
        *,
        nodes: AllNodes[L] | None = None,
        suspended_s: Callable[[], float] = lambda: 0.0,
        moved_bytes: Callable[[int], int | None] | None = None,
    ) -> None:
        """Take where to post and who takes the looks.

        suspended_s: how long the machine was suspended since its start; moved_bytes: how much a process has read and written.
        """
        self._judge = HangJudge[L](post, looks)
        self._limits, self._looks, self._nodes = limits, looks, nodes
        self._suspended_s = suspended_s
        self._moved_bytes = moved_bytes or procfs.moved_bytes

    def watch(self, attempt: int) -> None:
        """Begin with a new attempt."""
        self._judge.watch(attempt)
        self._times = StepTimes()
        self._beats: tuple[RankHeartbeat, ...] = ()
        self._sampled_t: float | None = None
        self._asleep_s = self._suspended_s()
        self._life = ""
        self._asked_t: float | None = None  # the look under way
        self._answers: queue.SimpleQueue[L | None] = queue.SimpleQueue()  # of the look under way alone
        self._wanted: queue.SimpleQueue[int] = queue.SimpleQueue()  # numbers of looks at all nodes
        self._news: queue.SimpleQueue[Hang | str] = queue.SimpleQueue()
        self._files: dict[int, tuple[float, int]] = {}  # by pid: since when, and the bytes moved by then

    def want(self, number: int) -> None:
        """Take a look at the next sample, as a part of one at all nodes."""
        self._wanted.put(number)

    def take_news(self, news: Hang | str) -> None:
        """Take what a look at all nodes showed: a hang, or why there is none."""
        self._news.put(news)

    def sample(  # noqa: PLR0913 (plain facts, by name)
        self,
        t: float,
        beats: tuple[RankHeartbeat, ...],
        ranks: Sequence[RankInfo],
        *,
        is_whole: bool = True,
        is_shared: bool = False,
        is_over: bool = False,
    ) -> None:
        """Take the heartbeats, as often as they come; `t` is a time of the job's clock.

        is_whole: no rank is on another node. is_shared: others have met this one, and can be asked. is_over: all ranks here left with 0.
        """
        if self._sampled_t is not None and t - self._sampled_t < LEAST_APART_S:
            return
        pause = self._pause(t, beats)
        self._sampled_t = t
        if pause or not beats:
            self._times.interrupt()
        if not beats:
            self._beats = ()
        else:
            self._seen(t, beats, pause, may_suspect=not is_shared or not is_over)
            self._hear(t)
            if self._judge.suspicion is not None:
                self._advance(t, self._judge.suspicion, ranks, is_whole=is_whole, is_shared=is_shared)
        self._answer(t, ranks)

    def _seen(self, t: float, beats: tuple[RankHeartbeat, ...], pause: str, *, may_suspect: bool) -> None:
        """Note a sign of life, or suspect a hang."""
        judge = self._judge
        self._times.add(beats)
        before, self._beats = self._beats, tuple(replace(beat, parts=None, gpu_memory=None, pinned=None) for beat in beats)
        beats = self._beats  # the shim's own thread continues to measure in a rank that makes no progress
        life = "" if beats == before else _sign(before, beats)
        life = life or self._moved_files(t, beats)
        if life or pause:
            confirmed = judge.suspicion is not None and bool(judge.suspicion.confirmed)
            if life or not confirmed:
                self._clear(t, life or pause)
            judge.since_t, judge.patience, self._life = t, 1.0, life
        elif judge.suspicion is None and may_suspect:
            self._suspect(t, beats)

    def _pause(self, t: float, beats: tuple[RankHeartbeat, ...]) -> str:
        """Return why this stillness is not the job's, if it is not."""
        gap_s = t - self._sampled_t if self._sampled_t is not None else 0.0
        was_asleep_s, self._asleep_s = self._asleep_s, self._suspended_s()
        asleep_s = self._asleep_s - was_asleep_s
        if asleep_s > SUSPENDED_S:
            return f"the machine was suspended for {asleep_s:.0f} s"
        if gap_s > PAUSE_S:
            return f"supervise did not read the heartbeats for {gap_s:.0f} s"
        if not beats:
            self._judge.since_t, self._life = t, ""
            self._clear(t, "the heartbeats cannot be read")
        return ""

    def _moved_files(self, t: float, beats: Sequence[RankHeartbeat]) -> str:
        """Return which rank's checkpoint grows, or is read."""
        for beat in beats:
            verb = MOVES_FILES.get(beat.phase)
            moved = self._moved_bytes(beat.pid) if verb is not None else None
            if moved is None:
                self._files.pop(beat.pid, None)
                continue
            since_t, then = self._files.setdefault(beat.pid, (t, moved))
            if moved - then >= GROWTH_BYTES:
                self._files[beat.pid] = t, moved
                return f"rank {beat.rank} {verb} a checkpoint"
            if t - since_t >= GROWTH_S:
                self._files[beat.pid] = t, moved
        return ""

    def _suspect(self, t: float, beats: Sequence[RankHeartbeat]) -> None:
        still_s = t - self._judge.since_t
        if still_s <= min(self._limits.train_s, self._limits.phase_s) and all(beat.phase_limit_s is None for beat in beats):
            return
        limit = self._times.limit(beats, self._limits)
        if still_s > limit.seconds * self._judge.patience:
            self._judge.suspect(t, limit)

    def _clear(self, t: float, text: str) -> None:
        self._asked_t = None
        self._judge.clear(t, text)

    # looks at this node

    def _advance(self, t: float, suspicion: Suspicion[L], ranks: Sequence[RankInfo], *, is_whole: bool, is_shared: bool) -> None:
        """Take the look that came, or ask for the one that is due."""
        if is_shared and self._nodes is not None:
            if t >= suspicion.due_t:
                suspicion.delay_s = min(2 * max(suspicion.delay_s, ASK_AGAIN_S / 2), RELOOK_S)
                suspicion.due_t = t + suspicion.delay_s
                self._nodes.ask(f"no progress for {t - self._judge.since_t:.0f} s")
            return
        if self._asked_t is None:
            if t >= suspicion.due_t:
                self._asked_t = t
                answers = self._answers = queue.SimpleQueue()
                self._looks.start(ranks, self._beats, answers.put)
            return
        try:
            look = self._answers.get_nowait()
        except queue.Empty:
            if t - self._asked_t < LOOK_LOST_S:
                return
            look = None
        asked_t, self._asked_t = self._asked_t, None
        if look is None:
            self._judge.begin_anew(t, "the ranks could not be examined")
        else:
            self._judge.take(t, asked_t, look, has_trained=self._has_trained, is_whole=is_whole)

    @property
    def _has_trained(self) -> bool:
        return any(beat.has_trained for beat in self._beats)

    # looks at all nodes

    def _hear(self, t: float) -> None:
        """Take what looks at all nodes showed."""
        judge = self._judge
        while not self._news.empty():
            news = self._news.get_nowait()
            if isinstance(news, str):
                if judge.suspicion is not None:  # else this node has seen life by itself
                    judge.begin_anew(t, news)
                continue
            if judge.suspicion is None:  # this node's ranks may take longer by their own limit
                judge.suspicion = Suspicion(self._times.limit(self._beats, self._limits), RELOOK_S, t + RELOOK_S)
            judge.suspicion.confirmed = [news]

    def _answer(self, t: float, ranks: Sequence[RankInfo]) -> None:
        """Take the look that is wanted of this node."""
        number, nodes = 0, self._nodes
        while not self._wanted.empty():
            number = self._wanted.get_nowait()
        if number and nodes is not None:
            limit = self._times.limit(self._beats, self._limits)
            since_t = self._judge.since_t
            stillness = Stillness(t - since_t if self._beats else None, since_t, limit, self._life, self._has_trained)
            self._looks.start(ranks, self._beats, lambda look: nodes.answer(number, look, stillness))


def _sign(before: Sequence[RankHeartbeat], beats: Sequence[RankHeartbeat]) -> str:
    """Return what changed in the heartbeats."""
    known = {beat.local_rank: beat for beat in before}
    for beat in beats:
        rank_heartbeat = known.get(beat.local_rank)
        if rank_heartbeat == beat:
            continue
        if rank_heartbeat is None or rank_heartbeat.pid != beat.pid:
            return f"rank {beat.rank} began"
        if rank_heartbeat.last_step_ns != beat.last_step_ns:
            return f"rank {beat.rank} made a step"
        if (rank_heartbeat.phase, rank_heartbeat.phase_since_ns) != (beat.phase, beat.phase_since_ns):
            return f"rank {beat.rank} is in phase {beat.phase}"
        if rank_heartbeat.life_ns != beat.life_ns:
            return f"rank {beat.rank} began a backward pass or a collective"
        return f"rank {beat.rank} reports"
    return "a rank's heartbeat is gone"
