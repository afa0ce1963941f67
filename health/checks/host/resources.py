"""Checks of the host's memory, /dev/shm, process limits and control groups."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from health.checks import common
from health.model import HOST, CheckResult, Repair, Result, check, delta

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from health.model import Json, Readings
    from health.thresholds import Thresholds

_LARGEST_PROCESSES = ("ps -eo pid,rss,comm --sort -rss | head",)
_MIB = 1 << 20


@check(
    "host_memory",
    subject="host",
    needs=("host",),
    reads="memory, swap, the kernel's count of kills",
    degraded="5 % left; 1 GiB swapped; kills for want of memory since the job's start",
    failed="100 MiB left",
)
def host_memory(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Is there memory left? Swap in use, and kills for lack of memory since the job's start, count too."""
    unread = common.unread("host_memory", now, "host.memory", "memory")
    row = now.table("host.memory")
    total, available = common.number(row, "total"), common.number(row, "available")
    if unread is not None or total is None or available is None:
        yield unread or CheckResult("host_memory", HOST, Result.UNKNOWN, "memory: this kernel does not report how much is available")
        return
    swapped = (common.number(row, "swap_total") or 0.0) - (common.number(row, "swap_free") or 0.0)
    kills = delta(now, before, "host.oom_kills", HOST)
    evidence = (f"{common.size(available)} of {common.size(total)} available", f"{common.size(swapped)} swapped")
    if available < limits.memory_available_mib * _MIB:
        why = f"only {common.size(available)} of memory are available: processes are about to be killed"
        yield CheckResult("host_memory", HOST, Result.FAILED, why, evidence, Repair.DRAIN, look=_LARGEST_PROCESSES)
    elif kills:
        why = f"the kernel killed {kills:.0f} times for lack of memory since the job started"
        yield CheckResult("host_memory", HOST, Result.DEGRADED, why, evidence, look=("dmesg -T | grep -i oom",))
    elif available < limits.memory_available_share * total:
        yield CheckResult(
            "host_memory",
            HOST,
            Result.DEGRADED,
            f"only {common.size(available)} of memory are available",
            evidence,
            look=_LARGEST_PROCESSES,
        )
    elif swapped > limits.swap_used_mib * _MIB:
        why = f"{common.size(swapped)} are swapped out: a rank that waits for its own memory holds up all"
        left = max(limits.memory_available_share * total, limits.memory_available_mib * _MIB)
        # swapoff reads all of it back into memory; where that does not fit, the kernel kills
        remedy = (
            "swapoff -a" if available - swapped >= left else "end the process that holds the memory first: the swap does not fit into it"
        )
        yield CheckResult("host_memory", HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, remedy, look=_LARGEST_PROCESSES)
    else:
        yield CheckResult("host_memory", HOST, Result.OK, f"{common.size(available)} of memory are available", evidence)


_GROW_SHM = "mount -o remount,size=16G /dev/shm"


