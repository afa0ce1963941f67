"""Are the ports that the job will listen on free? Who holds one that is not is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

NAME = "net_ports"
NEEDS = ("ports",)


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each port. One that the job itself holds is its own, and without a job it cannot be told which that is."""
    states = now.of("listen.state")
    if not states:
        yield CheckResult(NAME, HOST, Result.SKIPPED, "no port is known that the job will listen on")
    for one in states:
        port, row, rows = one.subject.removeprefix("listen:"), now.table("listen.state", one.subject), _rows(now, one.subject)
        if row.get("free") is True:
            yield CheckResult(NAME, one.subject, Result.OK, f"port {port} is free")
            continue
        if row.get("error") != "EADDRINUSE":
            why = f"port {port} cannot be had: {row.get('error')}"
            yield CheckResult(NAME, one.subject, Result.FAILED, why, (), Repair.CONFIGURE, "choose another port, above 1024")
            continue
        holders = ", ".join(map(_told, rows)) or "nobody that can be seen from here"
        if rows and all(row.get("ours") is True for row in rows):
            yield CheckResult(NAME, one.subject, Result.OK, f"port {port} is held by this job", (holders,))
            continue
        if any(row.get("may_be_ours") is True for row in rows):
            why = f"port {port} is held by a job that runs here, this one or another: {holders}"
            yield CheckResult(NAME, one.subject, Result.UNKNOWN, why, (), Repair.NONE, f"ss -tanp sport = :{port}")
            continue
        why = f"port {port} is taken: {holders}"
        yield CheckResult(NAME, one.subject, Result.FAILED, why, (), Repair.CONFIGURE, f"ss -tanp sport = :{port}")


def _rows(now: Readings, subject: str) -> list[dict[str, Json]]:
    rows = now.table("listen.state", subject).get("holders")
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    # where somebody listens, it is he: connections that he took, or that are not quite closed, have the same port
    return [row for row in found if row.get("state") == "listening"] or found


def _told(row: dict[str, Json]) -> str:
    if row.get("pid") is None:
        return f"a process of user {row.get('user')} that cannot be seen ({row.get('state')})"
    return f"process {row.get('pid')} ({row.get('command')}, {row.get('state')})"
