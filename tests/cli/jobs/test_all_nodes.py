"""`supervise status --all-nodes`: by the coordinator, by the journals of a shared directory, and what is not known."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli.jobs.all_nodes import journals_of
from supervisor.cli.jobs.job_files import JobFiles
from supervisor.cli.jobs.status import status
from supervisor.cluster.client import CoordinatorAddress, NodeClient
from supervisor.cluster.coordinator import new_coordinator
from supervisor.cluster.kept import KeptFile, KeptFor, KeptNode
from supervisor.cluster.messages import NodeTick
from supervisor.cluster.model import ClusterRules, CoordinatorMemory, NodeMemory, SharedAttempt
from supervisor.cluster.reader import NodeStanding, known_nodes
from supervisor.cluster.server import CoordinatorServer, listen
from supervisor.core.events import HealthChanged, RanksFound
from supervisor.core.model import Finding, RankInfo
from supervisor.core.training_events import PaceChanged
from supervisor.core.values import replace
from supervisor.job import identity
from supervisor.journal.records import RunEnded
from supervisor.observe.pace.judge import NodePace
from tests.cli.jobs.job_of_nodes import JobOfNodes
from tests.support.figures import costs_at_most
from tests.support.pages import page_text
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from supervisor.cluster.messages import KnownNodes
    from tests.support.recorded_job import RecordedJob

HERE = identity.node_name()


def status_of(job: JobOfNodes, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what it prints with --json."""
    capsys.readouterr()
    assert status(next(iter(job.nodes.values())).settings, "train", as_json=True, all_nodes=True) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def page(job: JobOfNodes, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the page, in one line."""
    assert status(next(iter(job.nodes.values())).settings, "train", as_json=False, all_nodes=True) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[JobOfNodes], CoordinatorAddress]]:
    """Return what serves the coordinator of a job's nodes, of which one has been lost; this node's files name it."""
    servers: list[CoordinatorServer] = []
    monkeypatch.setattr("supervisor.cluster.server.TICK_S", 0.05)

    def start(job: JobOfNodes) -> CoordinatorAddress:
        shared = SharedAttempt(1, tuple(f"{host}/id" for host in job.hosts), f"{HERE}/id", "t")
        rules = ClusterRules(nodes=1, beat_s=0.1, rejoin_s=600.0)
        state = new_coordinator(f"{HERE}/id", rules, time.monotonic(), CoordinatorMemory(shared))
        state = replace(state, absences={f"{job.hosts[1]}/id": "lost: silent for 60 s"})
        servers.append(
            CoordinatorServer(listen(), "key", state, time.monotonic, lambda _node: None, lambda _output: None, lambda _text: None)
        )
        servers[-1].start()
        address = CoordinatorAddress("127.0.0.1", servers[-1].port, "key")
        place = job.nodes[HERE].directory / "cluster" / "node.json"
        KeptFile(place, pytest.fail).write(KeptNode(KeptFor(f"run of {HERE}", "none"), NodeMemory(f"{HERE}/id", shared), address))
        return address

    yield start
    for server in servers:
        server.close(0.0)


def beats(address: CoordinatorAddress, name: str, standing: str) -> NodeClient:
    """Start a node that beats, with what it reports."""
    client = NodeClient(NodeMemory(name), ClusterRules(beat_s=0.1), time.monotonic, lambda *_node: None, lambda _output: None)
    client.find_at(address)
    client.start()

    def has_beaten() -> bool:
        client.give(NodeTick(time.monotonic(), standing))
        return any(node.node == name and node.standing for node in known_nodes(address, 5.0).nodes)

    wait_for(has_beaten, "a beat", 20)
    return client


def test_the_coordinator_has_each_node_as_of_its_last_beat_and_this_node_is_shown_as_it_is_now(
    make_job: type[RecordedJob],
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    serve: Callable[[JobOfNodes], CoordinatorAddress],
) -> None:
    job = JobOfNodes(make_job, root, HERE, "gpu-2", "gpu-3", "gpu-4")
    job.meet(1, 1)
    job.train(5, 7)
    job.close()
    for host in ("gpu-2", "gpu-3", "gpu-4"):
        (root / "train" / "nodes" / host).rename(tmp_path / host)  # they share nothing
    address = serve(job)
    client = beats(address, "gpu-3/id", NodeStanding.of(job.nodes["gpu-3"].state).text())
    waiting = beats(address, "gpu-9/id", NodeStanding("starting", 1).text())
    document = status_of(job, capsys)
    text = page(job, capsys)
    for link in (client, waiting):
        link.close(5.0)
    rows = {entry.pop("node"): entry for entry in document["nodes"]}
    assert list(rows) == [HERE, "gpu-2", "gpu-3", "gpu-4", "gpu-9"]
    assert (document["attempt"], document["coordinator"], document["no_coordinator"]) == (1, HERE, None)
    assert [row["state"] for row in rows.values()] == ["training", "lost", "training", "unknown", "waits to join"]
    assert [row["number"] for row in rows.values()] == [0, 1, 2, 3, None]
    assert (rows[HERE]["source"], rows[HERE]["age_s"], rows[HERE]["step"]) == ("here", 0.0, 7)
    assert (rows["gpu-2"]["why"], rows["gpu-2"]["source"]) == ("silent for 60 s", "coordinator")
    assert (rows["gpu-3"]["step"], rows["gpu-3"]["phase"], rows["gpu-3"]["ranks"]) == (7, "train", "rank 2")
    assert 0 <= rows["gpu-3"]["age_s"] < 30
    assert rows["gpu-4"] | {"number": None} == {
        "number": None, "state": "unknown", "why": None, "attempt": None, "step": None, "step_relative": False, "phase": "unknown",
        "ranks": None, "gpus_out_of_use": 0, "step_s": None, "own_s": None, "health": None, "age_s": None, "source": "coordinator",
    }  # fmt: skip
    assert "on 4 nodes: attempt 1, 2 not there" in text
    assert re.search(r"gpu-2:1 lost by the coordinator(, [\d.]+ s ago)? silent for 60 s", text)
    assert f"{HERE}:0 training 7 train rank 0 this node" in text


def test_the_step_time_of_each_node_and_the_slow_node_are_shown(
    make_job: type[RecordedJob],
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    serve: Callable[[JobOfNodes], CoordinatorAddress],
) -> None:
    job = JobOfNodes(make_job, root, HERE, "gpu-2", "gpu-3")
    job.meet(1, 1)
    job.train(5, 7)
    other = job.nodes["gpu-3"]
    other.feed(PaceChanged(other.T0 + 6, 1, "straggler", "node 0 is slow", 0, node=0))
    other.feed(HealthChanged(other.T0 + 7, (Finding("gpu_throttle", "gpu:GPU-a", "degraded", "GPU 3 is throttled: heat"),)))
    job.close()
    for host in ("gpu-2", "gpu-3"):
        (root / "train" / "nodes" / host).rename(tmp_path / host)  # they share nothing
    client = beats(serve(job), "gpu-3/id", NodeStanding.of(other.state, NodePace(20, 0.5, 0.6, 2)).text())
    document, text = status_of(job, capsys), page(job, capsys)
    client.close(5.0)
    assert document["slow"] == ["node 0 is slow"]
    assert [(row["step_s"], row["own_s"]) for row in document["nodes"]] == [(None, None), (None, None), (0.5, 0.3)]
    assert [row["health"] for row in document["nodes"]] == [None, None, "GPU 3 is throttled: heat"]
    assert re.search(r"rank 2 0.5 s, 0.3 s by itself by the coordinator, [\d.]+ s ago GPU 3 is throttled: heat", text)
    assert "strange node 0 is slow" in text


def test_without_a_coordinator_the_journals_of_a_shared_directory_show_each_node_with_the_age_of_its_last_record(
    make_job: type[RecordedJob], root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JobOfNodes(make_job, root, HERE, "gpu-2", "gpu-3")
    job.meet(1, 1)
    job.train(5, 7)
    job.fail(10, "gpu-3", lost=True)
    job.meet(20, 2, HERE, "gpu-2")
    job.train(25, 8)
    job.close()
    monkeypatch.setattr("supervisor.cli.jobs.all_nodes.time.time", lambda: job.nodes[HERE].T0 + 85)
    document = status_of(job, capsys)
    rows = {entry["node"]: entry for entry in document["nodes"]}
    assert (document["attempt"], document["coordinator"]) == (2, None)
    assert [(row["number"], row["state"], row["step"], row["source"], row["age_s"]) for row in rows.values()] == [
        (0, "training", 8, "here", 0.0),
        (1, "training", 8, "journal", 60.0),
        (None, "training", 7, "journal", 80.0),
    ]
    text = page(job, capsys)
    assert text.index("take no part") < text.index("gpu-3 training 1 7 train rank 2 by its journal, 80 s ago")


def test_a_node_whose_journal_is_not_here_is_not_known(
    make_job: type[RecordedJob], root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = JobOfNodes(make_job, root, HERE, "gpu-2")
    job.meet(1, 1)
    job.close()
    (root / "train" / "nodes" / "gpu-2").rename(tmp_path / "on another disk")
    (own, other) = status_of(job, capsys)["nodes"]
    assert (own["node"], own["state"]) == (HERE, "running")
    assert (other["node"], other["number"], other["state"], other["source"], other["age_s"]) == ("gpu-2", 1, "unknown", None, None)
    assert "gpu-2:1 unknown nothing is known of it" in page(job, capsys)


def test_after_the_end_no_coordinator_is_asked(make_job: type[RecordedJob], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = JobOfNodes(make_job, root, HERE, "gpu-2")
    job.meet(1, 1)
    job.train(5, 7)
    job.end(9)
    document = status_of(job, capsys)
    assert [row["state"] for row in document["nodes"]] == ["done", "done"]
    assert "no coordinator is asked" in document["no_coordinator"]


def test_a_node_that_left_with_a_clock_ahead_does_not_end_the_job_of_the_others(
    make_job: type[RecordedJob], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = JobOfNodes(make_job, root, HERE, "gpu-2", "gpu-3")
    job.meet(1, 1)
    job.train(5, 7)
    job.fail(10, "gpu-3", lost=True)
    job.nodes["gpu-3"].journal.append(RunEnded(75), t=job.nodes["gpu-3"].T0 + 3600, durable=True)
    job.meet(20, 2, HERE, "gpu-2")
    job.train(25, 8)
    job.close()
    document = status_of(job, capsys)
    assert document["attempt"] == 2
    assert "has ended" not in document["no_coordinator"]
    assert {row["node"]: row["state"] for row in document["nodes"]} == {HERE: "training", "gpu-2": "training", "gpu-3": "stopped"}


def test_a_job_of_one_node_is_one_line(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    me = identity.this_process()
    written.begin(pid=me.pid, start_ticks=me.start_ticks)
    written.start(1)
    written.close()
    assert status(written.settings, "train", as_json=False, all_nodes=True) == 0
    assert f"{HERE}:0 running ranks 0, 1 this node" in " ".join(capsys.readouterr().out.split())


def test_a_query_needs_the_key_and_adds_no_node(
    make_job: type[RecordedJob], root: Path, serve: Callable[[JobOfNodes], CoordinatorAddress]
) -> None:
    job = JobOfNodes(make_job, root, HERE, "gpu-2")
    job.close()
    address = serve(job)
    before: KnownNodes = known_nodes(address, 5.0)
    with pytest.raises(OSError, match="of another job"):
        known_nodes(CoordinatorAddress(address.host, address.port, "another"), 5.0)
    assert [node.node for node in known_nodes(address, 5.0).nodes] == [node.node for node in before.nodes] == [f"{HERE}/id", "gpu-2/id"]


def test_each_key_is_on_the_page(make_job: type[RecordedJob], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = JobOfNodes(make_job, root, HERE)
    job.close()
    document = status_of(job, capsys)
    text = page_text("json.md").partition("\n## status of all nodes")[2].partition("\n## ")[0]
    for key in (*document, *(f"nodes.{key}" for key in document["nodes"][0])):
        assert f"`{key}`" in text


@pytest.mark.slow
def test_512_ranks_on_64_nodes_are_a_few_lines_within_a_second(
    make_job: type[RecordedJob], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = JobOfNodes(make_job, root, HERE, *(f"gpu-{number}" for number in range(63)))
    job.meet(1, 1)
    for index, node in job.here:
        ranks = tuple(RankInfo(8 * index + local, local, 100 + 8 * index + local, 7) for local in range(8))
        node.feed(RanksFound(node.T0 + 2, 1, ranks, 512))
    for minute in range(60):
        job.train(5 + 60 * minute, 7 + minute)
    job.close()
    settings = job.nodes[HERE].settings
    with costs_at_most(1.0):
        assert status(settings, "train", as_json=False, all_nodes=True) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "on 64 nodes" in lines[0]
    assert len(lines) < 12
    assert [line.split()[:4] for line in lines if "more" in line] == [["64", "more", "training", "66"]]


def test_a_node_that_serves_the_coordinator_itself_is_asked_from_another_by_its_name(make_job: type[RecordedJob], root: Path) -> None:
    job = JobOfNodes(make_job, root, HERE, "gpu-2")
    place = job.nodes["gpu-2"].directory / "cluster" / "node.json"
    own = CoordinatorAddress("127.0.0.1", 4711, "key")
    KeptFile(place, pytest.fail).write(KeptNode(KeptFor("run of gpu-2", "none"), NodeMemory("gpu-2/id"), own))
    job.close()
    addresses = [journal.address for journal in journals_of(root, JobFiles("train", HERE, job.nodes[HERE].directory))]
    assert addresses == [None, CoordinatorAddress("gpu-2", 4711, "key")]
