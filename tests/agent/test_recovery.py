"""Real gloo ranks recover after a death, for every rendezvous; the store of the attempt before is never met again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.agent.messages import Go
from tests.support.ports import free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.process


def rendezvous(kind: str, nodes: int) -> list[list[str]]:
    """Return torchrun's arguments for each node; two ranks in all."""
    where = free_port()
    own = {
        "standalone": ["--standalone"],
        "c10d": ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{where}", "--rdzv-id=job"],
        "static": ["--master-addr=127.0.0.1", f"--master-port={where}"],
    }[kind]
    each = [f"--nproc-per-node={2 // nodes}", *own] + ([] if kind == "standalone" else [f"--nnodes={nodes}"])
    return [[*each, *([f"--node-rank={n}"] if kind == "static" else [])] for n in range(nodes)]


def run(start: Callable[..., Any], kind: str, nodes: int, *, skew_s: float) -> None:
    agents = [start(*args, script="gloo_job.py", SKEW_S=str(skew_s)) for args in rendezvous(kind, nodes)]
    for agent in agents:
        agent.send(Go(1))
    met = [agent.expect("rendezvous", 1) for agent in agents]
    wait_for(lambda: any(agent.has("stopped", 1) for agent in agents), "the end on the node whose rank failed")
    culprit = next(agent for agent in agents if agent.has("stopped", 1))
    for agent in agents:
        if agent is not culprit:
            agent.fail(1)
    ends = [agent.expect("stopped", 1) for agent in agents]
    assert [e["outcome"] for e in ends] == ["failed"] * nodes
    assert any(e["ev"] == "rank_exited" and e["code"] == 42 for agent in agents for e in agent.events)
    for agent in agents:
        agent.send(Go(2))
    again = [agent.expect("rendezvous", 2) for agent in agents]
    assert len({m["master_port"] for m in met}) == len({m["master_port"] for m in again}) == 1
    assert met[0]["master_port"] != again[0]["master_port"]
    for agent in agents if nodes > 1 else ():
        agent.complete(2)
    for agent in agents:
        agent.expect("stopped", 2, outcome="succeeded")
        assert agent.wait_exit() == 0

    def written() -> list[bytes]:
        texts = [text for agent in agents for (attempt, _, name), text in agent.output.items() if attempt == 2 and name == "out"]
        return sorted(b"".join(texts).splitlines())

    # the ranks' pipes are read by a thread of their own, which may be behind the agent's end
    wait_for(lambda: written() == [b"rank 0 attempt 2: 4.0", b"rank 1 attempt 2: 4.0"], "what both ranks wrote, once each")
    assert all("TCPStore" not in agent.errors() for agent in agents), "torch printed a lost connection at the end of a healthy job"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "nodes"), [("c10d", 2), ("static", 1), ("static", 2)])
def test_a_dead_rank_is_recovered_from(start: Callable[..., Any], kind: str, nodes: int) -> None:
    run(start, kind, nodes, skew_s=0.5)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "nodes"), [("standalone", 1), ("c10d", 1), ("c10d", 2), ("static", 1), ("static", 2)])
def test_twenty_of_twenty(start: Callable[..., Any], kind: str, nodes: int) -> None:
    for i in range(int(os.environ.get("RECOVERY_COUNT", "20"))):
        run(start, kind, nodes, skew_s=i % 2)
