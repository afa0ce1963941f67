"""The values of health: the request to the probes, their readings, and the results of the checks.

    Ask          the input of a probe: where to look, and what the job is
    Reading      one value that one probe read of one subject, or why it could not be read
    Readings     all of one sweep, found by name and subject
    CheckResult  what one check found about one subject: result, reason, evidence, and what repairs it

A subject is named `gpu:UUID`, `pci:0000:3b:00.0`, `port:mlx5_0/1`, `nic:eth0`, `path:/data`, `probe:nvml`, `host` or `kernel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.thresholds import Thresholds


Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
Judge: TypeAlias = "Callable[[Readings, Readings | None, Thresholds], Iterable[CheckResult]]"

HOST: Final = "host"
KERNEL: Final = "kernel"
#: Problems that are not a fault of the subject: the reading does not exist here, or is not permitted.
NOT_SUPPORTED: Final = "not_supported"
PERMISSION: Final = "permission"
#: The subject existed before, and does not any more.
GONE: Final = "gone"


class Result(StrEnum):
    """The result of a check. UNKNOWN: could not be judged, which is not healthy. SKIPPED: nothing of the kind is here."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"


#: Worst first: the order in which people are shown them.
WORST_FIRST: Final = (Result.FAILED, Result.DEGRADED, Result.UNKNOWN, Result.OK, Result.SKIPPED)


class Repair(StrEnum):
    """The repair by a person or a fleet, in the words for people. RESTART_JOB is done by the supervisor; CONFIGURE is a setting."""

    NONE = "none"
    RESTART_JOB = "restart_job"
    RESET_GPU = "reset_gpu"
    RESTART_DRIVER = "restart_driver"
    REBOOT = "reboot"
    DRAIN = "drain"
    REPLACE = "replace"
    CONFIGURE = "configure"

    @property
    def words(self) -> str:
        """Name the repair for people; "" for none."""
        return _REPAIR_WORDS[self]


_REPAIR_WORDS: Final = {
    Repair.NONE: "",
    Repair.RESTART_JOB: "restart the job",
    Repair.RESET_GPU: "reset the GPU",
    Repair.RESTART_DRIVER: "restart the driver",
    Repair.REBOOT: "reboot the node",
    Repair.DRAIN: "take it out of use and inspect",
    Repair.REPLACE: "replace the part",
    Repair.CONFIGURE: "change a setting",
}


class Severity(StrEnum):
    """How bad an event of the kernel's log or an Xid is. INFO: corrected, an echo, or over: nothing is to be done."""

    INFO = "info"
    WARNING = "warning"  # degraded: inspect it at the next restart
    ERROR = "error"  # a process was ended by it, or a device failed a request
    CRITICAL = "critical"  # a GPU, a link, a disk or the node cannot be used before it is repaired


#: From the least to the worst.
SEVERITIES: Final = tuple(Severity)


@dataclass(frozen=True, slots=True)
class Ask:
    """The input of a probe. Each field is optional: `supervise doctor` knows no job.

    deadline_s: the most for any probe. paths: that the job writes. hosts: of the job's nodes. ports: that the job will listen on.
    environ: the job's. cookie: SUPERVISE_JOB_COOKIE, "" for none.
    need_bytes: the size of one checkpoint. lasting: the process reads repeatedly, so sessions stay open and events are received.
    root: the folder that holds /proc, /sys and /dev. options: for single probes, by the probe's name.
    """

    deadline_s: float = 10.0
    paths: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    environ: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    cookie: str = ""
    need_bytes: int = 0
    lasting: bool = False
    root: str = "/"
    options: Mapping[str, Json] = field(default_factory=lambda: MappingProxyType({}))

    def at(self, path: str) -> str:
        """Return an absolute path of the system, below `root`."""
        return path if self.root == "/" else self.root.rstrip("/") + path

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON."""
        return {
            "deadline_s": self.deadline_s,
            "paths": list(self.paths),
            "hosts": list(self.hosts),
            "ports": list(self.ports),
            "environ": dict(self.environ),
            "cookie": self.cookie,
            "need_bytes": self.need_bytes,
            "lasting": self.lasting,
            "root": self.root,
            "options": dict(self.options),
        }

    @classmethod
    def from_json(cls, row: dict[str, Json]) -> Ask:
        """Return the Ask that `to_json` wrote."""
        fields = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
        return cls(**fields)  # type: ignore[arg-type]  # to_json wrote it


@dataclass(frozen=True, slots=True)
class Reading:
    """One value. problem: "" or why there is none (NOT_SUPPORTED, PERMISSION, GONE, or words); then value is None. t: wall seconds."""

    probe: str
    subject: str
    name: str
    value: Json = None
    problem: str = ""
    t: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The finding of one check about one subject.

    reason: a sentence without a final dot. evidence: the values that prove it. command: repairs it, as it is typed, or says how; "" where
    none does. look: commands that change nothing and show more. blocks: no attempt should start while this holds. event: the name of an
    event (`xid 79`), "" for a state. A subject may have several events; an event that is not reported again is not over. t: when an event
    was, in wall seconds; None for a state, and where the time is not known.
    """

    check: str
    subject: str
    result: Result
    reason: str
    evidence: tuple[str, ...] = ()
    repair: Repair = Repair.NONE
    command: str = ""
    blocks: bool = False
    event: str = ""
    look: tuple[str, ...] = ()
    t: float | None = None

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON."""
        return {
            "check": self.check,
            "subject": self.subject,
            "result": self.result.value,
            "reason": self.reason,
            "evidence": list(self.evidence),
            "repair": self.repair.value,
            "command": self.command,
            "look": list(self.look),
            "blocks": self.blocks,
            "t": self.t,
        }


@dataclass(frozen=True, slots=True)
class Check:
    """One check: a pure function of the readings now, of those at the job's start, and of the thresholds. `check` makes it.

    It gives a result for every subject, also for a healthy one: UNKNOWN if it cannot judge, SKIPPED if there is nothing of the kind here.
    """

    name: str
    #: The kind of its subjects: the word before the colon of their names.
    subject: str
    #: The probes whose readings it judges.
    needs: tuple[str, ...]
    function: Judge
    #: For docs/guides/health.md: its readings, and where it answers DEGRADED and FAILED.
    reads: str
    degraded: str = ""
    failed: str = ""

    def __call__(self, now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
        """Judge the readings. before: those at the job's start."""
        return self.function(now, before, limits)


