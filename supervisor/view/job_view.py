"""A job on one node by its journal: its state, each incident from beginning to end, where its time went, its counts.

`JobView` is the one fold of the records; a takeover, `status`, `why`, `report`, `ui` and the metrics read it. `decide` is not run for it,
because its rules may have changed: the decisions and the state stand in the records. An event or a field that this supervise does not know
is passed over. Nothing fails: `faults` lists the faults of the journal. Pure.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from checkpointing.io import typed
from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.model import CheckpointRef, Finding, Progress
from supervisor.core.training_events import STRAGGLER, MemoryForecast, PaceChanged
from supervisor.core.values import replace
from supervisor.journal.records import (
    MIRRORED,
    RESTORED,
    SAVES_COUNTED,
    STANDBYS,
    START_TIMES,
    SUMMARY,
    Damage,
    EventTaken,
    Header,
    Note,
    Record,
    RunBegan,
    RunEnded,
    StartTimes,
    action_of,
    event_of,
)
from supervisor.journal.state_json import copied, merge, progressed
from supervisor.view.counters import RunCounters
from supervisor.view.incidents import RecordedFailure, RecordedIncident, RecordedStraggler
from supervisor.view.job_facts import JobFacts, JournalFault, PaceReport
from supervisor.view.run_time import RunTime

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The newest reports of progress, one in a minute, from which the pace of the training is taken.
_PACE_REPORTS = 4
#: Stragglers of a run that are kept, the newest; and faults of a journal, the oldest.
_MOST_STRAGGLERS, _MOST_FAULTS = 200, 100
#: An opening that is nowhere in the journal because the supervisor died before it could write one.
_DIED = "supervise died while this attempt ran"


def fold(records: Iterable[Record | Damage]) -> JobView:
    """Return the view of these records."""
    view = JobView()
    for record in records:
        view.take(record)
    return view


class JobView(JobFacts, omit_defaults=True):
    """A job on one node, as its journal describes it. `take` changes it in place; `copied` is the reader's own."""

    # --- the records

    def take(self, record: Record | Damage) -> None:
        """Take what `scan` yields next; a second copy of a record changes nothing."""
        if isinstance(record, Damage):
            self.is_end_damaged = not record.torn
            if record.torn:
                self.torn = str(record)
            else:
                self._report(str(record))
        elif record.seq > self.seq:
            self._take_record(record)

    def _report(self, text: str, *, is_gap: bool = False) -> None:
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append(JournalFault(text, is_gap))

    def _take_record(self, record: Record) -> None:
        is_lost = record.seq != self.seq + 1
        if is_lost:
            self._report(f"records lost: {self.seq + 1} to {record.seq - 1}", is_gap=True)
        # a gap in seq shows lost records; without a gap, a torn write was repeated and nothing is lost
        self.seq, self.record_count, self.is_end_damaged, self.torn = record.seq, self.record_count + 1, False, ""
        self.last_t = max(self.last_t, record.t)
        self._spend_time(record, is_lost=is_lost)
        body = record.body
        if isinstance(body, Header):
            self.header, self.version, self.node = self.header or body, body.version, body.node
        elif isinstance(body, RunBegan):
            self._begin(body, record.t)
        elif isinstance(body, RunEnded):
            self.end, self.are_ranks_there, self.end_t = body, False, record.t
            self._on_no_straggler(record.t)
            self._ended(body.exit_code)
        elif isinstance(body, Note):
            self.counters.take_note(body, record.t)
            self._take_note(body, record.t)
        elif isinstance(body, EventTaken):
            self.counters.take_event(body, record.t)
            self._take_event(body, record.t)

    def _spend_time(self, record: Record, *, is_lost: bool) -> None:
        """Take the record into the time ledger of its run."""
        run, body = self.time, record.body
        if run is not None and is_lost:
            run.miss()
        if isinstance(body, RunBegan) and run is not None and body.continues:
            run.take_over()
        elif isinstance(body, RunBegan):
            self.runs_over += [run.finish()] if run is not None else []
            self.time = RunTime.begun(body.run_id, record.t, gpus=self.runs_over[-1].gpus if self.runs_over else 0)
        elif run is not None and isinstance(body, EventTaken):
            run.take_event(body, record.t)
        elif run is not None and isinstance(body, RunEnded):
            run.end(body, record.t)
        elif run is not None and isinstance(body, Note):
            run.take_note(body, record.t)

    def _take_note(self, note: Note, t: float) -> None:
        """Take a fact beside the events."""
        if note.name == RESTORED:
            self.restored = note.text
        elif note.name == SUMMARY:
            self.summary = note.text
            path, step = note.data.get("path"), note.data.get("step")
            if isinstance(path, str) and (self.verified is None or self.verified[1].path != path):
                self.verified = t, CheckpointRef(path, step if isinstance(step, int) else None, "")  # once no rank was left
        elif note.name == MIRRORED:
            self.mirrored = t, note
        elif note.name == SAVES_COUNTED:
            self.saves = note.text
        elif note.name == STANDBYS:
            self.standbys = note
        elif note.name == START_TIMES:
            with suppress(msgspec.ValidationError):
                self._take_start(typed.converted(note.data, StartTimes))

    def _take_start(self, start: StartTimes) -> None:
        """Take where the time of a start went."""
        self.start = start
        last = self.incidents[-1] if self.incidents else None
        if last is not None and last.failures[-1].began == start.attempt:
            last.start = start

    def _begin(self, run: RunBegan, t: float) -> None:
        """A supervisor took the job over, for a new run or for the one that continues."""
        if self.run is None:
            self.incidents_before = run.incidents_before or 0
        self.highest_incident = max(self.highest_incident, run.incidents_before or 0)
        self.run, self.end, self.end_t, self.restored, self.summary, self.saves = run, None, 0.0, "", "", ""
        self.standbys = None
        if run.continues and self.run_t:
            return
        self.run_t = t
        if not run.continues:
            self._abandon(t)
            self.attempt, self.are_ranks_there, self.progress, self.resume = 0, False, Progress(), None
            self.first_deaths, self.meetings, self.stragglers, self.memory, self.forecasts = {}, {}, [], (), ()
            self.verified = self.mirrored = self.attempt_t = self.start = None
            self.counters = RunCounters(run.run_id)

    def abandoned(self) -> JobView:
        """Return this view of an earlier run, completed in place: its supervisor is gone, and a new run was started."""
        self.with_our_death()
        self._abandon(self.last_t)
        return self

    def _abandon(self, t: float) -> None:
        """Close open incidents: a new run began, and nobody else will."""
        incident = self.open_incident
        if incident is not None:
            incident.closed_t = t
            if incident.died_t is None:
                incident.outcome = "left open, a new run was started"

    def _take_event(self, taken: EventTaken, t: float) -> None:
        """Take an event, and the decision about it."""
        self.event_count += 1
        if taken.attempt != self.attempt:
            self._on_no_straggler(self.last_t)
        self.attempt, self.stage = taken.attempt, taken.stage
        self._take_state(taken)
        # what came of an event follows it, except for the opening: the event that opens an incident belongs to it
        actions = list(_actions(taken))
        for action in actions:
            if isinstance(action, act.OpenIncident):
                self._open(action, t)
        event = None
        with suppress(KeyError, msgspec.ValidationError):
            event = event_of(taken)
        if event is not None:
            self._on_event(event)
        for action in actions:
            self._on_action(action, t)

    def _take_state(self, taken: EventTaken) -> None:
        """Take the state after an event."""
        changes = progressed(self.values or {}, taken.data) if taken.is_short else taken.state or {}
        if taken.whole:
            self.values = copied(changes)
        elif self.values is not None:
            merge(self.values, changes)
        self.budget_run = self.run.run_id if self.run is not None else ""
        attempt = changes.get("attempt")
        fields: dict[str, Any] = attempt if isinstance(attempt, dict) else {}
        if "warnings" in fields or taken.whole:
            with suppress(msgspec.ValidationError):
                self.warnings_by_key = typed.converted(fields.get("warnings", ()), tuple[tuple[str, str], ...])
                self.warned_attempt = taken.attempt
        if members := fields.get("members"):
            self.meetings[taken.attempt], self.me = tuple(map(str, members)), str(fields.get("me", self.me))

    def _ended(self, exit_code: int) -> None:
        """Set the exit code of the last incident if it was given up or the job was stopped, and it has none yet."""
        last = self.incidents[-1] if self.incidents else None
        if last is not None and last.outcome in {"given_up", "stopped"} and last.exit_code is None:
            last.exit_code = exit_code

    def _open(self, action: act.OpenIncident, t: float) -> None:
        """Open an incident."""
        run_id = self.run.run_id if self.run else ""
        self.highest_incident = max(self.highest_incident, action.incident)
        first = self._new_failure(action.attempt)
        self.incidents.append(
            RecordedIncident(action.incident, run_id, t, action.rank, action.summary, self.progress, [first]),
        )

    def _failed_attempt(self, attempt: int) -> RecordedFailure:
        """Return the open incident's failure of this attempt, or one that nobody will see."""
        incident = self.open_incident
        if incident is None:
            return RecordedFailure(attempt)
        if incident.failures[-1].attempt != attempt:
            incident.failures.append(self._new_failure(attempt))
        return incident.failures[-1]

    def _new_failure(self, attempt: int) -> RecordedFailure:
        """Return a failure of this attempt."""
        return RecordedFailure(attempt, warnings=self.warnings, members=self.meetings.get(attempt, ()))

    def _on_event(self, event: events.Event) -> None:
        """Take what the event says of the attempt."""
        if isinstance(event, (events.AttemptStarted, events.RanksFound)):
            self.are_ranks_there, self.world_size, self.hang = bool(event.ranks), event.world_size, None
            self.hang_at_end = None
            if isinstance(event, events.AttemptStarted):
                self.step_shares = None
                self.attempt_t = event.t
        elif isinstance(event, events.ProgressObserved):
            self.progress = self._progress_of(event)
            self.memory, self.step_shares = event.memory or self.memory, event.time_shares or self.step_shares
            self.reports = (*self.reports, PaceReport(event.attempt, event.t, event.step, event.steps_seen))[-_PACE_REPORTS:]
        elif isinstance(event, events.RankExited):
            if event.exit.failed:
                self.first_deaths.setdefault(event.attempt, event.exit.rank)
                self._failed_attempt(event.attempt).deaths.append((event.t, event.exit))
        elif isinstance(event, events.AttemptEnded):
            if self.hang is not None and self.open_incident is None:
                self.hang_at_end = (*self.hang, event.t)
            self.are_ranks_there, self.hang, self.missing, self.forecasts = False, None, 0, ()
            self._on_no_straggler(event.t)
            if self.open_incident is not None and event.outcome != "succeeded":
                self._failed_attempt(event.attempt).ended_t = event.t
        elif isinstance(event, events.EvidenceCollected):
            self._failed_attempt(event.attempt).evidence = event.evidence
        else:
            self._on_condition(event)

    def _on_condition(self, event: events.Event) -> None:
        """Take what describes the job: its checkpoints, its rules, this node."""
        if isinstance(event, events.CheckpointSelected):
            if event.chosen is not None and (self.verified is None or self.verified[1].path != event.chosen.path):
                self.verified = event.t, event.chosen
            if self.open_incident is not None:
                self.open_incident.failures[-1].selected = event
        elif isinstance(event, events.NewestSaveGone) and self.open_incident is not None:  # mostly seen once no rank is alive
            self.open_incident.failures[-1].warnings = self.warnings
        elif isinstance(event, events.CheckpointVerified):
            self._on_verified(event.t, event.checkpoint)
        elif isinstance(event, events.NodesMissing | events.NodesGathered):
            self._on_missing(event.count if isinstance(event, events.NodesMissing) else 0)
        elif isinstance(event, events.GpusListed):
            self.gpus = event.gpus
        elif isinstance(event, events.HangConfirmed):
            self.hang = event.t, event.hang
        elif isinstance(event, events.HangCleared):
            self.hang = None
        else:
            self._on_health(event)

    def _on_verified(self, t: float, checkpoint: CheckpointRef) -> None:
        """Keep the newest: of several that an attempt saved between two looks the newest is verified first."""
        last_t, last = self.verified or (0.0, None)
        is_of_attempt = self.attempt_t is not None and last_t >= self.attempt_t
        is_older = last is not None and None not in {last.step, checkpoint.step} and (checkpoint.step or 0) < (last.step or 0)
        if not (is_of_attempt and is_older):
            self.verified = t, checkpoint

    def _on_straggler(self, event: PaceChanged) -> None:
        """Take who makes the others wait, or does no more."""
        self._on_no_straggler(event.t, event.about)
        if not event.is_over:
            text = next((text for about, text in self.warnings_by_key if about == event.about), event.text)
            straggler = RecordedStraggler(event.t, event.attempt, event.about, text)
            self.stragglers = [*self.stragglers, straggler][-_MOST_STRAGGLERS:]

    def _on_no_straggler(self, t: float, about: str = "") -> None:
        """Take that a straggler, or each of them, makes nobody wait any more."""
        for place, straggler in enumerate(self.stragglers):
            if straggler.until_t is None and about in {"", straggler.about}:
                self.stragglers[place] = replace(straggler, until_t=t)

    def _on_missing(self, count: int) -> None:
        """Take how many nodes the attempt waits for."""
        self.missing = count
        if self.open_incident is not None:
            self.open_incident.failures[-1].missing = count

    def _on_gathering(self, action: act.SetTimer | act.GatherNodes, t: float) -> None:
        """Take that the nodes meet, whose ranks are not there yet, or how long those that are missing are waited for."""
        incident = self.open_incident
        if isinstance(action, act.GatherNodes):
            self.attempt_t = self.start = None
        elif action.name == "nodes":
            self.missing_until_t = t + action.delay_s
            if incident is not None:
                incident.failures[-1].missing_until_t = self.missing_until_t

    def _on_health(self, event: events.Event) -> None:
        """Take what an examination of this node found, who makes the others wait, and a stop."""
        if isinstance(event, events.StopRequested):
            self.stop_t = event.t
        elif isinstance(event, events.Saved):
            self.saved_t = event.t
        if isinstance(event, MemoryForecast):
            others = tuple(forecast for forecast in self.forecasts if forecast.about != event.about)
            self.forecasts = others if event.is_over else (*others, event)
        if isinstance(event, PaceChanged) and event.kind == STRAGGLER:
            self._on_straggler(event)
        if isinstance(event, events.HealthChecked):
            self.findings, self.examined_t = {_key(finding): finding for finding in event.findings}, event.t
        elif isinstance(event, events.HealthChanged):
            self.findings |= {_key(finding): finding for finding in event.findings}
            self.examined_t = event.t

    def _progress_of(self, event: events.ProgressObserved) -> Progress:
        """As the core counts it: an absolute step where one is known, else steps since the resume."""
        if event.step is not None:
            return Progress(event.step, relative=False, phase=event.phase)
        base = self.resume.step if self.resume is not None else None
        if base is not None and event.steps_seen >= 0:
            return Progress(base + event.steps_seen, relative=True, phase=event.phase)
        step = event.steps_seen if event.steps_seen > 0 else None
        return Progress(step, relative=step is not None, phase=event.phase)

    def _on_action(self, action: act.Action, t: float) -> None:
        """Take one part of a decision."""
        incident = self.open_incident
        if isinstance(action, act.SetTimer | act.GatherNodes):
            self._on_gathering(action, t)
        elif isinstance(action, act.BeginAttempt):
            self.resume = action.resume
            if incident is not None:
                incident.failures[-1].began, incident.failures[-1].began_t = action.attempt, t
        elif isinstance(action, act.CollectEvidence):
            self._failed_attempt(action.attempt).failed_t = t
        elif isinstance(action, act.ReportDecision):
            failed = self._failed_attempt(action.attempt)
            failed.decision, failed.decided_t = action, t
        elif isinstance(action, act.ReportResume):
            self._on_resume(action, t)
        elif isinstance(action, act.CloseIncident) and incident is not None and action.outcome == "withdrawn":
            self.incidents.remove(incident)
        elif isinstance(action, act.CloseIncident) and incident is not None:
            incident.closed_t, incident.outcome = t, action.outcome
        elif isinstance(action, act.Finish):
            self._ended(action.exit_code)

    def _on_resume(self, action: act.ReportResume, t: float) -> None:
        self.resumed = t, action
        if self.open_incident is not None:
            self.open_incident.resumed, self.open_incident.resumed_t = action, t


def _actions(taken: EventTaken) -> Iterator[act.Action]:
    for name, data in taken.actions:
        with suppress(KeyError, msgspec.ValidationError):
            yield action_of(name, data)


def _key(finding: Finding) -> str:
    return "\t".join(map(str, finding.about))
