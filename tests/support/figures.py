"""What a test may cost: asserted by `make bench` alone, where nothing else runs.

CPU seconds: everywhere else the block is run for what it does. On a machine with other work the same search costs twice as much, and no
figure of it says anything about the code. Seconds of the clock: everywhere else ten times as many are allowed.
"""

from __future__ import annotations

import contextlib
import resource
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


#: A process that wants a CPU may wait so many times longer on a machine that is busy.
BUSY = 10


class Figures:
    """Whether figures are asserted: set once, by `--figures`."""

    asserted = False


def spent_s() -> float:
    """Return the CPU seconds of this process and of its children that ended."""
    used = (resource.getrusage(processes) for processes in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def is_within(took_s: float, limit_s: float) -> bool:
    """Return whether it took less than that; ten times as much is allowed but under `make bench`."""
    return took_s < limit_s * (1 if Figures.asserted else BUSY)


def within(limit_s: float, *, since: float) -> bool:
    """Return whether less than that passed since an instant of `time.monotonic`, as is_within."""
    return is_within(time.monotonic() - since, limit_s)


@contextlib.contextmanager
def costs_at_most(limit_s: float, subject: str = "") -> Iterator[None]:
    """Fail where the block needs more CPU seconds than that, under `make bench`."""
    before = spent_s()
    yield
    took_s = spent_s() - before
    assert took_s <= limit_s or not Figures.asserted, f"{subject}: {took_s:.3f} s of CPU, more than {limit_s} s"
