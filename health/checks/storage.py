"""Checks of the paths that the job writes, and of the NVMe disks."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Final

from health.checks import common
from health.model import HOST, CheckResult, Repair, Result, check

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds


#: Mount points without which the node itself does not work ("" is the root directory).
_OF_THE_SYSTEM: Final = frozenset(
    ("", "/bin", "/boot", "/dev", "/dev/shm", "/etc", "/lib", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var")  # noqa: S108
)
_CHECK_FIRST: Final = "unmount it and check it with fsck before it is mounted for writing again"


@check(
    "disk_paths",
    subject="path",
    needs=("disk",),
    reads="where declared checkpoints are written, and in `doctor` the working and the state directory, each in a process of its own",
    failed="one that does not answer (a dead server), a stale handle, one that cannot be looked at",
)
def disk_paths(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Does every path that the job writes answer? It finds a dead server or a stale handle before a rank hangs on it."""
    for reading in now.of("path.state"):
        yield common.unread("disk_paths", now, "path.state", reading.subject.removeprefix("path:"), reading.subject) or _path_answer(
            now, reading.subject
        )


def _path_answer(now: Readings, subject: str) -> CheckResult:
    path, row, mount = subject.removeprefix("path:"), now.table("path.state", subject), now.table("path.mount", subject)
    evidence = (f"{mount['kind']} of {mount['source']} on {mount['point']}",) if mount else ()
    again = _mount_again(mount)
    if row.get("hung"):
        where = f": stuck in the kernel at {row['wchan']}" if row.get("state") == "D" and row.get("wchan") else ""
        stage = {"stat": "when asked for its free space", "space": "when written to"}.get(str(row.get("after")), "when its status is read")
        evidence = (*evidence, f"process {row.get('pid')}: state {row.get('state') or 'unknown'}")
        return CheckResult("disk_paths", subject, Result.FAILED, f"{path} does not answer {stage}{where}", evidence, Repair.DRAIN, again)
    if row.get("errno") == "ESTALE":
        why = f"{path}: its handle is stale: the server no longer knows this mount"
        return CheckResult("disk_paths", subject, Result.FAILED, why, evidence, Repair.CONFIGURE, again)
    if row.get("answers") is not True:
        look = (f"ls -ld {quote(path)}",)
        return CheckResult("disk_paths", subject, Result.FAILED, f"{path}: {row.get('error')}", evidence, Repair.CONFIGURE, look=look)
    return CheckResult("disk_paths", subject, Result.OK, f"{path} answers", evidence)


def _mount_again(mount: dict[str, Json]) -> str:
    """Return the remedy for a dead mount: a command, words where none is safe, "" if the mount is not known."""
    point = str(mount.get("point") or "")
    if point and point.rstrip("/") in _OF_THE_SYSTEM:
        return f"reboot: {point} is part of the system itself, and cannot be unmounted"
    return f"umount -l {quote(point)} && mount {quote(point)}" if point else ""


_MIB = 1 << 20


