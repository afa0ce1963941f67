"""This node's environment as the other nodes get it, and what the comparison of several makes of it."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.config.settings import Settings
from supervisor.job.job import Job
from supervisor.node.node_environment import EnvironmentComparison, NodeEnvironment, PeerEnvironment

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 60.0
SAME = {"env.versions": {"torch": "2.9.0", "nccl": "2.27.5", "driver": "580.1"}, "env.variables": {}}


def compared(
    *environments: dict[str, object], ahead_s: tuple[float, ...] = (), late_s: tuple[float, ...] = ()
) -> tuple[set[str], list[str]]:
    """Compare nodes, each in a thread; return what cannot work, the same on all, and the warnings of the first."""
    count = len(environments)
    ahead_s, late_s = ahead_s or (0.0,) * count, late_s or (0.0,) * count
    warned: dict[int, list[str]] = {node: [] for node in range(count)}
    parts = [
        EnvironmentComparison(json.dumps(environment), warned[node].append, lambda node=node: time.time() + ahead_s[node])  # type: ignore[misc]
        for node, environment in enumerate(environments)
    ]
    texts: dict[int, list[str]] = {}
    barrier = threading.Barrier(count, timeout=DEADLINE_S)
    peers: list[PeerEnvironment | None] = [None] * count
    comparisons: dict[int, tuple[str, ...]] = {}

    def run(node: int) -> None:
        def all_gather(number: int, text: str) -> list[str]:
            texts.setdefault(number, [""] * count)[node] = text
            barrier.wait()
            return texts[number]

        time.sleep(late_s[node])  # a node that comes later
        peers[node] = PeerEnvironment(f"n{node}", parts[node].digest, parts[node].now())
        barrier.wait()
        comparisons[node] = parts[node].compare(all_gather, node, [peer for peer in peers if peer is not None])

    threads = [threading.Thread(target=run, args=(node,)) for node in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(set(comparisons.values())) == 1
    assert all(lines == warned[0] for lines in warned.values())
    kinds = {part.digest for part in parts}
    sent = [json.loads(text)["text"] for text in texts[0]]
    assert len([text for text in sent if text]) == (
        len(kinds) if len(kinds) > 1 else 0
    )  # one node for each kind, and none where all are alike
    return set(comparisons[0]), warned[0]


def with_variable(name: str, value: str) -> dict[str, object]:
    return SAME | {"env.variables": {name: value}}


def with_torch(version: str) -> dict[str, object]:
    return SAME | {"env.versions": {"torch": version, "nccl": "2.27.5", "driver": "580.1"}}


def test_nodes_that_are_alike_say_nothing() -> None:
    assert compared(SAME, SAME, SAME) == (set(), [])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (with_variable("NCCL_PROTO", "LL"), "NCCL_PROTO differs: LL on n2; unset on n0, n1 (the ranks plan their collectives differently"),
        (with_torch("2.8.0"), "version of torch differs: 2.8.0 on n2; 2.9.0 on n0, n1"),
        (SAME | {"env.code": {"head": "b" * 40}}, ""),
        (SAME | {"env.script": {"digest": "c" * 64}}, ""),
        (with_variable("NCCL_SOCKET_IFNAME", "eth1"), ""),
        (with_variable("NCCL_DEBUG", "INFO"), ""),
    ],
    ids=["variable", "torch", "code of one alone", "script of one alone", "interface", "log level"],
)  # fmt: skip
def test_an_important_difference_of_nodes_is_a_warning_with_names_and_values(other: dict[str, object], words: str) -> None:
    cannot_work, warned = compared(SAME, SAME, other)
    assert not cannot_work
    assert [words in line for line in warned] == ([True] if words else [])


def test_other_code_and_another_script_are_named() -> None:
    first = SAME | {"env.code": {"head": "a" * 40}, "env.script": {"digest": "1" * 64}}
    other = SAME | {"env.code": {"head": "b" * 40, "changed": "77"}, "env.script": {"digest": "2" * 64}}
    _, warned = compared(first, other)
    assert "the code's revision differs: aaaaaaaaaaaa on n0; bbbbbbbbbbbb changed 77 on n1" in warned[0]
    assert "sha256 111111111111 on n0; sha256 222222222222 on n1" in warned[1]


def test_another_nccl_on_gpus_cannot_work_but_without_a_driver_it_may() -> None:
    old = {"torch": "2.9.0", "nccl": "2.21.5"}
    cannot_work, _ = compared(SAME, SAME | {"env.versions": {**old, "driver": "580.1"}})
    assert [text.partition(" (")[0] for text in cannot_work] == ["version of nccl differs: 2.21.5 on n1; 2.27.5 on n0"]
    cannot_work, warned = compared(SAME, SAME | {"env.versions": old})
    assert not cannot_work
    assert any("version of nccl" in line for line in warned)


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_a_clock_that_is_an_hour_off_is_named_although_a_node_comes_late(ahead_s: float) -> None:
    cannot_work, warned = compared(SAME, SAME, ahead_s=(0.0, ahead_s), late_s=(0.0, 0.3))
    assert not cannot_work
    (text,) = warned
    assert "the clock differs: " in text
    assert f"{ahead_s:+.0f} s on n1" in text


def test_a_late_node_has_no_wrong_clock() -> None:
    assert compared(SAME, SAME, late_s=(2.5, 0.0)) == (set(), [])


def test_the_environment_is_read_of_the_job_and_has_the_versions_that_its_ranks_import(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    environ = {"NCCL_PROTO": "LL", "WANDB_API_KEY": "secret", "PATH": ""}
    job = Job("job", "run", "n0", ("torchrun", "--nnodes=2", "train.py"), tmp_path, environ, Settings(), tmp_path, tmp_path, "cookie")
    environment = NodeEnvironment(job, sys.executable)
    environment.read()
    table = json.loads(environment.table({"torch": "9.9.9"}))
    assert table["env.versions"]["torch"] == "9.9.9"
    assert table["env.versions"]["python"]
    assert table["env.variables"] == {"NCCL_PROTO": "LL"}
    assert len(table["env.script"]["digest"]) == 64
    other = NodeEnvironment(job, "/usr/bin/python-of-another")
    other.read()
    assert set(json.loads(other.table({"torch": "9.9.9"}))["env.versions"]) <= {"torch", "kernel", "driver"}


def test_an_environment_that_was_not_read_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.node.node_environment.WAIT_S", 0.01)
    job = Job("job", "run", "n0", ("torchrun", "train.py"), tmp_path, {}, Settings(), tmp_path, tmp_path, "cookie")
    assert NodeEnvironment(job, None).table({}) == ""
    assert EnvironmentComparison("", print).digest == ""
