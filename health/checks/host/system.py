"""Checks of the host's clock, processes, processors and core dumps."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from health.checks import common
from health.model import HOST, CheckResult, Repair, Result, check, delta

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from health.model import Json, Readings
    from health.thresholds import Thresholds

_SET_CLOCK, _CLOCK_LOOK = "systemctl restart chronyd && chronyc makestep", ("timedatectl",)


@check(
    "host_clock",
    subject="host",
    needs=("clock",),
    reads="adjtimex, chrony",
    degraded="off by more than 2 s. That nobody sets it, as far as this kernel knows: unknown",
    failed="off by more than 300 s",
)
def host_clock(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Is the clock right? Nodes' logs are merged by it, and tokens of object stores hold for minutes only."""
    chrony, kernel = now.table("clock.chrony"), now.table("clock.kernel")
    offset, most = common.number(chrony, "offset_s"), common.number(kernel, "max_error_s")
    # with TAI or a leap second nothing changes; an unsynchronized source says so in `leap`
    measured = offset is not None and chrony.get("leap") != "Not synchronised"
    if measured and offset is not None:
        evidence = (f"chrony: {offset:+.6f} s, stratum {chrony.get('stratum')}",)
        if abs(offset) > limits.clock_error_failed_s:
            why = f"the clock is off by {offset:+.0f} s: object stores refuse its signatures"
            yield CheckResult("host_clock", HOST, Result.FAILED, why, evidence, Repair.CONFIGURE, _SET_CLOCK, look=_CLOCK_LOOK)
        elif abs(offset) > limits.clock_error_s:
            yield CheckResult(
                "host_clock",
                HOST,
                Result.DEGRADED,
                f"the clock is off by {offset:+.3f} s",
                evidence,
                Repair.CONFIGURE,
                _SET_CLOCK,
                look=_CLOCK_LOOK,
            )
        else:
            yield CheckResult("host_clock", HOST, Result.OK, f"the clock is off by {offset:+.6f} s", evidence)
        return
    unread = common.unread("host_clock", now, "clock.kernel", "the clock")
    if unread is not None:
        yield unread
    elif kernel.get("synchronized") is not True:
        # in many virtual machines and containers the host sets the clock, and this kernel does not know
        why = "no time source has synchronised this kernel's clock: its error is unknown"
        yield CheckResult(
            "host_clock",
            HOST,
            Result.UNKNOWN,
            why,
            (f"the kernel's largest error: {most} s",),
            Repair.CONFIGURE,
            _SET_CLOCK,
            look=_CLOCK_LOOK,
        )
    elif most is not None and most > limits.clock_error_s:
        why = f"the clock may be off by {most:.1f} s: its source has not answered for long"
        yield CheckResult("host_clock", HOST, Result.DEGRADED, why, (), Repair.CONFIGURE, _SET_CLOCK, look=_CLOCK_LOOK)
    else:
        yield CheckResult("host_clock", HOST, Result.OK, "the clock is synchronized", (f"largest error {most} s",))


