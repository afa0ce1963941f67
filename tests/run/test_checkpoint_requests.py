"""What the checkpoints of an attempt are asked for, where a disk does not answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from supervisor.core.actions import SelectCheckpoint
from supervisor.node.gpu_quarantine import GpuQuarantine
from supervisor.run import checkpoint_requests
from supervisor.run.checkpoint_requests import CheckpointRequests

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Ledger(GpuQuarantine):
    """A ledger on a disk that does not answer, refuses, or is well."""

    def __init__(self, place: Path, disk: str, end: threading.Event) -> None:
        super().__init__(place, "a")
        self.disk, self.end = disk, end

    def exclude(self, reason: str, now: float, by: str = "person") -> None:
        """Write, once the disk answers."""
        if self.disk == "hangs":
            self.end.wait()
        if self.disk == "full":
            raise OSError(28, "No space left on device")
        super().exclude(reason, now, by)


@pytest.mark.parametrize(
    ("disk", "problem"), [("hangs", "not done within 0.2 s"), ("full", "[Errno 28] No space left on device"), ("well", "")]
)
def test_the_other_nodes_do_not_wait_for_a_disk_on_which_a_node_is_to_be_excluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: str, problem: str
) -> None:
    monkeypatch.setattr(checkpoint_requests, "LEDGER_DEADLINE_S", 0.2 if disk == "hangs" else 20.0)
    end, loop, reporter, factory = threading.Event(), MagicMock(), MagicMock(), MagicMock()
    loop.call_soon = lambda call: call()
    ledger = factory.ledger = Ledger(tmp_path, disk, end)
    job: Any = MagicMock(environ={})
    requests = CheckpointRequests(job, loop, reporter, factory, MagicMock(), MagicMock(), MagicMock(), lambda: None, lambda _text: None)
    exclude: Callable[[str], bool] = requests._node_check(SelectCheckpoint(1))._exclude  # noqa: SLF001
    assert exclude("it is slow") is (not problem)
    assert [call.args[0].text for call in reporter.print_message.mock_calls] == [
        f"this node is not excluded: {ledger.path}: {problem}" for _ in [problem] if problem
    ]
    assert (ledger.exclusion() is None) is bool(problem)
    end.set()
