"""The coordinating node compares what all nodes send of their pace, and its core says who is slow. The clock is the test's."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cluster.reader import MOST_BYTES, NodeStanding
from supervisor.core import actions as act
from supervisor.core.machine import decide
from supervisor.core.model import Finding, Gpu, Launcher, Policy, RankInfo
from supervisor.core.state import Attempt, JobState, Run, Stage
from supervisor.core.training_events import PaceChanged
from supervisor.core.values import replace
from supervisor.core.watch import loss_and_pace
from supervisor.observe.pace.judge import NodePace
from supervisor.run.node_paces import NodePaces
from tests.run.test_job_nodes import Pair
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MEMBERS = ("gpu-1/a", "gpu-2/b", "gpu-3/c")


class Coordinator:
    """A supervisor that compares the nodes: the core is real, its loop is turned by the test."""

    def __init__(self) -> None:
        self.state = JobState(attempt=Attempt(4, members=MEMBERS, me=MEMBERS[0]), stage=Stage.RUNNING)
        self.t, self.actions, self.threads = 1000.0, list[act.Action](), list[str]()
        self.clock = SimpleNamespace(now=lambda: self.t)
        self.sent: dict[str, str] = {}
        self.coordinator_host: str | None = ""
        self.paces = NodePaces(self, self, self)  # type: ignore[arg-type]  # a loop, threads and nodes, as far as they are used

    def standings(self) -> dict[str, str]:
        """Return what the nodes sent."""
        return self.sent

    def post(self, event: Any) -> None:  # noqa: ANN401  any event
        """Decide, as the loop does."""
        self.state, actions = decide(self.state, event)
        self.actions += actions

    def recur(self, name: str, work: Callable[[], None]) -> None:
        """Run what would run in a thread."""
        self.threads.append(name)
        work()

    def train(self, minutes: float, busy: dict[str, float], attempt: int = 4, **more: Any) -> None:  # noqa: ANN401  fields of a standing
        """Let the nodes make steps of half a second, each busy for a share of it."""
        for _ in range(int(minutes * 6)):
            self.t += 10.0
            for node, share in busy.items():
                pace = NodePace(int(self.t), 0.5, share, 17 if node == MEMBERS[1] else None)
                self.sent[node] = NodeStanding("running", attempt, 100, pace=pace, **(more if node == MEMBERS[1] else {})).text()
            self.paces.tick()


@pytest.fixture
def job() -> Coordinator:
    return Coordinator()


SLOW = {MEMBERS[0]: 0.5, MEMBERS[1]: 0.95, MEMBERS[2]: 0.55}
ALIKE = dict.fromkeys(MEMBERS, 0.6)


def test_a_slow_node_is_one_alert_with_its_rank_and_its_health(job: Coordinator) -> None:
    job.train(4, SLOW)
    assert job.actions == []
    job.train(16, SLOW, gpu="GPU 1", health="GPU 1 is throttled: heat")
    text = (
        "node 1 (gpu-2) computes 1.8 times as long per step as the others (0.475 s by itself, the others 0.263 s), and the others wait "
        "for it: rank 17 (GPU 1); health: GPU 1 is throttled: heat"
    )
    assert job.actions == [act.Alert("straggler", 4, f"pace: {text}; the job continues", culprit=(17, "gpu-2:1"))]
    assert loss_and_pace.stragglers(job.state.attempt) == ((1, 17, text),)
    assert NodeStanding.of(job.state).slow == (text,), "all nodes can be asked for it"
    job.train(3, ALIKE)
    assert job.actions[1:] == [act.PrintMessage("info", "pace: over: node 1 (gpu-2) is as fast as the others again")]
    assert loss_and_pace.stragglers(job.state.attempt) == ()


def test_paces_of_another_attempt_or_of_no_member_count_for_nothing(job: Coordinator) -> None:
    job.train(4, SLOW)
    job.state = replace(job.state, attempt=replace(job.state.attempt, number=5))
    job.train(10, SLOW)
    assert job.actions == [], "the nodes still speak of the attempt before"
    job.train(4, SLOW, attempt=5)
    job.sent["gpu-9/waits"] = NodeStanding("starting", 5, pace=NodePace(1, 0.5, 1.0)).text()
    job.sent[MEMBERS[2]] = '{"of": "a later version"}'
    assert job.actions == []
    job.train(2, SLOW, attempt=5)
    assert len(job.actions) == 1


def test_where_nothing_is_to_be_compared_no_thread_is_started(job: Coordinator) -> None:
    job.coordinator_host = "gpu-2"
    job.train(1, SLOW)
    job.coordinator_host = ""
    job.state = replace(job.state, stage=Stage.TEARDOWN)
    job.train(1, SLOW)
    job.state = replace(job.state, stage=Stage.RUNNING, attempt=replace(job.state.attempt, members=MEMBERS[:1]))
    job.train(1, SLOW)
    assert job.threads == []


def test_a_standing_names_the_gpu_of_the_slowest_rank_and_its_faults() -> None:
    findings = (
        Finding("gpu_throttle", "gpu:GPU-b", "degraded", "GPU 3 is throttled: heat"),
        Finding("gpu_pcie", "gpu:GPU-a", "degraded", "GPU 2 has 8 lanes"),
        Finding("disk_speed", "path:/data", "degraded", "/data writes 20 MB/s"),
    )
    ranks = tuple(RankInfo(8 + place, place, 100 + place, 1) for place in range(2))
    run = Run(policy=Policy(launcher=Launcher.ELASTIC), reported_findings=findings)
    state = JobState(run, Attempt(1, ranks=ranks), Stage.RUNNING, gpus=(Gpu(2, "GPU-a"), Gpu(3, "GPU-b")))
    standing = NodeStanding.read(NodeStanding.of(state, NodePace(7, 0.5, 0.9, 9)).text())
    assert standing is not None
    assert (standing.gpu, standing.health) == ("GPU 3", "GPU 3 is throttled: heat; /data writes 20 MB/s")
    assert standing.pace == NodePace(7, 0.5, 0.9, 9)


def test_a_standing_is_no_longer_than_two_kibibytes_whatever_is_wrong_with_the_node() -> None:
    finding = Finding("kernel", "host", "failed", "ü" * 5000)
    warnings = tuple((f"pace straggler {node} -", "ü" * 5000) for node in range(8))
    state = JobState(Run(reported_findings=(finding,)), Attempt(1, warnings=warnings), Stage.RUNNING)
    text = NodeStanding.of(state, NodePace(7, 0.5, 0.9, 9, "waits for a disk or a network file system 99 % of the time", 0.5)).text()
    assert len(text.encode()) <= MOST_BYTES
    standing = NodeStanding.read(text)
    assert standing is not None
    assert standing.pace is not None


def test_a_standing_may_name_a_path_that_is_not_utf_8() -> None:
    finding = Finding("disk_speed", "path:/data", "degraded", "/data/\udce9 writes 20 MB/s")
    standing = NodeStanding.read(NodeStanding.of(JobState(Run(reported_findings=(finding,)), Attempt(1), Stage.RUNNING)).text())
    assert standing is not None
    assert standing.health == "/data/? writes 20 MB/s"


def test_the_paces_of_two_nodes_go_over_real_connections_and_the_coordinator_names_the_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"nodes.SLOW_NODE_S": 0.3, "nodes.COMPARE_S": 0.05}.items():
        monkeypatch.setattr(f"supervisor.observe.pace.{name}", seconds)
    monkeypatch.setattr("supervisor.run.node_paces.COMPARE_S", 0.05)
    pair = Pair(tmp_path)
    try:
        pair.meet("token", 1, 1)
        pair.train()
        threads = SimpleNamespace(recur=lambda _name, work: work())
        for node in pair.nodes:
            node.post = node.feed  # type: ignore[attr-defined]  # in the thread of the test
        compared = [NodePaces(node, threads, node.nodes) for node in pair.nodes]  # type: ignore[arg-type]  # as far as they are used
        at = itertools.count()

        def paced() -> bool:
            for node, paces, busy in zip(pair.nodes, compared, (0.5, 0.95), strict=True):
                while not node.soon.empty():
                    node.soon.get()()
                node.nodes.tick(pace=NodePace(next(at), 0.5, busy))
                paces.tick()
            return bool(pair.nodes[0].find(PaceChanged))

        wait_for(paced, "the coordinator to name the slow node", 60)
        (change,) = pair.nodes[0].find(PaceChanged)
        assert (change.node, change.text[:8]) == (1, "node 1 (")
        (alert,) = (alert for alert in pair.nodes[0].find(act.Alert) if alert.kind == "straggler")
        assert alert.culprit == (None, "b:1")
        assert pair.nodes[1].find(PaceChanged) == []
    finally:
        pair.close()