@check(
    "disk_space",
    subject="path",
    needs=("disk",),
    reads="room and inodes of these paths",
    degraded="90 % full",
    failed="99 % full, or 500 MiB left; no room for one checkpoint (blocks)",
)
def disk_space(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Is there free space, and are there free inodes, on every path that the job writes? No space for one checkpoint blocks a start."""
    for reading in now.of("path.space"):
        yield _space(now, reading.subject, limits)


def _space(now: Readings, subject: str, limits: Thresholds) -> CheckResult:
    path, row = subject.removeprefix("path:"), now.table("path.space", subject)
    total, free = common.number(row, "total"), common.number(row, "free")
    inodes, inodes_free = common.number(row, "inodes"), common.number(row, "inodes_free")
    if total is None or free is None:
        return CheckResult(
            "disk_space", subject, Result.UNKNOWN, f"{path}: its free space could not be read: {row.get('error') or 'no reason'}"
        )
    figures = [f"{common.size(free)} of {common.size(total)} free"]
    figures += [f"{inodes_free:.0f} of {inodes:.0f} inodes free"] if inodes and inodes_free is not None else []
    evidence, need = tuple(figures), common.number(row, "need") or 0.0
    look = (f"df -h {quote(path)}", f"du -xsh {quote(path)}/* | sort -h | tail")
    if free < need:
        why = f"{path} has {common.size(free)} free, and one checkpoint takes {common.size(need)}"
        return CheckResult("disk_space", subject, Result.FAILED, why, evidence, Repair.CONFIGURE, blocks=True, look=look)
    full = free < limits.disk_free_mib * _MIB or free < (1 - limits.disk_full_share) * total
    if full and total > limits.disk_free_mib * _MIB:  # one that is smaller as a whole was made so
        return CheckResult(
            "disk_space", subject, Result.FAILED, f"{path} is full: {common.size(free)} free", evidence, Repair.CONFIGURE, look=look
        )
    # file systems that make inodes on demand (btrfs, many network ones) report 0
    if inodes and inodes_free is not None and inodes_free < (1 - limits.disk_used_share) * inodes:
        none = inodes_free < (1 - limits.disk_full_share) * inodes
        why = f"{path} has {inodes_free:.0f} inodes left: each new file needs one"
        return CheckResult(
            "disk_space",
            subject,
            Result.FAILED if none else Result.DEGRADED,
            why,
            evidence,
            Repair.CONFIGURE,
            look=(f"df -i {quote(path)}",),
        )
    if total and free < (1 - limits.disk_used_share) * total:
        why = f"{path} is {1 - free / total:.0%} full: {common.size(free)} free"
        return CheckResult("disk_space", subject, Result.DEGRADED, why, evidence, Repair.CONFIGURE, look=look)
    return CheckResult("disk_space", subject, Result.OK, f"{path} has {common.size(free)} free", evidence)


_NO_ROOM = ("ENOSPC", "EDQUOT")


@check(
    "disk_writes",
    subject="path",
    needs=("disk",),
    reads="1 MiB written to each and synced, to a file without a name",
    degraded="longer than 1 s",
    failed="read-only, no room, no permission, input/output error",
)
def disk_writes(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Can every path be written, and how long does it take until it is on the disk? Read-only remounts and slow disks are found here."""
    for reading in now.of("path.space"):
        yield _write(now, before, reading.subject, limits)


def _write(now: Readings, before: Readings | None, subject: str, limits: Thresholds) -> CheckResult:
    path, row, mount = subject.removeprefix("path:"), now.table("path.write", subject), now.table("path.mount", subject)
    evidence = (f"{mount['kind']} of {mount['source']} on {mount['point']}",) if mount else ()
    if row.get("errno") == "EROFS" or now.table("path.space", subject).get("read_only") is True:
        return _read_only(before, subject, mount, evidence)
    if row.get("errno") in _NO_ROOM:
        why = f"{path}: {row.get('error')}"
        return CheckResult("disk_writes", subject, Result.FAILED, why, evidence, Repair.CONFIGURE, look=(f"df -h {quote(path)}", "quota"))
    if "error" in row:
        repair, look = (Repair.DRAIN, ("dmesg -T",)) if row.get("errno") == "EIO" else (Repair.CONFIGURE, (f"ls -ld {quote(path)}",))
        return CheckResult("disk_writes", subject, Result.FAILED, f"{path} cannot be written: {row['error']}", evidence, repair, look=look)
    seconds, size = common.number(row, "seconds"), common.number(row, "bytes")
    if seconds is None or size is None:
        return CheckResult("disk_writes", subject, Result.UNKNOWN, f"{path}: writing was not tried, or did not end")
    timing = f"{common.size(size)} in {seconds:.3f} s, of which {common.number(row, 'sync_s') or 0.0:.3f} s until it was on the disk"
    if seconds > limits.write_s:
        why = f"{path} is slow: {timing}"
        return CheckResult(
            "disk_writes", subject, Result.DEGRADED, why, evidence, look=("iostat -x 1 3", "nfsiostat", f"ls -ld {quote(path)}")
        )
    return CheckResult("disk_writes", subject, Result.OK, f"{path} can be written: {timing}", evidence)


def _read_only(before: Readings | None, subject: str, mount: dict[str, Json], evidence: tuple[str, ...]) -> CheckResult:
    path = subject.removeprefix("path:")
    was_read_only = before is not None and before.table("path.space", subject).get("read_only") is False
    why = f"{path} is read-only{', and was not when the job started: the kernel found it damaged' if was_read_only else ''}"
    look = ("dmesg -T | grep -i -e remount -e 'I/O error'", f"findmnt -T {quote(path)}")
    remount = f"mount -o remount,rw {quote(str(mount['point']))}" if mount.get("point") else ""
    if was_read_only:  # writing to a damaged file system damages it more
        return CheckResult("disk_writes", subject, Result.FAILED, why, evidence, Repair.DRAIN, _CHECK_FIRST, look=look)
    return CheckResult("disk_writes", subject, Result.FAILED, why, evidence, Repair.CONFIGURE, remount, look=look)


#: On their way to live: a reset takes seconds.
_TRANSIENT_STATES = ("new", "resetting", "connecting")
_NVME_LOOK = ("nvme list", "dmesg -T | grep nvme")


@check(
    "disk_nvme",
    subject="host",
    needs=("nvme",),
    reads="the kernel's NVMe disks",
    degraded="one is being reset",
    failed="one is dead, or gone since the job's start",
)
def disk_nvme(now: Readings, before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Are all NVMe disks there and alive? One that is gone since the job's start, or that the kernel gave up, is a failure."""
    unread = common.unread("disk_nvme", now, "nvme.controllers", "NVMe disks")
    if unread is not None:
        yield unread
        return
    rows = now.rows("nvme.controllers")
    lost = {_nvme_name(row) for row in before.rows("nvme.controllers")} - {_nvme_name(row) for row in rows} if before is not None else set()
    results = [
        CheckResult(
            "disk_nvme", HOST, Result.FAILED, f"NVMe disk {disk} is gone since the job started", (), Repair.REPLACE, look=_NVME_LOOK
        )
        for disk in sorted(lost)
    ]
    for row in rows:
        state = row.get("state")
        if state in ("live", ""):  # kernels before 4.9 report no state
            continue
        result, repair = (Result.DEGRADED, Repair.NONE) if state in _TRANSIENT_STATES else (Result.FAILED, Repair.REPLACE)
        why = f"NVMe disk {_nvme_name(row)} is {state}"
        results.append(CheckResult("disk_nvme", HOST, result, why, (f"model {row.get('model')}",), repair, look=_NVME_LOOK))
    if not rows and not results:
        yield CheckResult("disk_nvme", HOST, Result.SKIPPED, "no NVMe disk is here")
    yield from results or ([CheckResult("disk_nvme", HOST, Result.OK, f"{len(rows)} NVMe disks are live")] if rows else [])


def _nvme_name(row: dict[str, Json]) -> str:
    return f"{row.get('name')} ({row.get('address')})" if row.get("address") else str(row.get("name"))
