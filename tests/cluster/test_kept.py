"""What a node keeps of the protocol over the end of its supervisor."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from supervisor.cluster.client import StoreAddress
from supervisor.cluster.kept import KeptFile, KeptFor, KeptNode, remembered
from supervisor.cluster.model import RESTART, STOP, ClusterDecision, Epoch
from supervisor.cluster.node import NodeMemory

if TYPE_CHECKING:
    from pathlib import Path

RUN = KeptFor("run", "job")


@pytest.mark.parametrize(("kind", "is_over"), [(RESTART, False), (STOP, True)])
def test_a_node_goes_back_to_the_store_of_its_job_unless_that_life_of_the_job_is_over(kind: str, is_over: bool) -> None:  # noqa: FBT001
    memory = NodeMemory("a/1", Epoch(3, ("a/1", "b/1"), "b/1", "t"), "store", ClusterDecision(kind))
    kept = KeptNode(RUN, memory, StoreAddress("b", 4711, "key"))
    assert remembered(kept, RUN, "a/2") == ((NodeMemory("a/2"), None) if is_over else (memory, kept.address))
    assert remembered(kept, KeptFor("run", "job.1"), "a/2") == (NodeMemory("a/2"), None), "these nodes meet elsewhere"


def test_a_node_that_was_told_the_end_of_a_job_begins_anew_when_it_is_started_again() -> None:
    memory = NodeMemory("a/1", Epoch(3, ("a/1", "b/1"), "b/1", "t"), "store", over=True)
    assert remembered(KeptNode(RUN, memory, StoreAddress("b", 4711, "key")), RUN, "a/2") == (NodeMemory("a/2"), None)


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
