"""Writes a notification for people: a title, sentences, facts and a command, as far as the sink's `detail` allows. Pure.

    none     job, state, severity, incident, command
    summary  adds node, run, cause, confidence, rank, step, attempt, what is done, and sentences made of closed words and numbers
    lines    adds lines of evidence, paths and the text of the event, with secrets replaced by digests

Only `lines` may hold anything that the job printed, or a path.
"""

from __future__ import annotations

import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from supervisor.alerts.model import INCIDENT, AlertAction, AlertEvent, ThreadEffect, plain_name
from supervisor.alerts.threads import NotificationState
from supervisor.classify.remedies import general_hints
from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.model import Cause, Verdict
from supervisor.core.time_text import span_text, timestamp
from supervisor.core.values import replace
from supervisor.errors import ExitCode

if TYPE_CHECKING:
    from supervisor.alerts.model import OutgoingAlert
    from supervisor.alerts.threads import Notification

#: The version of `document`.
VERSION: Final = 1
MOST_LINES: Final = 10
_LINE: Final = 300
#: Where each restart only waits until somebody has acted.
_WAITS_FOR_A_PERSON: Final = frozenset({Cause.DISK_FULL})
_BEGAN = {
    AlertAction.RESUMED: "resumed from a checkpoint",
    AlertAction.STARTED_FROM_SCRATCH: "FROM SCRATCH, not from a checkpoint",
    AlertAction.RESUME_NOT_CONFIRMED: "no load of its checkpoint was seen",
}


class AlertDetail(StrEnum):
    """How much leaves the machine."""

    NONE = "none"
    SUMMARY = "summary"
    LINES = "lines"


def title(sent: Notification, detail: AlertDetail) -> str:
    """Return one line: what it is, which job, where."""
    alert = sent.alert
    state = {NotificationState.MESSAGE: sent.severity.value}.get(sent.state, sent.state.value).upper()
    node = f" on {alert.node}" if alert.node and detail is not AlertDetail.NONE else ""
    what = "" if detail is AlertDetail.NONE else f": {_subject(sent)}"
    return f"{state} {plain_name(alert.job)}{node}{what}"


def sentences(sent: Notification, detail: AlertDetail) -> str:
    """Return what happened, what is done about it, and what a person does, in sentences."""
    if detail is AlertDetail.NONE:
        return "supervise reports a change of this job."
    return " ".join(filter(None, (_happened(sent), *_joined(sent), _doing(sent), _to_do(sent))))


def facts(sent: Notification, detail: AlertDetail) -> list[tuple[str, str]]:
    """Return (name, value) for the fields of a message."""
    alert = sent.alert
    rows = [("job", plain_name(alert.job)), ("severity", sent.severity.value)]
    if alert.own_incident:
        rows.append(("incident", str(alert.own_incident)))
    if detail is AlertDetail.NONE:
        return rows
    if alert.node:
        rows.append(("node", alert.node))
    rows.append(("run", plain_name(alert.run_id)))
    if alert.own_cause is not Cause.NONE:
        rows.append(("cause", alert.cause.value + ("" if alert.confidence is None else f", {100 * alert.confidence:.0f} % sure")))
    rank, failed_on = alert.own_place
    rows += [(name, str(value)) for name, value in (("rank", rank), ("step", alert.step)) if value is not None]
    rows += [("culprit" if alert.own_cause is Cause.NONE else "failed on", failed_on)] if failed_on else []
    rows.append(("attempt", str(alert.attempt)))
    return rows


def lines(sent: Notification, detail: AlertDetail) -> list[str]:
    """Return the lines of evidence and the texts of the events, redacted by who made them; none unless `detail` is lines."""
    if detail is not AlertDetail.LINES:
        return []
    evidence = [line for alert in (sent.alert, *sent.also) for line in alert.lines]
    return [line[:_LINE] for line in dict.fromkeys(evidence)][:MOST_LINES]


def command(sent: Notification, detail: AlertDetail) -> str:
    """Return what to type on the node. With `lines` it works in any directory."""
    alert = sent.alert
    if alert.event is AlertEvent.TEST:
        return "supervise status -v"
    if alert.event is AlertEvent.UNIT_FAILED:
        return f"systemctl status {alert.subject}"
    place = f" --state-dir {shlex.quote(alert.state_dir)}" if detail is AlertDetail.LINES and alert.state_dir else ""
    return replace(alert, incident=alert.own_incident).command + place


