"""What is done with the answers of a disk and of a look at the node: never on another thread than the loop's, and never lost."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from supervisor.core import actions as act
from supervisor.core.events import GpusListed, HealthChanged, HealthChecked
from supervisor.core.model import Finding, Gpu
from supervisor.job.clock import Clock
from supervisor.run.node_requests import NodeRequests
from supervisor.run.threads import Threads
from tests.node.test_rank_places import node as node_readings
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GPU = Gpu(0, "GPU-a", "")


class _Parts:
    """The care of a node whose loop keeps what it is given, and whose reporter notes the thread that speaks."""

    def __init__(self, quarantine: Callable[[act.Quarantine, int], tuple[Gpu, ...]]) -> None:
        self.soon: list[Callable[[], None]] = []
        self.posted: list[Any] = []
        self.messages: list[tuple[str, str]] = []
        loop: Any = SimpleNamespace(clock=Clock.start(), call_soon=self.soon.append, post=self.posted.append)
        reporter: Any = MagicMock()
        reporter.print_message = lambda action: self.messages.append((threading.current_thread().name, action.text))
        factory: Any = MagicMock()
        factory.quarantine = quarantine
        self.node = NodeRequests(MagicMock(), loop, reporter, factory, Threads(loop, lambda _text: None))
        self.node.quarantine(act.Quarantine(1, GPU, "xid 79", "NVRM"))


def full(_action: act.Quarantine, _errors: int) -> tuple[Gpu, ...]:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("loop_runs", [True, False], ids=["the loop runs", "the loop has ended"])
def test_a_ledger_that_cannot_be_written_is_reported_once_and_on_the_loops_thread(*, loop_runs: bool) -> None:
    parts = _Parts(full)
    if loop_runs:
        assert parts.node.wait_written(10)
        assert len(parts.soon) == 1
        parts.soon[0]()
    else:
        assert parts.node.wait_written(10)
    ((thread, text),) = parts.messages
    assert thread == threading.main_thread().name
    assert "GPU-a is out of use for this run only" in text


@pytest.mark.parametrize("listed", [(), (GPU,)], ids=["none could be listed", "listed"])
def test_only_gpus_that_were_listed_take_the_place_of_those_that_the_core_knows(listed: tuple[Gpu, ...]) -> None:
    parts = _Parts(lambda _action, _errors: listed)
    assert parts.node.wait_written(10)
    assert [event.gpus for event in parts.posted if isinstance(event, GpusListed)] == ([listed] if listed else [])


@pytest.mark.parametrize(("attempt", "event"), [(1, HealthChecked), (2, HealthChanged)], ids=["in time", "the attempt began without it"])
def test_findings_of_a_check_are_reported_also_where_they_came_too_late(attempt: int, event: type) -> None:
    parts = _Parts(lambda _action, _errors: ())
    node: Any = parts.node
    assert node.wait_written(10)
    shm = Finding("host_shm", "host", "degraded", "little is left")
    node._factory.command_nproc, node._factory.health_paths = 1, lambda: ((), 0)  # noqa: SLF001  the part that knows torchrun
    node.health = SimpleNamespace(has_gpus=False, before=lambda *_, alone: SimpleNamespace(findings=(shm,) * alone, problem=""))
    node._job.environ = {}  # noqa: SLF001  the job's
    node._loop.state = SimpleNamespace(attempt=SimpleNamespace(number=attempt), gpus=())  # noqa: SLF001
    node.check(act.CheckHealth(1))
    wait_for(lambda: any(isinstance(message, event) for message in parts.posted), "the answer", 20)
    (posted_event,) = [message for message in parts.posted if isinstance(message, HealthChecked | HealthChanged)]
    assert type(posted_event) is event
    assert posted_event.findings == (shm,)


@pytest.mark.parametrize(("has_gpus", "enabled", "lines"), [(False, True, 1), (True, True, 0), (False, False, 0)])
def test_a_small_dev_shm_is_reported_at_the_start_where_no_check_of_the_node_does(*, has_gpus: bool, enabled: bool, lines: int) -> None:
    parts = _Parts(lambda _action, _errors: ())
    node: Any = parts.node
    assert node.wait_written(10)
    parts.messages.clear()
    small = SimpleNamespace(reason="only 64 MiB", command="docker run --shm-size=16g")
    node.health = SimpleNamespace(has_gpus=has_gpus, shared_memory=lambda: small)
    node._job.settings.health.enabled = enabled  # noqa: SLF001  the job's
    node.examine_shared_memory()
    assert [text for _, text in parts.messages] == ["health: only 64 MiB; the job continues (docker run --shm-size=16g)"] * lines


@pytest.mark.parametrize(
    ("visible", "nproc", "refused", "messages"),
    [("0,9", None, ["rank_places"], 0), ("0", None, [], 1), ("0,1", None, [], 0), ("0,9", 1, [], 0)],
    ids=["refused", "warned of", "fits", "a run that continues with fewer ranks"],
)
def test_ranks_are_compared_with_the_gpus_once_before_the_first_attempt(  # noqa: PLR0913, PLR0917  one for each column
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, nproc: int | None, refused: list[str], messages: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    parts = _Parts(lambda _action, _errors: ())
    node: Any = parts.node
    assert node.wait_written(10)
    node._factory.command_nproc, node._factory.health_paths = 2, lambda: ((), 0)  # noqa: SLF001  the part that knows torchrun
    node._factory.release.return_value, node._factory.gpus_of.return_value = (), (GPU,)  # noqa: SLF001  as above
    looked = SimpleNamespace(findings=(), problem="", readings=node_readings(2))
    node.health = SimpleNamespace(has_gpus=True, before=lambda *_, alone: looked)  # noqa: ARG005  the real one's name
    node._job.environ, node._job.cwd = {"CUDA_VISIBLE_DEVICES": visible}, tmp_path  # noqa: SLF001  the job's
    node._job.command = ("torchrun", "--nproc-per-node=2", "train.py")  # noqa: SLF001  as above
    node._loop.state = SimpleNamespace(attempt=SimpleNamespace(number=0), gpus=(GPU,), run=SimpleNamespace(nproc=nproc))  # noqa: SLF001

    def checked() -> list[HealthChecked]:
        return [event for event in parts.posted if isinstance(event, HealthChecked)]

    for times in (1, 2):
        node.check(act.CheckHealth(0))
        wait_for(lambda times=times: len(checked()) == times, "the answer", 20)
    assert [[finding.check for finding in event.findings] for event in checked()] == [refused, []]
    parts.messages.clear()
    for speak in parts.soon:
        speak()
    assert len(parts.messages) == messages
