"""Events to every sink at once, over real connections: filters, isolation, answers, a kill, a flood, and no secret anywhere."""

from __future__ import annotations

import dataclasses
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.alerts import outbox, sinks
from supervisor.alerts.delivery import RetryPace
from supervisor.alerts.endpoint import HttpEndpoint
from supervisor.alerts.model import AlertEvent, AlertSeverity, OutgoingAlert
from supervisor.alerts.router import AlertFilter, AlertRouter
from supervisor.alerts.sinks import Delivered, DeliveryDeferred, DeliveryRefused, SinkOptions
from supervisor.core.model import Cause
from supervisor.run.alerting import start_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Endpoint, Log

ROOT = Path(__file__).parents[2]
FAST = RetryPace(base_s=0.02, cap_s=0.1, retry_after_cap_s=1.0)
ROUTING_KEY = "CANARYroutingkey0123456789abcdef"
EVERYTHING = AlertFilter()
CHATS = ("slack", "pagerduty", "discord", "teams", "alertmanager")


@pytest.fixture
def router(tmp_path: Path, log: Log) -> Iterator[Callable[..., AlertRouter]]:
    made: list[AlertRouter] = []

    def make(targets: dict[str, str], wanted: AlertFilter = EVERYTHING, **options: Any) -> AlertRouter:  # noqa: ANN401  of a sink
        one = AlertRouter(0.0)
        for kind, url in targets.items():
            sink = sinks.make(SinkOptions(kind, url, ROUTING_KEY.encode() if kind in {"pagerduty", "webhook"} else None, **options))
            one.add(kind, sink, tmp_path / "alerts" / kind, wanted=wanted, grouped=kind != "webhook", deadline_s=2.0, log=log, pace=FAST)
        made.append(one)
        return one

    yield make
    for one in made:
        one.close(time.time(), 1.0)


@pytest.fixture
def happened(alert: Callable[..., OutgoingAlert]) -> Callable[..., OutgoingAlert]:
    def make(event: AlertEvent, incident: int = 1, **changes: Any) -> OutgoingAlert:  # noqa: ANN401  its fields
        severity = event.row.severity
        return dataclasses.replace(alert(incident, event), severity=severity, ts=time.time(), node="gpu-7", confidence=0.9, **changes)

    return make


def bodies(endpoint: Endpoint) -> list[Any]:
    return [json.loads(request.body) for request in endpoint.received]


def dead(tmp_path: Path, kind: str) -> list[outbox.KeptAlert]:
    return outbox.listed(tmp_path / "alerts" / kind, "dead")


def test_every_kind_takes_what_it_is_sent_and_the_webhook_every_event(
    router: Callable[..., AlertRouter], endpoint: Endpoint, happened: Callable[..., OutgoingAlert]
) -> None:
    one = router(dict.fromkeys(("webhook", *CHATS), endpoint.url))
    for event in (AlertEvent.OPENED, AlertEvent.GIVEN_UP):
        one.enqueue(happened(event))
    one.close(time.time(), 10)
    assert one.undelivered() == []
    got = bodies(endpoint)
    assert sorted(body["event"] for body in got if body.get("version") == 1) == ["given_up", "opened"]
    assert [body["event_action"] for body in got if "event_action" in body] == ["trigger"]
    assert [body["routing_key"] for body in got if "event_action" in body] == [ROUTING_KEY]
    assert len(got) == 2 + len(CHATS), "opened and given_up of one instant are one message"


def test_a_filter_of_severity_lets_the_end_of_what_it_let_through_pass_and_no_other(
    router: Callable[..., AlertRouter], endpoint: Endpoint, happened: Callable[..., OutgoingAlert], wait_until: Callable[..., None]
) -> None:
    one = router({"slack": endpoint.url}, AlertFilter(AlertSeverity.CRITICAL))
    one.enqueue(happened(AlertEvent.OPENED))
    one.enqueue(happened(AlertEvent.RESOLVED))
    one.tick(time.time() + 100)
    one.enqueue(happened(AlertEvent.OPENED, 2))
    one.enqueue(happened(AlertEvent.GIVEN_UP, 2))
    one.tick(time.time() + 100)
    one.clear("incident", time.time())
    one.tick(time.time() + 100)
    wait_until(lambda: len(endpoint.received) == 2)
    assert [body["text"].split()[0] for body in bodies(endpoint)] == ["FIRING", "RESOLVED"]


