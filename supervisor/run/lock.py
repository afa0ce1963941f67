"""One supervisor for a job on a node: a lock file that names its holder, taken without flock so that it works over NFS.

The holder must call `refresh` at least every LEASE_S / 4, and end its ranks when that returns False. If another process on this host
holds the lock, `acquire` raises within two seconds and names it. All calls do IO on the state directory and block as long as that does:
not for the deciding thread.

The rules
---------
A *record* names a process for good (host, boot, pid namespace, pid, start time) and carries a random token. It is written to a file of
its own first and appears under its final name by link(2), whole and for exactly one of many contenders, also over NFS.

`lock` is the head of a chain. Whoever takes a lock from a holder that is gone links its own record as `lock.<token of the holder>`:
one successor for each record, ever. **The last record of the chain is the owner.** It then renames a copy of its record over `lock`
and removes the link that made it the owner; since a token is never used twice, one who comes late with an old view of the chain
makes a link that leads from nowhere, sees so when it walks the chain again, and takes it back. An owner that releases links a record
of its own behind itself first, so that nobody can succeed it half-way.

A record is *stale* when its process is gone: same host (host name and machine id), and either another boot, or the same pid namespace
with no such pid or with another start time. A process on another host (or in another pid namespace) cannot be seen: its lock is taken only
with `takeover`, or when its lease, the file's modification time, stood still for LEASE_S while we watched. No clock is compared.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from checkpointing.io import durable
from supervisor.errors import SuperviseError
from supervisor.job.identity import ProcessId, start_ticks, this_process
from supervisor.job.local_time import second_text

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE_S = 60.0
#: How long a half-written or just released lock is given to settle.
_SETTLE_S = 1.0
_POLL_S = 0.02
_WATCH_S = 1.0
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})


@dataclass(frozen=True, slots=True)
class LockRecord:
    """The content of a lock file. `since` is wall time; `released` marks the record that an owner links behind itself when it leaves."""

    token: str
    process: ProcessId
    run: str
    since: float
    released: bool = False


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last record of the chain. `record` is None where the file holds none (yet); `stamp` changes when its holder refreshes it.

    `key` names the successor's link; `passed` are the links on the way, its own too, which mean nothing once a successor is the head.
    """

    path: Path
    record: LockRecord | None
    key: str
    stamp: int
    passed: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that is held. Methods raise OSError where the state directory fails.

    `left`: when the holder before us, now gone, last renewed its lease (Unix seconds); None where it gave the lock up.
    """

    path: Path
    record: LockRecord
    left: float | None = None

    def refresh(self) -> bool:
        """Renew the lease. False: another supervisor took the lock over, and this one has no business with the job any more.

        Raises FileNotFoundError where it is gone and nobody has one: somebody deleted it, or it was given up.
        """
        tail = _tail(self.path)
        if tail is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        if tail.key != self.record.token:
            return False
        os.utime(tail.path)
        return True

    def release(self) -> None:
        """Release the lock, if this supervisor still holds it."""
        behind = _link_path(self.path, self.record.token)
        if self.refresh() and _link(behind, replace(self.record, token=secrets.token_hex(8), released=True), durable=False):
            self.path.unlink(missing_ok=True)
            behind.unlink(missing_ok=True)


def acquire(  # noqa: PLR0913  who asks, for what, and how hard
    path: Path,
    *,
    job: str,
    address: str = "",
    run: str = "",
    takeover: bool = False,
    lease_s: float = LEASE_S,
    notify: Callable[[str], None] = lambda _: None,
) -> Lock:
    """Take the lock at `path`, or raise SuperviseError (78) naming the holder.

    `address`: the options by which our other commands find the job. Waits only where the holder is on another host: until its lease
    moves (held) or stood still for `lease_s` (taken); `notify` prints that it waits.
    """
    me = this_process()
    try:
        while True:
            own_record = LockRecord(secrets.token_hex(8), me, run, time.time())
            tail = _wait_free(path, me, job, address, takeover=takeover, lease_s=lease_s, notify=notify)
            if _link(path, own_record) if tail is None else _succeed(path, tail, own_record):
                return Lock(path, own_record, None if tail is None or (tail.record and tail.record.released) else tail.stamp / 1e9)
    except OSError as error:
        raise SuperviseError(
            f"cannot lock the job: {path}: {error.strerror}",
            hint=f"Remove {path} where it is not a file, or give a directory that you can write with --state-dir.",
        ) from error


def holder(path: Path) -> LockRecord | None:
    """Return the record of the owner as the files have it, alive or not; None where nobody holds the lock. For commands that read.

    Raises SuperviseError where the lock cannot be read.
    """
    try:
        tail = _tail(path)
    except OSError as error:
        raise SuperviseError(
            f"cannot read the lock: {error.filename or path}: {error.strerror}",
            hint="Make it readable for you. Remove it where it is not a file and no supervisor runs the job.",
        ) from error
    return None if tail is None or tail.record is None or tail.record.released else tail.record


def is_alive(record: LockRecord) -> bool | None:
    """Return whether the record's process lives; None if that cannot be seen from here."""
    return {"held": True, "stale": False, "unseen": None}[_state(record, this_process())]


