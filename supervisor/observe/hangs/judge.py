"""Judges whether ranks that show no sign of life hang: two neighbouring looks decide. Of one node, or of all nodes of a job.

It reads no clock and takes no look: time and looks come from outside. Each look is compared with the one before it alone, because a look
disturbs the numbers that it counts.

    the looks show nothing that moves      HangConfirmed; due again ever less often, and confirmed again where that shows more
    the same, with a few bytes that move   HangConfirmed, as slow; again once none moves
    the same, past the training's end    HangConfirmed; again, as over, once nothing of any rank worked for OVER_S
    the same, with CPU time at one place   due again, until 10 times the limit has passed: then HangConfirmed
    all wait, maybe for an unseen node      the same
    other stacks, another collective       HangCleared; the stillness begins anew, with twice the patience, up to four times
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from supervisor.config.intervals import OVER_S
from supervisor.core.events import HangCleared, HangConfirmed, HangSuspected
from supervisor.core.model import Hang, HangKind
from supervisor.core.values import replace
from supervisor.core.watch.hangs import TORCH_ACTS_S
from supervisor.observe.hangs.threshold import Limit
from supervisor.observe.ranks.heartbeats import SAMPLE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.observe.hangs.rank_progress import RankProgress

L = TypeVar("L")
L_contra = TypeVar("L_contra", contravariant=True)

MOST_PATIENCE = 4.0
#: Between the two looks that must show the same; half of the limit where that is shorter. Most pauses of a healthy job end within it.
CONFIRM_S = 30.0
#: All ranks that were seen may wait for one on another node, which evaluates.
WAITS_ELSEWHERE = frozenset({HangKind.WAITING, HangKind.STILL})
#: Where that is so, and where ranks use CPU time in one function, they get so many times the limit: a long computation looks like an
#: endless loop.
BUSY_TIMES = 10.0
#: They are examined so often within one limit: the more looks see one place, the less it is chance.
BUSY_LOOKS = 4
#: The longest time between two looks at a hang that is confirmed.
RELOOK_S = 600.0


class Comparison(Protocol[L_contra]):
    """Says what two looks show."""

    def compare(self, first: L_contra, second: L_contra) -> RankProgress:
        """Return what moved from one look to the next."""
        ...

    def hang(self, first: L_contra, second: L_contra, *, still_s: float, limit_s: float, calibrated: bool) -> Hang:
        """Return what two looks agree on."""
        ...


@dataclass(slots=True)
class Suspicion(Generic[L]):
    """Ranks hang. limit: the one that passed; delay_s: between two looks; due_t: the next look; look: the newest, requested at look_t.

    quiet_t: since when each look shows ranks past the end of their training of which nothing works.
    """

    limit: Limit
    delay_s: float
    due_t: float
    look: L | None = None
    look_t: float = 0.0
    quiet_t: float | None = None
    confirmed: list[Hang] = field(default_factory=list)  # the newest of each kind
    repeats_t: list[float] = field(default_factory=list)  # when it is confirmed again, if nothing moved until then

    def is_news(self, hang: Hang) -> bool:
        """Whether a look shows more than those before it, whose ranks may not have answered: another kind, or the group's timeout."""
        knows_more = hang.group_timeout_s is not None and all(confirmed.group_timeout_s is None for confirmed in self.confirmed)
        return knows_more or all(confirmed.kind is not hang.kind for confirmed in self.confirmed)


