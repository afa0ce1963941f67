"""What a run does with its mirrors at its two ends: when they are asked, what is said, and that nobody is held up by it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from supervisor import mirrorends
from supervisor.checkpoints import JobCheckpoints
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import Job
from supervisor.restoring import Answer
from supervisor.settings import Checkpoints, Settings

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = Answer("nothing")


@pytest.fixture
def checkpoints(tmp_path: Path) -> JobCheckpoints:
    """Those of a job that declares *.pt."""
    for name in ("state", "here"):
        (tmp_path / name).mkdir()
    settings = replace(Settings(), checkpoints=Checkpoints(paths=("*.pt",)))
    return JobCheckpoints(Job("train", "run-1", "node", ("true",), tmp_path / "here", {}, settings, tmp_path / "state", tmp_path, "cookie"))


def test_the_mirrors_are_asked_where_nothing_here_is_good(checkpoints: JobCheckpoints, tmp_path: Path) -> None:
    assert mirrorends.bring(checkpoints, lambda: NOTHING) == mirrorends.Brought(NOTHING, among=False)
    path = tmp_path / "here" / "step_10.pt"
    torch.save({"step": 10, "w": torch.ones(4096)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    assert mirrorends.bring(checkpoints, lambda: NOTHING) == mirrorends.Brought(NOTHING, among=True)
    (tmp_path / "here" / "step_5.pt").write_bytes(whole)
    assert mirrorends.bring(checkpoints, lambda: pytest.fail("one is good")) is None


def test_only_who_has_nothing_is_ended_by_a_mirror_that_gives_nothing() -> None:
    said: list[str] = []
    refused = Answer("unreachable", message="no answer")
    mirrorends.tell(mirrorends.Brought(refused, among=True), said.append)
    assert said == ["none of the checkpoints on this disk is good, and none could be restored: no answer"]
    with pytest.raises(SuperviseError, match="no checkpoint on this disk") as raised:
        mirrorends.tell(mirrorends.Brought(refused, among=False), said.append)
    assert raised.value.exit_code == ExitCode.REQUEUE
    mirrorends.tell(mirrorends.Brought(Answer("restored", "/a.pt", 3, "file:/m", 10), among=True), said.append)
    mirrorends.tell(mirrorends.Brought(Answer("restored", "/a.pt", 3, "file:/m", 0), among=False), said.append)
    assert said[1:] == [
        "restored /a.pt of step 3 from file:/m: none on this disk is good",
        "/a.pt of step 3 is here already, whole and the same as in file:/m: nothing was brought",
    ]
    with pytest.raises(SuperviseError) as raised:
        mirrorends.tell(mirrorends.Brought(Answer("elsewhere", message="not this job's"), among=False), said.append)
    assert raised.value.exit_code == ExitCode.CONFIG


def test_while_it_is_brought_others_are_served_and_a_stop_is_heard() -> None:
    begun, released, stopped = threading.Event(), threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        assert released.wait(20)
        return 7

    assert mirrorends.beside(work, released.set, stopped) == 7
    released.clear()
    begun.clear()
    assert mirrorends.beside(work, stopped.set, stopped) is None
    assert begun.is_set()
    released.set()
    with pytest.raises(ValueError, match="no"):
        mirrorends.beside(lambda: int("no"), released.set, threading.Event())
