"""The agent's standbys: they become ranks of the attempt that they fit, and are started for nothing but a Python that runs the script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from supervisor.agent.messages import Go, PrepareStandbys
from supervisor.launch.environment import INSTRUMENT_DIR
from supervisor.observe.ranks import heartbeats
from supervisor.run.standbys import command_line, importing_ranks
from tests.support.waiting import is_running, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]


def go(directory: Path, attempt: int, nproc: int) -> Go:
    """Return the order of an attempt whose ranks are instrumented, as the supervisor gives it."""
    heartbeats.create(directory / f"attempt-{attempt:04d}" / "heartbeat", nproc)
    shim = {"PYTHONPATH": str(INSTRUMENT_DIR), "SUPERVISE_JOB_SHIM": "launcher"}
    return Go(attempt, env={**shim, "SUPERVISE_JOB_DIR": str(directory), "SUPERVISE_JOB_ATTEMPT": str(attempt)}, nproc=nproc)


def first_attempt(agent: Any, directory: Path) -> tuple[tuple[str, ...], ...]:  # noqa: ANN401  the harness of this directory
    """Start two ranks and await their records; return what they run."""
    agent.expect("hello")
    agent.send(go(directory, 1, 2))
    ranks = agent.expect("started", 1)["ranks"]
    wait_for(lambda: importing_ranks(directory / "attempt-0001", 2), "both ranks have recorded their imports", 120)
    return tuple(tuple(command_line(rank["pid"])) for rank in sorted(ranks, key=lambda rank: rank["local_rank"]))


def test_ranks_of_another_world_size_are_started_cold(start: Callable[..., Any], tmp_path: Path) -> None:
    agent = start(script="waiting_job.py", OMP_NUM_THREADS="1")
    commands = first_attempt(agent, tmp_path)
    agent.send(PrepareStandbys(1, str(tmp_path / "attempt-0001"), commands))
    waiting = agent.expect("standbys", 1, ready=2)["pids"]
    agent.stop(1, exit_code=None)
    agent.expect("stopped", 1)
    agent.send(go(tmp_path, 2, 1))
    [rank] = agent.expect("started", 2, world_size=1)["ranks"]
    used = agent.expect("standbys_used", 2)
    assert (used["ranks"], used["cold"]) == ([], "LOCAL_WORLD_SIZE is another")
    agent.wrote(2, 0, "out", b"met 1")
    assert rank["pid"] not in waiting
    assert not any(map(is_running, waiting))


def test_a_command_other_than_the_ranks_own_starts_no_standby(start: Callable[..., Any], tmp_path: Path) -> None:
    agent = start(script="waiting_job.py", OMP_NUM_THREADS="1")
    commands = first_attempt(agent, tmp_path)
    agent.send(PrepareStandbys(1, str(tmp_path / "attempt-0001"), (commands[0], ("wrapper", *commands[1]))))
    report = agent.expect("standbys", 1)
    assert (report["pids"], report["why"]) == ([], "the ranks are not started as the Python that runs the script")
