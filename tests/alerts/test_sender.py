"""The sender loses no alert, keeps their order, sends none twice, and keeps nobody waiting."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from supervisor.alerts import spool
from supervisor.alerts.sender import Undelivered
from supervisor.alerts.sinks.chat import HttpSink
from supervisor.alerts.sinks.webhook import bodies
from supervisor.alerts.spool import ALERTS, CAP, THREADS, KeptAlert, KnownThreads, SpoolWriter
from supervisor.config.sink_kinds import SinkKind
from supervisor.core.values import replace
from supervisor.report.log_events import LogEvent
from tests.alerts.conftest import OneSink, count_dropped, ident, kept
from tests.support.figures import is_within, within
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Endpoint, Log

    from supervisor.alerts.model import OutgoingAlert

SOURCE = Path(__file__).parents[2] / "supervisor/alerts/sender.py"


@pytest.fixture
def begin(tmp_path: Path, log: Log) -> Iterator[Callable[..., OneSink]]:
    begun: list[OneSink] = []

    def make(url: str, deadline_s: float = 60.0) -> OneSink:
        begun.append(OneSink(tmp_path / "state", HttpSink(url, bodies, secret=b"S1GNING-KEY"), deadline_s, log))
        return begun[-1]

    yield make
    for sender in begun:
        sender.close(1.0)


class HungDisk:
    """Hangs each fsync in a real system call: it opens a FIFO that nobody writes to."""

    def __init__(self, fifo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        os.mkfifo(fifo)
        self._fifo, self._monkeypatch = fifo, monkeypatch
        self.entered = threading.Event()
        monkeypatch.setattr(os, "fsync", self._hang)

    def release(self) -> None:
        """Let every fsync that hangs end, and the later ones work."""
        self._monkeypatch.undo()
        self._fifo.write_bytes(b"")

    def _hang(self, _descriptor: int) -> None:
        self.entered.set()
        self._fifo.read_bytes()


@pytest.fixture
def hung_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HungDisk:
    return HungDisk(tmp_path / "fifo", monkeypatch)


def test_alerts_arrive_in_order(
    begin: Callable[..., OneSink], endpoint: Endpoint, alert: Callable[..., OutgoingAlert], tmp_path: Path
) -> None:
    sender = begin(endpoint.url)
    sent = [alert(incident=number) for number in range(20)]
    for each in sent:
        sender.enqueue(each)
    assert sender.close(60) == 0
    assert [request.event_id for request in endpoint.received] == [ident(each) for each in sent]
    assert kept(tmp_path / "state") == []
    assert sorted(kept(tmp_path / "state", "sent")) == sorted(ident(each) for each in sent)


def test_500_then_200_is_the_same_alert_again(
    begin: Callable[..., OneSink], endpoint: Endpoint, alert: Callable[..., OutgoingAlert], log: Log
) -> None:
    endpoint.script = [(500, {}), (502, {}), (200, {})]
    sender = begin(endpoint.url)
    sender.enqueue(alert(1))
    sender.enqueue(alert(2))
    wait_for(lambda: log.count("alert.sent") == 2)
    ids = [ident(alert(1))] * 3 + [ident(alert(2))]
    assert [request.event_id for request in endpoint.received] == ids
    assert [request.headers["Idempotency-Key"] for request in endpoint.received] == ids
    assert len({request.body for request in endpoint.received[:3]}) == 1
    assert log.last("alert.failed delayed")["reason"] == "status 502: no_service"


def test_an_alert_that_cannot_be_written_is_logged_and_costs_no_other(
    begin: Callable[..., OneSink], endpoint: Endpoint, alert: Callable[..., OutgoingAlert], log: Log
) -> None:
    sender = begin(endpoint.url)
    sender.enqueue(replace(alert(1), ts=float("inf")))  # no date
    sender.enqueue(alert(2))
    assert sender.close(60) == 0
    assert [request.event_id for request in endpoint.received] == [ident(alert(2))]
    assert log.last("alert.failed unmade")["reason"].startswith("OverflowError: ")


def test_undelivered_alerts_are_counted_after_the_end(
    begin: Callable[..., OneSink], endpoint: Endpoint, alert: Callable[..., OutgoingAlert], closed_port: int, tmp_path: Path
) -> None:
    file = tmp_path / "state" / spool.FILE_NAME
    reached = begin(endpoint.url)
    reached.enqueue(alert(1))
    reached.close(60)
    assert reached.undelivered() is None
    endpoint.script = [(404, {})]
    refused = begin(endpoint.url)
    refused.enqueue(alert(2))
    refused.close(60)
    assert refused.undelivered() == Undelivered(1, "webhook", "127.0.0.1", "status 404: no_service", saved=True, file=file)
    dead = begin(f"http://127.0.0.1:{closed_port}/x")
    dead.enqueue(alert(3))
    dead.enqueue(alert(4))
    dead.close(60)
    assert dead.undelivered() == Undelivered(2, "webhook", "127.0.0.1", "Connection refused", saved=True, file=file)


def test_429_waits_as_long_as_it_was_asked_to(
    begin: Callable[..., OneSink], endpoint: Endpoint, alert: Callable[..., OutgoingAlert]
) -> None:
    endpoint.script = [(429, {"Retry-After": "1"}), (200, {})]
    begin(endpoint.url).enqueue(alert())
    wait_for(lambda: len(endpoint.received) == 2)
    after_s = endpoint.received[1].at - endpoint.received[0].at
    assert after_s >= 1.0
    assert is_within(after_s, 3.0)


def test_retry_after_has_a_cap(begin: Callable[..., OneSink], endpoint: Endpoint, alert: Callable[..., OutgoingAlert]) -> None:
    endpoint.script = [(429, {"Retry-After": "86400"}), (200, {})]
    begin(endpoint.url).enqueue(alert())
    wait_for(lambda: len(endpoint.received) == 2)


def test_a_refused_alert_is_a_dead_letter_and_the_next_goes_out(
    begin: Callable[..., OneSink], endpoint: Endpoint, alert: Callable[..., OutgoingAlert], log: Log, tmp_path: Path
) -> None:
    endpoint.script = [(302, {"Location": endpoint.url}), (404, {}), (200, {})]
    sender = begin(endpoint.url)
    for number in range(3):
        sender.enqueue(alert(number))
    assert sender.close(60) == 0
    assert [event for event, _ in log.events] == ["alert.failed refused", "alert.failed refused", "alert.sent"]
    assert sorted(kept(tmp_path / "state", "refused")) == sorted([ident(alert(0)), ident(alert(1))])
    assert len(endpoint.received) == 3
    assert not any(request.target.startswith("GET") for request in endpoint.received)


def test_an_alert_is_sent_once(begin: Callable[..., OneSink], endpoint: Endpoint, alert: Callable[..., OutgoingAlert]) -> None:
    sender = begin(endpoint.url)
    sender.enqueue(alert())
    sender.enqueue(alert())
    assert sender.close(60) == 0
    again = begin(endpoint.url)
    again.enqueue(alert())  # the same news, shown by a supervisor that replayed its journal
    again.enqueue(alert(2))
    assert again.close(60) == 0
    assert [request.event_id for request in endpoint.received] == [ident(alert()), ident(alert(2))]


def test_unsent_alerts_wait_for_the_next_start(
    begin: Callable[..., OneSink], endpoint: Endpoint, closed_port: int, alert: Callable[..., OutgoingAlert], log: Log
) -> None:
    sender = begin(f"http://127.0.0.1:{closed_port}/")
    for number in range(3):
        sender.enqueue(alert(number))
    assert sender.close(60) == 3
    assert log.last("alert.failed left") == {"sink": "webhook", "host": "127.0.0.1", "reason": "Connection refused", "waiting": 3}
    again = begin(endpoint.url)
    again.enqueue(alert(3))
    assert again.close(60) == 0
    assert [request.event_id for request in endpoint.received] == [ident(alert(number)) for number in range(4)]


def test_a_process_that_closes_at_once_sends_what_was_left(
    begin: Callable[..., OneSink], endpoint: Endpoint, closed_port: int, alert: Callable[..., OutgoingAlert]
) -> None:
    sender = begin(f"http://127.0.0.1:{closed_port}/")
    sender.enqueue(alert())
    sender.close(60)
    assert begin(endpoint.url).close(60) == 0
    assert [request.event_id for request in endpoint.received] == [ident(alert())]


def test_a_try_that_was_under_way_at_the_end_is_not_the_last_one(
    begin: Callable[..., OneSink], endpoint: Endpoint, alert: Callable[..., OutgoingAlert]
) -> None:
    endpoint.script = [(0, {}), (200, {})]
    sender = begin(endpoint.url, deadline_s=30.0)
    for number in range(3):
        sender.enqueue(alert(number))
    wait_for(lambda: endpoint.received)
    closing = threading.Thread(target=sender.close, args=(20.0,))
    closing.start()
    wait_for(lambda: sender.sender._closing_at is not None)  # noqa: SLF001 - the close has begun
    endpoint.stop.set()  # no answer to the first
    closing.join(30)
    assert sender.undelivered() is None
    assert [request.event_id for request in endpoint.received] == [ident(alert(number)) for number in (0, 0, 1, 2)]


@pytest.mark.bench
def test_close_keeps_its_deadline_against_an_endpoint_that_never_answers(
    begin: Callable[..., OneSink], endpoint: Endpoint, alert: Callable[..., OutgoingAlert]
) -> None:
    endpoint.script = [(0, {})]
    sender = begin(endpoint.url, deadline_s=30)
    sender.enqueue(alert())
    wait_for(lambda: endpoint.received)
    sender.enqueue(alert(2))  # which the sending thread never takes: it waits for the answer to the first
    started = time.monotonic()
    assert sender.close(0.5) == 2
    assert within(1.0, since=started)
    undelivered = sender.undelivered()
    assert undelivered is not None
    assert undelivered.count == 2


@pytest.mark.bench
def test_enqueue_takes_under_a_millisecond_while_disk_and_endpoint_hang(
    begin: Callable[..., OneSink], endpoint: Endpoint, alert: Callable[..., OutgoingAlert], hung_disk: HungDisk
) -> None:
    endpoint.script = [(0, {})]
    sender = begin(endpoint.url)
    took_s = []
    for number in range(200):
        new_alert = alert(number)
        before = time.perf_counter()
        sender.enqueue(new_alert)
        took_s.append(time.perf_counter() - before)
        time.sleep(0.001)
    try:
        assert hung_disk.entered.wait(PATIENCE_S), "the disk was not reached: this measured nothing"
        took_s.sort()
        assert is_within(took_s[len(took_s) // 2], 0.001)
        assert is_within(took_s[-10], 0.01)
        started = time.monotonic()
        assert sender.close(0.5) > 0
        assert within(1.5, since=started)
    finally:
        hung_disk.release()


def test_an_alert_gets_out_while_the_disk_hangs(
    begin: Callable[..., OneSink],
    endpoint: Endpoint,
    alert: Callable[..., OutgoingAlert],
    tmp_path: Path,
    hung_disk: HungDisk,
) -> None:
    sender = begin(endpoint.url)
    for number in range(3):
        sender.enqueue(alert(number))
    wait_for(lambda: len(endpoint.received) == 3)
    hung_disk.release()
    assert sender.close(60) == 0
    assert [request.event_id for request in endpoint.received] == [ident(alert(number)) for number in range(3)]
    assert kept(tmp_path / "state") == []


def test_a_full_disk_keeps_alerts_in_memory_and_is_reported_once(  # noqa: PLR0913, PLR0917 - fixtures
    begin: Callable[..., OneSink],
    endpoint: Endpoint,
    alert: Callable[..., OutgoingAlert],
    log: Log,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint.script = [(503, {})]
    full = True
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    sender = begin(endpoint.url)
    for number in range(3):
        sender.enqueue(alert(number))
    wait_for(lambda: log.count("alert.failed delayed") >= 2)
    assert log.count("alert.failed unsaved") == 1
    assert log.last("alert.failed unsaved") == {"reason": "No space left on device"}
    assert kept(tmp_path / "state") == []
    full = False
    sender.enqueue(alert(3))  # the disk has room again: what was in memory is written, in its order
    wait_for(lambda: len(kept(tmp_path / "state")) == 4)
    order = kept(tmp_path / "state")
    assert order == [ident(alert(number)) for number in range(4)]
    endpoint.script = [(200, {})]
    wait_for(lambda: log.count("alert.sent") == 4)
    assert [request.event_id for request in endpoint.received[-4:]] == order


def test_a_spool_that_cannot_be_made_costs_nothing(
    begin: Callable[..., OneSink], endpoint: Endpoint, alert: Callable[..., OutgoingAlert], log: Log, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / spool.FILE_NAME).mkdir()  # where the file should be
    sender = begin(endpoint.url)
    sender.enqueue(alert())
    assert sender.close(60) == 0
    assert len(endpoint.received) == 1
    assert log.count("alert.failed unsaved") == 1


def test_over_the_cap_the_oldest_that_nobody_has_seen_are_dropped_and_counted(  # noqa: PLR0913, PLR0917 - fixtures
    begin: Callable[..., OneSink],
    endpoint: Endpoint,
    alert: Callable[..., OutgoingAlert],
    log: Log,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("supervisor.alerts.sender.CAP", 4)
    endpoint.script = [(0, {}), (200, {})]
    sender = begin(endpoint.url)
    sender.enqueue(alert(0))
    wait_for(lambda: endpoint.received)  # it may have arrived: dropping it would be wrong
    for number in range(1, 7):
        sender.enqueue(alert(number))
    endpoint.stop.set()  # no answer to the first
    wait_for(lambda: log.count("alert.sent") == 4 and not kept(tmp_path / "state"))
    assert [request.event_id for request in endpoint.received] == [ident(alert(number)) for number in (0, 0, 4, 5, 6)]
    assert log.last("alert.dropped")["total"] == 3
    assert count_dropped(tmp_path / "state") == 3
    assert sender.close(60) == 0
    left = sender.undelivered()
    assert left is not None
    assert left.dropped == 3


def test_a_flood_while_the_disk_hangs_keeps_the_newest_and_counts_the_others(
    begin: Callable[..., OneSink],
    endpoint: Endpoint,
    alert: Callable[..., OutgoingAlert],
    tmp_path: Path,
    hung_disk: HungDisk,
) -> None:
    endpoint.script = [(503, {})]
    sender = begin(endpoint.url)
    sender.enqueue(alert(0))
    assert hung_disk.entered.wait(PATIENCE_S)
    for number in range(1, 3000):
        sender.enqueue(alert(number))
    hung_disk.release()
    wait_for(lambda: len(kept(tmp_path / "state")) == CAP and count_dropped(tmp_path / "state") == 3000 - CAP)
    newest = {ident(alert(number)) for number in range(3000 - CAP + 1, 3000)}
    assert newest <= set(kept(tmp_path / "state")), "at most one older one, which was being tried"


def test_an_alert_is_on_disk_before_the_threads_that_know_it_as_sent(tmp_path: Path) -> None:
    """A process that is killed in between would have lost it in silence."""
    written = threading.Event()
    writer = SpoolWriter(spool.opened(tmp_path, is_writer=True), lambda _: written.set(), lambda _: None)
    writer.put_threads(KnownThreads("slack", {}))
    writer.put(KeptAlert("slack", "ab" * 16, 1.0, "title", body="{}"))
    writer.thread.start()
    assert written.wait(PATIENCE_S)
    writer.stop()
    writer.thread.join(20)
    rows = [json.loads(line)["row"] for line in (tmp_path / spool.FILE_NAME).read_text().splitlines()]
    assert rows[1:] == [ALERTS.name, THREADS.name]


def test_log_events_of_alerts_name_only_the_host(
    begin: Callable[..., OneSink], endpoint: Endpoint, alert: Callable[..., OutgoingAlert], log: Log, tmp_path: Path
) -> None:
    endpoint.script = [(500, {}), (404, {})]
    sender = begin(endpoint.url)
    sender.enqueue(alert())
    sender.close(60)
    shown = repr(log.events) + (tmp_path / "state" / spool.FILE_NAME).read_text()
    assert "127.0.0.1" in repr(log.events)
    assert not [secret for secret in ("T0P-SECRET", "s3cret", "S1GNING-KEY", str(tmp_path)) if secret in shown]


def test_neither_a_broken_log_nor_a_broken_alert_reaches_the_caller(
    tmp_path: Path, endpoint: Endpoint, alert: Callable[..., OutgoingAlert]
) -> None:
    def broken(_: str, __: dict[str, object]) -> None:
        raise RuntimeError

    sender = OneSink(tmp_path / "state", HttpSink(endpoint.url, bodies), 5, broken)
    sender.enqueue(replace(alert(), ts=float("nan")))
    sender.enqueue(alert())
    assert sender.close(60) == 0
    assert [request.event_id for request in endpoint.received] == [ident(alert())]


def test_each_event_logged_is_in_the_closed_list() -> None:
    sent = set(re.findall(r'"(alert\.\w+)"', SOURCE.read_text()))
    assert sent == {event.value for event in LogEvent if event.value.startswith("alert.")} - {LogEvent.ALERT_RAISED.value}  # the reporter's


def test_every_sink_of_the_table_can_be_made() -> None:
    for kind in get_args(SinkKind):
        assert callable(import_module(f"supervisor.alerts.sinks.{kind}").make), kind
