"""What leaves the machine: the documented fields, and never a command line, a path, a log line or a host name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.alerts.model import AlertEvent, OutgoingAlert, encode, payload
from supervisor.core.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable

FIELDS = [
    "version", "event_id", "run_id", "job", "event", "severity", "state", "cause",
    "rank", "step", "attempt", "incident", "action", "command", "ts",
]  # fmt: skip


def test_payload_is_the_allow_list_and_documented(alert: Callable[..., OutgoingAlert]) -> None:
    told = payload(alert())
    assert list(told) == FIELDS
    docs = (Path(__file__).parents[2] / "docs/guides/alerts.md").read_text()
    assert [name for name in FIELDS if f"`{name}`" not in docs] == []
    assert json.loads(encode(alert())) == told
    assert told["ts"] == "2026-01-02T00:00:00.250Z"
    assert told["command"] == "supervise why 1 --job bert"


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (AlertEvent.OPENED, "firing"),
        (AlertEvent.RESOLVED, "resolved"),
        (AlertEvent.GIVEN_UP, "firing"),
        (AlertEvent.RECURRING_FAILURE, "firing"),
        (AlertEvent.GPU_QUARANTINED, "firing"),
        (AlertEvent.MEMORY_HELD, "firing"),
        (AlertEvent.BATCH_CHANGED, "resolved"),
        (AlertEvent.CHANGE_IGNORED, "firing"),
        (AlertEvent.STARTED_FROM_SCRATCH, "firing"),
    ],
)
def test_state_follows_the_event(alert: Callable[..., OutgoingAlert], event: AlertEvent, state: str) -> None:
    assert payload(alert(event=event))["state"] == state


def test_event_id_is_equal_for_the_same_news_only(alert: Callable[..., OutgoingAlert]) -> None:
    first = alert()
    assert first.event_id == replace(first, ts=first.ts + 60, step=None, rank=None).event_id
    others = [alert(incident=2), alert(event=AlertEvent.RESOLVED), alert(job="other"), replace(first, attempt=4)]
    assert len({first.event_id, *(other.event_id for other in others)}) == 5


def test_two_gpus_of_one_attempt_are_two_pieces_of_news_and_nothing_of_them_is_sent(alert: Callable[..., OutgoingAlert]) -> None:
    first = replace(alert(event=AlertEvent.GPU_QUARANTINED), about="GPU-a: xid 79")
    second = replace(first, about="GPU-b: xid 79")
    assert first.event_id != second.event_id
    assert first.event_id == replace(first, ts=first.ts + 60).event_id
    assert b"xid" not in encode(first)


def test_what_is_of_no_incident_is_looked_up_by_the_jobs_status(alert: Callable[..., OutgoingAlert]) -> None:
    assert payload(alert(incident=0, event=AlertEvent.CHANGE_IGNORED))["command"] == "supervise status --job bert"


@pytest.mark.parametrize("job", ["/home/alice/secret/train", "a b\nSTATUS: x", "\udcff\u202e", "", "x" * 5000, "python train.py --token=1"])
def test_an_odd_job_name_neither_fails_nor_shows_a_path(alert: Callable[..., OutgoingAlert], job: str) -> None:
    body = encode(alert(job=job))
    told = json.loads(body)
    assert len(body) < 1024
    assert not {"/", " ", "\n"} & set(told["job"])
    assert "alice" not in body.decode("ascii")
    assert told["command"] == "supervise why 1"  # it would not be found under the name that is told
