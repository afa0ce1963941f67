"""How far long work is, in words. Pure."""

from __future__ import annotations

from typing import Final

from checkpointing.model import size_text

#: The unit of work that is counted in bytes, and of a wait. Any other unit is the name of the counted things, such as "objects".
BYTES: Final = "bytes"
SECONDS: Final = "s"


def progress_text(done: float, total: float | None, rate: float = 0.0, unit: str = BYTES) -> str:
    """Return how far work is: `12.4 GiB of 20.0 GiB, 1.9 GiB/s, 4 s left`, `5,000 entries, 310/s`, `12 s, 1 min 48 s left`.

    total: None where it is not known. rate: of the unit in a second, 0 where it is not known; a wait has none.
    """
    if unit == SECONDS:
        return span_text(done) + ("" if total is None else f", {span_text(max(0.0, total - done))} left")
    if unit == BYTES:
        text, speed = size_text(done) + ("" if total is None else f" of {size_text(total)}"), size_text(rate)
    else:
        text, speed = f"{done:,.0f}{'' if total is None else f' of {total:,.0f}'} {unit}", f"{rate:,.0f}"
    left = left_text(done, total, rate)
    return f"{text}{f', {speed}/s' if rate else ''}{f', {left}' if left else ''}"


def left_text(done: float, total: float | None, rate: float) -> str:
    """Return the time that is left: `4 s left`; "" where that is not known."""
    return f"{span_text(max(0.0, total - done) / rate)} left" if rate > 0 and total is not None else ""


def span_text(seconds: float) -> str:
    """Return a time for people: `4 s`, `8 min 44 s`, `3 h 20 min`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
