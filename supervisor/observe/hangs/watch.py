"""Watches whether a job stands still: suspects a hang, has the ranks examined, and posts what the looks agree on.

Once a second it gets the heartbeats of this node's ranks. It reads no clock and starts no thread: time and looks come from outside. A
suspicion proves nothing; two looks decide. Each look is compared with the one before it alone, because a look disturbs what it counts.

    still for longer than the limit        HangSuspected; look 1; after CONFIRM_S, look 2
    the looks show nothing that moves      HangConfirmed; examined again ever less often, and again where that shows more
    the same, with a few bytes that move   HangConfirmed, as slow; again once none moves
    the same, behind the training's end    HangConfirmed; again, as over, once nothing of any rank worked for OVER_S
    the same, with CPU time at one place   examined again, until 10 times the limit has passed: then HangConfirmed
    all wait, maybe for another node       the same
    other stacks, another collective       HangCleared; the stillness begins anew, with twice the patience, up to four times
    a sign of life                         HangCleared
    a pause that is not the job's          the stillness begins anew
"""

from __future__ import annotations

import math
import queue
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from supervisor.config.intervals import OVER_S
from supervisor.core.events import HangCleared, HangConfirmed, HangSuspected
from supervisor.core.hangs import TORCH_ACTS_S
from supervisor.core.model import Hang, HangKind, Phase
from supervisor.core.values import replace
from supervisor.observe.hangs import procfs
from supervisor.observe.hangs.threshold import Limit, StepTimes
from supervisor.observe.ranks.heartbeats import LEAST_APART_S, SAMPLE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisor.config.watch_settings import HangSection
    from supervisor.core.model import RankInfo
    from supervisor.observe.hangs.rank_progress import RankProgress
    from supervisor.observe.ranks.heartbeats import RankHeartbeat

L = TypeVar("L")

#: So long without a sample means that we did not run ourselves: stopped, paused with the machine, or held up by a disk.
PAUSE_S = 5.0
#: CLOCK_BOOTTIME goes on while the machine is suspended, CLOCK_MONOTONIC does not.
SUSPENDED_S = 1.0
#: A look that has not come by then never comes.
LOOK_LOST_S = 30.0
MOST_PATIENCE = 4.0
#: Between the two looks that must show the same; half of the limit where that is shorter. Most pauses of a healthy job end within it.
CONFIRM_S = 30.0
#: All ranks of this node may wait for one on another node, which evaluates.
WAITS_ELSEWHERE = frozenset({HangKind.WAITING, HangKind.STILL})
#: Where that is so, and where ranks use CPU time in one function, they get so many times the limit: a long computation looks like an
#: endless loop.
BUSY_TIMES = 10.0
#: They are examined so often within one limit: the more looks see one place, the less it is chance.
BUSY_LOOKS = 4
#: The longest time between two looks at a hang that is confirmed.
RELOOK_S = 600.0
#: In a minute, so many bytes read or written are a checkpoint; fewer may be a log.
GROWTH_BYTES = 1 << 20
GROWTH_S = 60.0
#: A checkpoint that was mapped into memory is read after its load, while it is put into the model.
MOVES_FILES = {Phase.CHECKPOINT: "writes", Phase.LOAD: "reads", Phase.INIT: "reads"}


class Looks(Protocol[L]):
    """Takes looks, and compares them."""

    def start(self, ranks: Sequence[RankInfo], beats: Sequence[RankHeartbeat], done: Callable[[L | None], None]) -> None:
        """Take a look in another thread, and call `done` with it there; with None if it failed."""
        ...

    def compare(self, first: L, second: L) -> RankProgress:
        """Return what moved from one look to the next."""
        ...

    def hang(self, first: L, second: L, *, still_s: float, limit_s: float, calibrated: bool) -> Hang:
        """Return what two looks agree on."""
        ...


@dataclass(slots=True)
class _Suspicion(Generic[L]):
    limit: Limit
    delay_s: float  # between two looks
    due_t: float  # the next look
    look: L | None = None  # the newest
    look_t: float = 0.0  # when that was asked for
    quiet_t: float | None = None  # since when each look shows ranks behind the end of their training of which nothing works
    asked_t: float | None = None  # the look under way
    confirmed: list[Hang] = field(default_factory=list)  # the newest of each kind
    repeats_t: list[float] = field(default_factory=list)  # when it is confirmed again, if nothing moved until then

    def is_news(self, hang: Hang) -> bool:
        """Whether a look shows more than those before it, whose ranks may not have answered: another kind, or the group's timeout."""
        knows_more = hang.group_timeout_s is not None and all(confirmed.group_timeout_s is None for confirmed in self.confirmed)
        return knows_more or all(confirmed.kind is not hang.kind for confirmed in self.confirmed)


