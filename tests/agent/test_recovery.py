"""Real gloo ranks recover after a death, for every rendezvous; the store of the attempt before is never met again."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.agent.messages import Go
from tests.support.ports import free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

#: Recoveries by each rendezvous: 20 in all.
COUNT = int(os.environ.get("RECOVERY_COUNT", "4"))

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


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "nodes"), [("standalone", 1), ("c10d", 1), ("c10d", 2), ("static", 1), ("static", 2)])
def test_twenty_of_twenty(start: Callable[..., Any], kind: str, nodes: int) -> None:
    """COUNT times a rank dies, and each time the ranks of the next attempt meet; it is late every second time."""
    agents = [start(*args, script="gloo_job.py", FAILS=str(COUNT)) for args in rendezvous(kind, nodes)]
    ports = []
    for attempt in range(1, COUNT + 1):
        for agent in agents:
            agent.send(Go(attempt, env={"SKEW_S": str(attempt % 2)}))
        ports.append(met(agents, attempt))
        wait_for(lambda: any(agent.has("stopped", attempt) for agent in agents), "the end on the node whose rank failed")  # noqa: B023  in this turn
        for agent in agents:
            if not agent.has("stopped", attempt):
                agent.fail(attempt)
        assert [agent.expect("stopped", attempt)["outcome"] for agent in agents] == ["failed"] * nodes
        assert any(e["ev"] == "rank_exited" and e["code"] == 42 and e["attempt"] == attempt for agent in agents for e in agent.events)
    last = COUNT + 1
    for agent in agents:
        agent.send(Go(last))
    ports.append(met(agents, last))
    for agent in agents if nodes > 1 else ():
        agent.complete(last)
    for agent in agents:
        agent.expect("stopped", last, outcome="succeeded")
        assert agent.wait_exit() == 0
    assert all(before != after for before, after in pairwise(ports))

    def written() -> list[bytes]:
        texts = [text for agent in agents for (attempt, _, name), text in agent.output.items() if attempt == last and name == "out"]
        return sorted(b"".join(texts).splitlines())

    # the ranks' pipes are read by a thread of their own, which may be behind the agent's end
    expected = [f"rank {rank} attempt {last}: 4.0".encode() for rank in (0, 1)]
    wait_for(lambda: written() == expected, "what both ranks wrote, once each")
    assert all("TCPStore" not in agent.errors() for agent in agents), "torch printed a lost connection at the end of a healthy job"


def met(agents: list[Any], attempt: int) -> int:
    """Await that all nodes have met; return the port of the store that they share."""
    (port,) = {agent.expect("rendezvous", attempt)["master_port"] for agent in agents}
    return int(port)
