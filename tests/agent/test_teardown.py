"""How ranks are ended: at once, whatever they and torch's main thread are doing."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.agent.messages import Go, StopCommand
from tests.support.figures import within
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.process


def test_peers_are_ended_within_milliseconds_and_the_unwilling_within_the_grace(start: Callable[..., Any], tmp_path: Path) -> None:
    """One agent, one attempt for each kind of peer, and one error file that torch's own reader would die of."""
    agent = start(
        "--standalone",
        "--nproc-per-node=3",
        options=("--grace-s", "3"),
        JOB="0 stop 1;1 wait=0 1;1 kill=9 1;2 sleep 1;"
        "0 deaf 2;1 wait=0 2;1 error 2;2 sleep 2;"
        "* sleep 3;"
        "0 sleep 4;2 sleep 4;1 wait=0,2 4;1 exit=1 4",
    )
    agent.send(Go(1))
    died = agent.expect("rank_exited", 1, rank=1)["at_ns"]
    stopped_rank = agent.expect("rank_exited", 1, rank=0)
    assert stopped_rank["signal"] == signal.SIGKILL, "a stopped rank would not hear TERM"
    assert (stopped_rank["at_ns"] - died) / 1e9 < 2.5, "the stopped rank was waited for"
    agent.expect("stopped", 1, outcome="failed")

    agent.send(Go(2))
    died = agent.expect("rank_exited", 2, rank=1)["at_ns"]
    assert agent.expect("rank_exited", 2, rank=2)["signal"] == signal.SIGTERM
    unwilling = agent.expect("rank_exited", 2, rank=0)
    assert unwilling["signal"] == signal.SIGKILL
    assert 2.9 < (unwilling["at_ns"] - died) / 1e9 < 20
    ends = agent.expect("stopped", 2, outcome="failed")
    assert ends["errors"] == []

    agent.send(Go(3))
    for rank in range(3):
        wait_for((tmp_path / f"ready-3-{rank}").exists, f"ready-3-{rank}")
    agent.stop(3, exit_code=None)
    agent.stop(2)  # of an attempt that is over: not for now
    agent.expect("stopped", 3, outcome="stopped")

    agent.send(Go(4))
    died = agent.expect("rank_exited", 4, rank=1)["at_ns"]
    last = max(agent.expect("rank_exited", 4, rank=r)["at_ns"] for r in (0, 2))
    print(f"death of one rank to death of its peers: {(last - died) / 1e6:.1f} ms")  # noqa: T201  a figure to read
    agent.stop(4, exit_code=143)
    assert agent.wait_exit() == 143


