"""The spool: rows that a kill cannot tear, private, capped, and readable by the next process and by others."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.alerts import spool
from supervisor.alerts.spool import ALERTS, CAP, AlertState, KeptAlert, SpoolWriter
from tests.alerts.conftest import OneSink, ident, kept
from tests.support.few import few
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Endpoint, Log

    from supervisor.alerts.model import OutgoingAlert
    from supervisor.alerts.sinks import AlertSink

ROOT = Path(__file__).parents[2]


def row(number: int, **changes: object) -> KeptAlert:
    fields = {"sink": "slack", "event_id": f"{number:032x}", "t": float(number), "title": "t", "body": "{}"} | changes
    return KeptAlert(**fields)  # type: ignore[arg-type]


def test_files_are_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        spool.opened(tmp_path, is_writer=True).put(ALERTS, row(1))
        with spool.replaying(tmp_path) as record:
            assert record(row(1)) == ""
    finally:
        os.umask(old)
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert files == {spool.FILE_NAME: 0o600, spool.REPLAYED: 0o600}


def test_a_replayed_alert_counts_as_sent_while_the_job_writes(tmp_path: Path) -> None:
    writer = spool.opened(tmp_path, is_writer=True)
    writer.put(ALERTS, row(1, state=AlertState.REFUSED, reason="404"), row(2, state=AlertState.REFUSED, reason="404"))
    with spool.replaying(tmp_path) as record:
        assert record(spool.kept(tmp_path)[0]) == ""
        with pytest.raises(BlockingIOError), spool.replaying(tmp_path):
            pass
    writer.put(ALERTS, row(3))
    assert [(kept_row.t, kept_row.state.value) for kept_row in spool.kept(tmp_path)] == [(1.0, "sent"), (2.0, "refused"), (3.0, "waiting")]


def test_of_what_was_sent_and_refused_the_newest_are_kept_and_not_sent_again(  # noqa: PLR0913, PLR0917 - fixtures
    tmp_path: Path,
    endpoint: Endpoint,
    alert: Callable[..., OutgoingAlert],
    log: Log,
    sink: AlertSink,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("supervisor.alerts.sender.CAP", 4)
    sender = OneSink(tmp_path, sink, 20.0, log)
    for number in range(7):
        sender.enqueue(alert(number))
        wait_for(lambda number=number: kept(tmp_path, "sent")[-1:] == [ident(alert(number))])
    sender.close(20)
    assert kept(tmp_path, "sent") == [ident(alert(number)) for number in range(3, 7)]
    again = OneSink(tmp_path, sink, 20.0, log)
    again.enqueue(alert(6))
    assert again.close(20) == 0
    assert len(endpoint.received) == 7


@pytest.fixture
def sink(endpoint: Endpoint) -> AlertSink:
    from supervisor.alerts.sinks.chat import HttpSink  # noqa: PLC0415
    from supervisor.alerts.sinks.webhook import bodies  # noqa: PLC0415

    return HttpSink(endpoint.url, bodies)


def test_a_row_that_was_dropped_before_its_turn_is_never_written(tmp_path: Path) -> None:
    settled = threading.Event()
    writer = SpoolWriter(spool.opened(tmp_path, is_writer=True), lambda _: settled.set(), lambda _: None)
    for number in range(5000):
        writer.put(row(number))
        if number >= CAP:
            writer.remove(row(number - CAP).key)
    writer.thread.start()
    assert settled.wait(PATIENCE_S)
    writer.stop()
    writer.thread.join(20)
    assert len(spool.kept(tmp_path)) == CAP
    assert (tmp_path / spool.FILE_NAME).read_bytes().count(b"\n") == 1 + CAP


WRITES = """
import itertools, pathlib, sys
from supervisor.alerts import spool
rows = spool.opened(pathlib.Path(sys.argv[1]), is_writer=True)
print("ready", flush=True)
for number in itertools.count():
    alert = spool.KeptAlert("slack", f"{number:032x}", float(number), "t", body="x" * 2000)
    rows.put(spool.ALERTS, alert)
    print(number, flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize("strike", few(range(20)))
def test_a_kill_between_two_rows_loses_none_that_was_confirmed(tmp_path: Path, strike: int) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITES, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  our own program
        assert process.stdout is not None
        for _ in range(2 + strike):
            last = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().splitlines()
    confirmed = int(rest[-1] if rest else last)
    assert [int(row.t) for row in spool.kept(tmp_path)][: confirmed + 1] == list(range(confirmed + 1))