def test_a_filter_of_causes_and_of_runs(
    router: Callable[..., AlertRouter], endpoint: Endpoint, happened: Callable[..., OutgoingAlert]
) -> None:
    one = router({"discord": endpoint.url}, AlertFilter(causes=frozenset({Cause.GPU_ECC}), runs=True))
    one.enqueue(happened(AlertEvent.OPENED))
    one.enqueue(happened(AlertEvent.DISK_FILLING))  # it has no cause of its own
    one.enqueue(happened(AlertEvent.RUN_STARTED))
    one.close(time.time(), 10)
    titles = [body["embeds"][0]["title"] for body in bodies(endpoint)]
    assert sorted(titles) == ["FIRING bert on gpu-7: disk filling", "INFO bert on gpu-7: run started"]


def test_a_sink_that_never_answers_delays_no_other(
    router: Callable[..., AlertRouter],
    endpoint: Endpoint,
    closed_port: int,
    happened: Callable[..., OutgoingAlert],
    wait_until: Callable[..., None],
) -> None:
    one = router({"slack": f"http://127.0.0.1:{closed_port}/x", "discord": endpoint.url})
    one.enqueue(happened(AlertEvent.OPENED))
    one.tick(time.time() + 100)
    wait_until(lambda: len(endpoint.received) == 1)
    one.close(time.time(), 2)
    (left,) = one.undelivered()
    assert (left.name, left.count, left.reason) == ("slack", 1, "Connection refused")


@pytest.mark.parametrize("kind", CHATS)
def test_a_refused_alert_is_kept_with_the_services_answer_and_without_its_secrets(  # noqa: PLR0913, PLR0917 - fixtures
    kind: str, router: Callable[..., AlertRouter], endpoint: Endpoint, happened: Callable[..., OutgoingAlert], tmp_path: Path, log: Log
) -> None:
    endpoint.script = [(400, {})]
    endpoint.answer_body = f"invalid_payload\x1b[31m at {endpoint.url} for {ROUTING_KEY} and T0P-SECRET".encode()
    one = router({kind: endpoint.url})
    one.enqueue(happened(AlertEvent.GIVEN_UP))
    one.close(time.time(), 10)
    (letter,) = dead(tmp_path, kind)
    assert letter.reason.startswith("status 400: invalid_payload [31m at http://127.0.0.1")
    assert letter.title.startswith("FIRING bert on gpu-7")
    everything = repr(log.events) + "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    leaks = [word for word in ("T0P-SECRET", "s3cret", "services/T0P") if word in everything]
    assert leaks == []
    assert ROUTING_KEY not in everything or kind != "pagerduty"


@pytest.mark.parametrize(
    ("status", "headers", "outcome"),
    [
        (2, {}, Delivered()),
        (3, {}, DeliveryDeferred("Connection reset by peer")),
        (0, {}, DeliveryDeferred("no answer within 1 s")),
        (307, {"Location": "http://169.254.169.254/latest/meta-data/"}, DeliveryRefused("status 307: redirects are not followed")),
        (302, {"Location": "//169.254.169.254/"}, DeliveryRefused("status 302: redirects are not followed")),
    ],
    ids=["endless body", "reset", "silence", "redirect to metadata", "redirect without scheme"],
)
def test_what_a_hostile_answer_means(endpoint: Endpoint, status: int, headers: dict[str, str], outcome: object) -> None:
    endpoint.script = [(status, headers)]
    before = set(threading.enumerate())
    assert HttpEndpoint(endpoint.url, None).post("x", b"{}", 1.0) == outcome
    assert len(endpoint.received) == 1
    for thread in [one for one in threading.enumerate() if one not in before and one.name == "alert-request"]:
        thread.join(5)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tls") / "self-signed.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run(  # noqa: S603  our own words
        [*command, "-subj", "/CN=elsewhere.example", "-keyout", str(place), "-out", f"{place}.crt"], check=True, capture_output=True
    )
    place.write_text(place.read_text() + Path(f"{place}.crt").read_text())
    return place


def test_a_certificate_that_nobody_vouches_for_gets_no_alert(endpoint: Endpoint, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True) as listener:

        def serve() -> None:
            try:
                listener.accept()
            except OSError:
                return

        thread = threading.Thread(target=serve)
        thread.start()
        outcome = HttpEndpoint(f"https://127.0.0.1:{listener.getsockname()[1]}/T0P-SECRET", None).post("x", b"{}", 5.0)
        thread.join(5)
    assert isinstance(outcome, DeliveryDeferred)
    assert "certificate" in outcome.reason.lower()
    assert endpoint.received == []


