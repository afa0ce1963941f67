"""Events to every sink at once, over real connections: filters, isolation, answers, a kill, a flood, and no secret anywhere."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.alerts import sinks, spool
from supervisor.alerts.model import AlertAction, AlertEvent, AlertSeverity, OutgoingAlert
from supervisor.alerts.router import AlertFilter, AlertRouter
from supervisor.alerts.sender import AlertSender
from supervisor.alerts.sinks import Delivered, DeliveryDeferred, DeliveryRefused, SinkOptions
from supervisor.alerts.threads import single
from supervisor.core.values import replace
from supervisor.report.kept_alerts import summary
from supervisor.run.alerting import start_program
from tests.alerts.conftest import FAST, count_dropped, kept
from tests.support.figures import within
from tests.support.waiting import is_running, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Endpoint, Log

ROOT = Path(__file__).parents[2]
ROUTING_KEY = "CANARYroutingkey0123456789abcdef"
EVERYTHING = AlertFilter()
CHATS = ("slack", "pagerduty", "discord", "teams", "alertmanager")


@pytest.fixture
def router(tmp_path: Path, log: Log) -> Iterator[Callable[..., AlertRouter]]:
    alert_routers: list[AlertRouter] = []

    def make(targets: dict[str, str], wanted: AlertFilter = EVERYTHING, **options: Any) -> AlertRouter:  # noqa: ANN401  of a sink
        alert_router = AlertRouter(0.0, AlertSender(tmp_path, 20.0, log, FAST))
        for kind, url in targets.items():
            sink = sinks.make(SinkOptions(kind, url, ROUTING_KEY.encode() if kind in {"pagerduty", "webhook"} else None, **options))
            alert_router.add(kind, sink, wanted)
        alert_router.sender.start()
        alert_routers.append(alert_router)
        return alert_router

    yield make
    for alert_router in alert_routers:
        alert_router.close(time.time(), 1.0)


@pytest.fixture
def happened(alert: Callable[..., OutgoingAlert]) -> Callable[..., OutgoingAlert]:
    def make(event: AlertEvent, incident: int = 1, **changes: Any) -> OutgoingAlert:  # noqa: ANN401  its fields
        severity, action = event.row.severity, AlertAction.STOP if event is AlertEvent.GIVEN_UP else AlertAction.RESTART
        return replace(alert(incident, event), severity=severity, action=action, ts=time.time(), node="gpu-7", confidence=0.9, **changes)

    return make


def bodies(endpoint: Endpoint) -> list[Any]:
    return [json.loads(request.body) for request in endpoint.received]


def refused(tmp_path: Path) -> list[spool.KeptAlert]:
    return [row for row in spool.kept(tmp_path) if row.state == "refused"]


def test_every_kind_takes_what_it_is_sent(
    router: Callable[..., AlertRouter], endpoint: Endpoint, happened: Callable[..., OutgoingAlert]
) -> None:
    alert_router = router(dict.fromkeys(("webhook", *CHATS), endpoint.url))
    for event in (AlertEvent.OPENED, AlertEvent.GIVEN_UP):
        alert_router.enqueue(happened(event))
    alert_router.close(time.time(), 60)
    assert alert_router.undelivered() == []
    messages = bodies(endpoint)
    assert [(body["event"], body["also"]) for body in messages if body.get("version") == 1] == [("given_up", ["opened"])]
    assert [body["event_action"] for body in messages if "event_action" in body] == ["trigger"]
    assert [body["routing_key"] for body in messages if "event_action" in body] == [ROUTING_KEY]
    assert len(messages) == 1 + len(CHATS), "opened and given_up of one instant are one message"


def test_a_filter_of_severity_lets_the_end_of_what_it_let_through_pass_and_no_other(
    router: Callable[..., AlertRouter], endpoint: Endpoint, happened: Callable[..., OutgoingAlert]
) -> None:
    alert_router = router({"slack": endpoint.url}, AlertFilter(AlertSeverity.CRITICAL))
    alert_router.enqueue(happened(AlertEvent.OPENED))
    alert_router.enqueue(happened(AlertEvent.RESOLVED))
    alert_router.tick(time.time() + 100)
    alert_router.enqueue(happened(AlertEvent.OPENED, 2))
    alert_router.enqueue(happened(AlertEvent.GIVEN_UP, 2))
    alert_router.tick(time.time() + 100)
    alert_router.clear("incident", time.time())
    alert_router.tick(time.time() + 100)
    wait_for(lambda: len(endpoint.received) == 2)
    assert [body["text"].split(":")[0] for body in bodies(endpoint)] == ["NEEDS YOU", "OVER"]


def test_the_start_and_the_end_of_a_run_are_sent_where_they_are_wanted(
    router: Callable[..., AlertRouter], endpoint: Endpoint, happened: Callable[..., OutgoingAlert]
) -> None:
    alert_router = router({"discord": endpoint.url}, AlertFilter(runs=True))
    alert_router.enqueue(happened(AlertEvent.DISK_FILLING))
    alert_router.enqueue(happened(AlertEvent.RUN_STARTED))
    alert_router.close(time.time(), 60)
    titles = [body["content"] for body in bodies(endpoint)]
    assert sorted(titles) == [
        "INFO: bert on gpu-7: the run started",
        "LOOK: bert on gpu-7: the disk has no room for the next two checkpoints",
    ]


def test_a_sink_that_never_answers_delays_no_other(
    router: Callable[..., AlertRouter],
    endpoint: Endpoint,
    closed_port: int,
    happened: Callable[..., OutgoingAlert],
) -> None:
    alert_router = router({"slack": f"http://127.0.0.1:{closed_port}/x", "discord": endpoint.url})
    alert_router.enqueue(happened(AlertEvent.OPENED))
    alert_router.tick(time.time() + 100)
    wait_for(lambda: len(endpoint.received) == 1)
    alert_router.close(time.time(), 60)
    (left,) = alert_router.undelivered()
    assert (left.name, left.count, left.reason) == ("slack", 1, "Connection refused")


@pytest.mark.parametrize("kind", CHATS)
def test_a_refused_alert_is_kept_with_the_services_answer_and_without_its_secrets(  # noqa: PLR0913, PLR0917 - fixtures
    kind: str, router: Callable[..., AlertRouter], endpoint: Endpoint, happened: Callable[..., OutgoingAlert], tmp_path: Path, log: Log
) -> None:
    endpoint.script = [(400, {})]
    endpoint.answer_body = f"invalid_payload\x1b[31m at {endpoint.url} for {ROUTING_KEY} and T0P-SECRET".encode()
    alert_router = router({kind: endpoint.url})
    alert_router.enqueue(happened(AlertEvent.GIVEN_UP))
    alert_router.close(time.time(), 60)
    (letter,) = refused(tmp_path)
    assert letter.reason.startswith("status 400: invalid_payload [31m at http://127.0.0.1")
    assert letter.title.startswith("NEEDS YOU: bert on gpu-7")
    everything = repr(log.events) + "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    leaks = [word for word in ("T0P-SECRET", "s3cret", "services/T0P") if word in everything]
    assert leaks == []
    assert ROUTING_KEY not in everything or kind != "pagerduty"


KILLED = """
import pathlib, signal, sys, time
from supervisor.alerts import sinks
from supervisor.alerts.model import AlertAction, AlertEvent, AlertSeverity, OutgoingAlert
from supervisor.alerts.router import AlertFilter, AlertRouter
from supervisor.alerts.sender import AlertSender, RetryPace
from supervisor.alerts.spool import CAP, THREADS, opened
from supervisor.alerts.threads import single
from tests.alerts.conftest import count_dropped, kept
place = pathlib.Path(sys.argv[1])
router = AlertRouter(60.0, AlertSender(place, 20.0, print, RetryPace(0.05, 0.1)))
for kind in ("webhook", "slack"):
    router.add(kind, sinks.make(sinks.SinkOptions(kind, sys.argv[2])), AlertFilter())
