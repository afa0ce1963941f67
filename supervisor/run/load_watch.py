"""Has each new load of the ranks judged as soon as it is logged: whose checkpoint it is (checkpoints/origin/owners.py).

A save of the attempt may follow within a second, so nothing else is waited for. The judgement reads files, in a thread of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.events import CheckpointsLoaded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.core.checkpoint_model import LoadedCheckpoint
    from supervisor.run.loop import Loop
    from supervisor.run.threads import Threads


class LoadWatch:
    """Watches one attempt at a time. Its methods are called on the loop's thread, or in the one thread that reads heartbeats."""

    def __init__(self, loop: Loop, threads: Threads, judge: Callable[[int], tuple[LoadedCheckpoint, ...]]) -> None:
        """`judge`: returns what the ranks of an attempt loaded; it reads files."""
        self._loop, self._threads, self._judge = loop, threads, judge
        self._attempt = 0
        self._posted: tuple[LoadedCheckpoint, ...] = ()
        self._seen: dict[str, int] = {}

    def watch(self, attempt: int) -> None:
        """Begin with a new attempt."""
        self._attempt, self._posted, self._seen = attempt, (), {}

    def sample(self, directory: Path) -> None:
        """Have the log lines since the last time judged, and post the verdict."""
        sizes = _sizes(directory)
        if sizes == self._seen:
            return
        attempt = self._attempt

        def work() -> None:
            self._seen = sizes
            loads = self._judge(attempt)
            if attempt == self._attempt and loads != self._posted:
                self._posted = loads
                self._loop.post(CheckpointsLoaded(self._loop.clock.now(), attempt, loads))

        self._loop.call_soon(lambda: self._threads.recur("loads", lambda: self._threads.observe("loaded checkpoints", work)))


def _sizes(directory: Path) -> dict[str, int]:
    sizes = {}
    for file in directory.glob("loads-*.jsonl"):
        try:
            sizes[file.name] = file.stat().st_size
        except OSError:
            continue
    return sizes
