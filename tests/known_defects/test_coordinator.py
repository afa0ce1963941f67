"""Several nodes, and who decides for them: see the table of this package."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from supervisor.cluster import messages as protocol
from supervisor.cluster.model import FAILURE, ClusterRules
from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.model import Claim, Evidence, RankExit
from supervisor.core.state import Stage
from tests.cluster.test_transport import Cluster as Transport
from tests.cluster.test_transport import Relay
from tests.e2e.conftest import supervise  # noqa: F401  a fixture
from tests.e2e.test_nodes import Cluster as Nodes
from tests.known_defects import ONE_COORDINATOR, later
from tests.run.test_job_nodes import pair  # noqa: F401  a fixture
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.conftest import Supervised
    from tests.run.test_job_nodes import Pair

#: The lease that a job has by default, and the one of test runs on a busy machine.
LEASE_S, PAUSE_S = "6", 12.0
#: Of the report of a node of 8 ranks and 4 process groups, after a storm of time-outs of NCCL.
REPORT_BYTES, NODES = 148_000, 120


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(300)
@later(ONE_COORDINATOR)
def test_a_supervisor_that_stands_still_for_some_seconds_costs_nothing(supervise: Callable[..., Supervised], tmp_path: Path) -> None:  # noqa: F811
    """As in a migration of its machine, or while it swaps: its ranks train on all the while."""
    nodes = Nodes(supervise, tmp_path, "--step-ms=500", SUPERVISE_NODES_LEASE_S=LEASE_S)
    nodes.reached(0, 10)
    pauses = nodes.runs[1]
    os.kill(pauses.process.pid, signal.SIGSTOP)
    time.sleep(PAUSE_S)  # twice the lease: the pause is what is tested
    os.kill(pauses.process.pid, signal.SIGCONT)
    codes = [run.exit_code(200) for run in nodes.runs]
    assert (codes, [run.attempts() for run in nodes.runs]) == ([0, 0, 0], [1, 1, 1])


@pytest.mark.slow
@pytest.mark.timeout(300)
@later(ONE_COORDINATOR)
def test_120_nodes_are_judged_on_reports_of_their_true_size() -> None:
    """Together they are 17 MiB: more than one line of the control store may have."""
    cluster = Transport(NODES, ClusterRules(nodes=NODES, lease_s=60.0))
    try:
        cluster.meet()
        cluster.members[-1].client.give(protocol.EndEpoch(time.monotonic(), FAILURE, "rank 7"))
        for member in cluster.members:
            wait_for(lambda member=member: member.all_of(protocol.EpochEnded), "the end", 120)
            member.client.give(protocol.EpochReport(time.monotonic(), "x" * REPORT_BYTES))
        judges = threading.Event()

        def look() -> None:
            while not judges.is_set() and not cluster.members[0].all_of(protocol.JudgeReports):
                judges.wait(0.1)

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        watcher.join(60)
        judges.set()
        asked = cluster.members[0].all_of(protocol.JudgeReports)
    finally:
        cluster.close()
    assert [len(request.reports) for request in asked] == [NODES]


def broken_for(seconds: float, way: Relay, server_port: int) -> Relay:
    """Reset every connection of a way to the store, stay away, and return the way that is at the same port after that."""
    ends, port = [*way._ends], way.port  # noqa: SLF001
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    way.close()
    time.sleep(seconds)
    after = Relay.__new__(Relay)
    after._to, after.is_cut, after._ends, after.port = server_port, False, [], port  # noqa: SLF001
    after._listener = socket.create_server(("127.0.0.1", port))  # noqa: SLF001
    threading.Thread(target=after._accept, daemon=True).start()  # noqa: SLF001
    return after


@pytest.mark.slow
@pytest.mark.timeout(120)
@later(ONE_COORDINATOR)
def test_a_way_that_is_closed_for_three_seconds_is_no_lost_node_with_a_lease_of_a_minute() -> None:
    """As by a firewall whose table of states was cleared."""
    cluster = Transport(3, ClusterRules(nodes=3, beat_s=20.0, lease_s=60.0, return_s=120.0, meeting_s=240.0))
    try:
        cluster.meet()
        cluster.relays[1] = broken_for(3.0, cluster.relays[1], cluster.server.port)
        wait_for(lambda: cluster.relays[1]._ends, "the node to connect again", 60)  # noqa: SLF001
        time.sleep(1.0)  # for a word of the store to arrive
        ended = cluster.members[0].all_of(protocol.EpochEnded)
    finally:
        cluster.close()
    assert ended == []


@pytest.mark.process
@later(ONE_COORDINATOR)
def test_a_report_of_the_next_version_is_taken_as_far_as_it_is_understood(pair: Pair) -> None:  # noqa: F811
    """It knows one cause more. Two versions may meet while the nodes of a cluster are updated one by one."""
    first, second = pair.nodes
    pair.meet("t", 1, 1)
    pair.train()
    cause: Any = "new_in_the_next_version"
    now = second.clock.now()
    second.feed(events.RankExited(now, 1, RankExit(1, 101, 1, signal=11)))
    pair.until(lambda: first.state.stage is Stage.TEARDOWN, "the end on the other node")
    pair.gone(first, 0)
    signal_fact = Evidence("exit", "signal", "11", 1, t=now)
    pair.gone(second, 1, signal_fact, Evidence("log", "new.signature", "a line that only it knows", 1, t=now, claim=Claim(cause, 0.9)))
    try:
        pair.until(lambda: all(node.find(act.ReportDecision) for node in pair.nodes), "the decision")
    except msgspec.ValidationError as error:
        raise AssertionError(f"the loop of the node that judges ends: {error}") from error
    assert {node.find(act.ReportDecision)[0].verdict.rank for node in pair.nodes} == {1}
