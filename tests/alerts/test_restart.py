"""kill -9 between the write and the send: the next process sends the same alert under the same id."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.alerts.conftest import kept
from tests.support.few import few
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from conftest import Endpoint


ROOT = Path(__file__).parents[2]
PROGRAM = """
import pathlib, signal, sys
from supervisor.alerts.model import AlertAction, AlertEvent, AlertSeverity, OutgoingAlert
from supervisor.alerts.sinks.chat import HttpSink
from supervisor.alerts.sinks.webhook import bodies
from tests.alerts.conftest import OneSink
sender = OneSink(pathlib.Path(sys.argv[1]), HttpSink(sys.argv[2], bodies, secret=b"key"), 30.0, lambda *_: None)
if sys.argv[3] == "raise":
    sender.enqueue(OutgoingAlert("20260102-abcd", "bert", AlertEvent.OPENED, AlertSeverity.WARNING, 1, 3, 1e9, AlertAction.RESTART))
    signal.pause()
sys.exit(sender.close(25.0))
"""


@pytest.mark.process
@pytest.mark.parametrize("strike", few(range(3)))
def test_killed_between_write_and_send(strike: int, tmp_path: Path, endpoint: Endpoint) -> None:
    endpoint.script = [(0, {})]  # accepts, never answers
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "state"), endpoint.url]
    with subprocess.Popen([*command, "raise"], cwd=ROOT) as first:  # noqa: S603 - our own program
        wait_for(lambda: endpoint.received and kept(tmp_path / "state"))
        first.send_signal(signal.SIGKILL)
        assert first.wait(60) == -signal.SIGKILL
    endpoint.script = [(200, {})]
    following = subprocess.run([*command, "next"], cwd=ROOT, timeout=120, check=False)  # noqa: S603 - our own program
    assert following.returncode == 0
    first_try, second_try = endpoint.received
    assert first_try.body == second_try.body, strike
    assert first_try.headers["Idempotency-Key"] == second_try.headers["Idempotency-Key"] == first_try.event_id
    assert kept(tmp_path / "state") == []
    assert kept(tmp_path / "state", "sent") == [first_try.event_id]
