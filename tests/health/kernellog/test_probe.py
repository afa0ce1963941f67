"""The probe reads the device, or a copy of its log, and reports if it cannot; the check counts only recent events as failures."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from health.checks import kernel_log as checked
from health.kernellog import kmsg_reader, sources
from health.kernellog.kmsg_reader import Joiner, KmsgRecord
from health.kernellog.model import LogFinding
from health.kernellog.parse import Lines
from health.model import KERNEL, PERMISSION, Ask, Reading, Readings, Repair, Result, Severity
from health.probes import kernel_log
from health.thresholds import Thresholds

if TYPE_CHECKING:
    from pathlib import Path

    from health.model import CheckResult, Json

XID = "NVRM: Xid (PCI:0000:3d:00): 79, pid=0, GPU has fallen off the bus."


class _Records:
    """A device whose reads the test gives; None for what was overwritten."""

    def __init__(self, *records: bytes | None) -> None:
        self.left = list(records)

    def read(self) -> bytes:
        if not self.left:
            raise BlockingIOError
        record = self.left.pop(0)
        if record is None:
            raise BrokenPipeError
        return record

    def close(self) -> None:
        """See Kmsg."""


def _record(text: str, flags: str = "-", prefix: int = 3, number: int = 1) -> bytes:
    return f"{prefix},{number},449410332316,{flags};{text}\n".encode()


def _row(**more: Json) -> dict[str, Json]:
    row: dict[str, Json] = {"kind": "xid", "code": 79, "pci": "0000:3d:00", "severity": "critical", "repair": "reboot", "meaning": "lost"}
    return {**row, "line": XID, "line_number": 7, "count": 1, "age_s": 60.0, **more}


def _results(rows: Json, *, before: Json = None, problem: str = "") -> list[tuple[Result, Repair]]:
    now = Readings([Reading("kernel_log", KERNEL, "kernel.findings", rows, problem)])
    baseline = Readings([Reading("kernel_log", KERNEL, "kernel.findings", before)]) if before is not None else None
    return [(result.result, result.repair) for result in checked.kernel_log(now, baseline, Thresholds())]


def test_a_session_reads_on_where_it_was_and_counts_what_was_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = _Records(
        None, _record("nothing"), _record(XID[:20], flags="c", number=2), _record(XID[20:], flags="+", number=3), _record("end")
    )
    monkeypatch.setattr(kernel_log, "Device", lambda *_, **__: opened)
    session = kernel_log.session()
    first = Readings(session.read(Ask(lasting=True)))
    opened.left.append(_record(XID.replace("3d", "5e"), number=9))
    second = Readings(session.read(Ask(lasting=True)))
    assert [(row["code"], row["pci"], row["line_number"]) for row in first.rows("kernel.findings", KERNEL)] == [(79, "0000:3d:00", 2)]
    assert [row["pci"] for row in second.rows("kernel.findings", KERNEL)] == ["0000:3d:00", "0000:5e:00"]
    assert second.count("kernel.overruns", KERNEL) == 1


def test_other_facilities_and_lines_of_our_own_reading_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    own = f"mlx5_core 0000:5e:00.0: wait_func:1132:(pid {os.getpid()}): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource"
    others = own.replace(f"(pid {os.getpid()})", "(pid 1)")
    opened = _Records(_record(XID, prefix=11), _record(XID, prefix=30), _record(own), _record(others))
    monkeypatch.setattr(kernel_log, "Device", lambda *_, **__: opened)
    rows = Readings(kernel_log.read(Ask())).rows("kernel.findings", KERNEL)
    assert [row["kind"] for row in rows] == ["mlx5"]


def test_without_device_and_journal_syslogs_file_is_read(tmp_path: Path) -> None:
    log = tmp_path / "var/log/kern.log"
    log.parent.mkdir(parents=True)
    stamp = _ago(120.0)
    log.write_text(f"{stamp} node-7 kernel: [  123.456789] {XID}\n{stamp} node-7 train[1]: {XID.replace('3d', '4d')}\n")
    readings = Readings(kernel_log.read(Ask(root=str(tmp_path))))
    assert readings.text("kernel.source", KERNEL) == str(log)
    assert [row["pci"] for row in readings.rows("kernel.findings", KERNEL)] == ["0000:3d:00"]


def _ago(seconds: float, form: str = "%b %d %H:%M:%S") -> str:
    """Return a time as syslog writes it: in local time."""
    return time.strftime(form, time.localtime(time.time() - seconds))


def _of_file(root: Path, text: str, name: str = "kern.log", *, written_ago_s: float = 0.0) -> list[CheckResult]:
    """Return what the check says of a machine whose only copy of the kernel's log is this file of syslog's."""
    file = root / "var/log" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (time.time() - written_ago_s, time.time() - written_ago_s))
    return list(checked.kernel_log(Readings(kernel_log.read(Ask(root=str(root)))), None, Thresholds()))


@pytest.mark.parametrize(
    "stamp",
    [
        "%b %d %H:%M:%S node-7",
        "%b %d %Y %H:%M:%S node-7",
        "%Y-%m-%dT%H:%M:%S.123456%z node-7",
        "[%a %b %d %H:%M:%S %Y]",
        "%Y-%m-%dT%H:%M:%S%z node-7",
    ],
)
def test_a_gpu_that_fell_off_the_bus_minutes_ago_fails_by_syslogs_file_too(tmp_path: Path, stamp: str) -> None:
    kernel = "" if stamp.startswith("[") else "kernel:"
    (result,) = _of_file(tmp_path, f"{_ago(120.0, stamp)} {kernel} {XID}\n")
    assert (result.result, result.repair, result.subject) == (Result.FAILED, Repair.REBOOT, "pci:0000:3d:00")


def test_a_syslog_line_of_another_day_is_history_in_every_form(tmp_path: Path) -> None:
    for days in (3.0, 200.0, 360.0):
        (result,) = _of_file(tmp_path, f"{_ago(days * 86400)} node-7 kernel: {XID}\n")
        assert (result.result, f"{days:.0f} days ago" in result.reason) == (Result.DEGRADED, True), days


def test_a_line_whose_time_nobody_knows_fails_unless_its_file_is_old(tmp_path: Path) -> None:
    (result,) = _of_file(tmp_path, f"kernel: {XID}\n")
    assert (result.result, result.repair) == (Result.FAILED, Repair.REBOOT)
    assert "time unknown" in result.reason
    (result,) = _of_file(tmp_path, f"kernel: {XID}\n", written_ago_s=5 * 86400)
    assert result.result is Result.DEGRADED


@pytest.mark.parametrize("rotated", ["kern.log.1", "kern.log-20261129"])
def test_a_line_written_just_before_the_rotation_is_read(tmp_path: Path, rotated: str) -> None:
    _of_file(tmp_path, f"{_ago(120.0)} node-7 kernel: {XID}\n", rotated)
    _of_file(tmp_path, "an old one", f"{rotated}.gz")
    (result,) = _of_file(tmp_path, f"{_ago(60.0)} node-7 kernel: eth0: link up\n")
    assert result.result is Result.FAILED


@pytest.mark.parametrize(
    ("now", "line", "wall"),
    [
        ("2026-01-01 00:01", "Dec 31 23:59:00", "2025-12-31 23:59"),
        ("2025-12-31 23:59", "Jan  1 06:00:00", "2026-01-01 06:00"),  # a file in a time zone ahead of ours
        ("2027-03-01 00:01", "Feb 29 12:00:00", "2024-02-29 12:00"),
    ],
)
def test_a_date_without_a_year_is_the_newest_that_it_can_be(now: str, line: str, wall: str) -> None:
    def seconds(text: str) -> float:
        return datetime.fromisoformat(text).timestamp()

    (entry,) = Lines().all([f"{line} node-7 kernel: {XID}"])
    finding = LogFinding("xid", 79, Severity.CRITICAL, Repair.REBOOT, "lost", XID, t=entry.t, last_t=entry.t)
    placed = kernel_log._Placing(seconds(now), None, seconds(now)).placed(finding)  # noqa: SLF001  no file has such a date today
    assert placed.last_t == seconds(wall)


def test_an_unreadable_log_is_unknown_with_the_command_that_allows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(kernel_log, "Device", refused)
    now = Readings(kernel_log.read(Ask(root=str(tmp_path))))
    assert now.problem("kernel.findings", KERNEL) == PERMISSION
    (result,) = checked.kernel_log(now, None, Thresholds())
    assert (result.result, result.command) == (Result.UNKNOWN, "sudo sysctl kernel.dmesg_restrict=0")
    assert "Operation not permitted" in result.evidence[0]


@pytest.mark.parametrize(
    ("row", "results"),
    [
        (_row(), [(Result.FAILED, Repair.REBOOT)]),
        (_row(age_s=3 * 86400.0), [(Result.DEGRADED, Repair.NONE)]),
        (_row(age_s=None), [(Result.FAILED, Repair.REBOOT)]),
        (_row(kind="oom", code="global", repair="restart_job"), [(Result.DEGRADED, Repair.NONE)]),
        (_row(severity="error"), [(Result.DEGRADED, Repair.NONE)]),
        (_row(severity="warning"), [(Result.DEGRADED, Repair.NONE)]),
        (_row(severity="warning", age_s=3 * 86400.0), [(Result.OK, Repair.NONE)]),
        (_row(severity="info"), [(Result.OK, Repair.NONE)]),
    ],
)
def test_only_what_is_recent_and_critical_is_a_failure(row: dict[str, Json], results: list[tuple[Result, Repair]]) -> None:
    assert _results([row]) == results


def test_a_line_already_in_the_baseline_is_not_reported_again() -> None:
    assert _results([_row()], before=[_row(age_s=5.0)]) == [(Result.OK, Repair.NONE)]
    assert _results([_row(line=XID + " again")], before=[_row()]) == [(Result.FAILED, Repair.REBOOT)]
    baseline = _row(last_time=100.0, line_number=4999, count=3)
    assert _results([_row(last_time=100.0, line="a later one", line_number=1, count=1)], before=[baseline]) == [(Result.OK, Repair.NONE)]
    assert _results([_row(last_time=101.0)], before=[baseline]) == [(Result.FAILED, Repair.REBOOT)]


def test_many_findings_are_reported_as_some_and_a_number() -> None:
    assert len(_results([_row(line_number=n) for n in range(80)])) == checked.MOST_SHOWN + 1


def test_a_real_device_can_be_read_from_its_beginning_where_it_may_be() -> None:
    try:
        opened = kmsg_reader.Device(whole=True)
    except OSError as error:
        pytest.skip(f"{kmsg_reader.KMSG} cannot be read, run as root: {error.strerror}")
    try:
        first = opened.read()
    except BlockingIOError:
        pytest.skip(f"{kmsg_reader.KMSG} is empty: the kernel has logged nothing since its log was cleared")
    finally:
        opened.close()
    assert first
    assert len(first) < kmsg_reader.RECORD_BYTES


def test_a_line_in_parts_is_joined() -> None:
    joiner, part = Joiner(), KmsgRecord("a", "c", 1, 1.0)
    assert joiner.take(part) == ()
    assert joiner.take(replace(part, text="b", flags="+")) == ()
    assert joiner.take(replace(part, text="next", flags="-")) == (replace(part, text="ab"), replace(part, text="next", flags="-"))
    assert joiner.rest() == ()


def test_the_files_are_those_that_distributions_write() -> None:
    assert sources.KERNEL_FILE in sources.SYSLOG_FILES


def test_the_journal_is_asked_since_a_time_that_it_understands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = json.dumps({"SYSLOG_FACILITY": "0", "MESSAGE": XID, "__REALTIME_TIMESTAMP": "1700000000000000"})
    script = tmp_path / "journalctl"
    script.write_text(f"#!/bin/sh\ncase \"$*\" in *--since=@-*) echo 'Failed to parse timestamp' >&2; exit 1;; esac\necho '{row}'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for _ in range(20):  # the two looks at the clock differ by microseconds, one way or the other
        answer = sources.journal(0.0, kernel_log._Wall(), {})  # noqa: SLF001  the clock that the probe gives
        assert not isinstance(answer, str), answer
