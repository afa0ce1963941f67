"""Texts of other nodes, whose version may be another: a node's evidence of an attempt (its Post), the decision, how ranks began."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from checkpointing.io import typed
from supervisor.cluster import messages as protocol
from supervisor.core.model import Evidence, Gpu, Hang, JobDecision
from supervisor.core.state import Attempt, NodeReport, Run
from supervisor.core.values import Struct, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisor.cluster.member import MemberOutput


class _Row(Struct, frozen=True):
    """The text of a report, as JSON has it."""

    offset_s: float | None
    report: NodeReport


def encode_report(report: NodeReport, offset_s: float | None) -> str:
    """Return the text of a report. offset_s: the coordinator's clock less this node's, None: not known."""
    return json.dumps(msgspec.to_builtins(_Row(offset_s, report)), separators=(",", ":"))


def decode_report(text: str) -> NodeReport:
    """Return a report with its times by the coordinator's clock. Raises ValueError where nothing of it can be read.

    Facts that only another version knows are left out: a claim or a fact at a time, else a field, or a GPU.
    """
    try:
        row = typed.decoded(text, _Row)
    except (msgspec.DecodeError, UnicodeError, RecursionError):  # a name that is not UTF-8, another version, or no report
        row = _row_of_another_version(text)
    return replace(row.report, attempt=_shifted(row.report.attempt, row.offset_s)) if row.offset_s else row.report


def _row_of_another_version(text: str) -> _Row:
    try:
        fields = json.loads(text)
        return typed.converted({**fields, "report": _understood(fields["report"])}, _Row)
    except (msgspec.ValidationError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"its report could not be read: {error}") from error


def decode_reports(
    reports: Sequence[tuple[str, str]], missing: Sequence[tuple[str, str]], members: tuple[str, ...] = ()
) -> tuple[tuple[NodeReport, ...], tuple[tuple[str, str], ...]]:
    """Return the reports that can be read, and the nodes without one, each with the reason. reports: node and text of each.

    members: of the attempt, which no report has (core/nodes/report_size.py). The run, which is the same on all nodes, stays in the first.
    """
    decoded, unreadable = list[NodeReport](), list(missing)
    for node, text in reports:
        try:
            report = decode_report(text)
        except ValueError as error:
            unreadable.append((node, str(error)))
        else:
            run = Run() if decoded else report.run
            decoded.append(replace(report, run=run, attempt=replace(report.attempt, members=members)))
    return tuple(decoded), tuple(unreadable)


class HangNews(Struct, frozen=True):
    """The coordinator's message to all nodes of an attempt. acting: the node that alerts, and ends the attempt where that is due.

    hang: None: there is none (any more), for the reason `text`.
    """

    attempt: int
    acting: str
    hang: Hang | None = None
    text: str = ""


def read_text(output: MemberOutput | protocol.Refusal) -> Any:  # noqa: ANN401  of a decision the core's part, HangNews, or the fields of NodeBegan
    """Return what another node wrote, None where there is none. Raises ValueError, TypeError or LookupError where it cannot be read."""
    match output:
        case protocol.ActOn(_, decision, _) | protocol.ClosedWithoutUs(_, decision) if decision.text:
            return typed.converted(json.loads(decision.text), JobDecision)
        case protocol.Looked(_, text):
            return typed.decoded(text, HangNews)
        case protocol.Peer(_, _, text):
            row = json.loads(text)
            return str(row["text"]), typed.converted(row["first_step"], int | None), typed.converted(row["loaded_step"], int | None)
        case _:
            return None


def _understood(row: dict[str, Any]) -> dict[str, Any]:
    """Return what this version understands of a report's JSON."""
    attempt = {
        name: list(_facts(value)) if name in {"evidence", "ended_for"} and isinstance(value, list) else value
        for name, value in row["attempt"].items()
    }
    attempt_fields = {name: value for name, value in attempt.items() if _is_valid({name: value}, Attempt)}
    report = {**row, "attempt": attempt_fields, "gpus": [gpu for gpu in row["gpus"] if _is_valid(gpu, Gpu)]}
    return {name: value for name, value in report.items() if _is_valid({"node": "", "attempt": {}, name: value}, NodeReport)}


def _facts(rows: list[Any]) -> Iterator[Any]:
    for row in rows:
        if _is_valid(row, Evidence):
            yield row
        elif isinstance(row, dict) and _is_valid({**row, "claim": None}, Evidence):
            yield {**row, "claim": None}


def _is_valid(row: object, kind: type) -> bool:
    try:
        typed.converted(row, kind)
    except msgspec.ValidationError:
        return False
    return True


def _shifted(attempt: Attempt, by_s: float) -> Attempt:
    """Return what a node saw, with its times moved by the difference of two clocks, in seconds."""

    def shift(t: float | None) -> float | None:
        return None if t is None else t + by_s

    def facts(evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        return tuple(replace(fact, t=fact.t + by_s) if fact.t else fact for fact in evidence)

    return replace(
        attempt,
        began_t=attempt.began_t + by_s,
        started_t=shift(attempt.started_t),
        over_t=shift(attempt.over_t),
        evidence=None if attempt.evidence is None else facts(attempt.evidence),
        ended_for=facts(attempt.ended_for),
    )
