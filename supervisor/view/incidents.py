"""The incidents of a job and the ranks that made others wait, as its journal has them."""

from __future__ import annotations

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.model import Evidence, Progress, RankExit
from supervisor.core.values import Struct, field
from supervisor.journal.records import StartTimes


class RecordedFailure(Struct):
    """One failure within an incident, and the action about it. Times are those of the events; None is: not recorded."""

    attempt: int
    failed_t: float | None = None  # when this node's ranks were ended: one of them died then, or supervise ended the attempt
    deaths: list[tuple[float, RankExit]] = field(default_factory=list)
    ended_t: float | None = None
    evidence: tuple[Evidence, ...] = ()
    decision: act.ReportDecision | None = None
    decided_t: float | None = None
    selected: events.CheckpointSelected | None = None
    began: int | None = None  # the attempt that was ordered
    began_t: float | None = None  # when it was
    missing: int = 0  # nodes that it waits for
    missing_until_t: float = 0.0  # until when it does
    warnings: tuple[str, ...] = ()  # strange facts of the attempt when it failed
    members: tuple[str, ...] = ()  # the nodes of the attempt, in the order of their group rank; none: it was of this node alone


class RecordedIncident(Struct):
    """One incident."""

    number: int
    run_id: str
    opened_t: float
    rank: int | None
    summary: str
    progress: Progress  # the last one before it
    failures: list[RecordedFailure]  # its failures, the oldest first
    resumed: act.ReportResume | None = None
    resumed_t: float = 0.0
    closed_t: float | None = None
    outcome: str = "open"
    exit_code: int | None = None
    died_t: float | None = None  # of the last record of a supervisor that died within it
    start: StartTimes | None = None  # where the time of the newest restart after it went; None: not recorded


class RecordedStraggler(Struct, frozen=True):
    """A rank or a node that made the others wait, in one attempt, as this node found."""

    t: float
    attempt: int
    about: str  # the key by which its end is known (PaceChanged)
    text: str  # the sentence with which it was reported
    until_t: float | None = None  # None: it still does
