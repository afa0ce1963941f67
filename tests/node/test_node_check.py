# ruff: noqa: ANN401  what a test varies
"""The node check before an attempt: three nodes in threads, each with a real process, and one verdict for all."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.node.node_check import NodeCheck, NodeCheckPlace, NodeCheckResult, _program
from tests.support.supervised import clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

NODES = 3
DEADLINE_S = 120.0
#: Prints what rank 0 of the check would, and how it was called to a file.
PROGRAM = """
import json, os, sys, time
given = dict(zip(sys.argv[4::2], sys.argv[5::2]))
with open(sys.argv[2] + given["--node-rank"], "w") as file:
    json.dump([given, os.environ.get("CUDA_VISIBLE_DEVICES"), "RANK" in os.environ], file)
if sys.argv[1] == "hangs":
    time.sleep(600)
if given["--node-rank"] == "0" and sys.argv[1] != "silent":
    print(json.dumps({"v": 1, "results": json.loads(sys.argv[1])}))
sys.exit(69)
"""


class Nodes:
    """Three nodes; that of the number `serves` is the coordinator."""

    def __init__(self, *program: str, serves: int = 1, gpus: Sequence[int] = (0, 0, 0), unknown: int = -1) -> None:
        self.lines: list[list[str]] = [[] for _ in range(NODES)]
        self.excluded: dict[int, str] = {}
        self.goes_on, self.ledger_full = True, False
        environ = clean_environment(RANK="7")
        self.checks = []
        for node in range(NODES):
            host = None if node == unknown else "" if node == serves else "127.0.0.1"
            place = NodeCheckPlace("", environ, tuple(f"GPU-{n}" for n in range(gpus[node])), host, program)
            exclude = lambda text, node=node: not self.ledger_full and self.excluded.setdefault(node, text) == text  # noqa: E731
            show = lambda level, text, node=node: self.lines[node].append(f"{level}: {text}")  # noqa: E731
            self.checks.append(NodeCheck(place, show, exclude, lambda: self.goes_on))

    def run(self, why: str = "doubt") -> list[NodeCheckResult]:
        """Let all take part, and return what each came to."""
        texts: dict[int, list[str]] = {}
        barrier = threading.Barrier(NODES, timeout=DEADLINE_S)
        results: dict[int, NodeCheckResult] = {}

        def check_node(node: int) -> None:
            def all_gather(number: int, text: str) -> list[str]:
                texts.setdefault(number, [""] * NODES)[node] = text
                barrier.wait()
                return texts[number]

            results[node] = self.checks[node].run(all_gather, node, why)

        threads = [threading.Thread(target=check_node, args=(node,)) for node in range(NODES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        return [results[node] for node in range(NODES)]


def finding(subject: str, reason: str, result: str = "failed", check: str = "node_failures") -> dict[str, Any]:
    return {"check": check, "subject": subject, "result": result, "reason": reason}


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Nodes]:
    def make(results: list[dict[str, Any]] | str, **more: Any) -> Nodes:
        text = results if isinstance(results, str) else json.dumps(results)
        return Nodes(sys.executable, "-c", PROGRAM, text, f"{tmp_path}/", **more)

    return make


def calls(place: Path) -> list[list[Any]]:
    return [json.loads((place / str(rank)).read_text()) for rank in range(NODES)]


def test_the_node_of_a_rank_that_failed_is_named_by_all_and_excludes_itself(start: Callable[..., Nodes], tmp_path: Path) -> None:
    more = finding("rank:2", "rank 2 is slow", "degraded"), finding("host", "differs", check="env_nodes")
    nodes = start([finding("rank:3", "rank 3 fails"), *more], gpus=(2, 3, 2))
    assert nodes.run() == [NodeCheckResult(((2, "rank 3 fails"),), may_leave=True)] * NODES, (
        "the check counts from node 1: its ranks 2 and 3 are on node 2"
    )
    assert nodes.excluded == {2: "node check: rank 3 fails"}
    assert sum(line.startswith("info: 3 nodes are tried against each other") for lines in nodes.lines for line in lines) == 1
    (arguments, gpus, has_rank), *others = calls(tmp_path)
    wanted = {"nnodes": "3", "node-rank": "0", "nproc-per-node": "2", "master": arguments["--master"], "deadline": "60.0", "rounds": "21"}
    assert arguments == {f"--{name}": value for name, value in wanted.items()}
    assert (gpus, has_rank) == ("GPU-0,GPU-1,GPU-2", False)
    assert {row[0]["--master"] for row in others} == {arguments["--master"]}


@pytest.mark.parametrize(
    ("serves", "ledger_full", "not_excluded", "may_leave"),
    [(1, False, (), False), (0, False, (), True), (0, True, (1,), False)],
    ids=["it is the coordinator", "another is", "it is not excluded"],
)
def test_a_node_that_the_others_need_or_that_would_come_back_does_not_leave_alone(
    start: Callable[..., Nodes],
    serves: int,
    ledger_full: bool,  # noqa: FBT001  columns of the table
    not_excluded: tuple[int, ...],
    may_leave: bool,  # noqa: FBT001
) -> None:
    rank = 1 - serves  # of node 1: the coordinator's node has rank 0
    nodes = start([finding(f"rank:{rank}", "it fails")], serves=serves)
    nodes.ledger_full = ledger_full
    assert nodes.run() == [NodeCheckResult(((1, "it fails"),), not_excluded, may_leave)] * NODES


def test_a_link_of_which_neither_end_is_to_blame_is_a_warning(start: Callable[..., Nodes]) -> None:
    nodes = start([finding("link:0-2", "their link is slow", "degraded", "node_links")])
    assert nodes.run("start") == [NodeCheckResult()] * NODES
    assert not nodes.excluded
    assert all("warning: node check: their link is slow" in lines for lines in nodes.lines)
    assert sum(line.startswith("info: the node check of 3 nodes found none that fails") for lines in nodes.lines for line in lines) == 1


@pytest.mark.parametrize(("results", "more", "line"), [("silent", {}, "gave no verdict"), ([], {"unknown": 2}, "not all of them know")])
def test_a_check_without_a_verdict_holds_nothing_back(start: Callable[..., Nodes], results: Any, more: dict[str, Any], line: str) -> None:
    nodes = start(results, **more)
    assert nodes.run() == [NodeCheckResult()] * NODES
    assert all(any(line in text for text in lines) for lines in nodes.lines)


def test_the_node_check_ends_with_the_attempt_that_it_precedes(start: Callable[..., Nodes], tmp_path: Path) -> None:
    nodes = start("hangs")

    def stop() -> None:
        while not all((tmp_path / str(rank)).exists() for rank in range(NODES)):
            time.sleep(0.05)
        nodes.goes_on = False

    threading.Thread(target=stop, daemon=True).start()
    assert nodes.run() == [NodeCheckResult()] * NODES


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_real_check_finds_the_node_whose_rank_fails() -> None:
    nodes = Nodes(*_program(""), "--rehearse", "fail:1:1", serves=0)
    (results,) = set(nodes.run())
    assert results.may_leave
    assert [node for node, _ in results.unfit] == [1]
    assert "rehearsal: rank 1" in results.unfit[0][1]