def check(  # noqa: PLR0913  its row in the docs, each by name
    name: str, *, subject: str, needs: tuple[str, ...], reads: str, degraded: str = "", failed: str = ""
) -> Callable[[Judge], Check]:
    """Make a function the check of this name. `python bench/reference.py` writes its row in docs/guides/health.md.

    The function is called with the readings now, those at the job's start (None: there are none), and the thresholds.
    """

    def decorate(function: Judge) -> Check:
        return Check(name, subject, needs, function, reads, degraded, failed)

    return decorate


class Readings:
    """The readings of one sweep, in the order in which they were made. The last of one name and subject holds."""

    __slots__ = ("_all", "_by_name")

    def __init__(self, readings: Iterable[Reading] = ()) -> None:
        self._all = tuple(readings)
        by_name: dict[str, dict[str, Reading]] = {}
        for reading in self._all:
            by_name.setdefault(reading.name, {})[reading.subject] = reading
        self._by_name = by_name

    def __iter__(self) -> Iterator[Reading]:
        """Yield every reading."""
        return iter(self._all)

    def __len__(self) -> int:
        """Return how many were made."""
        return len(self._all)

    def __add__(self, other: Readings) -> Readings:
        """Return these and then the others."""
        return Readings((*self, *other))

    def of(self, name: str) -> tuple[Reading, ...]:
        """Return those of one name, one for each subject."""
        return tuple(self._by_name.get(name, {}).values())

    def one(self, name: str, subject: str = HOST) -> Reading | None:
        """Return the reading, also one with a problem; None where it was not made."""
        return self._by_name.get(name, {}).get(subject)

    def number(self, name: str, subject: str = HOST) -> float | None:
        """Return a number (bool is treated as 0 or 1), None where there is none."""
        value = self.value(name, subject)
        return value if isinstance(value, int | float) else None

    def count(self, name: str, subject: str = HOST) -> int | None:
        """Return a whole number, None where there is none."""
        value = self.number(name, subject)
        return None if value is None else int(value)

    def text(self, name: str, subject: str = HOST) -> str:
        """Return a text, "" where there is none."""
        value = self.value(name, subject)
        return value if isinstance(value, str) else ""

    def rows(self, name: str, subject: str = HOST) -> list[dict[str, Json]]:
        """Return a list of tables, empty where there is none."""
        value = self.value(name, subject)
        return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []

    def table(self, name: str, subject: str = HOST) -> dict[str, Json]:
        """Return a table, empty where there is none."""
        value = self.value(name, subject)
        return value if isinstance(value, dict) else {}

    def value(self, name: str, subject: str = HOST) -> Json:
        """Return the value, None where there is none."""
        reading = self.one(name, subject)
        return None if reading is None or reading.problem else reading.value

    def problem(self, name: str, subject: str = HOST) -> str:
        """Return why there is no value, "" where there is one or none was asked for."""
        reading = self.one(name, subject)
        return "" if reading is None else reading.problem

    def subjects(self, kind: str = "") -> tuple[str, ...]:
        """Return the subjects whose names begin with `kind` (`gpu:`), in the order in which they were first read."""
        return tuple(dict.fromkeys(reading.subject for reading in self._all if reading.subject.startswith(kind)))

    def to_json(self) -> list[Json]:
        """Return them as JSON: for a baseline that is kept."""
        return [[reading.probe, reading.subject, reading.name, reading.value, reading.problem, reading.t] for reading in self._all]

    @classmethod
    def from_json(cls, rows: Json) -> Readings:
        """Return the Readings that `to_json` wrote. Raises ValueError on any other form."""
        return cls(reading_from(row) for row in (rows if isinstance(rows, list) else [rows]))


def reading_from(row: Json) -> Reading:
    """Return the reading of one row of `Readings.to_json`. Raises ValueError."""
    match row:
        case [str(probe), str(subject), str(name), value, str(problem), float() | int() as t]:
            return Reading(probe, subject, name, value, problem, float(t))
    raise ValueError(f"no reading: {row!r}")


def delta(now: Readings, before: Readings | None, name: str, subject: str) -> float | None:
    """Return by how much a counter grew since the baseline; None where either is missing, its present value where it began anew."""
    if before is None:
        return None
    new, old = now.number(name, subject), before.number(name, subject)
    if new is None or old is None:
        return None
    return new - old if new >= old else new  # the driver was loaded anew, or the device was reset


def elapsed_s(now: Readings, before: Readings | None, name: str, subject: str) -> float | None:
    """Return the seconds between the two readings of a counter."""
    new, old = now.one(name, subject), before.one(name, subject) if before is not None else None
    return new.t - old.t if new is not None and old is not None and new.t > old.t else None


def worst(results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """Return them worst first; within one result those that block first, then by check and subject."""
    return tuple(sorted(results, key=lambda result: (WORST_FIRST.index(result.result), not result.blocks, result.check, result.subject)))


def worse(severity: Severity, other: Severity) -> Severity:
    """Return the worse of two."""
    return max(severity, other, key=SEVERITIES.index)
