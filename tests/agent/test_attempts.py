"""An attempt from go to stopped, with ranks that need no torch."""

from __future__ import annotations

import json
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.agent.messages import Go, ScriptArgs
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process


def facts(where: Path, attempt: int, rank: int) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((where / f"facts-{attempt}-{rank}").read_text())
    return document


@pytest.mark.slow
def test_between_attempts_the_scripts_own_arguments_and_the_number_of_ranks_may_change(start: Callable[..., Any], tmp_path: Path) -> None:
    agent = start("--standalone", "--nproc-per-node=3", "--max-restarts=1", JOB="0 exit=42;* exit=0 2;* exit=0 3;1 sleep;2 sleep")
    agent.expect("hello", nproc=3)
    agent.send(Go(1))
    agent.expect("started", 1, world_size=3)
    agent.expect("stopped", 1, outcome="failed")
    script_args = ScriptArgs(("{own}",), ("--batch-size", "{b}"))
    agent.send(Go(2, script_args=script_args, replace={"{b}": "16"}, args=("--more",), nproc=2))
    agent.expect("started", 2, world_size=2)
    agent.expect("stopped", 2, outcome="succeeded")
    assert agent.wait_exit() == 0
    assert [facts(tmp_path, 2, rank)["argv"] for rank in (0, 1)] == [["--batch-size", "16", "--more"]] * 2
    assert not (tmp_path / "facts-2-2").exists()


def test_arguments_that_are_not_the_scripts_are_refused_aloud(start: Callable[..., Any], tmp_path: Path) -> None:
    agent = start("--standalone", "--nproc-per-node=2", JOB="")
    agent.send(Go(1, script_args=ScriptArgs(("theirs",), ())))
    assert "the script's arguments cannot be changed" in agent.expect("failed", 1)["text"]
    assert agent.wait_exit() == 1
    assert not list(tmp_path.glob("facts-*"))


@pytest.mark.slow
def test_the_store_of_an_attempt_is_served_before_a_rank_starts_and_goes_with_its_ranks(start: Callable[..., Any]) -> None:
    agent = start(JOB="1 exit=42;0 sleep;* sleep 2")  # without torch: no rank serves anything
    seen = []
    for attempt in (1, 2):
        agent.send(Go(attempt))
        port = agent.expect("rendezvous", attempt)["master_port"]
        agent.expect("started", attempt)
        if attempt == 1:
            agent.expect("stopped", 1)
            wait_for(lambda: not is_served(port), "the end of the store of attempt 1")  # noqa: B023  in this turn
        else:
            assert is_served(port)
        seen.append(port)
    assert seen[0] != seen[1]
    agent.stop(2)
    agent.wait_exit()


def is_served(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("localhost", port)) == 0


def test_one_agent_runs_many_attempts_each_with_its_own_store_arguments_and_environment(start: Callable[..., Any], tmp_path: Path) -> None:
    agent = start(
        "--standalone",
        "--nproc-per-node=2",
        "--log-dir=logs",
        "--max-restarts=1",
        JOB="1 wait=0;1 exit=42;0 sleep;* print={x} 2;* exit=0 2",
        GONE="here",
    )
    hello = agent.expect("hello")
    assert (hello["nnodes"], hello["nproc"], hello["rdzv_backend"], hello["max_restarts"]) == ([1, 1], 2, "c10d", 1)

    agent.send(Go(1, env={"MARK": "a"}))
    agent.expect("rendezvous", 1, world_size=2)
    started = agent.expect("started", 1, world_size=2)
    assert [r["rank"] for r in started["ranks"]] == [0, 1]
    first = agent.expect("rank_exited", 1, rank=1)
    assert (first["code"], first["signal"]) == (42, None)
    assert agent.expect("rank_exited", 1, rank=0)["signal"] == signal.SIGTERM
    assert agent.expect("stopped", 1)["outcome"] == "failed"

    agent.send(Go(2, env={"MARK": "b"}, unset=("GONE",), args=("--more",), replace={"{own}": "mine"}))
    assert agent.expect("stopped", 2)["outcome"] == "succeeded"
    agent.expect("finished", 2)
    assert agent.wait_exit() == 0

    before, after = facts(tmp_path, 1, 1), facts(tmp_path, 2, 1)
    assert before["MASTER_PORT"] != after["MASTER_PORT"]
    assert after["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert (before["MARK"], before["GONE"], before["argv"]) == ("a", "here", ["{own}"])
    assert (after["MARK"], after["GONE"], after["argv"]) == ("b", None, ["mine", "--more"])
    assert after["pgid"]
    attempts = sorted(p.name for p in (tmp_path / "logs").glob("*/*"))
    assert attempts == ["attempt_0", "attempt_1"], "the log directory of an earlier attempt is the user's"
    agent.wrote(2, 0, "out", b"{x}\n")
    agent.wrote(2, 1, "err", b"{x}\n")


@pytest.mark.slow
def test_the_exit_code_or_signal_of_a_rank_is_reported(start: Callable[..., Any]) -> None:
    agent = start(JOB="1 exit=255 1;0 sleep 1;1 kill=11 2;0 sleep 2;1 kill=6 3;0 sleep 3")
    for attempt, ended in ((1, (255, None)), (2, (None, 11)), (3, (None, 6))):
        agent.send(Go(attempt))
        exited = agent.expect("rank_exited", attempt, rank=1)
        assert (exited["code"], exited["signal"]) == ended
        agent.expect("stopped", attempt, outcome="failed")
    agent.stop(3, exit_code=3)
    assert agent.wait_exit() == 3
