"""An Apprise service, with a real receiver on loopback: the messages that it gets, and the answer to a message that it refuses."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from supervisor.alerts import sinks
from supervisor.alerts.model import AlertAction, AlertEvent, AlertSeverity
from supervisor.alerts.sinks import Delivered, DeliveryDeferred, SinkOptions
from supervisor.alerts.threads import Notification, NotificationState, single
from supervisor.core.values import replace
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Endpoint

    from supervisor.alerts.model import OutgoingAlert

pytest.importorskip("apprise", reason="the extra `apprise` is not installed: pip install -e .[apprise]")


def sink(endpoint: Endpoint) -> sinks.AlertSink:
    return sinks.make(SinkOptions("apprise", f"json://alice:passw0rd@127.0.0.1:{endpoint.port}/T0P-SECRET"))


def test_a_service_gets_title_text_command_and_kind(endpoint: Endpoint, alert: Callable[..., OutgoingAlert]) -> None:
    given_up = replace(alert(event=AlertEvent.GIVEN_UP), severity=AlertSeverity.CRITICAL, action=AlertAction.STOP)
    over = Notification("ab" * 16, NotificationState.RESOLVED, alert(event=AlertEvent.RESOLVED), AlertSeverity.CRITICAL)
    target = sink(endpoint)
    for notification in (single(given_up), over):
        (written,) = target.requests(notification)
        assert b"SECRET" not in written.body, "the spool never holds the address"
        assert target.deliver(written.event_id, written.body, 20.0) == Delivered()
    first, second = (json.loads(request.body) for request in endpoint.received)
    assert first["title"] == "NEEDS YOU: bert stopped: native code accessed invalid memory"
    assert first["message"].endswith("\n\nsupervise why 1 --job bert")
    assert (first["type"], second["type"]) == ("failure", "success")
    assert target.host == "apprise (JSON)"


def test_a_rejected_alert_is_retried_and_the_reason_holds_no_secret(endpoint: Endpoint, alert: Callable[..., OutgoingAlert]) -> None:
    endpoint.script = [(404, {})]
    (written,) = sink(endpoint).requests(single(alert()))
    outcome = sink(endpoint).deliver(written.event_id, written.body, 20.0)
    assert isinstance(outcome, DeliveryDeferred)
    assert "404" in outcome.reason
    assert not [secret for secret in ("T0P-SECRET", "passw0rd") if secret in outcome.reason]


def test_a_service_that_does_not_answer_is_left_behind_at_the_deadline(endpoint: Endpoint) -> None:
    endpoint.script = [(0, {})]
    assert sink(endpoint).deliver("ab" * 16, b'{"title":"a","body":"b","type":"info"}', 0.3) == DeliveryDeferred("no answer within 0.3 s")
    endpoint.stop.set()
    for thread in threading.enumerate():
        if thread.name == "alert-apprise":
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("url", ["", "nosuchservice://x", "https://"])
def test_an_address_that_apprise_does_not_know_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(SuperviseError, match="does not know this address") as caught:
        sinks.make(SinkOptions("apprise", url))
    assert "ntfys://TOPIC" in caught.value.hint


def test_a_missing_apprise_is_an_error_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(SuperviseError, match="apprise is not installed") as caught:
        sinks.make(SinkOptions("apprise", "json://127.0.0.1/"))
    assert "pip install apprise" in caught.value.hint