class HangJudge(Generic[L]):
    """Judges one attempt at a time. since_t: the last sign of life; patience: so many times the limit may pass."""

    def __init__(self, post: Callable[[HangSuspected | HangConfirmed | HangCleared], None], comparison: Comparison[L]) -> None:
        self._post, self._comparison = post, comparison
        self.watch(0)

    def watch(self, attempt: int) -> None:
        """Begin with a new attempt."""
        self._attempt = attempt
        self.since_t, self.patience = 0.0, 1.0
        self.suspicion: Suspicion[L] | None = None

    def suspect(self, t: float, limit: Limit) -> Suspicion[L]:
        """Suspect a hang: the limit has passed."""
        suspicion = self.suspicion = Suspicion[L](limit, min(CONFIRM_S, limit.seconds / 2), t)
        self._post(HangSuspected(t, self._attempt, t - self.since_t, limit.seconds, limit.phase))
        return suspicion

    def clear(self, t: float, text: str) -> None:
        """End a suspicion, for the reason that `text` gives; nothing without one."""
        if self.suspicion is not None:
            self.suspicion = None
            self._post(HangCleared(t, self._attempt, t - self.since_t, text))

    def begin_anew(self, t: float, text: str) -> None:
        """Clear the suspicion, and be more patient: whatever this is, it may continue for long."""
        self.clear(t, text)
        self.since_t = t
        self.patience = min(2 * self.patience, MOST_PATIENCE)

    def take(self, t: float, asked_t: float, look: L, *, has_trained: bool, is_whole: bool) -> None:
        """Take a look at suspected ranks, and judge it together with the one before. asked_t: the time of its request.

        has_trained: a rank has made a step. is_whole: no rank is on a node that was not looked at.
        """
        suspicion = self.suspicion
        if suspicion is None:
            return
        first, first_t = suspicion.look, suspicion.look_t
        suspicion.look, suspicion.look_t = look, asked_t
        suspicion.due_t = t + suspicion.delay_s
        if first is not None:
            self._judge(t, suspicion, first, first_t, look, has_trained=has_trained, is_whole=is_whole)

    def _judge(  # noqa: PLR0913 (what two looks are judged by)
        self, t: float, suspicion: Suspicion[L], first: L, first_t: float, second: L, *, has_trained: bool, is_whole: bool
    ) -> None:
        """Decide on two neighbouring looks; `first_t`: when the first was asked for."""
        progress = self._comparison.compare(first, second)
        if progress.moved:
            self.begin_anew(t, progress.text)
            return
        still_s, limit_s = t - self.since_t, suspicion.limit.seconds
        hang = self._comparison.hang(first, second, still_s=still_s, limit_s=limit_s, calibrated=suspicion.limit.calibrated)
        if hang.at_exit and not hang.working and is_whole:  # a rank outside of the look may still train
            suspicion.quiet_t = first_t if suspicion.quiet_t is None else suspicion.quiet_t
            hang = replace(hang, over=t - suspicion.quiet_t >= OVER_S)
        else:
            suspicion.quiet_t = None
        # a job without any step may be inference, or prepare its data for hours: as long as it computes, it may continue
        patient_s = math.inf if hang.busy and not has_trained else BUSY_TIMES * limit_s
        is_first = not suspicion.confirmed
        may_go_on = hang.busy or (hang.kind in WAITS_ELSEWHERE and not is_whole)
        if is_first and may_go_on and still_s < patient_s:
            suspicion.delay_s = max(suspicion.delay_s, limit_s / BUSY_LOOKS)
            suspicion.due_t = min(t + suspicion.delay_s, max(self.since_t + patient_s, t + SAMPLE_S))
            return
        # the first sign of one that is not calibrated is a guess, whatever the second shows
        stopped_moving = not hang.slow and any(earlier.slow for earlier in suspicion.confirmed)
        is_over = hang.over and not any(earlier.over for earlier in suspicion.confirmed)
        is_repeated = any(t >= due for due in suspicion.repeats_t)
        if is_first or stopped_moving or is_over or is_repeated or (hang.calibrated and suspicion.is_news(hang)):
            suspicion.repeats_t = self._repeats_t(t, hang, is_first=is_first)
            suspicion.confirmed = [*(earlier for earlier in suspicion.confirmed if earlier.kind is not hang.kind), hang]
            self._post(HangConfirmed(t, self._attempt, hang))
        suspicion.delay_s = min(2 * max(suspicion.delay_s, limit_s / 2), RELOOK_S)
        over_t = [suspicion.quiet_t + OVER_S] if suspicion.quiet_t is not None and not hang.over else []
        suspicion.due_t = max(t + SAMPLE_S, min([t + suspicion.delay_s, *suspicion.repeats_t, *over_t]))

    def _repeats_t(self, t: float, hang: Hang, *, is_first: bool) -> list[float]:
        """Return when a hang that stays is confirmed again, for the core to act: torch had its time, or the first sign was a guess."""
        due_times = [t + hang.limit_s] if is_first and not hang.calibrated else []
        due_times += [] if hang.group_timeout_s is None else [self.since_t + hang.group_timeout_s + TORCH_ACTS_S]
        return [due for due in due_times if due > t]
