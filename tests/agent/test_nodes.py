"""Several nodes on loopback: ends of rounds, decisions, admission. Ranks need no torch here."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed as dist

from supervisor.agent.messages import Admit, AllGather, Go, Publish, Start
from tests.support.ports import free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process


def static(start: Callable[..., Any], node: int, where: int, job: str) -> Any:  # noqa: ANN401  an Agent, of conftest.py
    return start("--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={where}", JOB=job)


@pytest.mark.slow
def test_a_node_that_ended_well_begins_again_with_one_that_failed_after_it_and_a_stop_is_for_all(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    where = free_port()
    job = "0 exit=0 1;1 sleep 1;0 sleep 2;1 wait=0 2;1 exit=9 2"
    first, second = (static(start, n, where, job) for n in (0, 1))
    for agent in (first, second):
        agent.send(Go(1))
    assert first.expect("rank_exited", 1)["code"] == 0
    wait_for((tmp_path / "ready-1-1").exists, "ready-1-1")
    assert not first.has("stopped", 1), "success is not one node's to tell"

    cause = {"summary": "rank 1 raised ValueError"}
    second.send(Publish(1, "restart", 0, "because", (("batch_size", "16"),), ("ckpt/7.pt",), cause))  # which ends the round
    assert first.expect("peer_stopped", 1)["text"] == "because"
    decided = first.expect("peer_decided", 1)
    assert decided["reason"] == "because"
    assert (decided["overrides"], decided["rejected"]) == ([["batch_size", "16"]], ["ckpt/7.pt"])
    assert decided["first"] == {**cause, "node": f"{socket.gethostname()}:1"}
    first.expect("stopped", 1, outcome="failed")
    second.stop(1, exit_code=None)
    second.expect("stopped", 1, outcome="stopped")
    for agent in (first, second):
        agent.send(Go(2))

    assert second.expect("rank_exited", 2)["code"] == 9
    assert first.expect("peer_stopped", 2)["text"] == "rank 1: exit code 9"
    for agent in (first, second):
        agent.expect("stopped", 2, outcome="failed")
    second.send(Publish(2, "stop", 9, "enough"))
    second.stop(2, exit_code=9)
    decided = first.expect("peer_decided", 2)
    assert (decided["kind"], decided["exit_code"], decided["reason"]) == ("stop", 9, "enough")
    first.stop(2, exit_code=9)
    assert (first.wait_exit(), second.wait_exit()) == (9, 9)


@pytest.mark.slow
def test_the_agent_of_a_static_node_is_replaced(start: Callable[..., Any], tmp_path: Path) -> None:
    where = free_port()
    job = "* sleep 1;* exit=0 2"
    first, second = (static(start, n, where, job) for n in (0, 1))
    for agent in (first, second):
        agent.send(Go(1))
    for rank in (0, 1):
        wait_for((tmp_path / f"ready-1-{rank}").exists, f"ready-1-{rank}")
    second.close()
    replacement = static(start, 1, where, job)
    replacement.send(Go(2))
    assert "replaced" in first.expect("peer_stopped", 1)["text"]
    decided = first.expect("peer_decided", 1)
    assert decided["kind"] == "restart"
    assert decided["overrides"] is None  # nobody knows: all stays as it is
    first.expect("stopped", 1, outcome="failed")
    first.send(Go(2))
    for agent in (first, replacement):
        agent.expect("stopped", 2, outcome="succeeded")
        assert agent.wait_exit() == 0


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
    for agent in (first, second):
        assert agent.wait_exit() == 0


def test_no_rank_starts_before_all_nodes_said_what_they_have_and_were_told_to_start(start: Callable[..., Any], tmp_path: Path) -> None:
    where = free_port()
    first, second = (static(start, n, where, "* exit=0") for n in (0, 1))
    for agent in (first, second):
        agent.agrees = False
        agent.send(Go(1))
    for node, agent in enumerate((first, second)):
        assert agent.expect("gathered", 1, node=node)["nodes"] == 2
        agent.send(AllGather(1, 1, f"of {node}"))
    for agent in (first, second):
        assert agent.expect("all_gathered", 1, number=1)["texts"] == ["of 0", "of 1"]
    second.send(AllGather(1, 2, "again"))
    assert not second.has("started", 1)
    first.stop(1, exit_code=None)  # in the middle of it: the other node's round ends, and neither has started a rank
    first.expect("stopped", 1, outcome="stopped")
    first.send(Go(2))
    # the other node sees first that it left, or that it began anew: both are true, and either ends this round
    assert second.expect("peer_stopped", 1)["text"].endswith(("left the round", "began another round"))
    second.expect("peer_decided", 1, kind="restart")
    second.expect("stopped", 1, outcome="failed")
    second.send(Go(2))
    for agent in (first, second):
        agent.expect("gathered", 2)
        agent.send(Start(Go(2, env={"MARK": "agreed"})))
    for agent in (first, second):
        agent.expect("stopped", 2, outcome="succeeded")
        assert agent.wait_exit() == 0
        assert not agent.has("started", 1)
    assert {json.loads((tmp_path / f"facts-2-{rank}").read_text())["MARK"] for rank in (0, 1)} == {"agreed"}


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


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_ranks_that_save_and_end_well_after_their_supervisor_died_are_no_success_of_the_job(
    start: Callable[..., Any], tmp_path: Path, lost: int
) -> None:
    agents = pair(start, tmp_path, "* wait=9")
    agents[lost].hang_up()
    (tmp_path / "ready-1-9").touch()  # as one that waits for save-now, and agrees with the other nodes to end
    other = agents[1 - lost]
    assert other.expect("peer_stopped", 1)["text"].startswith("supervise of node")
    assert other.expect("peer_decided", 1)["kind"] == "restart"
    other.expect("stopped", 1, outcome="failed")
    assert other.expect("rank_exited", 1)["code"] == 0
    assert [event["ev"] for event in other.events if event["ev"] in {"peer_stopped", "stopped"}] == ["peer_stopped", "stopped"]
    assert agents[lost].wait_exit() == 1


@pytest.mark.slow
def test_a_node_without_supervisor_that_is_ended_before_its_ranks_are_is_no_success_either(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    first, second = pair(start, tmp_path, "0 wait=9;1 sleep")
    second.hang_up()
    (tmp_path / "ready-1-9").touch()
    assert first.expect("rank_exited", 1)["code"] == 0
    assert first.expect("peer_stopped", 1)["text"].startswith("supervise of node")
    assert first.expect("peer_decided", 1)["kind"] == "restart"
    first.expect("stopped", 1, outcome="failed")


@pytest.mark.slow
def test_a_node_whose_ranks_ended_well_begins_again_where_the_store_goes_before_all_nodes_said_so(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    first, second = pair(start, tmp_path, "0 sleep;1 wait=9")
    (tmp_path / "ready-1-9").touch()
    assert second.expect("rank_exited", 1)["code"] == 0
    first.close()  # it serves the store
    assert "store was lost" in second.expect("peer_stopped", 1)["text"]
    assert second.expect("peer_decided", 1)["kind"] == "restart"
    second.expect("stopped", 1, outcome="failed")


@pytest.mark.slow
def test_the_node_that_serves_the_store_stays_until_every_node_knows_of_the_success(start: Callable[..., Any], tmp_path: Path) -> None:
    where = free_port()
    first, second = pair(start, tmp_path, "0 wait=9;1 exit=0", where=where)
    assert second.expect("rank_exited", 1)["code"] == 0
    store = dist.TCPStore("127.0.0.1", where, is_master=False)
    wait_for(lambda: store.add("none/supervise/round/1/supervise/done", 0) == 1, "the second node is done")
    second.process.send_signal(signal.SIGSTOP)  # as a machine or network that does not answer for some seconds
    (tmp_path / "ready-1-9").touch()
    with pytest.raises(subprocess.TimeoutExpired):
        first.process.wait(4)
    second.process.send_signal(signal.SIGCONT)
    for agent in (first, second):
        agent.expect("stopped", 1, outcome="succeeded")
        assert agent.wait_exit() == 0


def test_a_node_whose_supervisor_dies_after_its_ranks_ended_well_takes_the_others_along_into_the_next_round(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    first, second = pair(start, tmp_path, "0 sleep;1 exit=0")
    assert second.expect("rank_exited", 1)["code"] == 0
    second.hang_up()
    assert "left the round" in first.expect("peer_stopped", 1)["text"]
    assert first.expect("peer_decided", 1)["kind"] == "restart"
    first.expect("stopped", 1, outcome="failed")


@pytest.mark.slow
def test_without_supervisor_and_guardian_the_agent_ends_by_itself(start: Callable[..., Any], tmp_path: Path) -> None:
    agent = start(JOB="* deaf")
    agent.send(Go(1))
    for rank in (0, 1):
        wait_for((tmp_path / f"ready-1-{rank}").exists, f"ready-1-{rank}")
    agent.hang_up()
    assert agent.wait_exit() == 1
