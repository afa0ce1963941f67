"""The nodes' environments: the first rank of each reads its own, the store brings them together, and differences are reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from health.model import HOST, Json, Reading, Readings, Result
from health.nodecheck import report
from health.nodecheck.liveness import Options, Peers
from health.nodecheck.model import Node
from health.nodecheck.monitor import PipeReporter, WorkerMonitor
from health.probing.runner import OUTCOME

if TYPE_CHECKING:
    from health.model import CheckResult


class _Table:
    """A board of one process: a dict's own operations are atomic."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def get(self, name: str) -> str:
        return self.texts.get(name, "")

    def put(self, name: str, text: str) -> None:
        self.texts[name] = text

    def put_first(self, name: str, text: str) -> None:
        self.texts.setdefault(name, text)

    def has(self, name: str) -> bool:
        return name in self.texts


def _node(host: str, variables: dict[str, Json] | None = None, *, head: str = "a" * 40, **versions: Json) -> Node:
    return Node(
        host,
        Readings([
            Reading("environment", HOST, "env.versions", {"python": "3.12.1", "torch": "2.9.0", "nccl": "2.27.5", **versions}),
            Reading("environment", HOST, "env.variables", {**(variables or {})}),
            Reading("environment", HOST, "env.code", {"head": head}),
            Reading("runner", "probe:environment", OUTCOME, {"state": "answered"}),
        ]),
    )  # fmt: skip


def _results(*nodes: Node) -> list[CheckResult]:
    """Return what the report says of the environments that the first ranks of nodes of two ranks posted."""
    store = _Table()
    for at, node in enumerate(nodes):
        store.put(f"node/{2 * at}", json.dumps(node.to_json()))
    results = report.results(Peers(store, Options(2 * len(nodes))).evidence(range(2 * len(nodes))))
    assert results[-1].check == report.PRESENCE
    return [result for result in results if result.check == "env_nodes"]


def test_another_torch_and_another_variable_are_reported_with_their_nodes() -> None:
    results = _results(_node("n0"), _node("n1"), _node("n2", {"NCCL_ALGO": "Ring"}, torch="2.8.0"))
    assert [(result.result, result.reason) for result in results] == [
        (Result.FAILED, "version of torch is not the same on all nodes: n2: 2.8.0; 2 of 3 have 2.9.0"),
        (Result.DEGRADED, "NCCL_ALGO is not the same on all nodes: n2: Ring; 2 of 3 have unset"),
    ]
    assert report.exit_code(results) == report.UNFIT
    assert results[1].evidence == ("n0: unset", "n1: unset", "n2: Ring")


@pytest.mark.parametrize(
    ("other", "subject"),
    [
        (_node("n1", {"NCCL_IB_HCA": "mlx5_0"}), "NCCL_IB_HCA"),
        (_node("n1", python="3.11.9"), "version of python"),
        (_node("n1", driver="560.35"), "version of driver"),
        (_node("n1", head="b" * 40), "the code's revision"),
    ],
    ids=["variable", "python", "driver", "code"],
)
def test_a_difference_that_may_be_meant_warns_and_the_nodes_stay_fit(other: Node, subject: str) -> None:
    (result,) = _results(_node("n0"), other)
    assert result.result is Result.DEGRADED
    assert result.reason.startswith(f"{subject} is not the same on all nodes: n")
    assert report.exit_code([result]) == 0


def test_nodes_of_one_name_are_distinguished_by_their_ranks() -> None:
    (result,) = _results(_node("box"), _node("box", torch="2.8.0"), _node("box"))
    assert "box (rank 2): 2.8.0; 2 of 3 have 2.9.0" in result.reason


def test_equal_nodes_are_reported_as_equal_and_a_single_one_is_not_mentioned() -> None:
    (result,) = _results(_node("n0"), _node("n1"))
    assert (result.result, result.reason) == (Result.OK, "2 nodes have the same environment")
    assert not _results(_node("n0"))


def test_a_node_that_could_not_be_read_is_unknown_and_not_alike() -> None:
    lost = Node("n1", Readings([Reading("runner", "probe:environment", OUTCOME, {"state": "failed", "why": "OSError: no"})]))
    (result,) = _results(_node("n0"), lost)
    assert (result.result, result.reason) == (Result.UNKNOWN, "n1: its environment could not be read: failed OSError: no")
    assert len(_results(lost, _node("n0"), _node("n2"))) == 2


@pytest.mark.process
def test_a_process_that_cannot_be_killed_is_reported_with_where_it_hangs_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in state D: SIGKILL is sent, and nobody can be waited for. Played at the system's door."""
    waited: list[int] = []

    def waitpid(_: int, flags: int) -> tuple[int, int]:
        waited.append(flags)
        return 0, 0

    store, options = _Table(), Options(1, deadline_s=100, join_s=0, trial_s=0)
    read_end, write_end = os.pipe()
    with ExitStack() as stack:
        stack.callback(os.close, read_end)
        stack.callback(os.close, write_end)
        measuring = stack.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        with monkeypatch.context() as patch:
            patch.setattr(os, "waitpid", waitpid)
            report = WorkerMonitor(0, measuring.pid, read_end, store, options, first=False).watch()
    assert set(waited) == {os.WNOHANG}, "a wait that may never end"
    (result, *_) = (result for result in report["results"] if result["subject"] == "rank:0")  # type: ignore[index, union-attr]  # JSON of ours
    assert "hangs for 0 s, " in result["reason"], result  # type: ignore[index, operator]


@pytest.mark.process
def test_wardens_read_one_environment_a_node_before_the_report() -> None:
    store, options = _Table(), Options(3, deadline_s=100)
    with ExitStack() as stack:
        monitors = []
        for rank in range(3):
            measuring = stack.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
            stack.callback(measuring.kill)
            read_end, write_end = os.pipe()
            stack.callback(os.close, read_end)
            stack.callback(os.close, write_end)
            for phase in (0, 1):  # all is measured before any node can have been read
                PipeReporter(write_end).finished(phase)
            monitor = WorkerMonitor(rank, measuring.pid, read_end, store, options, first=rank != 1)
            stack.callback(monitor.kill)
            monitors.append(monitor)
        with ThreadPoolExecutor() as pool:
            first, *others = pool.map(WorkerMonitor.watch, monitors)
    assert others == [first, first]
    assert {name for name in store.texts if name.startswith("node/")} == {"node/0", "node/2"}
    results = first["results"]
    assert isinstance(results, list)
    (report,) = [result for result in results if isinstance(result, dict) and result["check"] == "env_nodes"]
    assert (report["result"], report["reason"]) == ("ok", "2 nodes have the same environment")
    read = Node.from_json(json.loads(store.texts["node/2"])).readings
    assert read.table("env.versions")["python"] == ".".join(map(str, sys.version_info[:3]))
