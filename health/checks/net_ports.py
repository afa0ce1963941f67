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


def check(now: Readings, before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each port; once the job has started they are its own."""
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
        if before is not None and rows and all(row.get("ours") is True for row in rows):
            yield CheckResult(NAME, one.subject, Result.OK, f"port {port} is held by this job", (holders,))
            continue
        why = f"port {port} is taken: {holders}"
        yield CheckResult(NAME, one.subject, Result.FAILED, why, (), Repair.CONFIGURE, f"ss -tanp sport = :{port}")


def _rows(now: Readings, subject: str) -> list[dict[str, Json]]:
    rows = now.table("listen.state", subject).get("holders")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _told(row: dict[str, Json]) -> str:
    if row.get("pid") is None:
        return f"a process of user {row.get('user')} that cannot be seen ({row.get('state')})"
    return f"process {row.get('pid')} ({row.get('command')}, {row.get('state')})"
