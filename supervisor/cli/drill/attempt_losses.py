"""Reads the losses of one attempt of a drill: what the ranks print, and what they report by worker.report.

The output is read from the files in which the guardian keeps it. A report is in the rank's heartbeat until the next one comes. A rank
has no series if a report was missed.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from supervisor.classify.losses.lines import NumberReader, NumberReading, captures
from supervisor.classify.losses.rules import LossRule, RuleKind
from supervisor.core.values import Struct, field
from supervisor.observe.ranks import heartbeats

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.observe.ranks.heartbeats import RankHeartbeat

_LOSSES, _ = captures([LossRule("drill", RuleKind.NAN)])
#: In place of a file.
_REPORTED = "worker.report"
_STREAMS = (".out", ".err", ".log")
#: A drill reads all that was printed since its last look.
_MOST_LINES = 100_000


class _RankStream(Struct):
    """One file, and its numbers so far. last: the newest number of each name."""

    offset: int = 0
    reader: NumberReader = field(default_factory=lambda: NumberReader(_LOSSES, _MOST_LINES))
    last: dict[str, NumberReading] = field(default_factory=dict)


class AttemptLosses:
    """The losses of one attempt, by the file and the name under which they were printed, or by the rank that reported them."""

    def __init__(self, output: Path, heartbeat: Path) -> None:
        self._output, self._heartbeat = output, heartbeat
        self._reports: dict[int, int] = {}  # how many of each rank were seen; -1: one was missed
        self._streams: dict[str, _RankStream] = {}
        self.series: dict[tuple[str, str], list[float]] = {}
        self._steps: dict[tuple[str, str], list[int | None]] = {}

    def read(self) -> None:
        """Read the prints and reports since the last call."""
        for beat in heartbeats.read(self._heartbeat):
            self._take_report(beat)
        for path in sorted(self._output.glob("rank-*")):
            if path.suffix not in _STREAMS:
                continue
            stream = self._streams.setdefault(path.name, _RankStream())
            with contextlib.suppress(OSError), path.open("rb") as file:
                file.seek(stream.offset)
                block = file.read()
                stream.offset += len(block)
                for reading in stream.reader.feed(block):
                    self._take(path.name, stream, reading)

    def _take(self, file: str, stream: _RankStream, reading: NumberReading) -> None:
        last = stream.last.get(reading.name)
        stream.last[reading.name] = reading
        if last is None or not reading.is_bar or reading.shown != last.shown:  # a progress bar shows a number again and again
            self._add((file, reading.name), reading.value, reading.step)

    def _take_report(self, beat: RankHeartbeat) -> None:
        reports, key = self._reports.get(beat.rank, 0), (_REPORTED, str(beat.rank))
        if beat.loss is None or beat.losses == reports or reports < 0:
            return
        if beat.losses > reports + 1:
            self._reports[beat.rank] = -1
            self.series.pop(key, None)
            return
        self._reports[beat.rank] = beat.losses
        self._add(key, beat.loss, beat.step)

    def _add(self, key: tuple[str, str], loss: float, step: int | None) -> None:
        self.series.setdefault(key, []).append(loss)
        self._steps.setdefault(key, []).append(step)

    def count_by(self, key: tuple[str, str], step: int | None) -> int:
        """Return how many losses of a series came by a step. Those without a step count as well, and all do if it is unknown."""
        return sum(step is None or of_step is None or of_step <= step for of_step in self._steps[key])

    def with_steps(self, key: tuple[str, str]) -> list[tuple[int | None, float]]:
        """Return the steps and losses of a series in turn."""
        return list(zip(self._steps.get(key, ()), self.series.get(key, ()), strict=False))

    def longest(self) -> tuple[str, str] | None:
        """Return the key of the series with the most losses, None if there is none."""
        return max(self.series, key=lambda key: len(self.series[key]), default=None)
