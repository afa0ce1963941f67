"""Reads how far the training is, and its losses, from the end of what its lowest rank of this node printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.cli.jobs.log_files import end_of
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from supervisor.classify.losses.lines import NumberReading
    from supervisor.classify.step_counts import StepCount  # noqa: TC004  its patterns take time

#: The bytes to read of each stream, and of its lines.
_TAIL_BYTES, _MOST_LINES = 1 << 15, 300


class LoggedProgress(Struct, frozen=True):
    """The facts at the end of the log: the newest count of steps, and the losses in their order, each with its step if the line has one."""

    count: StepCount | None = None
    losses: tuple[tuple[int | None, float], ...] = ()


def log_tail(attempt: Path, rank: int) -> LoggedProgress:
    """Return the facts of the rank's newest output. attempt: the directory of its captured output. An unreadable log has none."""
    ends = [end for name in ("out", "err", "log") if (end := end_of(attempt / f"rank-{rank}.{name}", _TAIL_BYTES)) is not None]
    if not ends:
        return LoggedProgress()
    from supervisor.classify.logs.text import plain  # noqa: PLC0415  their patterns take time, and a job without output needs none
    from supervisor.classify.losses.lines import WORDS, NumberCapture, NumberReader  # noqa: PLC0415  as above
    from supervisor.classify.step_counts import newest_count  # noqa: PLC0415  as above

    count: StepCount | None = None
    losses: tuple[tuple[int | None, float], ...] = ()
    for end in ends:
        data = end.data.partition(b"\n")[2] if end.at else end.data
        lines = data.replace(b"\r", b"\n").split(b"\n")[:-1][-_MOST_LINES:]  # the last one is being written
        count = count or newest_count(plain(line.decode("utf-8", "replace")) for line in lines)
        reader = NumberReader((NumberCapture(tuple(word.encode() for word in WORDS)),))
        losses = losses or tuple(_of_one_name(reader.feed(data)))
    return LoggedProgress(count, losses)


def _of_one_name(readings: list[NumberReading]) -> Iterator[tuple[int | None, float]]:
    """Yield the losses of the name that the last line shows first; of a progress bar, which repeats itself, one for each count."""
    from supervisor.classify.losses.lines import is_of_training  # noqa: PLC0415  as above

    own = [reading for reading in readings if is_of_training(reading.name)]
    if not own:
        return
    names = [reading.name for reading in own]
    name = max(dict.fromkeys(names), key=names.count)
    last: tuple[str, ...] | None = None
    for reading in own:
        if reading.name == name and not (reading.is_bar and reading.place and reading.place == last):
            yield reading.step, reading.value
            last = reading.place