def document(sent: Notification, detail: AlertDetail) -> dict[str, Any]:
    """Return the notification as data (docs/guides/alerts.md): what `exec` gets."""
    alert = sent.alert
    rank, failed_on = alert.own_place
    fields: dict[str, Any] = {
        "version": VERSION,
        "event_id": sent.event_id,
        "thread": sent.thread,
        "state": sent.state.value,
        "severity": sent.severity.value,
        "event": alert.event.value,
        "job": plain_name(alert.job),
        "incident": alert.own_incident,
        "title": title(sent, detail),
        "text": sentences(sent, detail),
        "command": command(sent, detail),
        "ts": timestamp(alert.ts),
    }
    if detail is AlertDetail.NONE:
        return fields
    return fields | {
        "node": alert.node,
        "run_id": plain_name(alert.run_id),
        "cause": alert.own_cause.value,
        "confidence": alert.confidence,
        "rank": rank,
        "failed_on": failed_on,
        "step": alert.step,
        "attempt": alert.attempt,
        "action": alert.action.value,
        "failures": sent.failures,
        "since": timestamp(sent.since_t or alert.ts),
        "also": [also.event.value for also in sent.also],
        **({"lines": lines(sent, detail), "state_dir": alert.state_dir} if detail is AlertDetail.LINES else {}),
    }


def _is_incident(alert: OutgoingAlert) -> bool:
    return alert.event.row.thread == INCIDENT and alert.event.row.effect is not ThreadEffect.JOIN


def _subject(sent: Notification) -> str:
    """Return the title's last part."""
    alert = sent.alert
    if sent.state is NotificationState.RESOLVED:
        return "it trains again" if _is_incident(alert) else f"{alert.event.value.replace('_', ' ')} is over"
    if not _is_incident(alert):
        return alert.event.value.replace("_", " ")
    return f"given up, {alert.cause.value}" if alert.event is AlertEvent.GIVEN_UP else alert.cause.value


def _happened(sent: Notification) -> str:
    alert = sent.alert
    if sent.state is NotificationState.RESOLVED:
        after = f" after {span_text(alert.ts - sent.since_t)}" if sent.since_t else ""
        if not _is_incident(alert):
            return f"This is over{after}: {_sentence(alert)}"
        began = _BEGAN.get(alert.action)
        times = f" It failed {sent.failures} times." if sent.failures > 1 else ""
        return f"The training runs again{after}{f', {began}' if began else ''}.{times}"
    if alert.event is AlertEvent.RUN_FINISHED:
        goes_on = ": the next start continues it" if alert.exit_code == ExitCode.REQUEUE else ""
        return f"The run ended with exit code {alert.exit_code}{goes_on}."
    if not _is_incident(alert):
        return _sentence(alert)
    rank, node = f"rank {alert.rank}" if alert.rank is not None else "", f"on {alert.failed_on}" if alert.failed_on else ""
    where = [f"{rank} {node}".strip(), f"step {alert.step}" if alert.step is not None else ""]
    sure = f"{100 * alert.confidence:.0f} % sure" if alert.confidence is not None else ""
    known = ", ".join(filter(None, (*where, sure)))
    times = f"{sent.failures} failures in {span_text(alert.ts - sent.since_t)}, the last: " if sent.failures > 1 else ""
    meaning = CAUSE_TABLE[alert.cause].meaning if alert.cause is not Cause.NONE else "The job failed"
    return f"{times}{meaning}{f' ({known})' if known else ''}."


def _joined(sent: Notification) -> list[str]:
    return list(dict.fromkeys(_sentence(also) for also in sent.also if also.event.row.sentence))


def _sentence(alert: OutgoingAlert) -> str:
    rank, node = alert.own_place
    whose = f"Rank {rank}{f' on {node}' if node else ''}" if rank is not None else f"Node {node}"
    return alert.event.row.sentence.replace("{subject}", alert.subject).replace("{whose}", whose)


def _doing(sent: Notification) -> str:
    alert = sent.alert
    if sent.state is NotificationState.RESOLVED or not _is_incident(alert):
        return ""
    if alert.event is AlertEvent.GIVEN_UP and alert.action is not AlertAction.STOP:
        return "The run was stopped before it trained again."
    if alert.action is AlertAction.STOP:
        return "supervise gave up: no permitted change would help, and a person has to look."
    return f"supervise restarts it as attempt {alert.attempt + 1}."


def _to_do(sent: Notification) -> str:
    alert = sent.alert
    needs_a_person = alert.action is AlertAction.STOP or alert.cause in _WAITS_FOR_A_PERSON
    is_open = sent.state is not NotificationState.RESOLVED and _is_incident(alert)
    return f"To do: {_remedy(alert)}." if needs_a_person and is_open and alert.cause is not Cause.NONE else ""


def _remedy(alert: OutgoingAlert) -> str:
    """Return the hints that the alert carries; of an alert that carries none, those that hold for every failure of its cause."""
    text = "; ".join(alert.hints or general_hints(Verdict(alert.cause, 1.0, "", "")))
    return text[:1].upper() + text[1:]
