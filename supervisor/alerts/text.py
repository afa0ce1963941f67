"""Writes a notification for people: a title, sentences, facts and a command, as far as the sink's `detail` allows. Pure.

    none     job, whether a person is needed, state, severity, time, incident, command
    summary  adds node, what happened, run, cause, confidence, rank, FILE:LINE of the user's code, step, attempt, the action, what to do,
             and sentences made of these
    lines    adds lines of evidence, paths and the text of the event, with secrets replaced by digests

Only `lines` may hold anything that the job printed, or a directory.
"""

from __future__ import annotations

import re
import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from supervisor.alerts.model import INCIDENT, AlertAction, AlertEvent, AlertSeverity, ThreadEffect, plain_name
from supervisor.alerts.threads import NotificationState
from supervisor.classify.remedies import general_hints
from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.model import Cause, FailureVerdict
from supervisor.core.units import span_text, timestamp
from supervisor.core.values import replace
from supervisor.errors import ExitCode

if TYPE_CHECKING:
    from supervisor.alerts.model import OutgoingAlert
    from supervisor.alerts.threads import Notification

#: The version of `document`.
VERSION: Final = 1
MOST_LINES: Final = 10
_LINE: Final = 300
#: Where the part of a sentence ends that a title has.
_PAUSE: Final = re.compile(r"[,:;.](?:\s|$)")
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
    """Return one line, as a locked phone shows it: whether a person is needed, which job, where, and what happened."""
    alert = sent.alert
    node = f" on {alert.node}" if alert.node and detail is not AlertDetail.NONE else ""
    has_stopped = sent.state is not NotificationState.RESOLVED and _is_incident(alert) and alert.action is AlertAction.STOP
    stopped = " stopped" if has_stopped else ""
    happened = "" if detail is AlertDetail.NONE else f"{stopped}: {_subject(sent)}"
    return f"{_call(sent)}: {plain_name(alert.job)}{node}{happened}"


def sentences(sent: Notification, detail: AlertDetail) -> str:
    """Return what happened, the action about it, and a person's task, in sentences."""
    if detail is AlertDetail.NONE:
        return "supervise reports a change of this job."
    return " ".join(filter(None, (_happened(sent, detail), *_joined(sent), _doing(sent), _to_do(sent))))


def facts(sent: Notification, detail: AlertDetail) -> list[tuple[str, str]]:
    """Return (name, value) for the fields of a message."""
    alert = sent.alert
    rows = [("job", plain_name(alert.job)), ("severity", sent.severity.value), ("when", _clock(alert.ts))]
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
    rows += [("code", alert.own_code)] if alert.own_code else []
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
    """Return the notification as data: what `webhook` and `exec` get."""
    alert = sent.alert
    rank, failed_on = alert.own_place
    fields: dict[str, Any] = {
        "version": VERSION,  # it grows when a field changes its meaning or is removed
        "event_id": sent.event_id,  # 32 hex digits, the same at every retry
        "thread": sent.thread,  # by which the receiver knows what an update or an end belongs to
        "state": sent.state.value,  # `firing`, `updated` or `resolved`; `message` has no thread
        "severity": sent.severity.value,  # of the event
        "needs_person": needs_person(sent),  # whether nothing continues until a person has looked
        "event": alert.event.value,  # one of the events
        "job": plain_name(alert.job),  # the job's name
        "incident": alert.own_incident,  # the incident's number, 0: of none
        "title": title(sent, detail),  # one line
        "text": sentences(sent, detail),  # sentences: what happened, where, the action, what you do
        "command": command(sent, detail),  # what to type on the machine to see the rest
        "ts": timestamp(alert.ts),  # when it happened, RFC 3339, UTC
    }
    if detail is AlertDetail.NONE:
        return fields
    fields |= {
        "node": alert.node,  # from here on only with `detail` `summary` and `lines`: where this is from
        "run_id": plain_name(alert.run_id),  # the run
        "cause": alert.own_cause.value,  # of our list, or of your signature
        "confidence": alert.confidence,  # how sure it is
        "rank": rank,  # null: unknown
        "failed_on": failed_on,  # its node where the job has several; empty: unknown
        "code": alert.own_code,  # the line of your code; empty: unknown
        "step": alert.step,  # the last known step, or null
        "attempt": alert.attempt,  # the attempt
        # the action: `restart`, `stop`, `none`, or how the restarted training began (`resumed`, `started_from_scratch`,
        # `resume_not_confirmed`)
        "action": alert.action.value,
        "failures": sent.failures,  # of the thread so far
        "since": timestamp(sent.since_t or alert.ts),  # when the thread began
        "also": [also.event.value for also in sent.also],  # the other events of the same moment
    }
    if detail is AlertDetail.LINES:
        fields |= {
            "lines": lines(sent, detail),  # only with `detail` `lines`: evidence
            "state_dir": alert.state_dir,  # likewise: where the job's files are
        }
    return fields


def _is_incident(alert: OutgoingAlert) -> bool:
    return alert.event.row.thread == INCIDENT and alert.event.row.effect is not ThreadEffect.JOIN


def _is_restarted(alert: OutgoingAlert) -> bool:
    return alert.event.row.thread == INCIDENT and alert.action is AlertAction.RESTART


def needs_person(sent: Notification) -> bool:
    """Whether nothing continues until a person has looked, or harm is done meanwhile."""
    alert = sent.alert
    if sent.state is NotificationState.RESOLVED:
        return False
    if _is_restarted(alert):
        return CAUSE_TABLE[alert.cause].needs_person
    return alert.severity is AlertSeverity.CRITICAL or alert.event is AlertEvent.HANG or alert.action is AlertAction.STOP


