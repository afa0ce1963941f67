"""Which revision of the code will run, and is it the same as at the job's start? A restart on other code is another experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "env_code"
NEEDS = ("environment",)


def check(now: Readings, before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge the revision by that at the job's start."""
    unread = said.unread(NAME, now, "env.code", "the code's revision")
    if unread is not None:
        yield unread
        return
    row, was = now.table("env.code"), before.table("env.code") if before is not None else {}
    head, dirty = str(row.get("head"))[:12], said.figure(row, "dirty") or 0
    state = f"{head} ({row.get('branch')})" + (f" and {dirty:.0f} files changed since" if dirty else "")
    evidence = (f"root {row.get('root')}",)
    if was and (was.get("head"), was.get("changed")) != (row.get("head"), row.get("changed")):
        why = f"the code is {state}, and was another when the job started ({str(was.get('head'))[:12]})"
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, evidence, Repair.NONE, f"git -C {row.get('root')} diff {was.get('head')}")
    else:
        yield CheckResult(NAME, HOST, Result.OK, f"the code is {state}", evidence)
