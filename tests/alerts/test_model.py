"""What leaves the machine: the documented fields, and never a command line, a path, a log line or a host name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from supervisor.alerts import text
from supervisor.alerts.model import AlertAction, AlertEvent, OutgoingAlert
from supervisor.alerts.threads import single
from supervisor.core.values import replace
from tests.support.pages import page_text

if TYPE_CHECKING:
    from collections.abc import Callable


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
    assert "xid" not in json.dumps(text.document(single(first), text.AlertDetail.SUMMARY))


@pytest.mark.parametrize("job", ["/home/alice/secret/train", "a b\nSTATUS: x", "\udcff\u202e", "", "x" * 5000, "python train.py --token=1"])
def test_an_odd_job_name_neither_fails_nor_shows_a_path(alert: Callable[..., OutgoingAlert], job: str) -> None:
    document = text.document(single(alert(job=job)), text.AlertDetail.SUMMARY)
    body = json.dumps(document)
    assert len(body) < 2048
    assert not {"/", " ", "\n"} & set(document["job"])
    assert "alice" not in body
    assert document["command"] == "supervise why 1"  # it would not be found under the name that is shown


@pytest.mark.parametrize("detail", text.AlertDetail)
def test_each_field_of_the_document_is_documented(alert: Callable[..., OutgoingAlert], detail: text.AlertDetail) -> None:
    docs = page_text("alert-format.md")
    assert [name for name in text.document(single(alert()), detail) if f"`{name}`" not in docs] == []


def test_an_alert_names_what_is_done_and_only_where_something_is(alert: Callable[..., OutgoingAlert]) -> None:
    for event in AlertEvent:
        for action in (AlertAction.NONE, AlertAction.STOP, AlertAction.RESTART):
            shown = text.sentences(single(replace(alert(event=event), action=action)), text.AlertDetail.SUMMARY)
            assert ("restarts it" in shown) <= (action is AlertAction.RESTART), (event, action)