def _wait_free(  # noqa: PLR0913  as acquire
    path: Path, me: ProcessId, job: str, address: str, *, takeover: bool, lease_s: float, notify: Callable[[str], None]
) -> _Seen | None:
    """Return None where there is no lock, or the record that may be succeeded. Raises SuperviseError where the lock is held."""
    began = time.monotonic()
    watched: _Seen | None = None
    watched_since = began
    while (tail := _tail(path)) is not None:
        now = time.monotonic()
        state = _state(tail.record, me)
        settling = (tail.record is None or tail.record.released) and now - began < _SETTLE_S
        if state == "stale":
            return tail
        if watched is None or watched.key != tail.key:
            watched, watched_since = tail, now
            if state == "unseen" and not takeover and not settling:
                notify(f"the lock of job {job} is held by {_name(tail.record)}; watching for up to {lease_s:g} s whether it is alive")
        if not settling:
            if state == "held" or tail.stamp != watched.stamp:
                raise _held(path, job, address, tail.record, here=state == "held")
            if takeover or now - watched_since >= lease_s:
                return tail
        time.sleep(min(_POLL_S if settling else _WATCH_S, lease_s / 10))
    return None


def _succeed(path: Path, tail: _Seen, own_record: LockRecord) -> bool:
    """Become the owner after `tail`, whose process is gone. False: somebody else did, or the chain continued meanwhile."""
    link = _link_path(path, tail.key)
    if not _link(link, own_record):
        return False
    now = _tail(path)
    if now is None or now.key != own_record.token:
        link.unlink(missing_ok=True)  # came late: the link leads from a record that is not in the chain any more
        return False
    try:
        link.rename(path)
    except FileNotFoundError:
        return False  # a supervisor on another host took this one for dead, and removed its link
    for passed in tail.passed:
        passed.unlink(missing_ok=True)
    now = _tail(path)
    return now is not None and now.key == own_record.token


def _tail(path: Path) -> _Seen | None:
    """Walk the chain. Returns its last record, None where there is no lock."""
    seen = _read(path, ())
    while seen is not None:
        link = _link_path(path, seen.key)
        after = _read(link, (*seen.passed, link))
        if after is None:
            break
        seen = after
    return seen


def _read(path: Path, passed: tuple[Path, ...]) -> _Seen | None:
    try:
        # opened anew each time: over NFS that is what makes the answer fresh (close-to-open consistency), a stat is not
        with os.fdopen(durable.open_regular(str(path)), "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(1 << 16)
    except FileNotFoundError:
        return None
    try:
        fields = json.loads(content)
        process = ProcessId(
            hostname=str(fields["hostname"]),
            machine_id=str(fields["machine_id"]),
            boot_id=str(fields["boot_id"]),
            pid_namespace=int(fields["pid_namespace"]),
            pid=int(fields["pid"]),
            start_ticks=int(fields["start_ticks"]),
        )
        record = LockRecord(str(fields["token"]), process, str(fields["run"]), float(fields["since"]), bool(fields["released"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return _Seen(path, None, f"inode-{status.st_ino}", status.st_mtime_ns, passed)
    return _Seen(path, record, record.token, status.st_mtime_ns, passed)


def _link(path: Path, record: LockRecord, *, durable: bool = True) -> bool:
    """Make `path` hold `record`, whole and at once. False: there is such a file already."""
    fields = asdict(record)
    content = json.dumps({**fields.pop("process"), **fields}).encode() + b"\n"
    whole = path.with_name(f".lock-{record.token}")
    fd = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            if durable:  # or a power cut leaves a lock without a record, and the next start waits for its lease
                os.fsync(file.fileno())
        os.link(whole, path)
    except FileExistsError:
        # over NFS the answer to a link that was made can be lost, and the repeated request fails
        there = _read(path, ())
        return there is not None and there.key == record.token
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create(path, content)
    finally:
        whole.unlink(missing_ok=True)
    return True


def _create(path: Path, content: bytes) -> bool:
    """Do as _link where the file system has no hard links; readers may see the file before its content."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(fd, "wb") as file:
        file.write(content)
    return True


def _link_path(path: Path, key: str) -> Path:
    return path.with_name(f"{path.name}.{key}")


def _state(record: LockRecord | None, me: ProcessId) -> Literal["held", "stale", "unseen"]:
    """Return whether the record's process lives, is gone, or cannot be seen from here."""
    if record is None or not me.start_ticks:  # without /proc nothing can be seen, ourselves included
        return "unseen"
    other = record.process
    if (other.hostname, other.machine_id) != (me.hostname, me.machine_id):
        return "unseen"
    if other.boot_id != me.boot_id:
        # by host name alone, a rebooted host equals another one called "localhost"
        return "stale" if me.machine_id else "unseen"
    if other.pid_namespace != me.pid_namespace:
        return "unseen"
    return "held" if start_ticks(other.pid) == other.start_ticks else "stale"


def _name(record: LockRecord | None) -> str:
    if record is None:
        return "a supervisor whose record cannot be read"
    since = second_text(record.since)
    return f"pid {record.process.pid} on {record.process.hostname} since {since}" + (f" (run {record.run})" if record.run else "")


def _held(path: Path, job: str, address: str, record: LockRecord | None, *, here: bool) -> SuperviseError:
    if here and record is not None:
        named = address or f"--job {job}"
        hint = f"Watch it with `supervise status {named}`, end it with `supervise stop {named}`, or name another job with --job."
    else:
        hint = "Stop it there, name another job with --job, or give --takeover if you know that it is gone."
    return SuperviseError(f"job {job} is supervised already: {path}: held by {_name(record)}", hint=hint)
