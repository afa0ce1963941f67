"""The trouble in the kernel's log since the boot, as far back as it is kept.

Reads /dev/kmsg; where that may not be read the journal, then the files that syslog writes. Yields, of `kernel`: `kernel.findings` (a list
of findings, each with `last_time`, the time of its last line on the log's own clock, and `age_s`; both None if unknown), `kernel.source`,
`kernel.overruns` (how often records were overwritten before they were read). Of a file of syslog's, whose lines may lack the year,
`last_time` is in wall seconds. If nothing can be read, `kernel.source` has the reasons as its problem, and `kernel.findings` has the same
or, if access was denied, PERMISSION. Otherwise a log that nobody can read would look healthy. A session reads each record of /dev/kmsg
once. Its Correlator remembers them, for the findings so far and for the rules about repeated Xids.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.kernellog import kmsg_reader, sources
from health.kernellog.correlate import Correlator
from health.kernellog.kmsg_reader import Device, Joiner
from health.kernellog.model import Entry
from health.kernellog.parse import Lines
from health.model import KERNEL, PERMISSION, Json, Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.kernellog.model import LogFinding
    from health.model import Ask

NAME: Final = "kernel_log"
#: The most records of one read. A flood is not waited for: the session's next read continues there.
MOST_RECORDS: Final = 200_000
#: How much of a syslog file's end is read.
MOST_BYTES: Final = 4 << 20
#: A line without a year is of the newest one in which it is not further ahead of now: the file may be in another time zone than we are.
_AHEAD_S: Final = 14 * 3600.0
#: `parse` gives dates without a year one of the first years after 2000; a log that names its years is younger.
_YEARS_NAMED_T: Final = datetime(2012, 1, 1, tzinfo=UTC).timestamp()
#: A 29th of February comes at least every eighth year.
_MOST_YEARS: Final = 9
_DAY_S: Final = 86400.0
_COMPRESSED: Final = (".gz", ".xz", ".bz2", ".zst")


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the readings of a session of its own."""
    opened = session()
    try:
        yield from opened.read(ask)
    finally:
        opened.close()


def session() -> KernelLogSession:
    """Return a session that is not open yet: the first read opens it."""
    return KernelLogSession()


class _Wall:
    """The wall clock, in the form that `sources.journal` takes."""

    @staticmethod
    def now() -> float:
        return time.time()


class KernelLogSession:
    """An open log, and the judge of it."""

    def __init__(self) -> None:
        self._device: Device | None = None
        self._judge = Correlator()
        self._joiner = Joiner()
        self._overruns = 0

    def read(self, ask: Ask) -> Iterator[Reading]:
        """Yield the log's findings up to now."""
        try:
            if self._device is None:
                self._device = Device(ask.at(kmsg_reader.KMSG), whole=True)
            self._drain(self._device)
        except OSError as error:
            self.close()
            yield from _from_copies(ask, f"{ask.at(kmsg_reader.KMSG)}: {error.strerror}", denied=isinstance(error, PermissionError))
            return
        yield Reading(NAME, KERNEL, "kernel.source", ask.at(kmsg_reader.KMSG))
        yield Reading(NAME, KERNEL, "kernel.overruns", self._overruns)
        yield Reading(NAME, KERNEL, "kernel.findings", _rows(self._judge.findings(), time.monotonic()))

    def close(self) -> None:
        """Let go of the device."""
        if self._device is not None:
            self._device.close()
            self._device = None

    def _drain(self, opened: Device) -> None:
        for _ in range(MOST_RECORDS):
            try:
                data = opened.read()
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._overruns += 1
                continue
            if not data:
                raise OSError(0, "end of file, which the kernel's log never has")
            parsed = kmsg_reader.parse(data)
            for kmsg_record in self._joiner.take(parsed) if parsed is not None else ():
                if not _is_own(kmsg_record.text):
                    stamp = f"[{kmsg_record.uptime_s:12.6f}] {kmsg_record.text}"
                    self._judge.take(Entry(kmsg_record.text, stamp, kmsg_record.number, kmsg_record.uptime_s, kmsg_record.uptime_s))


def _is_own(text: str) -> bool:
    """Return whether the line names this process or its parent as `(pid N)`: a driver's message about our own reading is not a finding."""
    return f"(pid {os.getpid()})" in text or f"(pid {os.getppid()})" in text


