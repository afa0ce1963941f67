"""Reads a journal for the commands: where the job stands, and each incident from beginning to end.

`decide` is not run for it: the decisions stand in the records. Most records are progress that led to nothing; only the newest few of those
are checked and read, so that 100 MB take a tenth of a second. An event that this supervise does not know is passed over.

`read_standing` reads only what still matters for where the job stands (landmarks.py): of 100 MB less than one.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from checkpointing.io import durable
from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.model import CheckpointRef, Failure, Progress
from supervisor.journal.history import History, RecordedIncident, Round
from supervisor.journal.landmarks import LANDMARKS, Landmarks
from supervisor.journal.lookup import JournalLookup
from supervisor.journal.records import (
    MIRRORED,
    RESTORED,
    SAVES_COUNTED,
    STANDBYS,
    START_TIMES,
    SUMMARY,
    Damage,
    Ended,
    EventTaken,
    Header,
    JournalPosition,
    Note,
    PassedLines,
    Record,
    RunBegan,
    StartTimes,
    action_of,
    check_version,
    decode,
    event_of,
    frames,
    unframe,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


#: Progress that led to nothing. Its name stands behind the frame, the number and the two times. It is short; progress that clears the
#: budget is longer, because its record has the failures, from which the budget is read.
_PROGRESS = PassedLines(ends=b'"actions":[]}}}\n', holds=b'"kind":"event","body":{"event":"ProgressObserved"', columns=(40, 240), size=560)
#: A shorter journal is read whole.
LEAST_BYTES = 1 << 20
#: An incident of more records (of a job that waited for days) is read with the whole file.
_MOST_OF_AN_INCIDENT = 5000
#: Reports of progress, one in 10 s, from which the pace of the training is taken.
_PACE_REPORTS = 8


def read_history(path: Path) -> History:
    """Read the journal at `path`. Raises OSError, and SuperviseError (78) for another format."""
    reading = HistoryReading()
    reading.read(path, 0)
    return reading.history


def read_standing(path: Path) -> History:
    """Read where the job stands: as `read_history`, but of the incidents only the open one and the last one before it.

    `first_deaths` and the incidents' `progress` may be missing, and damage is reported only where it is read. Raises as `read_history`.
    """
    reading = HistoryReading()
    try:
        fd = durable.open_regular(str(path))
    except FileNotFoundError:
        return reading.history
    try:
        lookup = JournalLookup(fd)
        start = reading.take_landmarks(path, lookup) if lookup.size > LEAST_BYTES else None
    finally:
        os.close(fd)
    if start is None:
        return read_history(path)
    reading.read(path, start)
    return reading.history


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
        self.reports: deque[bytes | EventTaken] = deque(maxlen=4 * _PACE_REPORTS)  # of progress, the newest
        self.settled: bytes | EventTaken | None = None  # the newest one that was taken
        self.resume: CheckpointRef | None = None
        self.seq = 0
        self.passed_from = 0  # progress before this record was followed by what is taken already

    def so_far(self) -> History:
        """Return the history up to the last record that was taken; what is taken later, or completed in it, leaves the other as it is."""
        self.settle_progress()
        self.settle_pace()
        found = self.history
        incidents = [*found.incidents[:-1], *(replace(one, rounds=[*map(_copied, one.rounds)]) for one in found.incidents[-1:])]
        return replace(
            found,
            incidents=incidents,
            first_deaths={**found.first_deaths},
            findings={**found.findings},
            meetings={**found.meetings},
            problems=[*found.problems],
        )

    def take_found(self, found: Record | Damage) -> None:
        """Take what `scan` yields next."""
        if isinstance(found, Record):
            self.take(found)
        else:
            self.history.problems += [] if found.torn else [str(found)]

    def read(self, path: Path, start: int) -> None:
        """Take all records from this offset on."""
        for rec in frames(path, _PROGRESS, self.reports.append, position=JournalPosition(start)):
            if isinstance(rec, Damage):
                self.history.problems += [] if rec.torn else [str(rec)]
            else:
                record = decode(rec)
                if record is not None:
                    if isinstance(record.body, Header):
                        check_version(path, record.body)
                    self.take(record)
        self.settle_progress()
        self.settle_pace()

    def take_landmarks(self, path: Path, lookup: JournalLookup) -> int | None:
        """Take the records that still matter before the newest state with landmarks. Return where to read on; None: one was not found."""
        note = lookup.newest(b'"name":"' + LANDMARKS.encode() + b'"')
        first = lookup.between(1, 1)
        if note is None or not isinstance(note.body, Note) or not first or not isinstance(first[0].body, Header):
            return None
        check_version(path, first[0].body)
        try:
            found = msgspec.convert(note.body.data, Landmarks)
        except msgspec.ValidationError:  # of a later version
            return None
        self.take(first[0])
        incidents = found.incidents()
        for begin, end in sorted([*incidents, *((number, number) for number in found.others())]):
            records = lookup.between(begin, end) if end - begin <= _MOST_OF_AN_INCIDENT else []
            if not records:
                return None
            for record in records:
                self.take(record if (begin, end) in incidents else _without_incident(record))
        self.history.incidents_before += found.over - sum(1 for one in self.history.incidents if one.closed_t is not None)
        self.passed_from = self.seq
        return lookup.offset(max(1, found.state - 2 * _PACE_REPORTS))

    def take(self, record: Record) -> None:
        """Take one record; a second copy of one changes nothing."""
        if record.seq <= self.seq:
            return
        self.seq = record.seq
        history, body = self.history, record.body
        history.last_t = max(history.last_t, record.t)
        if isinstance(body, Header):
            history.header = history.header or body
        elif isinstance(body, RunBegan):
            self.settle_progress()
            self.begin(body, record.t)
        elif isinstance(body, Ended):
            self.settle_progress()
            history.end, history.ranks, history.end_t = body, (), record.t
            self.ended(body.exit_code)
        elif isinstance(body, Note):
            self.take_note(body, record.t)
        elif isinstance(body, EventTaken):
            self.settle_progress()
            if body.event == "ProgressObserved":
                self.reports.append(body)
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
            history.first_deaths, history.meetings = {}, {}
            history.failures, history.charged, history.verified, history.mirrored = (), 0, None, None
            history.attempt_t = history.start = None

    def settle_progress(self) -> None:
        """Take over the newest progress that was passed over."""
        newest = self.reports[-1] if self.reports else None
        if newest is self.settled or not isinstance(newest, bytes):
            return
        self.settled = newest
        record = _decoded(newest)
        if record is None:
            self.history.problems.append(f"damaged record: a report of progress of {len(newest)} bytes")
        if record is not None and isinstance(record.body, EventTaken) and record.seq > self.passed_from:
            self.history.last_t = max(self.history.last_t, record.t)
            self.take_event(record.body)

    def settle_pace(self) -> None:
        """Read the newest reports of progress of the current attempt."""
        rows: list[tuple[float, int | None, int]] = []
        for one in self.reports:
            record = _decoded(one) if isinstance(one, bytes) else None
            taken = record.body if record is not None else one
            with suppress(KeyError, TypeError, ValueError):
                if isinstance(taken, EventTaken) and taken.data["attempt"] == self.history.attempt:
                    rows.append((float(taken.data["t"]), taken.data["step"], int(taken.data["steps_seen"])))
        known = sorted(dict.fromkeys(rows), key=itemgetter(0))[-_PACE_REPORTS:]  # a landmark was taken before older lines, and maybe twice
        steps = [(t, step) for t, step, _ in known if step is not None]
        self.history.pace = tuple(steps) or tuple((t, seen) for t, _, seen in known if seen > 0)

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
        history.attempt, history.stage = taken.attempt, taken.stage
        attempt = taken.state.get("attempt")
        warnings = (attempt if isinstance(attempt, dict) else {}).get("warnings", [] if taken.whole else None)
        if warnings is not None:
            with suppress(msgspec.ValidationError):
                history.warnings = tuple(text for _, text in msgspec.convert(warnings, tuple[tuple[str, str], ...]))
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
        elif isinstance(event, events.RankExited):
            if event.exit.failed:
                history.first_deaths.setdefault(event.attempt, event.exit.rank)
                self.round(event.attempt).deaths.append((event.t, event.exit))
        elif isinstance(event, events.AttemptEnded):
            history.ranks, history.hang, history.missing = (), None, 0
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
        """Take what an examination of this node found."""
        history = self.history
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
            one = self.round(action.attempt)
            one.decision, one.decided_t = action, t
            history.last_decision = action
        elif isinstance(action, act.ReportResume) and incident is not None:
            incident.resumed, incident.resumed_t = action, t
        elif isinstance(action, act.CloseIncident) and incident is not None and action.outcome == "withdrawn":
            history.incidents.remove(incident)
        elif isinstance(action, act.CloseIncident) and incident is not None:
            incident.closed_t, incident.outcome = t, action.outcome
        elif isinstance(action, act.Finish):
            self.ended(action.exit_code)


def _copied(one: Round) -> Round:
    return replace(one, deaths=[*one.deaths])


def _without_incident(record: Record) -> Record:
    """Return a record of an incident that is over without its opening: the rest of that incident is not read."""
    if not isinstance(record.body, EventTaken):
        return record
    actions = tuple(one for one in record.body.actions if one[0] not in {"OpenIncident", "CloseIncident"})
    return replace(record, body=replace(record.body, actions=actions))


def _decoded(line: bytes) -> Record | None:
    """Return the record of a line that was passed over; None where it is damaged."""
    rec = unframe(line)
    return None if rec is None else decode(rec)


def _actions(taken: EventTaken) -> Iterable[act.Action]:
    for name, data in taken.actions:
        try:
            yield action_of(name, data)
        except (KeyError, msgspec.ValidationError):
            continue
