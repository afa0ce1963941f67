"""What holds of the time ledger of every run: its states add up to the wall clock, and hardly any time is unaccounted."""

from __future__ import annotations

import contextlib
import math
from itertools import pairwise
from typing import TYPE_CHECKING

from supervisor.errors import SuperviseError
from supervisor.journal.records import EventTaken, Record, RunBegan, RunEnded, scan
from supervisor.view.job_view import fold
from supervisor.view.spans import RunLedger, TimeState

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from supervisor.journal.records import Damage

#: Of the wall clock: what the sum of the states may be off, and what may be unaccounted.
SUM_OFF, UNACCOUNTED = 0.001, 0.01


def check_ledger(run: RunLedger, wall_s: float | None = None, *, least_accounted: float = 1 - UNACCOUNTED) -> None:
    """Fail where a ledger does not hold. wall_s: from the first record of the run to its last, where that is known otherwise."""
    wall_s = run.wall_s if wall_s is None else wall_s
    seconds = run.seconds()
    total = math.fsum(seconds.values())
    assert abs(total - wall_s) <= SUM_OFF * wall_s + 1e-6, f"the states add up to {total} s of {wall_s} s: {seconds}"
    assert seconds[TimeState.UNACCOUNTED] <= (1 - least_accounted) * wall_s, f"unaccounted: {seconds}"
    for earlier, following in pairwise(run.spans):
        assert abs(earlier.end_t - following.begin_t) < 1e-6, f"a gap or an overlap: {earlier} {following}"
    assert all(span.took_s > 0 for span in run.spans)


def check_ledgers(records: Iterable[Record | Damage], *, least_accounted: float = 1 - UNACCOUNTED) -> list[RunLedger]:
    """Check the ledgers of all runs of a whole journal, and return them. The wall clock is what the records themselves have."""
    spent: list[list[float]] = []
    sound_records = [record for record in records if isinstance(record, Record)]
    for record in sound_records:
        if isinstance(record.body, RunBegan) and (not spent or not record.body.continues):
            spent.append([record.t, record.t])
        elif spent and isinstance(record.body, EventTaken | RunEnded):
            spent[-1][1] = max(spent[-1][1], record.t)
    runs = fold(sound_records).ledgers()
    assert len(runs) == len(spent)
    for run, (begin_t, end_t) in zip(runs, spent, strict=True):
        check_ledger(run, end_t - begin_t, least_accounted=least_accounted)
    return runs


def check_ledgers_below(directory: Path, *, is_damaged: bool = False) -> int:
    """Check all journals of jobs below a directory, those of earlier runs too; return how many runs they hold.

    is_damaged: records may be missing, and then the states need only add up; or another version wrote them, and nobody can read them.
    """
    count = 0
    for path in sorted(directory.rglob("nodes/*/journal*.jsonl")):
        with contextlib.suppress(*([SuperviseError] if is_damaged else [])):
            count += len(check_ledgers(scan(path), least_accounted=0.0 if is_damaged else 1 - UNACCOUNTED))
    return count
