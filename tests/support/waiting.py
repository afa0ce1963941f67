"""What tests of real processes wait for, and how: a condition, under a deadline, asked again and again."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.support.figures import Figures

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")


#: What happens is waited for at least so long, but under `make bench`: a deadline costs nothing unless the test fails.
PATIENCE_S = 240.0


def patience_s(deadline_s: float) -> float:
    """Return how long something is waited for that happens within `deadline_s` on an idle machine."""
    return deadline_s if Figures.asserted else max(deadline_s, PATIENCE_S)


def wait_for(
    look: Callable[[], Found],
    goal: str = "a condition",
    deadline_s: float = PATIENCE_S,
    *,
    alive: Callable[[], bool] = lambda: True,
    state: Callable[[], object] = str,
) -> Found:
    """Return the first answer of `look` that is true.

    Fail the test when the time is up, or when `alive` turned false before, and show `state`.
    """
    deadline_s = patience_s(deadline_s)
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        began = time.thread_time()
        was_alive = alive()  # asked first: what happened just before the end is still found
        answer = look()
        if answer:
            return answer
        if not was_alive:
            pytest.fail(f"supervise ended before {goal} {state()}")
        time.sleep(max(0.01, 3 * (time.thread_time() - began)))  # a look that is dear takes no more than a quarter of a CPU from the job
    return pytest.fail(f"not within {deadline_s} s: {goal} {state()}")


def is_running(pid: int) -> bool:
    """Return whether `pid` exists and is no zombie (where nobody reaps, a zombie stays for ever)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def words_of(path: Path) -> list[list[str]]:
    """Return the words of each line that a job wrote so far."""
    with contextlib.suppress(FileNotFoundError):
        return [line.split() for line in path.read_text().splitlines()]
    return []
