"""What the metrics are made from: what this process knows now, and what the journal of the run has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from health.model import Readings, Result
from supervisor.core.state import JobState
from supervisor.journal.follower import JournalFollower
from supervisor.report.ledger.reader import LedgerReading
from supervisor.report.ledger.spans import RunLedger
from supervisor.report.metrics.counters import RunCounters

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.journal.records import Damage, Record


#: How old a reading may be that is shown, at least.
FRESH_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class MirrorFacts:
    """How the mirrors do. backlog: verified checkpoints that are not in all of them; backlog_bytes: of those that their process holds."""

    backlog: int
    backlog_bytes: int
    behind_s: float
    failing: bool


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """What this process knows at `now` (Unix seconds). mirror: None where there is none.

    checks: the worst result of each check when it was last made. readings: the newest of the GPUs. fresh_s: older ones are not shown.
    """

    now: float
    job: str
    run_id: str
    node: str
    version: str
    state: JobState
    last_progress_t: float | None = None
    mirror: MirrorFacts | None = None
    checks: Mapping[str, Result] = field(default_factory=lambda: MappingProxyType({}))
    readings: Readings = field(default_factory=Readings)
    fresh_s: float = FRESH_S


@dataclass(frozen=True, slots=True)
class RecordedFacts:
    """What the journal has of the run. ledger: None where it has no record of it yet."""

    ledger: RunLedger | None
    counters: RunCounters


class RunRecords:
    """Follows a run's journal. Its caller is one thread, which waits for the disk."""

    def __init__(self, journal: Path) -> None:
        self._follower = JournalFollower(journal, self._begin)

    def _begin(self) -> RunRecords:
        self._ledgers, self._counters = LedgerReading(), RunCounters()
        return self

    def take(self, record: Record | Damage) -> None:
        """Take what stands next in the journal."""
        self._ledgers.take(record)
        self._counters.take(record)

    def facts(self, run_id: str, now: float) -> RecordedFacts:
        """Read what is new, and return what is known of the run at `now`. Raises OSError, and SuperviseError (78) for a newer format."""
        self._follower.advance()
        if self._counters.run_id != run_id:  # the file is still that of the run before
            return RecordedFacts(None, RunCounters(run_id))
        return RecordedFacts(self._ledgers.ledgers(now)[-1], self._counters)
