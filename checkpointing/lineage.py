"""A node's memory of the runs and attempts of a job that wrote checkpoints, and of the roll-backs between them.

A run's `began` is the wall time of its start in seconds, but always later than the checkpoints and starts known of earlier runs. So a new
run stays the newest if the clock was set back, or is behind the clock of the node whose checkpoint was restored.

A file without a manifest belongs to the last attempt that had begun when the file was modified. If a file server's clock is seconds behind
this node's, an attempt's first save may thus be counted to the attempt before.

A roll-back is first tried: it is in memory alone until an attempt trained from an older checkpoint (`accuse`). Without that proof the next
run knows nothing of it.

They are rows of the catalogue. Thread-safe; nothing here raises.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.io.row_file import RowTable, TableChange
from checkpointing.model import UNKNOWN_LINEAGE, Lineage
from checkpointing.ordering import RollBack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from checkpointing.manifest.documents import Manifest

#: Time stamps of file systems are this coarse: a file written just after an attempt began may carry a time just before it.
_GRAIN_NS: Final = 20_000_000
_MOST_RUNS: Final = 64
_MOST_ROWS: Final = 256

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class LineageRun:
    """A run that wrote checkpoints here: its attempts as (number, when it began: wall time in nanoseconds), in order."""

    run: str
    began: int
    attempts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class AbandonedPath:
    """A path whose checkpoint a person deleted between two runs. last: the last attempt whose copies of it are ignored."""

    path: str
    last: Lineage


#: By run: when the run `began` (seconds), and `attempts`: pairs of a number and when that attempt began (nanoseconds, wall time).
RUN: Final = RowTable("run", LineageRun, lambda row: row.run)
#: By lineage, step and path: what a step back gave up: all that the lineage `last` and earlier ones saved at `step` or beyond. Where
#: `step` is null, only what stood at `path`, or has the manifest id `content`. `supervise checkpoints quarantine --withdraw PATH` removes
#: those of a path.
STEPPED_BACK: Final = RowTable("stepped_back", RollBack, lambda row: f"{row.last.run} {row.last.attempt} {row.step} {row.path}")
#: By path: a person removed the checkpoint there before a run began: copies of the lineage `last` and earlier ones are not used.
ABANDONED: Final = RowTable("abandoned", AbandonedPath, lambda row: row.path)


@dataclass(frozen=True, slots=True)
class _LineageRecord:
    runs: tuple[LineageRun, ...] = ()
    roll_backs: tuple[RollBack, ...] = ()
    abandoned: tuple[AbandonedPath, ...] = ()

    @classmethod
    def read(cls, catalogue: CheckpointCatalogue) -> _LineageRecord:
        return cls(catalogue.all(RUN), catalogue.all(STEPPED_BACK), catalogue.all(ABANDONED))

    def tables(self) -> tuple[tuple[RowTable[Any], dict[str, Any]], ...]:
        return _keyed(RUN, self.runs), _keyed(STEPPED_BACK, self.roll_backs), _keyed(ABANDONED, self.abandoned)


def _keyed(table: RowTable[R], rows: Iterable[R]) -> tuple[RowTable[Any], dict[str, Any]]:
    return table, {table.key(row): row for row in rows}


class Lineages:
    """The lineages of one job on this node."""

    def __init__(self, catalogue: CheckpointCatalogue, run: str = "") -> None:
        """Read what earlier runs recorded. `run`: the one that continues now, "" for a reader."""
        self._catalogue = catalogue
        self._lock = threading.Lock()  # of the record; not held while waiting for a disk
        self._writing = threading.Lock()
        self._record = self._written = _LineageRecord.read(catalogue)
        self._run = run
        self._tried: tuple[RollBack, ...] = ()
        self._early: tuple[tuple[int, int], ...] = ()  # attempts that began before `begin_run` recorded the run, which waits for a disk

    def begin_run(
        self, manifests: Callable[[], Iterable[Manifest]], now_s: float | None = None, *, other_directories: Iterable[Path] = ()
    ) -> bool:
        """Begin the run, or continue it. Return whether it is new. `manifests`: all that are known.

        A manifest may name an attempt whose record a power cut took: the attempt had begun when that checkpoint was saved.

        `other_directories`: this directory of the job's other hosts that this disk has. Runs and roll-backs recorded there count too.
        """
        run = self._run
        if any(lineage_run.run == run for lineage_run in self._record.runs):
            self._complete(_origins(manifests()))
            return False
        origins = _origins(manifests())
        other_records = [_LineageRecord.read(CheckpointCatalogue(directory)) for directory in other_directories]
        with self._lock:
            runs = {lineage_run.run: lineage_run for record in (*other_records, self._record) for lineage_run in record.runs}
            roll_backs = dict.fromkeys((*(row for record in other_records for row in record.roll_backs), *self._record.roll_backs))
            latest_known_s = max((run.began for run in runs.values()), default=0)
            for lineage, saved_s in origins:
                latest_known_s = max(latest_known_s, saved_s, 0 if lineage is None else lineage.began)
                if lineage is not None:  # the record was lost, or is of another node
                    known = runs.get(lineage.run, LineageRun(lineage.run, lineage.began))
                    runs[lineage.run] = _with_attempt(known, lineage.attempt, saved_s * 10**9)
            is_new = run not in runs
            if is_new:
                runs[run] = LineageRun(run, max(int(time.time() if now_s is None else now_s), latest_known_s + 1))
            for number, began_ns in self._early:
                runs[run] = _with_attempt(runs[run], number, began_ns)
            retained = tuple(sorted(runs.values(), key=lambda run: run.began))[-_MOST_RUNS:]
            self._replace(runs=retained, roll_backs=tuple(roll_backs)[-_MOST_ROWS:])
        self.write()
        return is_new

    def _complete(self, origins: Iterable[tuple[Lineage | None, int]]) -> None:
        """Add the attempts of this run that manifests alone name."""
        with self._lock:
            own = self._own()
            known = {number for number, _ in own.attempts}
            for lineage, saved_s in origins:
                if lineage is not None and lineage.run == own.run and lineage.attempt not in known:
                    own = _with_attempt(own, lineage.attempt, saved_s * 10**9)
            if own != self._own():
                others = tuple(run for run in self._record.runs if run.run != self._run)
                self._replace(runs=(*others, own))
        self.write()

    def raise_began(self, began: int) -> None:
        """Set this run's `began` after `began` of the run whose checkpoint was restored. No effect once this run has an attempt."""
        with self._lock:
            own = self._own()
            if own.began <= began and not own.attempts:
                others = tuple(run for run in self._record.runs if run.run != self._run)
                self._replace(runs=(*others, LineageRun(self._run, began + 1)))
        self.write()

    def begin_attempt(self, number: int, now_ns: int) -> None:
        """Record when an attempt began. Changes memory only, because the caller must not wait for a disk. Call `write` later."""
        with self._lock:
            if not any(run.run == self._run for run in self._record.runs):
                self._early = (*self._early, (number, now_ns))
                return
            others = tuple(run for run in self._record.runs if run.run != self._run)
            self._replace(runs=(*others, _with_attempt(self._own(), number, now_ns)))

    @property
    def current(self) -> Lineage:
        """The attempt that runs, or ran last."""
        own = self._own()
        return Lineage(own.began, own.run, own.attempts[-1][0] if own.attempts else 0)

    @property
    def roll_backs(self) -> tuple[RollBack, ...]:
        """The steps back of all runs, and those that this one tries."""
        return (*self._record.roll_backs, *self._tried)

    def of_attempt(self, attempt: int) -> Lineage:
        """Return the lineage of an attempt of this run."""
        own = self._own()
        return Lineage(own.began, own.run, attempt)

    def attempt_at(self, t_ns: int) -> Lineage:
        """Return the latest attempt that had begun by `t_ns`, or UNKNOWN_LINEAGE."""
        lineage = UNKNOWN_LINEAGE
        for run in self._record.runs:
            for number, began_ns in run.attempts:
                if began_ns <= t_ns + _GRAIN_NS:
                    lineage = max(lineage, Lineage(run.began, run.run, number))
        return lineage

    def try_roll_back(self, row: RollBack) -> None:
        """Have the training step back from a checkpoint in this run."""
        with self._lock:
            if row not in self.roll_backs:
                self._tried = (*self._tried, row)

    def accuse(self, reason: str) -> tuple[RollBack, ...]:
        """Record the steps back that this run tried, for the runs after it. Return them."""
        with self._lock:
            accused, self._tried = tuple(replace(row, reason=reason) for row in self._tried), ()
            if accused:
                self._replace(roll_backs=(*self._record.roll_backs, *accused)[-_MOST_ROWS:])
        self.write()
        return accused

    def withdraw(self, path: str) -> bool:
        """Forget the steps back from the checkpoint at a path. Return whether there was one."""
        with self._lock:
            rest = tuple(row for row in self._record.roll_backs if row.path != path)
            is_known = len(rest) < len(self._record.roll_backs)
            if is_known:
                self._replace(roll_backs=rest)
        self.write()
        return is_known

    def abandon(self, path: str) -> None:
        """Record that a person removed what earlier runs had written at a path."""
        with self._lock:
            earlier = max((run for run in self._record.runs if run.run != self._run), key=lambda other: other.began, default=None)
            last = (
                UNKNOWN_LINEAGE
                if earlier is None
                else Lineage(earlier.began, earlier.run, max((a for a, _ in earlier.attempts), default=0))
            )
            others = tuple(row for row in self._record.abandoned if row.path != path)
            self._replace(abandoned=(*others, AbandonedPath(path, last))[-_MOST_ROWS:])
        self.write()

    def is_abandoned(self, manifest: Manifest) -> bool:
        """Return whether a copy's original was removed by a person before a run began."""
        lineage = manifest.about.lineage or UNKNOWN_LINEAGE
        return any(row.path == manifest.path and lineage <= row.last for row in self._record.abandoned)

    def write(self) -> None:
        """Write the record to its file if it changed."""
        with self._writing:
            record, written = self._record, self._written
            if record is written:
                return
            before, after = written.tables(), record.tables()
            self._catalogue.change(*(TableChange(table, old, dict(now)) for (table, old), (_, now) in zip(before, after, strict=True)))
            self._written = record

    def _own(self) -> LineageRun:
        return next((run for run in self._record.runs if run.run == self._run), LineageRun(self._run, int(time.time())))

    def _replace(
        self,
        *,
        runs: tuple[LineageRun, ...] | None = None,
        roll_backs: tuple[RollBack, ...] | None = None,
        abandoned: tuple[AbandonedPath, ...] | None = None,
    ) -> None:
        """Set a new record instead of mutating the old one, because readers take no lock. The caller must hold `_lock`."""
        lineage_record = self._record
        self._record = _LineageRecord(
            lineage_record.runs if runs is None else runs,
            lineage_record.roll_backs if roll_backs is None else roll_backs,
            lineage_record.abandoned if abandoned is None else abandoned,
        )


def _origins(manifests: Iterable[Manifest]) -> tuple[tuple[Lineage | None, int], ...]:
    """Return who saved each checkpoint, and when, in seconds: without the digests, which are a megabyte for a terabyte."""
    return tuple((manifest.about.lineage, manifest.saved_ns // 10**9) for manifest in manifests)


def _with_attempt(run: LineageRun, number: int, began_ns: int) -> LineageRun:
    earlier = {attempt: began for attempt, began in run.attempts if attempt != number}
    known = min((began for attempt, began in run.attempts if attempt == number), default=began_ns)
    return LineageRun(run.run, run.began, tuple(sorted({**earlier, number: min(known, began_ns)}.items())))