def _call(sent: Notification) -> str:
    """Return whether a person is needed, which is the first thing to know at night."""
    alert = sent.alert
    if sent.state is NotificationState.RESOLVED:
        return "OVER"
    if needs_person(sent):
        return "NEEDS YOU"
    if _is_restarted(alert):
        return "RESTARTS BY ITSELF"
    return "INFO" if alert.severity is AlertSeverity.INFO else "LOOK"


def _subject(sent: Notification) -> str:
    """Return the title's last part: what happened."""
    alert = sent.alert
    if sent.state is NotificationState.RESOLVED and alert.event is AlertEvent.STOPPED:
        return "it was stopped"
    if sent.state is NotificationState.RESOLVED and _is_incident(alert):
        return "it trains again"
    over = "it was: " if sent.state is NotificationState.RESOLVED else ""
    place = f" ({alert.own_code})" if alert.own_code else ""
    return over + _first_part(_meaning(alert) if _is_incident(alert) else _sentence(alert)) + place


def _first_part(sentence: str) -> str:
    """Return the words before the first comma, colon or full stop, as they are within a sentence."""
    part = _PAUSE.split(sentence, maxsplit=1)[0]
    return part if part[:2].isalpha() and part[:2].isupper() else part[:1].lower() + part[1:]


def _meaning(alert: OutgoingAlert) -> str:
    return CAUSE_TABLE[alert.cause].sentence(alert.confidence) if alert.cause is not Cause.NONE else "The job failed"


def _clock(t: float) -> str:
    return f"{timestamp(t)[:19].replace('T', ' ')} UTC"


def _happened(sent: Notification, detail: AlertDetail) -> str:
    alert = sent.alert
    if sent.state is NotificationState.RESOLVED:
        after = f" after {span_text(alert.ts - sent.since_t)}" if sent.since_t else ""
        if not _is_incident(alert):
            return f"This is over{after}. It was: {_sentence(alert)}"
        if alert.event is AlertEvent.STOPPED:
            return f"The job was stopped{after} while this was open. Nothing to do: the next start continues with it."
        began = _BEGAN.get(alert.action)
        times = f" It failed {sent.failures} times." if sent.failures > 1 else ""
        return f"The training runs again{after}{f', {began}' if began else ''}.{times} Nothing to do."
    if alert.event is AlertEvent.RUN_FINISHED:
        goes_on = ": the next start continues it" if alert.exit_code == ExitCode.REQUEUE else ""
        return f"The run ended with exit code {alert.exit_code}{goes_on}."
    if not _is_incident(alert):
        return _placed(_sentence(alert), _where(alert) if alert.event is AlertEvent.HANG else [])
    times = f"{sent.failures} failures in {span_text(alert.ts - sent.since_t)}, the last: " if sent.failures > 1 else ""
    meaning = alert.sentence if alert.sentence and detail is AlertDetail.LINES else _meaning(alert)
    return times + _placed(f"{meaning.removesuffix('.')}.", _where(alert))


def _where(alert: OutgoingAlert) -> list[str]:
    """Return rank and node, the line of the user's code, and the step; "" for an unknown one."""
    rank, node = alert.own_place
    whose = f"{'' if rank is None else f'rank {rank}'}{f' on {node}' if node else ''}".strip()
    return [whose, alert.own_code, f"step {alert.step}" if alert.step is not None else ""]


def _placed(sentence: str, where: list[str]) -> str:
    """Return a sentence with its known place before its full stop."""
    known = ", ".join(filter(None, where))
    return f"{sentence.removesuffix('.')} ({known})." if known else sentence


def _joined(sent: Notification) -> list[str]:
    return list(dict.fromkeys(_sentence(also) for also in sent.also if also.event.row.sentence))


def _sentence(alert: OutgoingAlert) -> str:
    rank, node = alert.own_place
    whose = f"Rank {rank}{f' on {node}' if node else ''}" if rank is not None else f"Node {node}"
    return (
        alert.event.row.sentence.replace("{subject}", alert.subject)
        .replace("{when}", alert.when or "memory soon")
        .replace("{whose}", whose)
    )


def _doing(sent: Notification) -> str:
    alert = sent.alert
    if sent.state is NotificationState.RESOLVED or not _is_incident(alert):
        return ""
    if alert.action is AlertAction.STOP:
        return "supervise stopped the run: no permitted change would help."
    return f"supervise restarts it as attempt {alert.attempt + 1}." if alert.action is AlertAction.RESTART else ""


def _to_do(sent: Notification) -> str:
    """Return what a person does about what leads, or that there is nothing to do."""
    alert = sent.alert
    if sent.state is NotificationState.RESOLVED or alert.event.row.effect is ThreadEffect.CLOSE:
        return ""
    advice = [also.event.row.advice for also in (alert, *sent.also) if also.event.row.advice]
    if (
        _is_incident(alert)
        and alert.cause is not Cause.NONE
        and (alert.action is AlertAction.STOP or CAUSE_TABLE[alert.cause].needs_person)
    ):
        advice.append(_remedy(alert))
    if not advice:
        return "Nothing to do: it continues by itself." if alert.action is AlertAction.RESTART and _is_incident(alert) else ""
    advised = "; ".join(dict.fromkeys(advice))
    return f"To do: {advised}."


def _remedy(alert: OutgoingAlert) -> str:
    """Return the hints that the alert carries; of an alert that carries none, those that hold for every failure of its cause."""
    return "; ".join(alert.hints or general_hints(FailureVerdict(alert.cause, 1.0, "", "")))
