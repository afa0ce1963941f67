"""Reads a journal for the commands: where the job stands, and each incident from beginning to end.

`decide` is not run for it: the decisions stand in the records. An event that this supervise does not know is passed over.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.model import CheckpointRef, Failure, Progress
from supervisor.core.training_events import STRAGGLER, PaceChanged
from supervisor.journal.history import History, RecordedIncident, RecordedStraggler, Round
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
    scan,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


#: The newest reports of progress, one in a minute, from which the pace of the training is taken.
_PACE_REPORTS = 4
#: Stragglers of a run that are kept, the newest.
_MOST_STRAGGLERS = 200


def read_history(path: Path) -> History:
    """Read the journal at `path`. Raises OSError, and OtherFormatError (78)."""
    reading = HistoryReading()
    for record in scan(path):
        reading.take(record)
    return reading.so_far()


def read_earlier(path: Path) -> History:
    """Read the file of an earlier run, after which a new one was started: its supervisor is gone. Raises as read_history."""
    return abandoned(read_history(path))


def abandoned(history: History) -> History:
    """Return the history of an earlier run, completed in place: its supervisor is gone."""
    history.with_our_death()
    _abandon(history, history.last_t)
    return history


def _abandon(history: History, t: float) -> None:
    """Close what is open: a new run began, and nobody else will."""
    incident = history.open_incident
    if incident is not None:
        incident.closed_t = t
        if incident.died_t is None:
            incident.outcome = "left open, a new run was started"


class HistoryReading:
    """The history while it is being read; more records may follow at any time."""

    def __init__(self) -> None:
        self.history = History()
        self.reports: deque[tuple[int, float, int | None, int]] = deque(maxlen=_PACE_REPORTS)  # of progress: attempt, time, step, steps
        self.resume: CheckpointRef | None = None
        self.warnings: tuple[tuple[str, str], ...] = ()  # of the history, each with its key
        self.seq = 0

    def so_far(self) -> History:
        """Return the history up to the last record that was taken; what is taken later, or completed in it, leaves the other as it is."""
        self.settle_pace()
        history = self.history
        incidents = [*history.incidents[:-1], *(replace(last, rounds=[*map(_copied, last.rounds)]) for last in history.incidents[-1:])]
        return replace(
            history,
            incidents=incidents,
            first_deaths={**history.first_deaths},
            findings={**history.findings},
            meetings={**history.meetings},
            stragglers=[replace(straggler) for straggler in history.stragglers],
            problems=[*history.problems],
        )

    def take(self, record: Record | Damage) -> None:
        """Take what `scan` yields next; a second copy of a record changes nothing."""
        if isinstance(record, Damage):
            self.history.problems += [] if record.torn else [str(record)]
        elif record.seq > self.seq:
            self.take_record(record)

    def take_record(self, record: Record) -> None:
        """Take one record."""
        self.seq = record.seq
        history, body = self.history, record.body
        history.last_t = max(history.last_t, record.t)
        if isinstance(body, Header):
            history.header = history.header or body
        elif isinstance(body, RunBegan):
            self.begin(body, record.t)
        elif isinstance(body, RunEnded):
            history.end, history.ranks, history.end_t = body, (), record.t
            self.on_no_straggler(record.t)
            self.ended(body.exit_code)
        elif isinstance(body, Note):
            self.take_note(body, record.t)
        elif isinstance(body, EventTaken):
            self.take_event(body)

    def take_note(self, note: Note, t: float) -> None:
        """Take a fact beside the events."""
        history = self.history
        if note.name == RESTORED:
            history.restored = note.text
        elif note.name == SUMMARY:
            history.summary = note.text
            path, step = note.data.get("path"), note.data.get("step")
            if isinstance(path, str) and (history.verified is None or history.verified[1].path != path):
                history.verified = t, CheckpointRef(path, step if isinstance(step, int) else None, "")  # once no rank was left
        elif note.name == MIRRORED:
            history.mirrored = t, note
        elif note.name == SAVES_COUNTED:
            history.saves = note.text
        elif note.name == STANDBYS:
            history.standbys = note
        elif note.name == START_TIMES:
            with suppress(msgspec.ValidationError):
                self.take_start(msgspec.convert(note.data, StartTimes))

    def take_start(self, start: StartTimes) -> None:
        """Take where the time of a start went."""
        self.history.start = start
        last = self.history.incidents[-1] if self.history.incidents else None
        if last is not None and last.rounds[-1].began == start.attempt:
            last.start = start

    def begin(self, run: RunBegan, t: float) -> None:
        """A supervisor took the job over, for a new run or for the one that goes on."""
        history = self.history
        if history.run is None:
            history.incidents_before = run.incidents_before or 0
        history.run, history.end, history.end_t, history.restored, history.summary, history.saves = run, None, 0.0, "", "", ""
        history.standbys = None
        if run.continues and history.run_t:
            return
        history.run_t = t
        if not run.continues:
            _abandon(history, t)
            history.attempt, history.ranks, history.progress, self.resume = 0, (), Progress(), None
            history.first_deaths, history.meetings, history.stragglers = {}, {}, []
            history.failures, history.charged, history.verified, history.mirrored = (), 0, None, None
            history.attempt_t = history.start = None

    def settle_pace(self) -> None:
        """Set the pace from the newest reports of progress of the current attempt."""
        rows = [(t, step, steps) for attempt, t, step, steps in self.reports if attempt == self.history.attempt]
        absolute = tuple((t, step) for t, step, _ in rows if step is not None)
        self.history.pace = absolute or tuple((t, steps) for t, _, steps in rows if steps > 0)

    def _take_budget(self, taken: EventTaken) -> None:
        run = taken.state.get("run")
        fields: dict[str, Any] = run if isinstance(run, dict) else {}
        nothing: dict[str, Any] = {"failures": [], "charged": 0} if taken.whole else {}
        known = nothing | fields
        if "failures" in known:
            with suppress(msgspec.ValidationError):
                self.history.failures = msgspec.convert(known["failures"], tuple[Failure, ...])
        if isinstance(known.get("charged"), int):
            self.history.charged = known["charged"]

    def take_event(self, taken: EventTaken) -> None:
        """Take an event, and what was decided about it."""
        history = self.history
        if taken.attempt != history.attempt:
            history.warnings = ()
            self.on_no_straggler(history.last_t)
        history.attempt, history.stage = taken.attempt, taken.stage
        attempt = taken.state.get("attempt")
        warnings = (attempt if isinstance(attempt, dict) else {}).get("warnings", [] if taken.whole else None)
        if warnings is not None:
            with suppress(msgspec.ValidationError):
                self.warnings = msgspec.convert(warnings, tuple[tuple[str, str], ...])
                history.warnings = tuple(text for _, text in self.warnings)
        if isinstance(attempt, dict) and (members := attempt.get("members")):
            history.meetings[taken.attempt], history.me = tuple(map(str, members)), str(attempt.get("me", history.me))
        self._take_budget(taken)
        try:
            event = event_of(taken)
        except (KeyError, msgspec.ValidationError):
            return
        # what came of an event follows it, except for the opening: the event that opens an incident belongs to it
        actions = list(_actions(taken))
        for action in actions:
            if isinstance(action, act.OpenIncident):
                self.open(action, event.t)
        self.on_event(event)
        for action in actions:
            self.on_action(action, event.t)

    def ended(self, exit_code: int) -> None:
        """Set the exit code of the last incident if it was given up and has none yet."""
        last = self.history.incidents[-1] if self.history.incidents else None
        if last is not None and last.outcome == "given_up" and last.exit_code is None:
            last.exit_code = exit_code

    def open(self, action: act.OpenIncident, t: float) -> None:
        """Open an incident."""
        run_id = self.history.run.run_id if self.history.run else ""
        first = self.new_round(action.attempt)
        self.history.incidents.append(
            RecordedIncident(action.incident, run_id, t, action.rank, action.summary, self.history.progress, [first]),
        )

    def round(self, attempt: int) -> Round:
        """Return the open incident's round of this attempt, or one that nobody will see."""
        incident = self.history.open_incident
        if incident is None:
            return Round(attempt)
        if incident.rounds[-1].attempt != attempt:
            incident.rounds.append(self.new_round(attempt))
        return incident.rounds[-1]

    def new_round(self, attempt: int) -> Round:
        """Return a failure of this attempt."""
        return Round(attempt, warnings=self.history.warnings, members=self.history.meetings.get(attempt, ()))

    def on_event(self, event: events.Event) -> None:
        """Take what the event says of the attempt."""
        history = self.history
        if isinstance(event, (events.AttemptStarted, events.RanksFound)):
            history.ranks, history.world_size, history.hang = event.ranks, event.world_size, None
            if isinstance(event, events.AttemptStarted):
                history.attempt_t = event.t
        elif isinstance(event, events.ProgressObserved):
            history.progress = self.progress_of(event)
            self.reports.append((event.attempt, event.t, event.step, event.steps_seen))
        elif isinstance(event, events.RankExited):
            if event.exit.failed:
                history.first_deaths.setdefault(event.attempt, event.exit.rank)
                self.round(event.attempt).deaths.append((event.t, event.exit))
        elif isinstance(event, events.AttemptEnded):
            history.ranks, history.hang, history.missing = (), None, 0
            self.on_no_straggler(event.t)
            if history.open_incident is not None and event.outcome != "succeeded":
                self.round(event.attempt).ended_t = event.t
        elif isinstance(event, events.EvidenceCollected):
            self.round(event.attempt).evidence = event.evidence
        else:
            self.on_condition(event)

    def on_condition(self, event: events.Event) -> None:
        """Take what describes the job: its checkpoints, its rules, this node."""
        history = self.history
        if isinstance(event, events.CheckpointSelected):
            history.verified = history.verified if event.chosen is None else (event.t, event.chosen)
            if history.open_incident is not None:
                history.open_incident.rounds[-1].selected = event
        elif isinstance(event, events.NewestSaveGone) and history.open_incident is not None:  # mostly seen once no rank is alive
            history.open_incident.rounds[-1].warnings = history.warnings
        elif isinstance(event, events.SupervisorStarted):
            history.policy = event.policy
        elif isinstance(event, events.CheckpointVerified):
            history.verified = event.t, event.checkpoint
        elif isinstance(event, events.NodesMissing | events.NodesGathered):
            self.on_missing(event.count if isinstance(event, events.NodesMissing) else 0)
        elif isinstance(event, events.GpusListed):
            history.gpus = event.gpus
        elif isinstance(event, events.HangConfirmed):
            history.hang = event.t, event.hang
        elif isinstance(event, events.HangCleared):
            history.hang = None
        else:
            self.on_health(event)

    def on_straggler(self, event: PaceChanged) -> None:
        """Take who makes the others wait, or does no more."""
        stragglers = self.history.stragglers
        self.on_no_straggler(event.t, event.about)
        if not event.is_over:
            text = next((text for about, text in self.warnings if about == event.about), event.text)
            stragglers.append(RecordedStraggler(event.t, event.attempt, event.about, text))
            del stragglers[:-_MOST_STRAGGLERS]

    def on_no_straggler(self, t: float, about: str = "") -> None:
        """Take that a straggler, or each of them, makes nobody wait any more."""
        for straggler in self.history.stragglers:
            if straggler.until_t is None and about in {"", straggler.about}:
                straggler.until_t = t

    def on_missing(self, count: int) -> None:
        """Take how many nodes the attempt waits for."""
        self.history.missing = count
        if self.history.open_incident is not None:
            self.history.open_incident.rounds[-1].missing = count

    def on_gathering(self, action: act.SetTimer | act.GatherNodes, t: float) -> None:
        """Take that the nodes meet, whose ranks are not there yet, or how long those that are missing are waited for."""
        history, incident = self.history, self.history.open_incident
        if isinstance(action, act.GatherNodes):
            history.attempt_t = history.start = None
        elif action.name == "nodes":
            history.missing_until_t = t + action.delay_s
            if incident is not None:
                incident.rounds[-1].missing_until_t = history.missing_until_t

    def on_health(self, event: events.Event) -> None:
        """Take what an examination of this node found, and who makes the others wait."""
        history = self.history
        if isinstance(event, PaceChanged) and event.kind == STRAGGLER:
            self.on_straggler(event)
        if isinstance(event, events.HealthChecked):
            history.findings, history.examined_t = {finding.about: finding for finding in event.findings}, event.t
        elif isinstance(event, events.HealthChanged):
            history.findings |= {finding.about: finding for finding in event.findings}
            history.examined_t = event.t

    def progress_of(self, event: events.ProgressObserved) -> Progress:
        """As the core counts it: an absolute step where one is known, else steps since the resume."""
        if event.step is not None:
            return Progress(event.step, relative=False, phase=event.phase)
        base = self.resume.step if self.resume is not None else None
        if base is not None and event.steps_seen >= 0:
            return Progress(base + event.steps_seen, relative=True, phase=event.phase)
        step = event.steps_seen if event.steps_seen > 0 else None
        return Progress(step, relative=step is not None, phase=event.phase)

    def on_action(self, action: act.Action, t: float) -> None:
        """Take one part of a decision."""
        history = self.history
        incident = history.open_incident
        if isinstance(action, act.SetTimer | act.GatherNodes):
            self.on_gathering(action, t)
        elif isinstance(action, act.BeginAttempt):
            self.resume = action.resume
            if incident is not None:
                incident.rounds[-1].began, incident.rounds[-1].began_t = action.attempt, t
        elif isinstance(action, act.CollectEvidence):
            self.round(action.attempt).failed_t = t
        elif isinstance(action, act.ReportDecision):
            failed = self.round(action.attempt)
            failed.decision, failed.decided_t = action, t
            history.last_decision = action
        elif isinstance(action, act.ReportResume) and incident is not None:
            incident.resumed, incident.resumed_t = action, t
        elif isinstance(action, act.CloseIncident) and incident is not None and action.outcome == "withdrawn":
            history.incidents.remove(incident)
        elif isinstance(action, act.CloseIncident) and incident is not None:
            incident.closed_t, incident.outcome = t, action.outcome
        elif isinstance(action, act.Finish):
            self.ended(action.exit_code)


def _copied(attempt: Round) -> Round:
    return replace(attempt, deaths=[*attempt.deaths])


def _actions(taken: EventTaken) -> Iterable[act.Action]:
    for name, data in taken.actions:
        try:
            yield action_of(name, data)
        except (KeyError, msgspec.ValidationError):
            continue
