"""Reads a job's last recorded state from its journal.

Events are not replayed through `decide`, because its rules may have changed; the recorded state is used. A field that this supervise does
not know is passed over, and a missing one has its default. A state that does not fit counts as none. Nothing fails: `problems` lists the
faults of the journal. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from supervisor.core.state import JobState, Stage
from supervisor.core.values import Struct, replace
from supervisor.journal.records import Damage, EventTaken, Header, Record, RunBegan, RunEnded

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_PROBLEMS = 20


class Past(Struct, frozen=True):
    """The result of reading a journal.

    `state`: the last recorded state; if none was recorded, a fresh one that holds only the number of incidents. `records` and `events`:
    counts. `last_end`: the end record of the last run, None if it has none. `incidents_before`: the number of earlier incidents, which is
    written into the next `RunBegan`; None if the run continues. `unrecorded_incidents`: 1 if the supervisor died with no open incident:
    that death gets the next incident number. `node`: of which node it is.
    """

    state: JobState
    records: int
    events: int
    next_seq: int
    version: str
    last_run: RunBegan | None
    last_end: RunEnded | None
    problems: tuple[str, ...]
    incidents_before: int | None = None
    unrecorded_incidents: int = 0
    node: str = ""

    def begun_anew(self) -> Past:
        """Return the past of a new run in a new file: it takes over the number of incidents and nothing else."""
        count = self.state.incidents + self.unrecorded_incidents
        return replace(self, state=JobState(incidents=count), incidents_before=count, unrecorded_incidents=0)


def merge(values: dict[str, Any], changes: dict[str, Any]) -> None:
    """Apply a difference (writer.difference), as JSON, to the earlier state."""
    for name, value in changes.items():
        into = values.get(name)
        if name in {"run", "attempt"} and isinstance(into, dict) and isinstance(value, dict):
            into.update(value)
        else:
            values[name] = value


def state_of(values: dict[str, Any]) -> JobState:
    """Convert the fields of a state from JSON. Raises msgspec.ValidationError where one does not fit."""
    return msgspec.convert(values, JobState)


class _Reading:
    """Collects the state while the records are read."""

    def __init__(self) -> None:
        self.values: dict[str, Any] | None = None  # of the last state, as JSON; None until one was recorded
        self.version = self.node = ""
        self.records = self.events = self.last_seq = self.incidents = 0
        self.last_run: RunBegan | None = None
        self.last_end: RunEnded | None = None
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
            self.version, self.node = body.version, body.node
        elif isinstance(body, RunEnded):
            self.last_end = body
        elif isinstance(body, EventTaken):
            self.take_event(body)

    def take_event(self, taken: EventTaken) -> None:
        self.events += 1
        opened = taken.first("OpenIncident")
        self.incidents = max(self.incidents, int(opened["incident"]) if opened else 0)
        self.incident_open = (self.incident_open or opened is not None) and taken.first("CloseIncident") is None
        self.stage = taken.stage
        if taken.whole:
            self.values = taken.state
        elif self.values is not None:
            merge(self.values, taken.state)

    def state(self) -> JobState:
        try:
            state = state_of(self.values or {})
        except msgspec.ValidationError as error:
            self.report(f"the recorded state is not used, because this supervise cannot read it: {error}")
            state = JobState()
        # journal_degraded belonged to the old process; reset it
        return replace(state, incidents=max(state.incidents, self.incidents), journal_degraded=False)

    def died_unrecorded(self) -> bool:
        """Whether the last run's supervisor died without an end record while no incident was open (as History.with_our_death)."""
        ended = self.last_end is not None or self.stage == Stage.ENDED
        return self.last_run is not None and not ended and not self.incident_open


def read_past(records: Iterable[Record | Damage]) -> Past:
    """Read the state and the counts from these records."""
    reading = _Reading()
    damaged_end = False
    for record in records:
        if isinstance(record, Record):
            reading.take(record)
            damaged_end = False  # a gap in seq shows lost records; without a gap, a torn write was repeated and nothing is lost
        else:
            reading.report(str(record))
            damaged_end = not record.torn
    return Past(
        state=reading.state(),
        records=reading.records,
        events=reading.events,
        next_seq=reading.last_seq + (2 if damaged_end else 1),  # 2: the damaged line had the next number; the gap shows that it is lost
        version=reading.version,
        last_run=reading.last_run,
        last_end=reading.last_end,
        problems=tuple(reading.problems),
        unrecorded_incidents=int(reading.died_unrecorded()),
        node=reading.node,
    )