@pytest.mark.slow
def test_a_failure_that_the_supervisor_tells_ends_ranks_that_run_and_is_nothing_to_those_that_are_ended_already(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    agent = start("--standalone", "--nproc-per-node=2", options=("--grace-s", "2"), JOB="* sleep 1;0 deaf 2;1 wait=0 2;1 exit=3 2")
    failure = "health: a GPU fell off the bus"
    agent.send(Go(1))
    for rank in range(2):
        wait_for((tmp_path / f"ready-1-{rank}").exists, f"ready-1-{rank}")
    agent.send(StopCommand(1, signal.SIGTERM, 30.0, failure=failure))
    assert {agent.expect("rank_exited", 1, rank=rank)["signal"] for rank in range(2)} == {signal.SIGTERM}
    agent.expect("stopped", 1, outcome="failed")

    agent.send(Go(2))
    died = agent.expect("rank_exited", 2, rank=1)["at_ns"]
    agent.send(StopCommand(2, signal.SIGTERM, 0.0, failure=failure))
    unwilling = agent.expect("rank_exited", 2, rank=0)
    assert unwilling["signal"] == signal.SIGKILL
    assert (unwilling["at_ns"] - died) / 1e9 > 1.9, "the grace is the rank's own"
    agent.expect("stopped", 2, outcome="failed")


@pytest.mark.slow
def test_the_latency_of_ending_peers(start: Callable[..., Any]) -> None:
    count = 20
    job = ";".join(f"0 sleep {n};1 wait=0 {n};1 kill=9 {n}" for n in range(1, count + 1))
    agent = start(JOB=job)
    took = []
    for n in range(1, count + 1):
        agent.send(Go(n))
        died = agent.expect("rank_exited", n, rank=1)["at_ns"]
        took.append((agent.expect("rank_exited", n, rank=0)["at_ns"] - died) / 1e6)
        agent.expect("stopped", n)
    print(f"death to death of the peer over {count}: median {statistics.median(took):.2f} ms, worst {max(took):.2f} ms")  # noqa: T201  a figure to read
    assert statistics.median(took) <= 50


@pytest.mark.slow
@pytest.mark.bench
def test_an_agent_that_is_deaf_in_a_store_wait_still_answers_and_leaves(start: Callable[..., Any]) -> None:
    """Node 1 of 2 of a static rendezvous whose node 0 never comes: torch's main thread sits in a connect of 15 minutes."""
    with socket.socket() as silent:  # accepts connections by its backlog and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        where = silent.getsockname()[1]
        agent = start("--nnodes=2", "--node-rank=1", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={where}")
        agent.expect("hello")
        agent.send(Go(1))
        silent.settimeout(60)
        connection, _ = silent.accept()
        with connection:
            for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
                os.kill(agent.process.pid, signum)
            agent.stop(1, exit_code=7)
            agent.expect("stopped", 1, outcome="stopped")
            asked = time.monotonic()
            assert agent.wait_exit() == 7
            assert within(5, since=asked)


@pytest.mark.slow
def test_a_storm_of_signals_is_not_heard_and_an_ignored_hup_stays_ignored(start: Callable[..., Any], tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        agent = start(JOB="* sleep", PYTHONPATH="")  # a process of its own: a fork ignores what the process that it is of ignores
    finally:
        signal.signal(signal.SIGHUP, before)
    agent.expect("hello")
    agent.send(Go(1))
    until = time.monotonic() + 60
    while not all((tmp_path / f"ready-1-{r}").exists() for r in (0, 1)):  # through rendezvous and spawning
        assert time.monotonic() < until
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(agent.process.pid, signum)
        time.sleep(0.001)
    status = Path(f"/proc/{agent.expect('started', 1)['ranks'][0]['pid']}/status").read_text()
    ignored = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")), 16)
    assert ignored & (1 << (signal.SIGHUP - 1))
    assert not ignored & (1 << (signal.SIGTERM - 1))
    agent.stop(1, exit_code=143)
    agent.expect("stopped", 1, outcome="stopped")
    assert agent.wait_exit() == 143


def test_ranks_die_with_their_agent(start: Callable[..., Any], tmp_path: Path) -> None:
    """By kill -9, while the ranks ignore TERM: the kernel does it. The fixture asserts that none is left."""
    agent = start(JOB="* deaf")
    agent.send(Go(1))
    for rank in (0, 1):
        wait_for((tmp_path / f"ready-1-{rank}").exists, f"ready-1-{rank}")
    agent.process.kill()
    assert agent.wait_exit() == -signal.SIGKILL


@pytest.mark.slow
def test_a_missing_executable_is_reported_in_torchs_own_words(start: Callable[..., Any], tmp_path: Path) -> None:
    agent = start("--standalone", "--no-python", "--nproc-per-node=1", str(tmp_path / "absent"))
    agent.send(Go(1))
    assert "FileNotFoundError" in agent.expect("failed", 1)["text"]
    assert agent.wait_exit() == 1
    assert "FileNotFoundError" in agent.errors()


def test_wrong_arguments_are_torchruns_own_affair(start: Callable[..., Any]) -> None:
    agent = start("--no-such-option=1")
    assert "did not accept" in agent.expect("failed", 0)["text"]
    assert agent.wait_exit() == 2
    assert "unrecognized arguments: --no-such-option=1" in agent.errors()
