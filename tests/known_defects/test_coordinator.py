"""Several nodes, and who decides for them: see the table of this package."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.model import Claim, Evidence, RankExit
from supervisor.core.state import Stage
from supervisor.run import left_processes as module
from supervisor.run.left_processes import LeftProcesses
from tests.e2e.conftest import supervise  # noqa: F401  a fixture
from tests.e2e.test_nodes import Cluster as Nodes
from tests.known_defects import ONE_COORDINATOR, later, prepared
from tests.run.test_job_nodes import pair  # noqa: F401  a fixture

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.conftest import Supervised
    from tests.run.test_job_nodes import Pair

#: The lease that a job has by default, and the one of test runs on a busy machine.
LEASE_S, PAUSE_S = "6", 12.0


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
