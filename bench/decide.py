"""How long a decision takes, by event: `python bench/decide.py`. CPU microseconds for each, 100 000 of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from supervisor.core import events as core_events
from supervisor.core.machine import decide, initial
from supervisor.core.model import CheckpointRef, Phase, Policy, RankInfo

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 100_000
EVENTS: dict[str, Callable[[int], core_events.Event]] = {
    "a step further": lambda i: core_events.ProgressObserved(2.0, 1, i, i, Phase.TRAIN),
    "the same step": lambda _: core_events.ProgressObserved(2.0, 1, 5, 5, Phase.TRAIN),
    "a checkpoint": lambda i: core_events.CheckpointVerified(2.0, 1, CheckpointRef(f"{i}.pt", i, "structure")),
    "of a dead attempt": lambda _: core_events.ProgressObserved(2.0, 7, 5, 5, Phase.TRAIN),
}


def main() -> None:
    """Measure and print."""
    state, _ = decide(initial(), core_events.SupervisorStarted(0.0, "run", Policy()))
    running, _ = decide(state, core_events.AttemptStarted(1.0, 1, (RankInfo(0, 0, 1, 1),), 1))
    for name, event_of in EVENTS.items():
        events, state = [event_of(i) for i in range(COUNT)], running
        begun = time.process_time()
        for event in events:
            state, _ = decide(state, event)
        print(f"{name:20} {(time.process_time() - begun) / COUNT * 1e6:6.2f} µs")


if __name__ == "__main__":
    main()
