"""A job's history on one node, as the commands read it from the journal: the job, its incidents, and each failure within them."""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.model import CheckpointRef, Evidence, Failure, Finding, Gpu, Hang, Policy, Progress, RankExit, RankInfo
from supervisor.core.state import Stage
from supervisor.journal.records import Header, Note, RunBegan, RunEnded, StartTimes

#: An opening that stands nowhere in the journal because the supervisor died before it could write one.
_DIED = "supervise died while this attempt ran"


@dataclass(slots=True)
class Round:
    """One failure within an incident, and what was done about it. Times are those of the events; None is: not recorded.

    failed_t: when this node's ranks were ended: one of them died then, or supervise ended the attempt. began, began_t: the attempt that was
    ordered, and when. missing, missing_until_t: nodes that it waits for, and until when. warnings: what was strange about the attempt when
    it failed. members: the nodes of the attempt, in the order of their group rank; none: it was of this node alone.
    """

    attempt: int
    failed_t: float | None = None
    deaths: list[tuple[float, RankExit]] = field(default_factory=list)
    ended_t: float | None = None
    evidence: tuple[Evidence, ...] = ()
    decision: act.ReportDecision | None = None
    decided_t: float | None = None
    selected: events.CheckpointSelected | None = None
    began: int | None = None
    began_t: float | None = None
    missing: int = 0
    missing_until_t: float = 0.0
    warnings: tuple[str, ...] = ()
    members: tuple[str, ...] = ()


@dataclass(slots=True)
class RecordedIncident:
    """One incident. progress: the last one before it. died_t: of the last record of a supervisor that died within it.

    start: where the time of the newest restart after it went; None: not recorded.
    """

    number: int
    run_id: str
    opened_t: float
    rank: int | None
    summary: str
    progress: Progress
    rounds: list[Round]
    resumed: act.ReportResume | None = None
    resumed_t: float = 0.0
    closed_t: float | None = None
    outcome: str = "open"
    exit_code: int | None = None
    died_t: float | None = None
    start: StartTimes | None = None


@dataclass(slots=True)
class RecordedStraggler:
    """A rank or a node that made the others wait, in one attempt, as this node found. until_t: None: it still does.

    about: the key by which its end is known (PaceChanged). text: the sentence with which it was reported.
    """

    t: float
    attempt: int
    about: str
    text: str
    until_t: float | None = None


@dataclass(slots=True)
class History:
    """A job on one node, as its journal describes it."""

    header: Header | None = None
    run: RunBegan | None = None
    end: RunEnded | None = None
    attempt: int = 0
    stage: str = "new"
    warnings: tuple[str, ...] = ()  # what is strange about the loss and the pace of the current attempt
    ranks: tuple[RankInfo, ...] = ()
    world_size: int = 0  # of the current attempt, or the last one
    progress: Progress = field(default_factory=Progress)
    incidents: list[RecordedIncident] = field(default_factory=list)
    first_deaths: dict[int, int] = field(default_factory=dict)
    last_t: float = 0.0
    problems: list[str] = field(default_factory=list)
    incidents_before: int = 0
    summary: str = ""  # the last line of the last run; "" while it goes on
    restored: str = ""  # what a mirror gave before the first attempt of the last run, and what was passed over
    run_t: float = 0.0  # when the last run began, 0: not recorded
    end_t: float = 0.0
    attempt_t: float | None = None  # when the ranks of the current attempt were there
    pace: tuple[tuple[float, int], ...] = ()  # the newest reports of progress of the current attempt: time, step
    verified: tuple[float, CheckpointRef] | None = None  # when, and which
    mirrored: tuple[float, Note] | None = None
    saves: str = ""  # how many saves of the last run the mirrors hold
    start: StartTimes | None = None  # of the newest start of the ranks
    standbys: Note | None = None
    last_decision: act.ReportDecision | None = None
    policy: Policy = field(default_factory=Policy)
    failures: tuple[Failure, ...] = ()  # as JobState.run.failures
    charged: int = 0  # as JobState.run.charged
    gpus: tuple[Gpu, ...] = ()
    findings: dict[tuple[str, str, str], Finding] = field(default_factory=dict)  # the newest of each kind
    examined_t: float | None = None  # when this node was last examined
    hang: tuple[float, Hang] | None = None  # that holds: when it was confirmed, and what two looks showed
    meetings: dict[int, tuple[str, ...]] = field(default_factory=dict)  # of the last run: attempt to the nodes that met for it
    stragglers: list[RecordedStraggler] = field(default_factory=list)  # of the last run, the oldest first
    me: str = ""  # this node among those that met last
    missing: int = 0  # nodes that the attempt waits for
    missing_until_t: float = 0.0

    @property
    def members(self) -> tuple[str, ...]:
        """The nodes that met last in this run."""
        return next(reversed(self.meetings.values()), ())

    @property
    def open_incident(self) -> RecordedIncident | None:
        """The incident that is not closed; at most the last one can be."""
        last = self.incidents[-1] if self.incidents else None
        return last if last is not None and last.closed_t is None else None

    def with_our_death(self) -> None:
        """Complete the history if the supervisor is gone and wrote no end record."""
        if self.run is None or self.end is not None or self.stage == Stage.ENDED:
            return
        seen = () if self.hang is None else (self.hang[1].evidence(self.hang[0]),)
        self.hang = None
        incident = self.open_incident
        if incident is None:
            number = (self.incidents[-1].number if self.incidents else self.incidents_before) + 1
            last = Round(self.attempt, evidence=seen)
            incident = RecordedIncident(number, self.run.run_id, self.last_t, None, _DIED, self.progress, [last])
            self.incidents.append(incident)
        incident.died_t = self.last_t
        incident.outcome = "supervise died"