KILLED = """
import pathlib, signal, sys, time
from supervisor.alerts import sinks
from supervisor.alerts.delivery import RetryPace
from supervisor.alerts.model import AlertAction, AlertEvent, AlertSeverity, OutgoingAlert
from supervisor.alerts.router import AlertFilter, AlertRouter
router, place, pace = AlertRouter(60.0), pathlib.Path(sys.argv[1]), RetryPace(0.05, 0.1)
for kind in ("webhook", "slack"):
    sink = sinks.make(sinks.SinkOptions(kind, sys.argv[2]))
    grouped = kind == "slack"
    router.add(kind, sink, place / kind, wanted=AlertFilter(), grouped=grouped, deadline_s=2.0, log=print, pace=pace)
now = time.time()
if sys.argv[3] == "raise":
    for n in range(256):
        router.enqueue(OutgoingAlert("run", "bert", AlertEvent.OPENED, AlertSeverity.WARNING, n, n, now, AlertAction.RESTART))
        while len(list((place / "webhook").glob("*.json"))) <= n:
            time.sleep(0.001)
    while not (place / "slack" / "threads.json").exists():
        time.sleep(0.001)
    print("full", flush=True)
    signal.pause()
router.tick(now + 100)
router.close(now, 20.0)
"""


@pytest.mark.process
def test_kill_9_with_a_full_outbox_loses_nothing_that_was_in_it(tmp_path: Path, endpoint: Endpoint, closed_port: int) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    url = f"http://127.0.0.1:{closed_port}/x"
    with subprocess.Popen([*command, url, "raise"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as first:  # noqa: S603  our own program
        assert first.stdout is not None
        while (line := first.stdout.readline()) != "full\n":
            assert line, "it ended"
        first.send_signal(signal.SIGKILL)
        assert first.wait(10) == -signal.SIGKILL
    kept = [letter.event_id for letter in outbox.listed(tmp_path / "webhook")]
    assert len(kept) == outbox.CAP
    done = subprocess.run([*command, endpoint.url, "next"], cwd=ROOT, timeout=60, check=False, capture_output=True)  # noqa: S603  our own program
    assert done.returncode == 0, done.stderr
    got = bodies(endpoint)
    assert [body["event_id"] for body in got if "event_id" in body] == kept
    assert [body["text"].split(":")[0] for body in got if "text" in body] == ["FIRING bert"], "what was gathered and not sent"


def test_ten_thousand_events_cost_the_caller_nothing_and_are_counted(  # noqa: PLR0913, PLR0917 - fixtures
    router: Callable[..., AlertRouter],
    endpoint: Endpoint,
    happened: Callable[..., OutgoingAlert],
    log: Log,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> None:
    endpoint.script = [(503, {})]
    one = router({"webhook": endpoint.url, "slack": endpoint.url})
    first = happened(AlertEvent.OPENED)
    for n in range(10_000):
        one.enqueue(dataclasses.replace(first, incident=n, attempt=n))
    one.tick(time.time() + 100)
    wait_until(lambda: log.count("alert.dropped") > 0)
    assert len(list((tmp_path / "alerts/webhook").glob("*.json"))) <= outbox.CAP + 1
    endpoint.script = [(200, {})]
    wait_until(lambda: [body for body in bodies(endpoint) if "text" in body])
    assert len({body["text"] for body in bodies(endpoint) if "text" in body}) == 1


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
        (request,) = sink.requests(happened(AlertEvent.OPENED))
        assert sink.deliver(request.event_id, request.body, 5.0) == expected
    document = json.loads((tmp_path / "got").read_text())
    assert {"version": 1, "job": "bert", "event": "opened", "cause": "segfault", "node": "gpu-7"}.items() <= document.items()
    assert "HOME_TOKEN=\n" in (tmp_path / "got.env").read_text(), "the program gets no variable of ours"
    assert document["event_id"] in (tmp_path / "got.env").read_text()


def test_a_program_that_leaves_something_in_the_background_has_delivered() -> None:
    sink = sinks.make(SinkOptions("exec", argv=("/bin/sh", "-c", "sleep 3 & exit 0"), start=start_program))
    assert sink.deliver("ab" * 16, b"{}", 0.7) == Delivered()


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    script = 'sleep 300 & echo $! > "$0"; wait'
    sink = sinks.make(SinkOptions("exec", argv=("/bin/sh", "-c", script, str(tmp_path / "pid")), start=start_program))
    assert sink.deliver("ab" * 16, b"{}", 0.7) == DeliveryDeferred("it did not end within 0.7 s")
    pid = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] if Path(f"/proc/{pid}").exists() else "X"
    assert state in "XZ"
    assert isinstance(
        sinks.make(SinkOptions("exec", argv=("/nonexistent",), start=start_program)).deliver("ab" * 16, b"{}", 1), DeliveryRefused
    )
