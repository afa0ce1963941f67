"""A supervisor stands still for a while, as in a migration of its machine or while it swaps, or a link is cut: the ranks train on."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.machines import Machines, assert_one_job
from tests.e2e.test_nodes import ALONE, EVERY, STEPS, Cluster, digest_of
from tests.support.supervised import processes_with
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.network import Network
    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.mark.slow  # tests/cluster/test_reachability.py has such ways over loopback
@pytest.mark.parametrize("network", [2], indirect=True)
def test_a_cut_link_and_a_pause_of_the_coordinator_of_some_seconds_cost_nothing(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    nodes = Machines(supervise, tmp_path, network, steps=450, hold_at=0)
    nodes.reached(10)
    network.cut(1)
    os.kill(nodes.runs[0].process.pid, signal.SIGSTOP)
    time.sleep(4.0)  # the cut and the pause are what is tested
    network.mend(1)
    os.kill(nodes.runs[0].process.pid, signal.SIGCONT)
    assert [run.exit_code(60) for run in nodes.runs] == [0, 0]
    assert [run.attempts() for run in nodes.runs] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("node", [1, 0], ids=["a node", "the coordinator"])
def test_a_supervisor_that_stands_still_for_some_seconds_costs_nothing(
    supervise: Callable[..., Supervised], tmp_path: Path, node: int
) -> None:
    pause_s = 25.0
    nodes = Cluster(supervise, tmp_path, f"--step-ms={1000 * (pause_s + 10) / STEPS}", script=ALONE)
    nodes.reached(0, 10)
    pauses = nodes.runs[node]
    os.kill(pauses.process.pid, signal.SIGSTOP)
    time.sleep(pause_s)  # the pause is what is tested
    os.kill(pauses.process.pid, signal.SIGCONT)
    codes = [run.exit_code(200) for run in nodes.runs]
    assert (codes, [run.attempts() for run in nodes.runs]) == ([0, 0], [1, 1])
    assert (tmp_path / "digest").read_bytes() == digest_of(STEPS, ALONE)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stopped_host_is_lost_after_a_minute_and_taken_in_when_it_continues(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    job = ["--step-ms=50", "--steps=1600", f"--hold-at={EVERY + 6}", f"--held-until={go_on}"]
    nodes = Cluster(supervise, tmp_path, *job, count=3, nnodes="2:3", script=ALONE)
    nodes.reached(0, EVERY + 5)
    *others, stopped = nodes.runs
    halted, stopped_t = list(processes_with(stopped.mark)), time.monotonic()
    _signal(halted, signal.SIGSTOP)
    for run in others:
        wait_for(lambda run=run: run.attempts() >= 2, "the others to continue", 150, alive=run.alive)
    lost_s = time.monotonic() - stopped_t
    print(f"the others trained on {lost_s:.1f} s after the host was stopped")  # noqa: T201  the figure is for people
    assert lost_s > 60.0, "it is reachable, and may be slow"
    time.sleep(max(0.0, 90.0 - lost_s))  # the pause is what is tested
    _signal(halted, signal.SIGCONT)
    go_on.touch()
    assert [run.exit_code(300) for run in nodes.runs] == [0, 0, 0]
    assert [run.attempts() for run in others] == [3, 3], "it was taken in again"
    assert stopped.attempts() == 2
    for run in nodes.runs:
        run.wait_for_nothing_left(20)
    assert_one_job(nodes.runs)


def _signal(pids: list[int], signum: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