@check(
    "host_shm",
    subject="host",
    needs=("host",),
    reads="size and room of /dev/shm",
    degraded="smaller than 1 GiB; at the start of each job",
    failed="64 MiB left, or half of one that is smaller than 128 MiB",
)
def host_shm(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Is /dev/shm large enough, and is there room in it? NCCL and data loaders keep their segments there; want of it is a SIGBUS."""
    unread = common.unread("host_shm", now, "host.shm", "/dev/shm")  # noqa: S108 -- a name
    row = now.table("host.shm")
    total, free = common.number(row, "total"), common.number(row, "free")
    if unread is not None or total is None or free is None:
        yield unread or CheckResult("host_shm", HOST, Result.UNKNOWN, "shared memory: its size is not known")
        return
    evidence: tuple[str, ...] = (f"{common.size(free)} of {common.size(total)} free",)
    if free < min(limits.shm_free_mib * _MIB, total / 2):  # a container's 64 MiB are few, and full only once they are used
        why = f"shared memory (/dev/shm) has only {common.size(free)} free: what asks for more dies of SIGBUS"
        yield CheckResult(
            "host_shm", HOST, Result.FAILED, why, evidence, Repair.CONFIGURE, "supervise doctor --fix", look=("ls -lS /dev/shm",)
        )
    elif total < limits.shm_total_mib * _MIB:
        why = f"shared memory (/dev/shm) has only {common.size(total)}: NCCL and data loaders may need more"
        evidence = (*evidence, "in a container --shm-size=16g or --ipc=host gives more, in a pod an emptyDir of medium Memory")
        yield CheckResult("host_shm", HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, _GROW_SHM)
    else:
        yield CheckResult("host_shm", HOST, Result.OK, f"shared memory (/dev/shm) has {common.size(free)} free", evidence)


@check(
    "host_limits",
    subject="host",
    needs=("host", "infiniband"),
    reads="limits that ranks inherit",
    degraded="less than 1 GiB may be locked and an InfiniBand or RoCE card is here; fewer than 4096 open files",
)
def host_limits(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """May processes lock memory and open files as NCCL and data loaders need to? Ranks inherit the limits of who starts them."""
    unread = common.unread("host_limits", now, "host.limits", "limits")
    if unread is not None:
        yield unread
        return
    row = now.table("host.limits")
    evidence = tuple(f"{name} {_limit_text(row[name])}" for name in row)
    wrong = False
    memlock, nofile = _soft_limit(row, "memlock"), _soft_limit(row, "nofile")
    if memlock is not None and memlock < limits.memlock_mib * _MIB and now.subjects("port:"):
        wrong = True
        why = f"only {common.size(memlock)} of memory may be locked: registering buffers with the InfiniBand card will fail"
        why += " (a unit: LimitMEMLOCK=infinity; a container: --ulimit memlock=-1)"
        command = "ulimit -l unlimited" if _hard_limit(row, "memlock") is None else "sudo prlimit --pid $$ --memlock=unlimited"
        yield CheckResult("host_limits", HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, command)
    if nofile is not None and nofile < limits.open_files:
        wrong = True
        why = f"only {nofile} files may be open at once: loaders with many workers and NCCL's sockets need more (a unit: LimitNOFILE=65536)"
        most = min(65536, _hard_limit(row, "nofile") or 65536)
        command = f"ulimit -n {most}" if most >= limits.open_files else "sudo prlimit --pid $$ --nofile=65536"
        yield CheckResult("host_limits", HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, command)
    if not wrong:
        yield CheckResult("host_limits", HOST, Result.OK, "limits are wide enough", evidence)


def _soft_limit(row: dict[str, Json], name: str) -> int | None:
    pair = row.get(name)
    soft = pair[0] if isinstance(pair, list) and pair else None
    return soft if isinstance(soft, int) else None


def _hard_limit(row: dict[str, Json], name: str) -> int | None:
    """Return what a process may raise its limit to by itself, None for no end."""
    pair = row.get(name)
    hard = pair[-1] if isinstance(pair, list) and pair else None
    return hard if isinstance(hard, int) else None


def _limit_text(pair: Json) -> str:
    soft, hard = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)  # noqa: PLR2004 -- soft, hard
    return f"{'unlimited' if soft is None else soft} of {'unlimited' if hard is None else hard}"


_CGROUP_READINGS = ("cgroup.memory", "cgroup.cpu", "cgroup.pids")


@check(
    "host_cgroup",
    subject="host",
    needs=("cgroup",),
    reads="limits of our control groups",
    degraded=(
        "memory 95 % full, file caches left out; held back by its quota in 5 % of the time; kills since the job's start; pids 80 % full"
    ),
    failed="pids 95 % full",
)
def host_cgroup(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Does a control group limit the job? Memory, processors, pids, and kills for lack of memory since the job's start."""
    if all(now.value(name) is None for name in _CGROUP_READINGS):
        yield CheckResult("host_cgroup", HOST, Result.SKIPPED, "control groups: not visible here")
        return
    results = [*_cgroup_memory(now, before, limits), *_cgroup_cpu(now, before, limits), *_cgroup_pids(now, limits)]
    if results:
        yield from results
        return
    limit, quota = common.number(now.table("cgroup.memory"), "limit"), common.number(now.table("cgroup.cpu"), "quota")
    limits_text = [f"memory limited to {common.size(limit)}"] if limit is not None else []
    limits_text += [f"{quota:g} processors"] if quota is not None else []
    yield CheckResult("host_cgroup", HOST, Result.OK, "; ".join(limits_text) or "no limit that can be seen from here")


def _cgroup_memory(now: Readings, before: Readings | None, limits: Thresholds) -> Iterator[CheckResult]:
    kills = delta(now, before, "cgroup.oom_kills", HOST)
    if kills:
        why = f"the kernel killed {kills:.0f} times in this control group since the job started: its memory limit is too small"
        yield CheckResult("host_cgroup", HOST, Result.DEGRADED, why, (), Repair.CONFIGURE, look=("dmesg -T | grep -i oom",))
    row = now.table("cgroup.memory")
    limit, used = common.number(row, "limit"), common.number(row, "used")
    if limit and used is not None and used > limits.cgroup_memory_share * limit:
        why = f"{used / limit:.0%} of the control group's memory limit is in use, file caches left out"
        evidence = (f"{common.size(used)} of {common.size(limit)}",)
        yield CheckResult(
            "host_cgroup", HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, look=(f"cat {quote(str(row.get('path')))}/memory.stat",)
        )


def _cgroup_cpu(now: Readings, before: Readings | None, limits: Thresholds) -> Iterator[CheckResult]:
    row, old_row = now.table("cgroup.cpu"), (before.table("cgroup.cpu") if before is not None else {})
    quota = common.number(row, "quota")
    if quota is None:
        return
    # without a baseline since the group was made
    periods, throttled = ((common.number(row, key) or 0) - (common.number(old_row, key) or 0) for key in ("periods", "throttled"))
    if periods > 0 and throttled / periods > limits.cpu_throttled_share:
        why = f"the control group's quota of {quota:g} processors held it back in {throttled / periods:.0%} of the time"
        evidence = (f"{throttled:.0f} of {periods:.0f} periods", f"since {'the job started' if old_row else 'the group was made'}")
        yield CheckResult(
            "host_cgroup", HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, look=(f"cat {quote(str(row.get('path')))}/cpu.stat",)
        )


def _cgroup_pids(now: Readings, limits: Thresholds) -> Iterator[CheckResult]:
    row = now.table("cgroup.pids")
    limit, used = common.number(row, "limit"), common.number(row, "used")
    if limit and used is not None and used >= limits.table_used_share * limit:
        full = used >= limits.table_full_share * limit
        why = f"{used / limit:.0%} of the control group's pids are in use: threads count too"
        evidence = (f"{used:.0f} of {limit:.0f}",)
        yield CheckResult("host_cgroup", HOST, Result.FAILED if full else Result.DEGRADED, why, evidence, Repair.CONFIGURE,
                          look=(f"cat {quote(str(row.get('path')))}/pids.max",))  # fmt: skip
