"""Reads the losses that the ranks of a drill print, from the files in which the guardian keeps their output."""

from __future__ import annotations

import contextlib
from dataclasses import field
from typing import TYPE_CHECKING

from supervisor.classify.losses.lines import NumberReader, NumberReading, captures
from supervisor.classify.losses.rules import LossRule, RuleKind
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from pathlib import Path

_LOSSES, _ = captures([LossRule("drill", RuleKind.NAN)])
_STREAMS = (".out", ".err", ".log")
#: A drill reads all that was printed since its last look.
_MOST_LINES = 100_000


class _RankStream(Struct):
    """One file, and what was read of it. last: the newest number of each name."""

    offset: int = 0
    reader: NumberReader = field(default_factory=lambda: NumberReader(_LOSSES, _MOST_LINES))
    last: dict[str, NumberReading] = field(default_factory=dict)


class PrintedLosses:
    """The losses of one attempt, by the file and the name under which they were printed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._streams: dict[str, _RankStream] = {}
        self.series: dict[tuple[str, str], list[float]] = {}
        self._steps: dict[tuple[str, str], list[int | None]] = {}

    def read(self) -> None:
        """Read what was printed since the last call."""
        for path in sorted(self._directory.glob("rank-*")):
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
            self.series.setdefault((file, reading.name), []).append(reading.value)
            self._steps.setdefault((file, reading.name), []).append(reading.step)

    def count_by(self, key: tuple[str, str], step: int | None) -> int:
        """Return how many losses of a series were printed by a step. Those without a step count as well, and all do if it is unknown."""
        return sum(step is None or of_step is None or of_step <= step for of_step in self._steps[key])

    def longest(self) -> tuple[str, str] | None:
        """Return the key of the series with the most losses, None if nothing was printed."""
        return max(self.series, key=lambda key: len(self.series[key]), default=None)