def _from_copies(ask: Ask, why: str, *, denied: bool) -> Iterator[Reading]:
    """Yield the findings from a copy of the log: the journal (only of the running system), else the first syslog file that can be read."""
    reasons = [why]
    if ask.root == "/":
        copies = sources.journal(0.0, _Wall(), {})
        if not isinstance(copies, str):
            judge = Correlator()
            judge.take_all(Entry(text, text, number, t) for number, (text, t, _) in enumerate(copies, 1))
            yield from _findings("journalctl", _rows(judge.findings(), time.time()))
            return
        reasons.append(copies)
    for path in map(ask.at, sources.SYSLOG_FILES):
        try:
            lines = _tail(Path(path), MOST_BYTES)
            written_t = Path(path).stat().st_mtime
        except OSError as error:
            denied = denied or isinstance(error, PermissionError)
            continue
        if (missing := MOST_BYTES - sum(map(len, lines))) > 0:
            lines = _rotated(Path(path), missing) + lines
        judge = Correlator()
        judge.take_all(Lines().all(lines))
        placing = _Placing(time.time(), time.time() - time.monotonic() if ask.root == "/" else None, written_t)
        yield from _findings(path, _rows(tuple(map(placing.placed, judge.findings())), placing.now))
        return
    reasons.append("no file of syslog's that can be read")
    yield Reading(NAME, KERNEL, "kernel.source", None, "; ".join(reasons))
    yield Reading(NAME, KERNEL, "kernel.findings", None, PERMISSION if denied else "; ".join(reasons))


def _findings(source: str, rows: Json) -> Iterator[Reading]:
    yield Reading(NAME, KERNEL, "kernel.source", source)
    yield Reading(NAME, KERNEL, "kernel.findings", rows)


def _tail(path: Path, most: int) -> list[str]:
    """Return the last lines of a file, of `most` bytes in all."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return file.read(most).decode("utf-8", "replace").split("\n")


def _rotated(path: Path, most: int) -> list[str]:
    """Return the end of the file that `path` was until it was rotated: lines of a minute before midnight are there."""
    with suppress(OSError, ValueError):
        earlier = [file for file in path.parent.glob(f"{path.name}[.-]*") if file.suffix not in _COMPRESSED and file.is_file()]
        return _tail(max(earlier, key=lambda file: file.stat().st_mtime), most)
    return []


class _Placing:
    """Gives the findings of a syslog file wall times: its lines may name no year, or only the time since the boot."""

    def __init__(self, now: float, booted_t: float | None, written_t: float) -> None:
        """Take the wall clock, when the system booted (None: it is another one's file), and when the file was last written."""
        self.now = now
        self._booted_t = booted_t
        self._written_t = written_t

    def placed(self, finding: LogFinding) -> LogFinding:
        """Return the finding with wall times; None means a time that is not known."""
        first = self._wall(finding.t)
        last = self._wall(finding.last_t) if finding.last_t is not None else first
        if last is None and self.now - self._written_t > _DAY_S:
            last = self._written_t  # it is at least that old
        return replace(finding, t=first, last_t=last)

    def _wall(self, t: float | None) -> float | None:
        if t is None or t >= _YEARS_NAMED_T:
            return t
        if t < datetime(2000, 1, 1, tzinfo=UTC).timestamp():  # since the boot
            return None if self._booted_t is None or self._booted_t + t > self.now else self._booted_t + t
        date = datetime.fromtimestamp(t, UTC).replace(tzinfo=None)  # as the line has it: in local time
        this_year = datetime.fromtimestamp(self.now + _AHEAD_S).year  # noqa: DTZ006  local time
        for year in range(this_year, this_year - _MOST_YEARS, -1):
            with suppress(ValueError):
                wall = date.replace(year=year).timestamp()
                if wall <= self.now + _AHEAD_S:
                    return wall
        return None


def _rows(findings: tuple[LogFinding, ...], now: float | None) -> Json:
    rows: list[Json] = []
    for log_finding in findings:
        last = log_finding.last_t if log_finding.last_t is not None else log_finding.t
        age = round(max(0.0, now - last), 1) if now is not None and last is not None else None
        rows.append({**log_finding.to_json(), "last_time": last, "age_s": age})
    return rows
