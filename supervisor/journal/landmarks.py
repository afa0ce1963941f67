"""Which records of a journal still matter for where the job stands, so that `status` need not read a long one whole. Pure.

Nearly all records are progress. Of the others a later one mostly replaces an earlier one: only the newest verified checkpoint counts. The
writer keeps the numbers of those that count (`Landmarks`), and once in EVERY records it adds them to the journal as a note, behind a whole
state. A reader takes the newest note, looks its records up (lookup.py), and reads what follows the state (reader.read_standing).

A landmark is a number and no copy: what a record says stands in that record alone. A journal without such a note is read whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from supervisor.journal.records import MIRRORED, RESTORED, SAVES_COUNTED, STANDBYS, START_TIMES, EventTaken, Header, Note, RunBegan

if TYPE_CHECKING:
    from supervisor.journal.records import Body

#: The name of the note.
LANDMARKS: Final = "landmarks"
#: After so many records the next state is written whole, and the note behind it: some 250 kB.
EVERY: Final = 500
#: The newest of each of these counts: events, actions and notes.
_EVENTS: Final = frozenset(
    {
        "SupervisorStarted",
        "AttemptStarted",
        "RanksFound",
        "AttemptEnded",
        "CheckpointVerified",
        "GpusListed",
        "HealthChecked",
        "HangConfirmed",
        "HangCleared",
    }
)
_ACTIONS: Final = frozenset({"BeginAttempt", "ReportDecision"})
_NOTES: Final = frozenset({RESTORED, MIRRORED, SAVES_COUNTED, START_TIMES, STANDBYS})
#: What a new run in the same file does not replace.
_OF_THE_NODE: Final = frozenset({"Header", "GpusListed", "HealthChecked"})


@dataclass(slots=True)
class Landmarks:
    """Numbers of records, 0: none. state: of the whole state that the note stands behind.

    newest: by what the record is. run: where the newest run began. progress: the newest. health: the changes since the newest
    examination, each of which counts. opened: where the open incident began. closed: where the last incident that is over began and
    ended. over: how many are.
    """

    state: int = 0
    newest: dict[str, int] = field(default_factory=dict)
    run: int = 0
    progress: int = 0
    health: list[int] = field(default_factory=list)
    opened: int = 0
    closed: tuple[int, int] = (0, 0)
    over: int = 0

    def take(self, seq: int, body: Body | None) -> None:
        """Take the next record."""
        if isinstance(body, EventTaken):
            if body.event == "ProgressObserved":
                self.progress = seq
            if body.event != "ProgressObserved" or body.actions:
                self._take_event(seq, body)
        elif isinstance(body, RunBegan):
            self._take_start(seq, body)
        elif isinstance(body, Header):
            self.newest["Header"] = seq
        elif isinstance(body, Note) and body.name in _NOTES:
            self.newest[body.name] = seq

    def _take_start(self, seq: int, run: RunBegan) -> None:
        if not (run.continues and self.run):
            self._close(seq)
            self.newest = {name: number for name, number in self.newest.items() if name in _OF_THE_NODE}
            self.run = seq
        self.newest["RunBegan"] = seq

    def _take_event(self, seq: int, taken: EventTaken) -> None:
        actions = {name for name, _ in taken.actions}
        for name in (taken.event, *actions):
            if name in _EVENTS or name in _ACTIONS or (name == "CheckpointSelected" and taken.data.get("chosen") is not None):
                self.newest[name] = seq
        if taken.event == "HealthChecked":
            self.health = []
        elif taken.event == "HealthChanged":
            self.health.append(seq)
        if "OpenIncident" in actions:
            self.opened = seq
        closing = taken.first("CloseIncident")
        if closing is not None and closing.get("outcome") == "withdrawn":
            self.opened = 0
        elif closing is not None:
            self._close(seq)

    def _close(self, seq: int) -> None:
        if self.opened:
            self.opened, self.closed, self.over = 0, (self.opened, seq), self.over + 1

    def incidents(self) -> list[tuple[int, int]]:
        """Return the first and the last record before the state of each incident to read, in order."""
        found = [self.closed, *([(self.opened, self.state - 1)] if self.opened else [])]
        return [(first, last) for first, last in found if 0 < first <= last < self.state]

    def others(self) -> list[int]:
        """Return the numbers of the other records to read before the state, in order."""
        numbers = {*self.newest.values(), *self.health, self.run, self.progress} - {0}
        return sorted(n for n in numbers if n < self.state and not any(first <= n <= last for first, last in self.incidents()))
