"""What people are sent of a job's events: a loop of restarts is one alert that updates, and no end is sent before its beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from supervisor.alerts import threads
from supervisor.alerts.model import AlertAction, AlertEvent, AlertSeverity, OutgoingAlert
from supervisor.alerts.threads import MOST_THREADS, Notification, NotificationState, Threads, add_event, calm_thread, due
from supervisor.core.model import Cause
from supervisor.core.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable

SETTLE_S = 60.0
E = AlertEvent


def event(kind: AlertEvent, t: float, incident: int = 1, **changes: object) -> OutgoingAlert:
    stop = AlertAction.STOP if kind is E.GIVEN_UP else AlertAction.RESTART
    alert = OutgoingAlert("run", "bert", kind, kind.row.severity, incident, incident, t, stop, Cause.KILLED_UNKNOWN, node="gpu-7")
    return replace(alert, **changes)  # type: ignore[arg-type]  # its own fields


def played(events: Iterable[OutgoingAlert], until: float, known: Threads | None = None) -> tuple[Threads, list[Notification]]:
    """Return the threads and all notifications, with a tick five times a second."""
    state, sent, waiting, tick = known or {}, [], sorted(events, key=lambda event: event.ts), 0
    while (now := tick / 5) <= until:
        while waiting and waiting[0].ts <= now:
            state = add_event(state, waiting.pop(0))
        state, more = due(state, now, SETTLE_S)
        sent += more
        tick += 1
    return state, sent


def summary(sent: list[Notification]) -> list[tuple[str, str, int]]:
    return [(notification.state.value, notification.alert.event.value, notification.failures) for notification in sent]


def test_an_incident_fires_and_is_resolved_once_the_training_ran_for_a_while() -> None:
    _, sent = played([event(E.OPENED, 1), event(E.RESOLVED, 5)], 100)
    assert summary(sent) == [("firing", "opened", 1), ("resolved", "resolved", 1)]
    assert len({notification.thread for notification in sent}) == 1


def test_a_loop_of_restarts_is_one_alert_that_updates_at_powers_of_two_until_it_is_given_up() -> None:
    loop = [event(kind, 10 * n + offset, n) for n in range(1, 10) for kind, offset in ((E.OPENED, 0), (E.RESOLVED, 5))]
    last = [event(E.OPENED, 100, 10, action=AlertAction.STOP), event(E.GIVEN_UP, 100.001, 10)]
    state, sent = played([*loop, *last], 1000)
    assert summary(sent) == [
        ("firing", "opened", 1),
        ("updated", "opened", 2),
        ("updated", "opened", 4),
        ("updated", "opened", 8),
        ("updated", "given_up", 10),
    ]
    assert len({notification.thread for notification in sent}) == 1
    assert [notification.raised for notification in sent] == [False] * 4 + [True]
    assert state["incident"].fires, "what was given up continues firing until the job trains again"


def test_an_incident_opened_and_given_up_in_one_instant_is_one_alert() -> None:
    same = [event(E.OPENED, 1), event(E.RECURRING_FAILURE, 1), event(E.BATCH_CHANGED, 1.001), event(E.GIVEN_UP, 1.002)]
    _, sent = played(same, 100)
    assert [(notification.state, notification.alert.event, notification.severity) for notification in sent] == [
        (NotificationState.FIRING, E.GIVEN_UP, AlertSeverity.CRITICAL),
    ]
    assert {notification.event for notification in sent[0].also} == {E.OPENED, E.RECURRING_FAILURE, E.BATCH_CHANGED}


def test_an_incident_of_another_cause_is_news_and_a_repetition_is_not() -> None:
    events = [event(E.OPENED, n, n) for n in (1, 10, 20)] + [event(E.OPENED, 30, 4, cause=Cause.CUDA_OOM), event(E.OPENED, 40, 5)]
    _, sent = played(events, 50)
    assert [(notification.failures, notification.alert.cause) for notification in sent] == [
        (1, Cause.KILLED_UNKNOWN),
        (2, Cause.KILLED_UNKNOWN),
        (4, Cause.CUDA_OOM),
        (5, Cause.KILLED_UNKNOWN),
    ]


def test_a_given_up_incident_is_resolved_by_a_later_run_that_trains() -> None:
    state, _ = played([event(E.GIVEN_UP, 1)], 10)
    state, sent = played([], 100, calm_thread(state, "incident", 20))
    assert summary(sent) == [("resolved", "given_up", 0)]
    assert state == {}


def test_a_note_without_its_thread_is_a_message_and_an_end_without_its_beginning_is_none() -> None:
    _, sent = played([event(E.BATCH_CHANGED, 1), event(E.MIRROR_RECOVERED, 2), event(E.RUN_STARTED, 3)], 10)
    assert summary(sent) == [("message", "batch_changed", 0), ("message", "run_started", 0)]


def test_a_finished_run_ends_all_threads_and_a_stopped_run_ends_none() -> None:
    events = [event(E.OPENED, 1), event(E.DISK_FILLING, 1), event(E.GPU_QUARANTINED, 1, subject="GPU-a")]
    for code, ended in ((0, {"incident", "disk", "gpu"}), (75, set())):
        state, _ = played(events, 5)
        state = add_event(state, event(E.RUN_FINISHED, 6, exit_code=code), show=False)
        _, sent = due(state, 6, SETTLE_S, closing=True)
        assert {notification.alert.event.row.thread for notification in sent if notification.state is NotificationState.RESOLVED} == ended


def test_two_gpus_are_two_threads() -> None:
    _, sent = played([event(E.GPU_QUARANTINED, 1, subject="GPU-a"), event(E.GPU_QUARANTINED, 1, subject="GPU-b")], 10)
    assert len({notification.thread for notification in sent}) == 2


def test_the_end_of_the_process_sends_what_waits() -> None:
    state = add_event({}, event(E.OPENED, 1))
    state = add_event(state, event(E.RESOLVED, 1.5))
    left, sent = due(state, 1.6, SETTLE_S, closing=True)
    assert [notification.state.value for notification in sent] == ["firing", "resolved"]
    assert left == {}


def test_the_state_survives_as_json_and_the_same_news_has_the_same_id() -> None:
    state = add_event({}, event(E.OPENED, 1))
    again = msgspec.json.decode(msgspec.json.encode(state), type=threads.Threads)
    assert again == state
    assert [notification.event_id for notification in due(state, 5, SETTLE_S)[1]] == [
        notification.event_id for notification in due(again, 9, SETTLE_S)[1]
    ]
    before, sent = played([event(E.OPENED, 1), event(E.RESOLVED, 5)], 100)
    _, repeated = played([event(E.OPENED, 201), event(E.RESOLVED, 205)], 300, before)
    assert not {notification.event_id for notification in sent} & {notification.event_id for notification in repeated}, (
        "a later episode of the same thread is no repeat"
    )


@pytest.mark.parametrize("now", [1e12, 0.0, -5.0])
def test_a_clock_that_jumps_holds_nothing_back_for_long(now: float) -> None:
    assert len(due(add_event({}, event(E.OPENED, 100)), now, SETTLE_S)[1]) == 1


def test_ten_thousand_events_are_a_handful_of_messages_and_a_bounded_state() -> None:
    loop = [event(kind, n / 100, n) for n in range(1, 5001) for kind in (E.OPENED, E.RESOLVED)]
    state, sent = played(loop, 200)
    assert len(sent) <= 16
    for n in range(1000):
        state = add_event(state, event(E.GPU_QUARANTINED, 300, subject=f"GPU-{n}"))
    assert len(state) == MOST_THREADS
    assert len(msgspec.json.encode(state)) < 1 << 20
