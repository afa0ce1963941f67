"""Several nodes, and who decides for them: see the table of this package."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from supervisor.cluster import messages as protocol
from supervisor.cluster.model import FAILURE, ClusterRules
from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.model import Claim, Evidence, RankExit
from supervisor.core.state import Stage
from supervisor.run import left_processes as module
from supervisor.run.left_processes import LeftProcesses
from tests.cluster.test_transport import Cluster as Transport
from tests.cluster.test_transport import Relay
from tests.e2e.conftest import supervise  # noqa: F401  a fixture
from tests.e2e.test_nodes import Cluster as Nodes
from tests.known_defects import ONE_COORDINATOR, later, prepared
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


@later(ONE_COORDINATOR)
def test_the_deciding_thread_waits_for_no_process_that_survives_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc of each may hang as the process does; 8 ranks with 8 loaders each are 72 of them."""
    answers = threading.Event()
    monkeypatch.setattr(module, "ANSWER_S", 60.0)
    monkeypatch.setattr(module.procfs, "waits", lambda _pid: answers.wait() and SimpleNamespace(state="D", file=None, wchan="nfs_wait"))
    loop: Any = SimpleNamespace(call_soon=lambda _call: None)
    reporter: Any = SimpleNamespace(note=lambda *_: None, print_message=lambda _: None, alerted=lambda _: None, alert_over=lambda *_: None)
    left: Any = [{"pid": 10_000_000 + n, "why": "survives KILL", "start_ticks": 1, "unkilled": True} for n in range(2)]
    thread = threading.Thread(target=lambda: LeftProcesses(loop, reporter).report_from_guardian(1, left), daemon=True)
    thread.start()
    thread.join(2.0)
    has_gone_on = not thread.is_alive()
    answers.set()
    thread.join(20)
    prepared(not thread.is_alive(), "it did not end")
    assert has_gone_on
