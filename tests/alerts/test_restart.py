"""kill -9 between the write and the send: the next process sends the same alert under the same id."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.few import few

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Endpoint

    from supervisor.alerts.model import OutgoingAlert

ROOT = Path(__file__).parents[2]
PROGRAM = """
import pathlib, signal, sys, time
from supervisor.alerts.model import AlertAction, AlertEvent, AlertSeverity, OutgoingAlert
from supervisor.alerts.delivery import start
from supervisor.alerts.sinks.webhook import WebhookSink
sender = start(pathlib.Path(sys.argv[1]), WebhookSink(sys.argv[2], b"key"), 30.0, lambda *_: None)
if sys.argv[3] == "raise":
    sender.enqueue(OutgoingAlert("20260102-abcd", "bert", AlertEvent.OPENED, AlertSeverity.WARNING, 1, 3, time.time(), AlertAction.RESTART))
    signal.pause()
sys.exit(sender.close(25.0))
"""


@pytest.mark.process
@pytest.mark.parametrize("strike", few(range(3)))
def test_killed_between_write_and_send(
    strike: int, tmp_path: Path, endpoint: Endpoint, alert: Callable[..., OutgoingAlert], wait_until: Callable[..., None]
) -> None:
    endpoint.script = [(0, {})]  # accepts, never answers
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "outbox"), endpoint.url]
    with subprocess.Popen([*command, "raise"], cwd=ROOT) as first:  # noqa: S603 - our own program
        wait_until(lambda: endpoint.received and list((tmp_path / "outbox").glob("*.json")))
        first.send_signal(signal.SIGKILL)
        assert first.wait(60) == -signal.SIGKILL
    endpoint.script = [(200, {})]
    following = subprocess.run([*command, "next"], cwd=ROOT, timeout=30, check=False)  # noqa: S603 - our own program
    assert following.returncode == 0
    first_try, second_try = endpoint.received
    assert first_try.body == second_try.body, strike
    assert first_try.headers["Idempotency-Key"] == second_try.headers["Idempotency-Key"] == alert().event_id
    assert not list((tmp_path / "outbox").glob("*.json"))
