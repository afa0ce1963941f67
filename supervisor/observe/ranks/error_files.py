"""Reads what ranks wrote down themselves: their uncaught exceptions (error files), and what trains in them (program files).

An error file that is half-written, huge, of another form or of another process is not evidence; it is listed with the reason.
"""

from __future__ import annotations

import json
import os
import re
import stat
from typing import TYPE_CHECKING, Any

from supervisor.core.model import Phase
from supervisor.core.values import Struct
from supervisor.instrument._supervise_shim.layout import UNCLAIMED, file_name
from supervisor.observe.ranks import heartbeats

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from supervisor.core.model import RankInfo

MOST_BYTES = 256 * 1024  # what the shim writes is below 130 KiB, every character escaped
MOST_FILES = 1024
MOST_VALUE = 256  # characters of what a knob holds


class ErrorReport(Struct, frozen=True):
    """An uncaught exception. `exc_type` is qualified; message ≤ 2 Ki, traceback ≤ 16 Ki characters (its end).

    `local_rank` and `rank` are None for a process that was not known to be a rank: a launcher, a helper, or a rank under `bash
    run.sh` that had not trained yet. `step` is absolute, None where unknown; `steps` were counted. `t_ns` is CLOCK_MONOTONIC, `wall`
    Unix seconds. `optimizer` and `ran`: as in RankHeartbeat. peer: HOST:PORT of the connection that it is about.
    """

    path: str
    pid: int
    start_ticks: int
    rank: int | None
    local_rank: int | None
    exc_type: str
    message: str
    traceback: str
    phase: Phase
    step: int | None
    steps: int
    t_ns: int
    wall: float
    optimizer: bool = False
    ran: bool = False
    peer: str = ""


class ReportedProgram(Struct, frozen=True):
    """The programs that train: rows of docs/guides/programs.md, the outermost first, and their values of the knobs.

    batchnorm: the model has a batch norm whose statistics depend on the micro-batch.
    """

    programs: tuple[str, ...]
    values: tuple[tuple[str, str], ...]
    batchnorm: bool


class IgnoredErrorFile(Struct, frozen=True):
    """A file that was not taken as evidence, and why."""

    path: str
    reason: str


class ErrorScan(Struct, frozen=True):
    """The error files of an attempt, each tuple first in time first.

    errors: of the ranks; where no rank wrote one, of the other instrumented processes: a training under `bash run.sh` or `accelerate
    launch` is not known to be a rank before it trained. unclaimed: all of those other processes (launchers, helpers).
    """

    errors: tuple[ErrorReport, ...]
    unclaimed: tuple[ErrorReport, ...]
    ignored: tuple[IgnoredErrorFile, ...]


def read(directory: Path, ranks: Iterable[RankInfo], *, since_ns: int = 0) -> ErrorScan:
    """Read the attempt's error files. since_ns: when the attempt began (CLOCK_MONOTONIC); what happened before is of another run.

    A rank's file counts if its process (pid and start time) is one of `ranks`, as the launcher reported them, or has claimed a slot of the
    heartbeat file: a rank may be the child of what the launcher started.
    """
    known = {(rank.pid, rank.start_ticks) for rank in ranks}
    known |= {(beat.pid, beat.start_ticks) for beat in heartbeats.read(directory / "heartbeat")}
    reports: list[ErrorReport] = []
    ignored: list[IgnoredErrorFile] = []
    for path in sorted(directory.glob("error-*.json"))[:MOST_FILES]:
        try:
            report = _report(path)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            ignored.append(IgnoredErrorFile(str(path), f"not readable as an error file: {str(error) or type(error).__name__}"))
            continue
        if path.name != file_name("error", report.local_rank, report.pid):
            ignored.append(IgnoredErrorFile(str(path), f"its name does not match its content (process {report.pid})"))
        elif report.t_ns < since_ns:
            ignored.append(IgnoredErrorFile(str(path), "it was written before this attempt began"))
        elif report.local_rank is not None and (report.pid, report.start_ticks) not in known:
            ignored.append(IgnoredErrorFile(str(path), f"process {report.pid} was not a rank of this attempt"))
        else:
            reports.append(report)
    reports.sort(key=lambda report: report.t_ns)
    unclaimed = tuple(report for report in reports if report.local_rank is None)
    return ErrorScan(tuple(report for report in reports if report.local_rank is not None) or unclaimed, unclaimed, tuple(ignored))


def programs(directory: Path) -> ReportedProgram | None:
    """Read what the attempt's processes saw of themselves; None where nobody saw anything.

    Where two hold different values of one knob, that of the lower local rank counts, and a rank's before that of an unclaimed process.
    """
    names: dict[str, None] = {}
    values: dict[str, str] = {}
    batchnorm = False
    for path in (*_in_order(directory, "program-[0-9]*.json"), *_in_order(directory, f"program-{UNCLAIMED}-*.json")):
        try:
            seen = _program(_row(path))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
        names |= dict.fromkeys(seen.programs)
        values = {knob: value for knob, value in seen.values if len(value) <= MOST_VALUE} | values
        batchnorm |= seen.batchnorm
    return ReportedProgram(tuple(names), tuple(sorted(values.items())), batchnorm) if names or values or batchnorm else None


def _in_order(directory: Path, pattern: str) -> list[Path]:
    """Return the files by the numbers in their names: rank 10 comes after rank 9."""
    return sorted(directory.glob(pattern), key=lambda path: ([int(n) for n in re.findall(r"\d+", path.name)], path.name))[:MOST_FILES]


def _program(row: dict[str, Any]) -> ReportedProgram:
    return ReportedProgram(
        programs=tuple(str(name) for name in row["programs"]),
        values=tuple((str(knob), str(value)) for knob, value in row["values"].items()),
        batchnorm=row["batchnorm"] is True,
    )


def _row(path: Path) -> dict[str, Any]:
    """Read a file of a rank's: one object of this version, regular, of a size that the shim writes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            message = "not a regular file"
            raise ValueError(message)
        if info.st_size > MOST_BYTES:
            message = f"{info.st_size} bytes"
            raise ValueError(message)
        row: Any = json.loads(file.read(MOST_BYTES))
    if not isinstance(row, dict) or row["v"] != 1:
        message = "of another version"
        raise ValueError(message)
    return row


def _report(path: Path) -> ErrorReport:
    row = _row(path)
    return ErrorReport(
        path=str(path),
        pid=int(row["pid"]),
        start_ticks=int(row["start_ticks"]),
        rank=_number(row["rank"]),
        local_rank=_number(row["local_rank"]),
        exc_type=str(row["exc_type"]),
        message=str(row["message"]),
        traceback=str(row["traceback"]),
        phase=Phase(row["phase"]),
        step=_number(row["step"]),
        steps=int(row["steps"]),
        t_ns=int(row["t_ns"]),
        wall=float(row["wall"]),
        optimizer=row.get("optimizer") is True,
        ran=row.get("ran") is True,
        peer=str(row.get("peer") or ""),
    )


def _number(value: Any) -> int | None:  # noqa: ANN401 - out of JSON
    return None if value is None else int(value)
