"""Watches the numbers that the ranks print and report, by the loss rules, and posts LossChanged. One for each attempt.

The thread that reads the logs feeds it the lines; the loop's thread feeds it the reports of ranks by worker.report, which is exact. Once
a rank reports its loss, the built-in rules look at the log no more. A number is strange as long as it is on any rank, and is posted once.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor.classify.losses.judge import NumberJudge
from supervisor.classify.losses.lines import NumberReader, NumberReading, captures, is_of_training
from supervisor.core.training_events import LossChanged
from supervisor.core.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from supervisor.classify.losses.judge import NumberChange
    from supervisor.classify.losses.lines import NumberCapture
    from supervisor.classify.losses.rules import LossRule
    from supervisor.core.events import Event
    from supervisor.observe.ranks.heartbeats import RankHeartbeat

#: The name of the number that worker.report gives.
REPORTED = "loss"


@dataclass(slots=True)
class LossStream:
    """The numbers of one stream of the log. rank: None where the stream does not say."""

    watch: LossWatch
    reader: NumberReader
    judges: dict[int | None, NumberJudge]
    rank: int | None

    def feed(self, block: bytes, t: float) -> None:
        """Take the next bytes."""
        for reading in self.reader.feed(block):
            self.watch.take(self, reading, t)


class LossWatch:
    """The strange numbers of one attempt. Its methods may be called from two threads."""

    def __init__(self, rules: Sequence[LossRule], attempt: int, post: Callable[[Event], None]) -> None:
        """Take the rules in use."""
        self._rules = tuple(rules)
        self._captures: tuple[NumberCapture, ...]
        self._captures, self._by_capture = captures(self._rules)
        self._attempt, self._post = attempt, post
        self._open: dict[tuple[str, str], set[object]] = {}
        self._lock = threading.Lock()
        self._reported: dict[int, int] = {}  # rank to how many reports were read
        self._judges: dict[int, NumberJudge] = {}  # of the reported numbers
        self._newest: tuple[int, float] | None = None  # of the lowest rank that shows one: its number, and its loss

    @property
    def newest(self) -> float | None:
        """Return the newest loss of the training, of the lowest rank that shows one; None: none was seen, or it is not finite."""
        newest = self._newest
        return newest[1] if newest is not None and math.isfinite(newest[1]) else None

    def stream(self, rank: int | None) -> LossStream | None:
        """Return what reads one stream; None where no rule is in use."""
        return LossStream(self, NumberReader(self._captures), {}, rank) if self._captures else None

    def take(self, stream: LossStream, reading: NumberReading, t: float) -> None:
        """Judge a number of the log."""
        with self._lock:
            if self._reported and self._by_capture[reading.capture][0].is_of_losses:
                return
            rank = reading.rank if reading.rank is not None else stream.rank
            if self._by_capture[reading.capture][0].is_of_losses and is_of_training(reading.name):
                self._note(rank or 0, reading.value)
            judge = stream.judges.setdefault(rank, NumberJudge(self._by_capture))
            self._report((id(stream), rank), rank, judge.take(reading), t)

    def sample(self, beats: Iterable[RankHeartbeat], t: float) -> None:
        """Judge what ranks have reported since the last time. A rank that reports faster than it is sampled shows its newest number."""
        for beat in beats:
            if beat.loss is None or self._reported.get(beat.rank) == beat.losses or not self._rules:
                continue
            with self._lock:
                if not self._reported:
                    self._forget_log(t)
                self._reported[beat.rank] = beat.losses
                self._note(beat.rank, beat.loss)
                of_losses = tuple(rule for rule in self._rules if rule.is_of_losses)
                judge = self._judges.setdefault(beat.rank, NumberJudge((of_losses,)))
                reading = NumberReading(0, REPORTED, f"{beat.loss:.6g}", beat.loss, (str(beat.losses),), beat.step, beat.rank)
                self._report(("reported", beat.rank), beat.rank, judge.take(reading), t)

    def _note(self, rank: int, loss: float) -> None:
        if self._newest is None or rank <= self._newest[0]:
            self._newest = rank, loss

    def _forget_log(self, t: float) -> None:
        """Take back what our rules saw in the log: the reported numbers are exact."""
        for name, rule in [(key[1], rule) for key in self._open for rule in self._rules if rule.id == key[0] and rule.is_of_losses]:
            del self._open[rule.id, name]
            text = f"{name} is judged by worker.report from now on"
            self._post(LossChanged(t, self._attempt, rule.id, rule.kind.value, name, text, is_over=True))

    def _report(self, source: object, rank: int | None, changes: Iterable[NumberChange], t: float) -> None:
        for number_change in changes:
            key = (number_change.rule.id, number_change.name)
            sources = self._open.setdefault(key, set())
            reported = bool(sources)
            if number_change.is_over:
                sources.discard(source)
            else:
                sources.add(source)
            if not sources:
                del self._open[key]
            if reported != bool(sources):
                event = LossChanged(
                    t,
                    self._attempt,
                    number_change.rule.id,
                    number_change.rule.kind.value,
                    number_change.name,
                    number_change.text,
                    rank,
                    number_change.step,
                )
                self._post(replace(event, is_over=number_change.is_over))
