"""Several nodes that see the same checkpoints: one reads and sends each, the others take what it recorded."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing.manifest import check, documents
from checkpointing.manifest.documents import About
from checkpointing.model import Identity
from checkpointing.verification import verify
from supervisor.checkpoints.job import JobCheckpoints
from supervisor.checkpoints.recording.reports import CheckpointFound, CheckpointReport
from supervisor.checkpoints.recording.shared_manifests import PATIENCE_S, SharedManifests
from supervisor.config.settings import Checkpoints, Settings
from supervisor.job.job import Job
from tests.support import node_parts, waiting
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from checkpointing.io.reader import FileReader
    from checkpointing.manifest.documents import Manifest
    from supervisor.checkpoints.recording.watcher import CheckpointWatcher


class Node:
    """One node's view; `verified` is what its watcher reported, `sent` what it would upload."""

    def __init__(self, place: Path, name: str, *, has_rank_0: bool, state: Path | None = None) -> None:
        self.state = state = (state or place / "state") / "train" / "nodes" / name
        self.n_saves = 0
        state.mkdir(parents=True, exist_ok=True)
        (place / "here").mkdir(exist_ok=True)
        settings = replace(Settings(), checkpoints=Checkpoints(paths=("step_*",)))
        job = Job("train", f"run-{name}", name, ("true",), place / "here", {}, settings, state, state, "cookie")
        self.checkpoints = JobCheckpoints(job, self._took, several_nodes=True)
        self.checkpoints.note_before()
        self.sent: list[str] = []
        self.verified: list[tuple[str, int | None, str]] = []
        watcher = self.checkpoints.watcher(self.checkpoints.mirror_feed(self, lambda: has_rank_0), lambda: has_rank_0)
        assert watcher is not None
        self.watcher: CheckpointWatcher = watcher
        self.watcher._quiet_s = 0.1  # noqa: SLF001 -- nobody writes here

    def send(self, manifest: Manifest) -> None:
        """Take what the mirror gets."""
        self.sent.append(manifest.path.rpartition("/")[2])

    def is_sending(self, _path: str, _content: str) -> bool:
        """Nothing is kept for the mirror."""
        return False

    def held_paths(self) -> dict[str, frozenset[str]]:
        """No mirror holds anything."""
        return {}

    def whole_saves(self) -> frozenset[str]:
        """No node has a part of a save."""
        return frozenset()

    def saves(self, path: Path, *, began: float = 0.0, ended: bool = True) -> None:
        """Log a save as a rank of this node does; of a file as it is now."""
        assert self.checkpoints.records.discovery is not None
        attempt = self.state / "attempt"
        attempt.mkdir(exist_ok=True)
        self.n_saves += 1
        row = {"path": str(path), "n": self.n_saves, "t": began or time.time()}
        rows = [{**row, "what": "began", "was": None}]
        if ended:
            st = path.stat()
            rows.append({**row, "what": "ended", "well": True, "now": [st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns]})
        with (attempt / "saves-0.jsonl").open("a") as log:
            log.writelines(json.dumps(row) + "\n" for row in rows)
        self.checkpoints.records.discovery.absorb(attempt, 1)

    def _took(self, report: CheckpointReport) -> None:
        if isinstance(report, CheckpointFound):
            self.verified.append((report.ref.path.rpartition("/")[2], report.ref.step, report.ref.level))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the names of the threads that read checkpoints."""
    paths: list[str] = []
    from checkpointing.io import reader  # noqa: PLC0415 -- what is patched

    real: Callable[..., None] = reader.FileReader.__init__

    def init(self: FileReader, path: str, **more: object) -> None:
        paths.append(path)
        real(self, path, **more)

    monkeypatch.setattr(reader.FileReader, "__init__", init)
    return paths


def test_one_node_reads_a_checkpoint_and_the_others_take_its_record(tmp_path: Path, reads: list[str]) -> None:
    first, second = Node(tmp_path, "a", has_rank_0=True), Node(tmp_path, "b", has_rank_0=False)
    second.watcher.start()
    torch.save({"step": 7, "w": torch.ones(64)}, tmp_path / "here" / "step_7.pt")
    wait_for(lambda: bool(second.watcher._seen), "the second node to see it")  # noqa: SLF001 -- it reports nothing yet
    wait_for(lambda: bool(second.checkpoints.shared._asked), "the second node to wait")  # noqa: SLF001 -- as above
    assert reads == []
    first.watcher.start()
    wait_for(lambda: first.verified == [("step_7.pt", 7, "digest")], "the first node to verify it")
    n_reads = len(reads)
    wait_for(lambda: second.verified == [("step_7.pt", 7, "digest")], "the second node to take that")
    assert len(reads) == n_reads
    assert (first.sent, second.sent) == (["step_7.pt"], [])
    for node in (first, second):
        node.watcher.stop()


def test_an_adopted_checkpoint_is_ordered_by_this_nodes_own_runs(tmp_path: Path) -> None:
    """Rank 0 may move to this node from one that began later: what is saved here then must be the newer one."""
    second, first = Node(tmp_path, "a", has_rank_0=False), Node(tmp_path, "b", has_rank_0=True)
    for node, attempt in ((second, 1), (first, 4)):
        node.checkpoints.select(1.0, 0)
        node.checkpoints.began(attempt)
    torch.save({"step": 200, "w": torch.ones(64)}, tmp_path / "here" / "step_200.pt")
    for node in (first, second):
        node.watcher.start()
        assert node.watcher.finish(waiting.PATIENCE_S)
    (adopted,) = second.checkpoints.records.manifests.all()
    assert (adopted.about.run, adopted.about.attempt) == ("run-a", 1)
    assert second.checkpoints.records.provenance.of(adopted.path, adopted.identity).attempt_of("run-a") == 1


@pytest.mark.parametrize(("is_brought", "sent"), [(True, []), (False, ["step_7.pt"])])
def test_a_checkpoint_from_a_mirror_is_not_sent_to_it_again(tmp_path: Path, sent: list[str], *, is_brought: bool) -> None:
    node, path = Node(tmp_path, "a", has_rank_0=True), tmp_path / "here" / "step_7.pt"
    torch.save({"step": 7, "w": torch.ones(64)}, path)
    if is_brought:
        manifest = check.build(verify(str(path)), About("train", "an earlier run", began=100, attempt=3))
        node.checkpoints.restored(str(path), 100, documents.encode(manifest).decode())
    node.watcher.start()
    assert node.watcher.finish(waiting.PATIENCE_S)
    assert (node.verified, node.sent) == ([("step_7.pt", 7, "digest")], sent)
    node.watcher.stop()


def test_another_nodes_record_of_another_content_is_not_taken(tmp_path: Path) -> None:
    first, second = Node(tmp_path, "a", has_rank_0=True), Node(tmp_path, "b", has_rank_0=False)
    path = tmp_path / "here" / "step_7.pt"
    torch.save({"step": 7, "w": torch.ones(64)}, path)
    first.watcher.start()
    assert first.watcher.finish(waiting.PATIENCE_S)
    torch.save({"step": 7, "w": torch.zeros(64)}, path)
    [candidate] = second.checkpoints.listing().candidates
    assert second.checkpoints.shared.recorded(str(path), candidate.identity) is None


def test_no_node_waits_for_another_longer_than_a_read_or_alone(tmp_path: Path) -> None:
    now = 0.0
    for name in ("a", "b"):
        (tmp_path / "nodes" / name).mkdir(parents=True)
    torch.save({"step": 7}, tmp_path / "step_7.pt")
    identity = Identity.of((tmp_path / "step_7.pt").stat())
    shared = SharedManifests(tmp_path / "nodes" / "a", "checkpoints", clock=lambda: now)
    assert shared.is_worth_waiting("/step_7.pt", identity)
    now = PATIENCE_S + 1
    assert not shared.is_worth_waiting("/step_7.pt", identity)
    (tmp_path / "nodes" / "b").rmdir()
    assert not SharedManifests(tmp_path / "nodes" / "a", "checkpoints").is_worth_waiting("/step_7.pt", identity)


def test_the_first_node_that_took_part_in_a_save_sends_the_directory(tmp_path: Path) -> None:
    path, now = tmp_path / "here" / "step_7", time.time()
    nodes = {name: Node(tmp_path, name, has_rank_0=name == "a") for name in ("a", "b", "c")}

    def first(name: str) -> bool:
        checkpoints = nodes[name].checkpoints
        assert checkpoints.records.discovery is not None
        return checkpoints.shared.is_first(str(path), checkpoints.records.discovery)

    nodes["b"].saves(path, began=now, ended=False)
    nodes["c"].saves(path, began=now + 2, ended=False)
    assert (first("b"), first("c")) == (True, False)
    nodes["a"].saves(path, began=now - 86400, ended=False)  # an earlier run's
    assert (first("b"), first("c")) == (True, False)


def test_a_file_is_read_and_sent_by_the_node_whose_ranks_saved_it(tmp_path: Path, reads: list[str]) -> None:
    first, second = Node(tmp_path, "a", has_rank_0=True), Node(tmp_path, "b", has_rank_0=False)
    path = tmp_path / "here" / "step_7.pt"
    torch.save({"step": 7, "w": torch.ones(64)}, path)
    second.saves(path)
    first.watcher.start()
    wait_for(lambda: bool(first.checkpoints.shared._asked), "the node of rank 0 to wait")  # noqa: SLF001 -- it reports nothing yet
    assert reads == []
    second.watcher.start()
    wait_for(lambda: second.verified == [("step_7.pt", 7, "digest")], "the second node to verify it")
    n_reads = len(reads)
    wait_for(lambda: first.verified == [("step_7.pt", 7, "digest")], "the node of rank 0 to take that")
    assert len(reads) == n_reads
    assert (first.sent, second.sent) == ([], ["step_7.pt"])
    for node in (first, second):
        node.watcher.stop()


def test_a_file_that_ranks_of_two_nodes_saved_is_read_and_sent_by_the_last_one(tmp_path: Path) -> None:
    """Rank 0 has moved from the one to the other since."""
    first, second = Node(tmp_path, "a", has_rank_0=False), Node(tmp_path, "b", has_rank_0=True)
    path = tmp_path / "here" / "step_last.pt"
    for step, node in ((7, first), (8, second)):
        torch.save({"step": step, "w": torch.ones(step)}, path)
        node.saves(path)
    [candidate] = first.checkpoints.listing().candidates
    by_another = [
        node.checkpoints.shared.is_saved_by_another(str(path), candidate.identity, node.checkpoints.records.discovery)
        for node in (first, second)
    ]
    assert by_another == [True, False]
    for node in (second, first):
        node.watcher.start()
        assert node.watcher.finish(waiting.PATIENCE_S)
    assert (first.sent, second.sent) == ([], ["step_last.pt"])


def test_nodes_with_their_own_state_directories_send_their_own_saves(tmp_path: Path) -> None:
    nodes = [Node(tmp_path, name, has_rank_0=name == "a", state=tmp_path / f"state-{name}") for name in ("a", "b")]
    path = tmp_path / "here" / "step_7.pt"
    torch.save({"step": 7, "w": torch.ones(64)}, path)
    nodes[1].saves(path)
    for node in nodes:
        node.watcher.start()
        assert node.watcher.finish(waiting.PATIENCE_S)
    assert [node.verified for node in nodes] == [[("step_7.pt", 7, "digest")]] * 2
    assert nodes[1].sent == ["step_7.pt"]


def test_a_shared_directory_is_sent_by_one_node_despite_separate_state_directories(tmp_path: Path) -> None:
    nodes = [Node(tmp_path, name, has_rank_0=name == "a", state=tmp_path / f"state-{name}") for name in ("a", "b")]
    path = node_parts.save_whole(tmp_path / "here" / "step_7", 7)
    for number, node in enumerate(nodes):
        node.checkpoints.node_offer.note_meeting(1, "meeting", number, [(0, 1)])
        node.saves(path)
        node.watcher.start()
        assert node.watcher.finish(waiting.PATIENCE_S)
    assert [node.sent for node in nodes] == [["step_7"], []]
