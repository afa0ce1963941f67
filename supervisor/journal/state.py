"""Reads the state of a job from its journal: the last one that was recorded, of this format or of an older one.

No event is decided on again: rules may change between two versions of supervise, what was decided does not. A field that this version
does not know is passed over, one that an older version did not have gets its default, and of a value that does not fit (a cause that no
longer exists) as much is kept as fits. Nothing fails: what is wrong with a journal is in `problems`. Pure.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from supervisor.core.state import Attempt, JobState, Run, Stage, changed
from supervisor.journal import format2, renames
from supervisor.journal.format1 import Format1
from supervisor.journal.records import Damage, Ended, EventTaken, Header, Record, RunBegan, fitting, kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_PROBLEMS = 20
#: Where a state names a stage that this version does not know: takeover then treats the attempt as one that was under way.
_UNDER_WAY = Stage.RUNNING


@dataclass(frozen=True, slots=True)
class Past:
    """What a journal gives back.

    `state` is the last recorded one; where none was recorded it is a fresh one that only remembers how many incidents there were.
    `records` and `events` are counts; `last_end` is the end record of the last run, None where it has none. `incidents_before` belongs into
    the next `RunBegan`: None where the state goes on. `unrecorded_incidents` is 1 where the last supervisor died with no incident open:
    readers show its death as an incident, so the next number comes after it.
    """

    state: JobState
    records: int
    events: int
    next_seq: int
    version: str
    last_run: RunBegan | None
    last_end: Ended | None
    problems: tuple[str, ...]
    incidents_before: int | None = None
    unrecorded_incidents: int = 0

    def begun_anew(self) -> Past:
        """Return what a new run in a new file takes over: how many incidents there were, and nothing else."""
        count = self.state.incidents + self.unrecorded_incidents
        return replace(self, state=JobState(incidents=count), incidents_before=count, unrecorded_incidents=0)


def difference(after: JobState, before: JobState) -> dict[str, Any]:
    """Return the fields of `after` that differ from those of `before`; of `run` and `attempt` their fields that differ."""
    found = _differing(after, before)
    if "run" in found:
        found["run"] = _differing(after.run, before.run)
    if "attempt" in found:
        found["attempt"] = _differing(after.attempt, before.attempt)
    return found


def _differing(after: JobState | Run | Attempt, before: JobState | Run | Attempt) -> dict[str, Any]:
    old = before.__dict__
    return {name: value for name, value in after.__dict__.items() if value is not old[name] and value != old[name]}


def merge(values: dict[str, Any], found: dict[str, Any]) -> None:
    """Add a difference, as JSON, to the state that it differs from."""
    for name, value in found.items():
        into = values.get(name)
        if name in {"run", "attempt"} and isinstance(into, dict) and isinstance(value, dict):
            into.update(value)
        else:
            values[name] = value


def state_of(values: dict[str, Any]) -> tuple[JobState, tuple[str, ...]]:
    """Return the state that these fields (as JSON) are, and what of them does not fit this version."""
    with suppress(msgspec.ValidationError):
        return _with_defaults(msgspec.convert(values, JobState)), ()
    kinds, known = kinds_of(JobState), dict[str, Any]()
    problems: list[str] = []
    for name in values.keys() & kinds.keys():
        try:
            known[name] = fitting(values[name], kinds[name], problems)
        except msgspec.ValidationError as error:
            problems.append(f"{name}: {error}")
    return _with_defaults(JobState(**({"stage": _UNDER_WAY} | known if "stage" in values else known))), tuple(problems)


def _with_defaults(state: JobState) -> JobState:
    """Return the state with all its fields in its dictionaries, as `changed` needs them: msgspec leaves defaults to the class."""
    found = JobState(**state.__dict__)
    return changed(found, run=Run(**found.run.__dict__), attempt=Attempt(**found.attempt.__dict__))


class _Reading:
    """The state while the records are read."""

    def __init__(self) -> None:
        self.values: dict[str, Any] | None = None  # of the last state, as JSON; None until one was recorded
        self.values_version = ""  # of the format that they are in
        self.format1: Format1 | None = None
        self.version = ""
        self.records = self.events = self.last_seq = self.incidents = 0
        self.last_run: RunBegan | None = None
        self.last_end: Ended | None = None
        self.incident_open = False
        self.stage = ""
        self.problems: list[str] = []

    def report(self, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def take(self, record: Record) -> None:
        if record.seq != self.last_seq + 1:
            self.report(f"records lost: {self.last_seq + 1} to {record.seq - 1}")
        self.last_seq = record.seq
        self.records += 1
        body = record.body
        if isinstance(body, RunBegan):
            self.last_run, self.last_end = body, None
            self.incident_open = self.incident_open and body.continues
            self.incidents = max(self.incidents, body.incidents_before or 0)
        elif isinstance(body, Header):
            self.version = body.version
        elif isinstance(body, Ended):
            self.last_end = body
        elif isinstance(body, EventTaken):
            self.take_event(body)

    def take_event(self, taken: EventTaken) -> None:
        self.events += 1
        if renames.has_old_names(self.version):
            taken = renames.with_present_names(taken)
        opened = taken.first("OpenIncident")
        self.incidents = max(self.incidents, int(opened["incident"]) if opened else 0)
        self.incident_open = (self.incident_open or opened is not None) and taken.first("CloseIncident") is None
        self.stage = taken.stage
        if taken.whole:
            self.values, self.values_version, self.format1 = taken.state, self.version, None
        elif self.values is not None:
            merge(self.values, taken.state)
        elif self.version.startswith("1."):
            self.format1 = self.format1 or Format1()
            self.format1.take(taken)

    def state(self) -> JobState:
        if self.format1 is not None:
            state, problems = self.format1.state, tuple(self.format1.problems)
        else:
            values = self.values or {}
            if self.values_version.startswith("2."):
                values = format2.converted(values)
            state, problems = state_of(renames.state(values) if renames.has_old_names(self.values_version) else values)
        for problem in problems:
            self.report(f"the recorded state: {problem}")
        # whether its journal answered is a fact about the process that wrote it
        return changed(state, incidents=max(state.incidents, self.incidents), journal_degraded=False)

    def died_unrecorded(self) -> bool:
        """Whether the last run's supervisor is gone without an end, and no incident was open (as History.with_our_death)."""
        ended = self.last_end is not None or self.stage == Stage.ENDED
        return self.last_run is not None and not ended and not self.incident_open


def read_past(records: Iterable[Record | Damage]) -> Past:
    """Return what these records tell of the job."""
    reading = _Reading()
    damaged_end = False
    for found in records:
        if isinstance(found, Record):
            reading.take(found)
            damaged_end = False  # damage that leaves no gap in seq lost nothing: a write that was torn and tried again
        else:
            reading.report(str(found))
            damaged_end = not found.torn
    return Past(
        state=reading.state(),
        records=reading.records,
        events=reading.events,
        next_seq=reading.last_seq + (2 if damaged_end else 1),
        version=reading.version,
        last_run=reading.last_run,
        last_end=reading.last_end,
        problems=tuple(reading.problems),
        unrecorded_incidents=int(reading.died_unrecorded()),
    )