router.sender.start()
now = time.time()
if sys.argv[3] == "raise":
    for n in range(600):
        alert = OutgoingAlert("run", "bert", AlertEvent.OPENED, AlertSeverity.WARNING, n, n, now, AlertAction.RESTART)
        router.sender.enqueue(router.routes[0].queue, single(alert))
    router.enqueue(alert)
    while count_dropped(place) < 600 - CAP or len(kept(place)) < CAP or len(opened(place).all(THREADS)) < 2:
        time.sleep(0.25)
    print("full", flush=True)
    signal.pause()
router.tick(now + 100)
router.close(now, 100.0)  # it returns once nothing waits
"""


@pytest.mark.process
def test_after_kill_9_with_a_full_outbox_each_alert_is_delivered_or_counted(tmp_path: Path, endpoint: Endpoint, closed_port: int) -> None:
    place = tmp_path
    command = [sys.executable, "-c", KILLED, str(place)]
    url = f"http://127.0.0.1:{closed_port}/x"
    with subprocess.Popen([*command, url, "raise"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as first:  # noqa: S603  our own program
        assert first.stdout is not None
        while (line := first.stdout.readline()) != "full\n":
            assert line, "it ended"
        first.send_signal(signal.SIGKILL)
        assert first.wait(60) == -signal.SIGKILL
    left = kept(place)
    assert len(left) == spool.CAP
    assert f"; {600 - spool.CAP} for webhook were dropped, the last at " in summary(tmp_path, "")
    done = subprocess.run([*command, endpoint.url, "next"], cwd=ROOT, timeout=120, check=False, capture_output=True)  # noqa: S603  our own program
    assert done.returncode == 0, done.stderr
    messages = bodies(endpoint)
    sent = [body["event_id"] for body in messages if "event_id" in body]
    lost = [event_id for event_id in left if event_id not in sent]
    assert len(lost) == count_dropped(place) - (600 - spool.CAP), "what was gathered had no room"
    assert sent[:-1] == [event_id for event_id in left if event_id not in lost]
    assert [body["text"].split(":")[0] for body in messages if "attachments" in body] == ["RESTARTS BY ITSELF"], (
        "what was gathered and not sent"
    )


@pytest.mark.slow
def test_ten_thousand_events_take_bounded_memory_delay_nobody_and_are_all_accounted_for(
    router: Callable[..., AlertRouter], endpoint: Endpoint, happened: Callable[..., OutgoingAlert], log: Log, tmp_path: Path
) -> None:
    endpoint.script = [(503, {})]
    alert_router = router({"webhook": endpoint.url, "slack": endpoint.url})
    first = happened(AlertEvent.OPENED)
    tracemalloc.start()
    before, began = tracemalloc.get_traced_memory()[0], time.monotonic()
    for n in range(10_000):
        alert_router.enqueue(replace(first, incident=n, attempt=n))
    assert within(10.0, since=began), "a millisecond for each, at most"
    alert_router.tick(time.time() + 100)
    for n in range(10_000):
        alert_router.sender.enqueue(alert_router.routes[0].queue, single(replace(first, incident=n, attempt=n)))
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert peak < 8 << 20, f"{peak} bytes: 10,000 alerts that are kept take about 20 MB"
    assert len(kept(tmp_path)) <= spool.CAP + 1
    endpoint.script = [(200, {})]
    alert_router.close(time.time(), 60)
    sent = [fields for name, fields in log.events if name == "alert.sent" and fields["sink"] == "webhook"]
    dropped = log.last("alert.dropped")["total"]
    assert len(sent) + dropped == 10_001, "the messages, and one thread"
    assert count_dropped(tmp_path) == dropped
    assert [left.dropped for left in alert_router.undelivered()] == [dropped]
    assert len({body["text"] for body in bodies(endpoint) if "attachments" in body}) == 1


def test_a_program_gets_the_document_and_its_exit_code_counts(
    tmp_path: Path, happened: Callable[..., OutgoingAlert], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        'cat > "$0"; echo "SUPERVISE_ALERT_ID=$SUPERVISE_ALERT_ID HOME_TOKEN=$HOME_TOKEN" >> "$0.env"; echo "no such pager" >&2; exit "$1"'
    )
    monkeypatch.setenv("HOME_TOKEN", "CANARY")
    for code, expected in (
        (0, Delivered()),
        (75, DeliveryDeferred("exit code 75: no such pager")),
        (3, DeliveryRefused("exit code 3: no such pager")),
    ):
        sink = sinks.make(SinkOptions("exec", argv=("/bin/sh", "-c", script, str(tmp_path / "got"), str(code)), start=start_program))
        (request,) = sink.requests(single(happened(AlertEvent.OPENED)))
        assert sink.deliver(request.event_id, request.body, 5.0) == expected
    document = json.loads((tmp_path / "got").read_text())
    assert {"version": 1, "job": "bert", "event": "opened", "cause": "segfault", "node": "gpu-7"}.items() <= document.items()
    assert "HOME_TOKEN=\n" in (tmp_path / "got.env").read_text(), "the program gets no variable of ours"
    assert document["event_id"] in (tmp_path / "got.env").read_text()


def program(script: str, *words: Path, until: Callable[[int], object] = lambda _: True) -> sinks.AlertSink:
    """Return the sink of a shell script; its deadline counts from when `until` holds of its pid, however busy the machine is."""

    def started(argv: tuple[str, ...], environ: dict[str, str]) -> subprocess.Popen[bytes]:
        process = start_program(argv, environ)
        wait_for(lambda: until(process.pid), "the program")
        return process

    return sinks.make(SinkOptions("exec", argv=("/bin/sh", "-c", script, *map(str, words)), start=started))


def test_a_program_that_leaves_something_in_the_background_has_delivered() -> None:
    began = time.monotonic()
    sink = program("sleep 30 & echo done >&2; exit 0", until=lambda pid: not is_running(pid))
    assert sink.deliver("ab" * 16, b"{}", 20) == Delivered()
    assert within(2.0, since=began), "what holds its stderr is not waited for"


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    sink = program('sleep 300 & echo $! > "$0"; wait', pid, until=lambda _: pid.exists() and pid.read_text().endswith("\n"))
    assert sink.deliver("ab" * 16, b"{}", 0.2) == DeliveryDeferred("it did not end within 0.2 s")
    wait_for(lambda: not is_running(int(pid.read_text())), "its child's end")


def test_a_missing_program_is_refused_and_a_busy_system_defers() -> None:
    absent = sinks.make(SinkOptions("exec", argv=("/nonexistent",), start=start_program))
    assert absent.deliver("ab" * 16, b"{}", 1) == DeliveryRefused("No such file or directory")

    def start(argv: tuple[str, ...], environ: dict[str, str]) -> subprocess.Popen[bytes]:
        del argv, environ
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    busy = sinks.make(SinkOptions("exec", argv=("/bin/true",), start=start))
    assert busy.deliver("ab" * 16, b"{}", 1) == DeliveryDeferred("Resource temporarily unavailable")


def test_a_program_that_writes_without_end_and_reads_nothing_takes_no_memory() -> None:
    sink = program("exec cat /dev/zero >&2")
    tracemalloc.start()
    outcome = sink.deliver("ab" * 16, b"x" * (1 << 20), 0.5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert outcome == DeliveryDeferred("it did not end within 0.5 s")
    assert peak < 4 << 20
