"""Reads the copies of the kernel's log that the journal and syslog keep, for machines where /dev/kmsg is not permitted.

Each source returns the records since a time, or one line that says why it has none.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import time
from typing import TYPE_CHECKING, Protocol

from health.kernellog.parse import Lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    Records = list[tuple[str, float, bool]]

JOURNAL_DEADLINE_S = 1.0
MOST_RECORDS = 5000
MOST_BYTES = 1 << 20
#: It holds the kernel's facility alone. In the other files any process can write a line with "kernel:".
KERNEL_FILE = "/var/log/kern.log"
SYSLOG_FILES = (KERNEL_FILE, "/var/log/messages", "/var/log/syslog")


class MonotonicClock(Protocol):
    """The caller's clock."""

    def now(self) -> float:
        """Return seconds of a clock that cannot be set."""
        ...


def remember() -> dict[str, tuple[int, int]]:
    """Return inode and size of syslog's files now."""
    known = {}
    for path in SYSLOG_FILES:
        try:
            info = os.stat(path)  # noqa: PTH116 (a name, and three figures)
        except OSError:
            continue
        if stat.S_ISREG(info.st_mode):
            known[path] = (info.st_ino, info.st_size)
    return known


def journal(since: float, clock: MonotonicClock, _before: Mapping[str, tuple[int, int]]) -> Records | str:
    """Ask systemd's journal."""
    ahead = time.time() - clock.now()  # the journal has wall times, and the wall clock may have been set
    words = ["journalctl", "-k", "-o", "json", "--no-pager", "-q", "-n", str(MOST_RECORDS), f"--since=@{max(0.0, since + ahead):.6f}"]
    try:
        done = subprocess.run(words, capture_output=True, timeout=JOURNAL_DEADLINE_S, check=False, stdin=subprocess.DEVNULL)  # noqa: S603 (no shell, no foreign word)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"journalctl: {error.strerror if isinstance(error, OSError) else 'no answer'}"
    records: Records = []
    for line in done.stdout.splitlines():
        try:
            row = json.loads(line)
            if row.get("SYSLOG_FACILITY") == "0":
                message = row["MESSAGE"]
                text = message if isinstance(message, str) else bytes(message).decode("utf-8", "replace")
                records.append((text, int(row["__REALTIME_TIMESTAMP"]) / 1e6 - ahead, True))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    if not records and (done.returncode or done.stderr or not _has_kernel_records()):
        stderr_lines = done.stderr.decode(errors="replace").strip().splitlines()
        return f"journalctl: {stderr_lines[-1] if stderr_lines else 'it holds no records of the kernel'}"
    return records


def _has_kernel_records() -> bool:
    """Return whether the journal has records of the kernel: in a container it has none."""
    words = ["journalctl", "-k", "-o", "cat", "--no-pager", "-q", "-n", "1"]
    try:
        done = subprocess.run(words, capture_output=True, timeout=JOURNAL_DEADLINE_S, check=False, stdin=subprocess.DEVNULL)  # noqa: S603 (as above)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return bool(done.stdout.strip())


def syslog(_since: float, clock: MonotonicClock, before: Mapping[str, tuple[int, int]]) -> Records | str:
    """Read the lines added since `before` to the first of syslog's files that existed then."""
    path = next((path for path in SYSLOG_FILES if path in before), None)
    if path is None:
        return "no file of syslog's"
    inode, size = before[path]
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (a name)
            start = size if os.fstat(file.fileno()).st_ino == inode else 0
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - MOST_BYTES))
            data = file.read(MOST_BYTES)
    except OSError as error:
        return f"{path}: {error.strerror}"
    now = clock.now()
    read = Lines().all(data.decode("utf-8", "replace").split("\n"))
    return [(entry.text, now, path == KERNEL_FILE) for entry in read if entry.sure]
