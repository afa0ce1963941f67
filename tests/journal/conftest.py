"""What the journal's tests share: someone who listens, and a job's events as the core takes them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.core import events as core_events
from supervisor.core.actions import SetTimer
from supervisor.core.machine import decide, initial
from supervisor.core.model import CheckpointRef, Evidence, Phase, Policy, RankExit, RankInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.core.actions import Action
    from supervisor.core.state import JobState

    Step = tuple[core_events.Event, JobState, tuple[Action, ...]]


class Ear:
    """A listener that records its calls, in order."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self._changed = threading.Condition()

    def journal_synced(self, seq: int) -> None:
        """Remember it."""
        self._hear("synced", str(seq))

    def journal_degraded(self, text: str) -> None:
        """Remember it."""
        self._hear("degraded", text)

    def journal_recovered(self) -> None:
        """Remember it."""
        self._hear("recovered", "")

    def _hear(self, word: str, text: str) -> None:
        with self._changed:
            self.heard.append((word, text))
            self._changed.notify_all()

    def await_word(self, word: str, text: str = "", within_s: float = 60.0) -> str:
        """Wait until `word` was called with `text` in its text, and return that text."""
        until = time.monotonic() + within_s
        with self._changed:
            while True:
                for heard, line in self.heard:
                    if heard == word and text in line:
                        return line
                assert self._changed.wait(max(0.0, until - time.monotonic())) or time.monotonic() < until, f"{word} {text}: {self.heard}"

    def await_synced(self, seq: int, within_s: float = 60.0) -> None:
        """Wait until everything up to `seq` is durable."""
        until = time.monotonic() + within_s
        with self._changed:
            while not any(word == "synced" and int(number) >= seq for word, number in self.heard):
                assert self._changed.wait(max(0.0, until - time.monotonic())) or time.monotonic() < until, f"{seq}: {self.heard}"

    def count(self, word: str) -> int:
        """Return how often `word` was called."""
        return sum(1 for heard, _ in self.heard if heard == word)


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def story() -> Callable[[], list[Step]]:
    """Return a maker of a run with one failure, a restart and an end: each event, the state after it, the actions."""

    def make() -> list[Step]:
        ranks = tuple(RankInfo(rank, rank, 100 + rank, 7) for rank in range(2))
        events: list[core_events.Event] = [
            core_events.SupervisorStarted(100.0, "run-1", Policy(checkpoints_declared=True)),
            core_events.CheckpointSelected(100.5, 0, None, 0),
            core_events.AttemptStarted(101.0, 1, ranks, 2),
            core_events.ProgressObserved(105.0, 1, None, 3, Phase.TRAIN),
            core_events.CheckpointVerified(106.0, 1, CheckpointRef("ckpt/3.pt", 3, "structure")),
            core_events.ProgressObserved(110.0, 1, None, 9, Phase.TRAIN),
            core_events.RankExited(111.0, 1, RankExit(1, 101, 5_000, code=1)),
            core_events.RankExited(111.1, 1, RankExit(0, 100, 6_000, signal=15)),
            core_events.AttemptEnded(111.5, 1, "failed"),
            core_events.EvidenceCollected(
                112.0,
                1,
                1,
                (
                    Evidence("error_file", "exception", "RuntimeError: caf\u00e9 \udcff", 1, 111.0),
                    Evidence("exit", "exit_code", "1", 1, 111.0),
                    Evidence("heartbeat", "phase", "train", 1),
                    Evidence("heartbeat", "steps", "9", 1),
                ),
                0.5,
            ),
        ]
        steps: list[Step] = []
        state = initial()

        def feed(event: core_events.Event) -> None:
            nonlocal state
            state, actions = decide(state, event)
            steps.append((event, state, actions))

        for event in events:
            feed(event)
        for timer in [a for a in steps[-1][2] if isinstance(a, SetTimer) and a.name == "backoff"]:
            feed(core_events.TimerFired(113.0, timer.name, timer.token))
        feed(
            core_events.CheckpointSelected(
                113.5, state.attempt.number, CheckpointRef("ckpt/3.pt", 3, "structure"), 2, (("ckpt/9.pt", "torn"),)
            )
        )
        feed(core_events.AttemptStarted(114.0, state.attempt.number, ranks, 2))
        feed(core_events.ProgressObserved(118.0, state.attempt.number, 4, 1, Phase.TRAIN, "ckpt/3.pt"))
        feed(core_events.AttemptEnded(130.0, state.attempt.number, "succeeded"))
        return steps

    return make
