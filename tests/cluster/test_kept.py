"""What a node keeps of the protocol over the end of its supervisor."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from supervisor.cluster import kept as kept_files
from supervisor.cluster.client import CoordinatorAddress
from supervisor.cluster.kept import KeptCoordinator, KeptFile, KeptFor, KeptNode, memory_of_the_last, remembered
from supervisor.cluster.model import FAILURE, RESTART, STOP, AttemptEnd, ClusterDecision, CoordinatorMemory, NodeMemory, SharedAttempt

if TYPE_CHECKING:
    from pathlib import Path

RUN = KeptFor("run", "job")
EPOCH = SharedAttempt(3, ("a/1", "b/1"), "b/1", "t")


@pytest.mark.parametrize(("kind", "is_over"), [(RESTART, False), (STOP, True)])
def test_a_node_goes_back_to_the_coordinator_of_its_job_unless_that_life_of_the_job_is_over(kind: str, is_over: bool) -> None:  # noqa: FBT001
    memory = NodeMemory("a/1", EPOCH, ClusterDecision(kind))
    kept = KeptNode(RUN, memory, CoordinatorAddress("b", 4711, "key"))
    assert remembered(kept, RUN, "a/2") == ((NodeMemory("a/2"), None) if is_over else (memory, kept.address))
    assert remembered(kept, KeptFor("run", "job.1"), "a/2") == (NodeMemory("a/2"), None), "these nodes meet elsewhere"


def test_a_restarted_node_that_knew_the_end_of_a_job_begins_anew() -> None:
    memory = NodeMemory("a/1", EPOCH, over=True)
    assert remembered(KeptNode(RUN, memory, CoordinatorAddress("b", 4711, "key")), RUN, "a/2") == (NodeMemory("a/2"), None)


@pytest.mark.parametrize(("kind", "is_over"), [(RESTART, False), (STOP, True)])
def test_a_coordinator_continues_its_attempt_unless_that_life_of_the_job_is_over(tmp_path: Path, kind: str, is_over: bool) -> None:  # noqa: FBT001
    file = KeptFile(tmp_path / "cluster" / "coordinator.json", pytest.fail)
    for decision in (None, ClusterDecision(kind, "text")):
        memory = CoordinatorMemory(EPOCH, AttemptEnd(FAILURE, "a/1", "rank 1"), decision)
        file.write(KeptCoordinator(RUN, 4711, "key", memory))
        kept = file.read(KeptCoordinator)
        assert kept == KeptCoordinator(RUN, 4711, "key", memory)
        assert memory_of_the_last(kept) == (CoordinatorMemory() if decision is not None and is_over else memory)


def test_a_disk_that_does_not_answer_is_waited_for_a_moment_and_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, warnings = threading.Event(), list[str]()
    monkeypatch.setattr(kept_files, "WRITE_S", 0.05)
    monkeypatch.setattr(kept_files.staging, "write", lambda *_: answers.wait(20))
    file = KeptFile(tmp_path / "node.json", warnings.append)
    for _ in range(3):
        file.write(KeptNode(RUN, NodeMemory("n")))
    answers.set()
    (warning,) = warnings
    assert "the disk does not answer" in warning


def test_a_thread_that_cannot_be_had_for_a_moment_costs_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, warnings, real = {"kept-file"}, list[str](), threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name in refused:
            refused.discard(thread.name)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    file = KeptFile(tmp_path / "node.json", warnings.append)
    for is_written in (False, True):
        file.write(KeptNode(RUN, NodeMemory("n")))
        assert (file.read(KeptNode) is not None) is is_written
    (warning,) = warnings
    assert "can't start new thread" in warning
