"""Are processes dead and not gone, or deaf in the kernel? Also whether the tables of processes and open files fill up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import said
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from health.model import Json, Readings
    from health.thresholds import Thresholds

NAME = "host_processes"
NEEDS = ("processes", "host")


def check(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge processes, and both tables."""
    unread = said.unread(NAME, now, "processes.counts", "processes")
    found = [*_stuck(now, before, limits), *_zombies(now, before, limits), *_tables(now, limits)]
    if unread is not None:
        found.append(unread)
    yield from found or [CheckResult(NAME, HOST, Result.OK, f"{now.table('processes.counts').get('all')} processes, none stuck")]


def _stuck(now: Readings, before: Readings | None, limits: Thresholds) -> Iterator[CheckResult]:
    for row in now.rows("processes.stuck"):
        since, age = said.figure(row, "since_s") or 0.0, said.figure(row, "age_s") or 0.0
        if before is not None and since < limits.stuck_told_s:
            continue  # while the job runs it is seen again
        where = f" at {row['wchan']}" if row.get("wchan") else ""
        what = f"{'a process of this job' if row.get('ours') else 'process'} {row.get('pid')} ({row.get('command')})"
        evidence = (f"started {age:.0f} s ago", f"seen so for {since:.0f} s")
        long = since >= limits.stuck_age_s
        why = f"{what} waits in the kernel{where} and {'cannot be ended' if long else f'did not run for {max(since, 1.0):.0f} s'}"
        repair = Repair.REBOOT if long else Repair.NONE
        yield CheckResult(
            NAME, HOST, Result.FAILED if long else Result.DEGRADED, why, evidence, repair, f"cat /proc/{row.get('pid')}/stack"
        )


def _zombies(now: Readings, before: Readings | None, limits: Thresholds) -> Iterator[CheckResult]:
    rows = now.rows("processes.zombies")
    # its age is since its start: when it died the kernel does not tell, and while a job runs it is seen again
    since = "age_s" if before is None else "since_s"
    old = [row for row in rows if (said.figure(row, since) or 0.0) >= limits.zombie_age_s]
    count = said.figure(now.table("processes.counts"), "zombies") or 0
    parents = ", ".join(dict.fromkeys(str(row.get("parent")) for row in rows))
    look = f"ps -fp {parents.replace(', ', ',')}"
    if count >= limits.zombies:
        why = f"{count:.0f} processes are dead and not gone: their parents do not ask after them ({parents}), and pids run out"
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, (), Repair.NONE, look)
    elif old:
        why = f"{len(old)} processes are dead and not gone: their parents ({parents}) do not ask after them"
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, tuple(map(_told, old)), Repair.NONE, look)


def _tables(now: Readings, limits: Thresholds) -> Iterator[CheckResult]:
    for name, what, setting in (("host.pids", "pids", "kernel.pid_max"), ("host.files", "open files", "fs.file-max")):
        row = now.table(name)
        used, most = said.figure(row, "used"), said.figure(row, "most")
        if used is None or not most or used < limits.table_used_share * most:
            continue
        full = used >= limits.table_full_share * most
        why = f"{used / most:.0%} of the system's {what} are in use"
        evidence = (f"{used:.0f} of {most:.0f}",)
        yield CheckResult(NAME, HOST, Result.FAILED if full else Result.DEGRADED, why, evidence, Repair.CONFIGURE, f"sysctl {setting}")


def _told(row: dict[str, Json]) -> str:
    return f"{row.get('pid')} ({row.get('command')}) of parent {row.get('parent')}: started {said.figure(row, 'age_s') or 0:.0f} s ago"
