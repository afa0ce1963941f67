"""The facts of a job on one node by its journal: the fields of JobView, and conclusions from them. Pure."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self

import msgspec

from checkpointing.io import typed
from supervisor.core import actions as act
from supervisor.core.model import CheckpointRef, Failure, Finding, Gpu, Hang, Policy, Progress, RankInfo, RankMemory
from supervisor.core.state import JobState, Stage
from supervisor.core.step_shares import StepShares
from supervisor.core.training_events import MemoryForecast
from supervisor.core.values import Struct, field, replace
from supervisor.journal import state_json
from supervisor.journal.records import (
    Header,
    Note,
    RunBegan,
    RunEnded,
    StartTimes,
)
from supervisor.view.counters import RunCounters
from supervisor.view.incidents import RecordedFailure, RecordedIncident, RecordedStraggler
from supervisor.view.run_time import RunTime
from supervisor.view.spans import RunLedger

#: The newest reports of progress, one in a minute, from which the pace of the training is taken.
_PACE_REPORTS = 4
#: Stragglers of a run that are kept, the newest; and faults of a journal, the oldest.
_MOST_STRAGGLERS, _MOST_FAULTS = 200, 100
#: An opening that is nowhere in the journal because the supervisor died before it could write one.
_DIED = "supervise died while this attempt ran"


def state_of(values: dict[str, Any]) -> JobState:
    """Convert the fields of a state from JSON. Raises msgspec.ValidationError where one does not fit."""
    return typed.converted(values, JobState)


class JournalFault(Struct, frozen=True, omit_defaults=True):
    """Something that is wrong with a journal."""

    text: str
    is_gap: bool = False  # records are missing, which a takeover names; what only reads names the damage


class PaceReport(Struct, frozen=True, array_like=True):
    """A report of progress, of which the pace is made."""

    attempt: int
    t: float
    step: int | None  # absolute; None: unknown
    steps: int  # seen in the attempt


class JobFacts(Struct, omit_defaults=True):
    """A job on one node. Its lists that grow (snapshot.py names them) may begin with the additions after the record `after_seq`."""

    # the journal
    header: Header | None = None
    version: str = ""  # of the newest header
    node: str = ""  # likewise
    seq: int = 0  # of the newest record
    record_count: int = 0  # how many were taken
    event_count: int = 0  # how many of them are events
    last_t: float = 0.0
    faults: list[JournalFault] = field(default_factory=list)
    is_end_damaged: bool = False  # no record follows a damaged line
    torn: str = ""  # the unfinished record at the end, in words: torn, or just being written
    after_seq: int = 0  # 0: the lists are whole
    # the run
    run: RunBegan | None = None
    end: RunEnded | None = None
    run_t: float = 0.0  # when the last run began, 0: not recorded
    end_t: float = 0.0
    restored: str = ""  # the checkpoint that a mirror gave before the first attempt of the last run, and those passed over
    summary: str = ""  # the last line of the last run; "" while it continues
    saves: str = ""  # how many saves of the last run the mirrors hold
    values: dict[str, Any] | None = None  # the newest state, as JSON; None: none was recorded
    budget_run: str = ""  # the run of which `values` has the failures
    # the attempt
    attempt: int = 0
    stage: str = "new"
    attempt_t: float | None = None  # when the ranks of the current attempt were there
    are_ranks_there: bool = False
    world_size: int = 0  # of the current attempt, or the last one
    progress: Progress = Progress()
    step_shares: StepShares | None = None  # where a step of the present attempt goes, by its newest report; None: not known
    resume: CheckpointRef | None = None  # what the newest attempt was given
    resumed: tuple[float, act.ReportResume] | None = None  # how an attempt of this node began, of the newest that was seen to, and when
    stop_t: float | None = None  # when a stop was requested last
    saved_t: float | None = None  # when every rank had made a save that was requested, the last one
    reports: tuple[PaceReport, ...] = ()  # the newest of progress
    warnings_by_key: tuple[tuple[str, str], ...] = ()  # strange facts of the loss and the pace, by the last record
    warned_attempt: int = 0  # the attempt of which they are
    memory: tuple[RankMemory, ...] = ()  # what the ranks held that held most, as it was last recorded; of the run
    forecasts: tuple[MemoryForecast, ...] = ()  # of the memory that will be used up
    hang: tuple[float, Hang] | None = None  # that holds: when it was confirmed, and what two looks showed
    hang_at_end: tuple[float, Hang, float] | None = None  # of the run's last attempt, without an incident: as `hang`, and when it ended
    start: StartTimes | None = None  # of the newest start of the ranks
    standbys: Note | None = None
    # its checkpoints
    verified: tuple[float, CheckpointRef] | None = None  # when, and which
    mirrored: tuple[float, Note] | None = None
    # its nodes
    me: str = ""  # this node among those that met last
    missing: int = 0  # nodes that the attempt waits for
    missing_until_t: float = 0.0
    meetings: dict[int, tuple[str, ...]] = field(default_factory=dict)  # of the last run: attempt to the nodes that met for it
    gpus: tuple[Gpu, ...] = ()
    findings: dict[str, Finding] = field(default_factory=dict)  # the newest of each check and subject
    examined_t: float | None = None  # when this node was last examined
    stragglers: list[RecordedStraggler] = field(default_factory=list)  # of the last run, the oldest first
    # its failures
    incidents: list[RecordedIncident] = field(default_factory=list)
    incidents_before: int = 0  # in the journals before this one
    incidents_unlisted: int = 0  # of this one, which stand in earlier views (`after_seq`)
    highest_incident: int = 0  # number of the newest, also where it was withdrawn
    first_deaths: dict[int, int] = field(default_factory=dict)  # of the last run: attempt to the rank that died first
    # its time and its counts
    runs_over: list[RunLedger] = field(default_factory=list)  # the ledgers of the runs before the last one
    time: RunTime | None = None  # of the last run; None: no run is recorded
    counters: RunCounters = field(default_factory=RunCounters)

    # what follows from it

    @property
    def problems(self) -> list[str]:
        """The damage of the journal, one sentence each."""
        return [fault.text for fault in self.faults if not fault.is_gap]

    @property
    def next_seq(self) -> int:
        """The number of the next record; a damaged line at the end had one, and the gap shows that it is lost."""
        return self.seq + (2 if self.is_end_damaged else 1)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Strange facts of the loss and the pace of the current attempt."""
        return tuple(text for _, text in self.warnings_by_key) if self.warned_attempt == self.attempt else ()

    @property
    def members(self) -> tuple[str, ...]:
        """The nodes that met last in this run."""
        return next(reversed(self.meetings.values()), ())

    @property
    def open_incident(self) -> RecordedIncident | None:
        """The incident that is not closed; at most the last one can be."""
        last = self.incidents[-1] if self.incidents else None
        return last if last is not None and last.closed_t is None else None

    @property
    def pace(self) -> tuple[tuple[float, int], ...]:
        """The newest reports of progress of the current attempt: time, step; where no absolute step is known, steps seen."""
        rows = [report for report in self.reports if report.attempt == self.attempt]
        absolute = tuple((report.t, report.step) for report in rows if report.step is not None)
        return absolute or tuple((report.t, report.steps) for report in rows if report.steps > 0)

    @property
    def ranks(self) -> tuple[RankInfo, ...]:
        """The ranks of this node while they are there, as JobState.attempt.ranks."""
        attempt = (self.values or {}).get("attempt")
        if self.are_ranks_there and isinstance(attempt, dict):
            with suppress(msgspec.ValidationError):
                return typed.converted(attempt.get("ranks", ()), tuple[RankInfo, ...])
        return ()

    @property
    def last_decision(self) -> act.ReportDecision | None:
        """The newest decision about a failure."""
        failed = (attempt for incident in reversed(self.incidents) for attempt in reversed(incident.failures))
        return next((attempt.decision for attempt in failed if attempt.decision is not None), None)

    @property
    def policy(self) -> Policy:
        """The rules of the run, as JobState.run.policy."""
        run = (self.values or {}).get("run")
        with suppress(msgspec.ValidationError):
            return typed.converted(run.get("policy", {}) if isinstance(run, dict) else {}, Policy)
        return Policy()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The newest failures of the run, as JobState.run.failures."""
        with suppress(msgspec.ValidationError):
            return typed.converted(self._of_run("failures", ()), tuple[Failure, ...])
        return ()

    @property
    def charged(self) -> int:
        """How many failures of the run were charged to a budget, as JobState.run.charged."""
        charged = self._of_run("charged", 0)
        return charged if isinstance(charged, int) else 0

    def _of_run(self, name: str, default: object) -> object:
        """Return a field of the state's run; the default where the newest run has recorded no state yet."""
        run = (self.values or {}).get("run")
        is_known = isinstance(run, dict) and self.run is not None and self.budget_run == self.run.run_id
        return run.get(name, default) if is_known and isinstance(run, dict) else default

    def state(self) -> tuple[JobState, str]:
        """Return the newest state, and why it is not used where it does not fit.

        Then it is a fresh one, which has only the number of incidents.
        """
        problem = ""
        try:
            state = state_of(self.values or {})
        except msgspec.ValidationError as error:
            problem = f"the recorded state is not used, because this supervise cannot read it: {error}"
            state = JobState()
        # journal_degraded belonged to the old process; reset it
        return replace(state, incidents=max(state.incidents, self.highest_incident), journal_degraded=False), problem

    def ledgers(self, now: float | None = None) -> list[RunLedger]:
        """Return the time ledgers of all runs, the oldest first. now: Unix seconds, where the last run continues.

        A later record leaves them as they are.
        """
        if self.after_seq:
            raise ValueError("a view of the journal's end has no ledgers")
        return [*self.runs_over, *([] if self.time is None else [self.time.copied().finish(now)])]

    def copied(self) -> Self:
        """Return a view that shares nothing that changes with this one."""
        incidents = [*self.incidents[:-1], *(replace(last, failures=[*map(_copied, last.failures)]) for last in self.incidents[-1:])]
        return replace(
            self,
            incidents=incidents,
            values=None if self.values is None else state_json.copied(self.values),
            faults=[*self.faults],
            first_deaths={**self.first_deaths},
            findings={**self.findings},
            meetings={**self.meetings},
            stragglers=[*self.stragglers],
            runs_over=[*self.runs_over],
            time=self.time and self.time.copied(),
            counters=self.counters.copied(),
        )

    def with_our_death(self) -> None:
        """Complete the view if the supervisor is gone and wrote no end record."""
        if self.run is None or self.end is not None or self.stage == Stage.ENDED:
            return
        seen = () if self.hang is None else (self.hang[1].evidence(self.hang[0]),)
        self.hang = None
        incident = self.open_incident
        if incident is None:
            number = (self.incidents[-1].number if self.incidents else self.incidents_before) + 1
            last = RecordedFailure(self.attempt, evidence=seen)
            incident = RecordedIncident(number, self.run.run_id, self.last_t, None, _DIED, self.progress, [last])
            self.incidents.append(incident)
        incident.died_t = self.last_t
        incident.outcome = "supervise died"


def _copied(attempt: RecordedFailure) -> RecordedFailure:
    return replace(attempt, deaths=[*attempt.deaths])
