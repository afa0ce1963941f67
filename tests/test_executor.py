"""What the executor hands on of an action."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from supervisor.clock import Clock
from supervisor.core import actions as act
from supervisor.executor import Executor


def test_the_world_size_reaches_what_is_written_into_files() -> None:
    job, loop, workshop = MagicMock(), SimpleNamespace(clock=Clock.start()), MagicMock()
    executor: Any = Executor(job, loop, MagicMock(), MagicMock(), workshop)  # type: ignore[arg-type]  # a loop that keeps its state
    workshop.world_size = lambda nproc: {3: 3}[nproc]
    loop.state = SimpleNamespace(stage="starting", attempt=2, ranks=())
    executor._begin(act.BeginAttempt(2, "failure", None, (("batch_size", "2"),), nproc=3))  # noqa: SLF001  past what waits for the journal
    assert job.knobs.apply.call_args.args[3] == 3