@check(
    "host_processes",
    subject="host",
    needs=("processes", "host"),
    reads="zombies, state D, tables of pids and files",
    degraded=(
        "zombies older than 5 min, or 1000; a process that waits in the kernel and did not run for 1 s, while a job runs for 20"
        " s; tables 80 % full"
    ),
    failed="so for 2 min under our eyes (reboot); tables 95 % full",
)
def host_processes(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Are there zombies, or processes stuck in the kernel? Full tables of processes and open files count too."""
    unread = common.unread("host_processes", now, "processes.counts", "processes")
    results = [*_stuck(now, before, limits), *_zombies(now, before, limits), *_tables(now, limits)]
    if unread is not None:
        results.append(unread)
    yield from results or [
        CheckResult("host_processes", HOST, Result.OK, f"{now.table('processes.counts').get('all')} processes, none stuck")
    ]


def _stuck(now: Readings, before: Readings | None, limits: Thresholds) -> Iterator[CheckResult]:
    for row in now.rows("processes.stuck"):
        since, age = common.number(row, "since_s") or 0.0, common.number(row, "age_s") or 0.0
        if before is not None and since < limits.stuck_reported_s:
            continue  # while the job runs it is seen again
        where = f" at {row['wchan']}" if row.get("wchan") else ""
        process = f"process {row.get('pid')} ({row.get('command')})"
        evidence = (f"started {age:.0f} s ago", f"seen so for {since:.0f} s")
        long = since >= limits.stuck_age_s
        why = f"{process} waits in the kernel{where} and {'cannot be ended' if long else f'did not run for {max(since, 1.0):.0f} s'}"
        repair = Repair.REBOOT if long else Repair.NONE
        yield CheckResult(
            "host_processes",
            HOST,
            Result.FAILED if long else Result.DEGRADED,
            why,
            evidence,
            repair,
            look=(f"cat /proc/{row.get('pid')}/stack",),
        )


def _zombies(now: Readings, before: Readings | None, limits: Thresholds) -> Iterator[CheckResult]:
    rows = now.rows("processes.zombies")
    # its age counts from its start: the kernel does not report when it died; while a job runs it is read again
    since = "age_s" if before is None else "since_s"
    old = [row for row in rows if (common.number(row, since) or 0.0) >= limits.zombie_age_s]
    count = common.number(now.table("processes.counts"), "zombies") or 0
    parents = ", ".join(dict.fromkeys(str(row.get("parent")) for row in rows))
    look = (f"ps -fp {parents.replace(', ', ',')}",)
    if count >= limits.zombies:
        why = f"{count:.0f} processes are zombies: their parents ({parents}) do not reap them, and pids run out"
        yield CheckResult("host_processes", HOST, Result.DEGRADED, why, (), Repair.NONE, look=look)
    elif old:
        why = f"{len(old)} processes are zombies: their parents ({parents}) do not reap them"
        yield CheckResult("host_processes", HOST, Result.DEGRADED, why, tuple(map(_zombie_text, old)), Repair.NONE, look=look)


def _tables(now: Readings, limits: Thresholds) -> Iterator[CheckResult]:
    for name, noun, setting in (("host.pids", "pids", "kernel.pid_max"), ("host.files", "open files", "fs.file-max")):
        row = now.table(name)
        used, most = common.number(row, "used"), common.number(row, "most")
        if used is None or not most or used < limits.table_used_share * most:
            continue
        full = used >= limits.table_full_share * most
        why = f"{used / most:.0%} of the system's {noun} are in use"
        evidence = (f"{used:.0f} of {most:.0f}",)
        yield CheckResult(
            "host_processes", HOST, Result.FAILED if full else Result.DEGRADED, why, evidence, Repair.CONFIGURE, look=(f"sysctl {setting}",)
        )


def _zombie_text(row: dict[str, Json]) -> str:
    return f"{row.get('pid')} ({row.get('command')}) of parent {row.get('parent')}: started {common.number(row, 'age_s') or 0:.0f} s ago"


#: schedutil, and intel_pstate's powersave, follow the load too; only the plain driver's powersave holds to the lowest. Both are named.
_SLOW_GOVERNORS = ("powersave", "conservative", "userspace")
#: Each reading of these is a trip to a device, and timing GPU work takes many (gcm checks the same).
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")


@check(
    "host_cpu",
    subject="host",
    needs=("cpu",),
    reads="governor, heat, clock source, processors",
    degraded="a slow governor; held back by heat since the job's start; a slow clock source; processors switched off",
)
def host_cpu(now: Readings, before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Are the processors held back? By their governor, by heat, by a slow clock source, or by being switched off."""
    unread = common.unread("host_cpu", now, "cpu.count", "processors")
    if unread is not None:
        yield unread
        return
    results: list[CheckResult] = []
    count = now.table("cpu.count")
    governors = now.table("cpu.governors")
    slow = [name for name in governors if name in _SLOW_GOVERNORS]
    hot = delta(now, before, "cpu.throttles", HOST)
    clock = now.table("cpu.clocksource").get("current")
    present, online = common.number(count, "present") or 0, common.number(count, "online") or 0
    if hot:
        why = f"heat held processors back {hot:.0f} times since the job started: check the node's cooling"
        results.append(
            CheckResult(
                "host_cpu", HOST, Result.DEGRADED, why, (), Repair.DRAIN, look=("ipmitool sdr type temperature", "ipmitool sdr type fan")
            )
        )
    if slow:
        why = f"processors are governed by {', '.join(slow)}, which may keep them slow: data loading and kernel launches wait for them"
        evidence = tuple(f"{name}: {number} processors" for name, number in governors.items())
        results.append(
            CheckResult("host_cpu", HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, "cpupower frequency-set -g performance")
        )
    if clock in _SLOW_CLOCKS:
        why = f"the clock source is {clock}, whose every reading is slow: the kernel did not trust the processor's own"
        look = ("dmesg -T | grep -i clocksource",)
        results.append(CheckResult("host_cpu", HOST, Result.DEGRADED, why, (), Repair.REBOOT, look=look))
    if online < present:
        why = f"{present - online:.0f} of {present:.0f} processors are switched off"
        results.append(CheckResult("host_cpu", HOST, Result.DEGRADED, why, (), Repair.CONFIGURE, look=("lscpu",)))
    usable = count.get("usable")
    seen = "governor not visible" if not governors else ", ".join(governors)
    yield from results or [CheckResult("host_cpu", HOST, Result.OK, f"{online:.0f} processors, {usable} for us", (seen,))]


@check(
    "host_core",
    subject="host",
    needs=("host",),
    reads="core_pattern, the limit, the room",
    degraded="a dump would fill its disk, or goes to a program or directory that is not here",
)
def host_core(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """If a rank crashes, where does its dump go, and is there room? Dumps of ranks are as large as their memory, and may fill a disk."""
    unread = common.unread("host_core", now, "host.core", "core dumps") or common.unread("host_core", now, "host.limits", "limits")
    if unread is not None:
        yield unread
        return
    row, pair = now.table("host.core"), now.table("host.limits").get("core")
    soft = pair[0] if isinstance(pair, list) and pair else None
    evidence = (f"core_pattern {row.get('pattern')}", f"limit {'unlimited' if soft is None else soft}")
    if row.get("pipe"):
        # the kernel pipes to a program whatever the limit is, unless it is 0 and the program cares (core(5))
        if row.get("program_is_there") is False:
            why = "core dumps are piped to a program that is not here: a crash leaves none"
            yield CheckResult("host_core", HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, "sysctl kernel.core_pattern=core.%p")
        else:
            yield CheckResult("host_core", HOST, Result.OK, "core dumps go to a program", evidence)
        return
    if soft == 0:
        yield CheckResult("host_core", HOST, Result.OK, "a crash leaves no core dump (limit 0)", evidence, command="ulimit -c unlimited")
        return
    free = common.number(row, "free")
    where = row.get("directory")
    if free is None:
        why = f"core dumps would go to {where}: {row.get('problem') or 'not visible'}"
        yield CheckResult("host_core", HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, f"mkdir -p {quote(str(where))}")
    elif free < _dump_size(now, limits, soft):
        why = f"core dumps go to {where}, which has {common.size(free)} free: one would fill it"
        yield CheckResult("host_core", HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, "ulimit -c 0")
    else:
        yield CheckResult("host_core", HOST, Result.OK, f"core dumps go to {where}, which has {common.size(free)} free", evidence)


def _dump_size(now: Readings, limits: Thresholds, soft: object) -> float:
    """Return the most that a dump may take: the memory in use now, or the limit."""
    row = now.table("host.memory")
    used = (common.number(row, "total") or 0.0) - (common.number(row, "available") or 0.0)
    most = float(soft) if isinstance(soft, int) else used
    return max(min(used, most), limits.disk_free_mib * (1 << 20))
