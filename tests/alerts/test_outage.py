"""Receivers that are away for a day or take half a minute for each answer, with the settings of a run; the clock alone is shorter."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import pytest

from supervisor.alerts import sender as sending
from supervisor.alerts.sender import AlertSender, RetryPace
from supervisor.alerts.sinks.chat import HttpSink
from supervisor.alerts.sinks.webhook import bodies
from supervisor.alerts.threads import single
from supervisor.run.alerting import DELIVERY_S
from tests.alerts.conftest import ident, kept, served_endpoint
from tests.support.small_disks import small_disk
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Endpoint, Log

    from supervisor.alerts.model import OutgoingAlert
    from supervisor.alerts.sinks import Outcome

DAY_S: Final = 86400.0


class ShortClock:
    """The sender's clock, which runs `factor` times as fast as ours, with waits that are as much shorter."""

    def __init__(self, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
        began = time.monotonic()
        self.factor = factor
        self.now = lambda: (time.monotonic() - began) * factor

        class ShortCondition(threading.Condition):
            def wait(self, timeout: float | None = None) -> bool:
                return super().wait(None if timeout is None else timeout / factor)

        monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=self.now, time=time.time))
        monkeypatch.setattr(sending, "threading", SimpleNamespace(Condition=ShortCondition, Thread=threading.Thread))


class ShortSink(HttpSink):
    """A webhook whose deadlines are on the short clock."""

    def __init__(self, url: str, clock: ShortClock) -> None:
        super().__init__(url, bodies, secret=b"key")
        self._clock = clock

    def deliver(self, event_id: str, body: bytes, deadline_s: float) -> Outcome:
        """Try once."""
        return super().deliver(event_id, body, deadline_s / self._clock.factor)


def test_after_a_day_without_its_receiver_each_alert_is_there_once_and_in_order(  # noqa: PLR0913, PLR0917 - fixtures
    endpoint: Endpoint,
    closed_port: int,
    alert: Callable[..., OutgoingAlert],
    log: Log,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ShortClock(DAY_S / 2.0, monkeypatch)
    sender = AlertSender(tmp_path, DELIVERY_S, log, RetryPace())
    (away, _), (healthy, _) = (
        sender.add(name, HttpSink(url, bodies)) for name, url in (("away", f"http://127.0.0.1:{closed_port}/"), ("healthy", endpoint.url))
    )
    sender.start()
    alerts = [alert(incident=hour) for hour in range(48)]
    for number, hourly in enumerate(alerts, 1):
        for queue in (away, healthy):
            sender.enqueue(queue, single(hourly))
        wait_for(lambda number=number: clock.now() >= number * DAY_S / 48)
    wait_for(lambda: len(endpoint.received) == len(alerts))
    assert kept(tmp_path, sink="away") == [ident(hourly) for hourly in alerts], "the receiver that is away has lost none"
    tries = away.tries
    assert 10 < tries < DAY_S, "it is tried, and not all the time"
    failures = [fields for event, fields in log.events if event == "alert.failed delayed"]
    assert len(failures) <= 2 + tries.bit_length(), "a day is a dozen lines in the log"
    with served_endpoint() as back:
        away.sink = HttpSink(back.url, bodies)  # it is back
        wait_for(lambda: len(back.received) == len(alerts))
        assert [request.event_id for request in back.received] == [ident(hourly) for hourly in alerts]
        wait_for(lambda: kept(tmp_path, "sent", "away") == [ident(hourly) for hourly in alerts])
        assert sender.close(60.0) == 0
    assert sender.undelivered() == []


def test_a_receiver_that_takes_30_s_gets_each_alert_and_holds_nobody_up(
    serve: Callable[..., Endpoint],
    alert: Callable[..., OutgoingAlert],
    log: Log,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ShortClock(50.0, monkeypatch)
    slow, quick = serve(), serve()
    slow.answer_after_s = 30.0 / clock.factor
    sender = AlertSender(tmp_path, DELIVERY_S, log, RetryPace())
    queues = [sender.add(name, ShortSink(endpoint.url, clock))[0] for name, endpoint in (("slow", slow), ("quick", quick))]
    sender.start()
    alerts = [alert(incident=number) for number in range(3)]
    for new_alert in alerts:
        for queue in queues:
            sender.enqueue(queue, single(new_alert))
    wait_for(lambda: len(quick.received) == len(alerts))
    assert not [fields for event, fields in log.events if event == "alert.sent" and fields["sink"] == "slow"], "nobody waited for it"
    wait_for(lambda: kept(tmp_path, "sent", "slow") == [ident(alert) for alert in alerts])
    times = Counter(request.event_id for request in slow.received)
    assert times[ident(alerts[0])] <= 5, "how long it takes is learned with the first alert"
    assert [times[ident(alert)] for alert in alerts[1:]] == [1, 1], "and later ones are not repeated"
    assert sender.close(60.0) == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "size=64k") as directory:
        yield directory


def test_a_spool_on_a_disk_that_is_full_sends_all_the_same_and_is_whole_once_there_is_room(
    disk: Path, endpoint: Endpoint, alert: Callable[..., OutgoingAlert], log: Log
) -> None:
    filler = disk / "filler"
    sender = AlertSender(disk, DELIVERY_S, log, RetryPace())
    queue, _ = sender.add("webhook", HttpSink(endpoint.url, bodies))
    sender.start()
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    sender.enqueue(queue, single(alert(1)))
    wait_for(lambda: len(endpoint.received) == 1)
    wait_for(lambda: log.count("alert.failed unsaved") == 1)
    assert log.last("alert.failed unsaved") == {"reason": "No space left on device"}
    filler.unlink()
    sender.enqueue(queue, single(alert(2)))
    wait_for(lambda: kept(disk, "sent") == [ident(alert(1)), ident(alert(2))])
    assert sender.close(60.0) == 0
