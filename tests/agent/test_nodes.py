"""Several nodes on loopback: they meet, and their supervisors say how an attempt begins and ends. Ranks need no torch here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.agent.messages import Admit, Go, PublishCoordinator, Renumber, Start
from tests.support.ports import free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process


def static(start: Callable[..., Any], node: int, where: int, job: str) -> Any:  # noqa: ANN401  an Agent, of conftest.py
    return start("--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={where}", JOB=job)


@pytest.mark.slow
def test_a_successful_node_restarts_when_another_node_fails_later(start: Callable[..., Any], tmp_path: Path) -> None:
    first, second = pair(start, tmp_path, "0 exit=0 1;1 sleep 1;0 sleep 2;1 wait=0 2;1 exit=9 2")
    assert first.expect("rank_exited", 1)["code"] == 0
    first.expect("ranks_done", 1)
    assert not first.has("stopped", 1), "success is not one node's to tell"
    for agent in (first, second):
        agent.fail(1)
        agent.expect("stopped", 1, outcome="failed")
        agent.send(Go(2))
    assert second.expect("rank_exited", 2)["code"] == 9
    second.expect("stopped", 2, outcome="failed")
    assert not first.has("stopped", 2), "that is for its supervisor to say"
    first.fail(2)
    first.expect("stopped", 2, outcome="failed")
    for agent in (first, second):
        agent.stop(2, exit_code=9)
    assert (first.wait_exit(), second.wait_exit()) == (9, 9)


@pytest.mark.slow
def test_the_agent_of_a_static_node_is_replaced(start: Callable[..., Any], tmp_path: Path) -> None:
    where, job = free_port(), "* sleep 1;* exit=0 2"
    first, second = pair(start, tmp_path, job, where=where)
    second.close()
    replacement = static(start, 1, where, job)
    replacement.send(Go(2))
    first.fail(1)
    first.expect("stopped", 1, outcome="failed")
    assert not replacement.has("gathered", 2), "the round in whose place it came has met already"
    first.send(Go(2))
    for agent in (first, replacement):
        agent.complete(2)
    for agent in (first, replacement):
        agent.expect("stopped", 2, outcome="succeeded")
        assert agent.wait_exit() == 0


@pytest.mark.slow
def test_nodes_wait_until_they_are_admitted(start: Callable[..., Any], tmp_path: Path) -> None:
    where = free_port()
    args = ("--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{where}", "--rdzv-id=job")
    args += ("--rdzv-conf=last_call_timeout=1",)
    first = start(*args, JOB="* sleep 1;* exit=0 2")
    first.send(Go(1))
    assert first.expect("rendezvous", 1)["world_size"] == 1
    wait_for((tmp_path / "ready-1-0").exists, "ready-1-0")
    second = start(*args, JOB="* exit=0")
    second.send(Go(1))
    assert first.expect("nodes_waiting", 1)["count"] == 1
    assert not first.has("rank_exited", 1), "torch would have restarted a healthy rank"
    first.send(Admit(1))
    first.expect("stopped", 1, outcome="membership")
    first.send(Go(2))
    assert first.expect("rendezvous", 2)["world_size"] == 2
    first.complete(2)
    second.complete(1)
    for agent in (first, second):
        assert agent.wait_exit() == 0


def test_no_rank_starts_before_the_supervisors_have_found_each_other_and_agreed(start: Callable[..., Any], tmp_path: Path) -> None:
    where = free_port()
    first, second = (static(start, n, where, "* exit=0 7") for n in (0, 1))
    for agent in (first, second):
        agent.agrees = False
        agent.send(Go(1))
    met = first.expect("gathered", 1, node=0, nodes=2, port=0)
    assert not second.has("gathered", 1), "it does not know yet where the coordinator is"
    first.send(PublishCoordinator(1, 4711, "key of the job"))
    assert second.expect("gathered", 1, node=1, nodes=2, host="127.0.0.1", port=4711, key="key of the job")["token"] == met["token"]
    first.fail(1, "no agreement")  # in the middle of it: no rank was started
    first.expect("stopped", 1, outcome="failed")
    second.send(Admit(1))
    second.expect("stopped", 1, outcome="membership")
    for agent in (first, second):
        agent.send(Go(2))
    assert first.expect("gathered", 2, port=4711)["token"] != met["token"]
    second.expect("gathered", 2)
    for agent in (first, second):
        agent.send(Renumber(2, 7))
        agent.send(Start(Go(7, env={"MARK": "agreed"})))
    for agent in (first, second):
        agent.complete(7)
    for agent in (first, second):
        agent.expect("stopped", 7, outcome="succeeded")
        assert agent.wait_exit() == 0
        assert not agent.has("started", 1)
        assert not agent.has("started", 2)
    facts = [json.loads((tmp_path / f"facts-7-{rank}").read_text()) for rank in (0, 1)]
    assert {fact["MARK"] for fact in facts} == {"agreed"}


@pytest.mark.slow
def test_a_stop_of_a_node_that_waits_for_the_others_success_ends_it(start: Callable[..., Any], tmp_path: Path) -> None:
    first, second = pair(start, tmp_path, "0 sleep;1 exit=0")
    second.expect("ranks_done", 1)
    second.stop(1, exit_code=75)
    second.expect("stopped", 1, outcome="stopped")
    assert second.wait_exit() == 75
    assert not first.has("stopped", 1)


def pair(start: Callable[..., Any], tmp_path: Path, job: str, *, where: int | None = None) -> list[Any]:
    """Start two nodes, of one rank each, and await the ranks."""
    where = where or free_port()
    agents = [static(start, node, where, job) for node in (0, 1)]
    for agent in agents:
        agent.send(Go(1))
    for rank, agent in enumerate(agents):
        agent.expect("started", 1)
        wait_for((tmp_path / f"facts-1-{rank}").exists, f"rank {rank}")
    return agents


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_ranks_that_save_and_end_well_after_their_supervisor_died_are_no_success_of_the_job(
    start: Callable[..., Any], tmp_path: Path, lost: int
) -> None:
    agents = pair(start, tmp_path, "* wait=9")
    agents[lost].hang_up()
    (tmp_path / "ready-1-9").touch()  # as one that waits for save-now, and agrees with the other nodes to end
    other = agents[1 - lost]
    other.expect("ranks_done", 1)
    assert agents[lost].wait_exit() == 1
    assert not other.has("stopped", 1)
    other.fail(1, "its supervise is gone")
    other.expect("stopped", 1, outcome="failed")


@pytest.mark.slow
def test_without_supervisor_and_guardian_the_agent_ends_by_itself(start: Callable[..., Any], tmp_path: Path) -> None:
    agent = start(JOB="* deaf")
    agent.send(Go(1))
    for rank in (0, 1):
        wait_for((tmp_path / f"ready-1-{rank}").exists, f"ready-1-{rank}")
    agent.hang_up()
    assert agent.wait_exit() == 1