class HangWatch(Generic[L]):
    """Watches one attempt at a time. Its methods are called one at a time; a look's answer may come in any thread."""

    def __init__(
        self,
        post: Callable[[HangSuspected | HangConfirmed | HangCleared], None],
        limits: HangSection,
        looks: Looks[L],
        *,
        suspended_s: Callable[[], float] = lambda: 0.0,
        moved_bytes: Callable[[int], int | None] | None = None,
    ) -> None:
        """Take where to post and who takes the looks.

        suspended_s: how long the machine was suspended since its start; moved_bytes: how much a process has read and written.
        """
        self._post, self._limits, self._looks = post, limits, looks
        self._suspended_s = suspended_s
        self._moved_bytes = moved_bytes or procfs.moved_bytes

    def watch(self, attempt: int) -> None:
        """Begin with a new attempt."""
        self._attempt = attempt
        self._times = StepTimes()
        self._beats: tuple[RankHeartbeat, ...] = ()
        self._sampled_t: float | None = None
        self._asleep_s = self._suspended_s()
        self._since_t = 0.0  # the last sign of life
        self._patience, self._is_whole = 1.0, True
        self._suspicion: _Suspicion[L] | None = None
        self._answers: queue.SimpleQueue[L | None] = queue.SimpleQueue()  # of the look under way alone
        self._files: dict[int, tuple[float, int]] = {}  # by pid: since when, and the bytes moved by then

    def sample(self, t: float, beats: tuple[RankHeartbeat, ...], ranks: Sequence[RankInfo], *, is_whole: bool = True) -> None:
        """Take the heartbeats, as often as they come; `t` is a time of the job's clock. is_whole: no rank is on another node."""
        if self._sampled_t is not None and t - self._sampled_t < LEAST_APART_S:
            return
        pause = self._pause(t, beats)
        self._sampled_t = t
        if pause or not beats:
            self._times.interrupt()
        if not beats:
            return
        self._times.add(beats)
        before, self._beats = self._beats, beats
        life = "" if beats == before else _sign(before, beats)
        life = life or self._moved_files(t, beats)
        if life or pause:
            confirmed = self._suspicion is not None and bool(self._suspicion.confirmed)
            if life or not confirmed:
                self._clear(t, life or pause)
            self._since_t, self._patience = t, 1.0
        elif self._suspicion is None:
            self._suspect(t, beats)
        if self._suspicion is not None:
            self._is_whole = is_whole
            self._advance(t, self._suspicion, ranks)

    def _pause(self, t: float, beats: tuple[RankHeartbeat, ...]) -> str:
        """Return why this stillness is none of the job's, if it is not."""
        gap_s = t - self._sampled_t if self._sampled_t is not None else 0.0
        was_asleep_s, self._asleep_s = self._asleep_s, self._suspended_s()
        asleep_s = self._asleep_s - was_asleep_s
        if asleep_s > SUSPENDED_S:
            return f"the machine was suspended for {asleep_s:.0f} s"
        if gap_s > PAUSE_S:
            return f"supervise did not read the heartbeats for {gap_s:.0f} s"
        if not beats:
            self._since_t = t
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
        still_s = t - self._since_t
        if still_s <= min(self._limits.train_s, self._limits.phase_s) and all(beat.phase_limit_s is None for beat in beats):
            return
        limit = self._times.limit(beats, self._limits)
        if still_s <= limit.seconds * self._patience:
            return
        delay_s = min(CONFIRM_S, limit.seconds / 2)
        self._suspicion = _Suspicion(limit, delay_s, t)
        self._post(HangSuspected(t, self._attempt, still_s, limit.seconds, limit.phase))

    def _clear(self, t: float, text: str) -> None:
        if self._suspicion is not None:
            self._suspicion = None
            self._post(HangCleared(t, self._attempt, t - self._since_t, text))

    # looks

    def _advance(self, t: float, suspicion: _Suspicion[L], ranks: Sequence[RankInfo]) -> None:
        """Take the look that came, or ask for the one that is due."""
        if suspicion.asked_t is None:
            if t >= suspicion.due_t:
                suspicion.asked_t = t
                answers = self._answers = queue.SimpleQueue()
                self._looks.start(ranks, self._beats, answers.put)
            return
        try:
            look = self._answers.get_nowait()
        except queue.Empty:
            if t - suspicion.asked_t < LOOK_LOST_S:
                return
            look = None
        asked_t, suspicion.asked_t = suspicion.asked_t, None
        if look is None:
            self._begin_anew(t, "the ranks could not be examined")
            return
        first, first_t = suspicion.look, suspicion.look_t
        suspicion.look, suspicion.look_t = look, asked_t
        suspicion.due_t = t + suspicion.delay_s
        if first is not None:
            self._judge(t, suspicion, first, first_t, look)

    def _judge(self, t: float, suspicion: _Suspicion[L], first: L, first_t: float, second: L) -> None:
        """Decide on two neighbouring looks; `first_t`: when the first was asked for."""
        seen = self._looks.compare(first, second)
        if seen.moved:
            self._begin_anew(t, seen.text)
            return
        still_s, limit_s = t - self._since_t, suspicion.limit.seconds
        hang = self._looks.hang(first, second, still_s=still_s, limit_s=limit_s, calibrated=suspicion.limit.calibrated)
        if hang.at_exit and not hang.working and self._is_whole:  # whoever is on another node may still train
            suspicion.quiet_t = first_t if suspicion.quiet_t is None else suspicion.quiet_t
            hang = replace(hang, over=t - suspicion.quiet_t >= OVER_S)
        else:
            suspicion.quiet_t = None
        # a job without any step may be inference, or prepare its data for hours: as long as it computes, it may go on
        has_trained = any(beat.last_step_ns is not None for beat in self._beats)
        patient_s = math.inf if hang.busy and not has_trained else BUSY_TIMES * limit_s
        is_first = not suspicion.confirmed
        may_go_on = hang.busy or (hang.kind in WAITS_ELSEWHERE and not self._is_whole)
        if is_first and may_go_on and still_s < patient_s:
            suspicion.delay_s = max(suspicion.delay_s, limit_s / BUSY_LOOKS)
            suspicion.due_t = min(t + suspicion.delay_s, max(self._since_t + patient_s, t + SAMPLE_S))
            return
        # the first sign of one that is not calibrated is a guess, whatever the second shows
        stopped_moving = not hang.slow and any(earlier.slow for earlier in suspicion.confirmed)
        is_over = hang.over and not any(earlier.over for earlier in suspicion.confirmed)
        if (
            is_first
            or stopped_moving
            or is_over
            or any(t >= due for due in suspicion.repeats_t)
            or (hang.calibrated and suspicion.is_news(hang))
        ):
            suspicion.repeats_t = self._repeats_t(t, hang, is_first=is_first)
            suspicion.confirmed = [*(earlier for earlier in suspicion.confirmed if earlier.kind is not hang.kind), hang]
            self._post(HangConfirmed(t, self._attempt, hang))
        suspicion.delay_s = min(2 * max(suspicion.delay_s, limit_s / 2), RELOOK_S)
        over_t = [suspicion.quiet_t + OVER_S] if suspicion.quiet_t is not None and not hang.over else []
        suspicion.due_t = max(t + SAMPLE_S, min([t + suspicion.delay_s, *suspicion.repeats_t, *over_t]))

    def _repeats_t(self, t: float, hang: Hang, *, is_first: bool) -> list[float]:
        """Return when a hang that stays is confirmed again, for the core to act: torch had its time, or the first sign was a guess."""
        due_times = [t + hang.limit_s] if is_first and not hang.calibrated else []
        due_times += [] if hang.group_timeout_s is None else [self._since_t + hang.group_timeout_s + TORCH_ACTS_S]
        return [due for due in due_times if due > t]

    def _begin_anew(self, t: float, text: str) -> None:
        """Clear the suspicion, and be more patient: whatever this is, it may go on for long."""
        self._clear(t, text)
        self._since_t = t
        self._patience = min(2 * self._patience, MOST_PATIENCE)


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
        return f"rank {beat.rank} reports"
    return "a rank's heartbeat is gone"
