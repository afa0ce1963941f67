"""`supervise checkpoints ls`: what the catalogue says of a job's checkpoints on this node, or what a mirror holds.

No checkpoint is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from checkpointing.model import size_text
from checkpointing.retention.aside import AsideRecord
from checkpointing.retention.prune import PRUNED
from supervisor.checkpoints.discovery import record
from supervisor.cli import stdio
from supervisor.cli.checkpoints import changes
from supervisor.cli.checkpoints.changes import ChangeRow
from supervisor.cli.checkpoints.facts import facts_of_all
from supervisor.cli.checkpoints.records import DIRECTORY, MIRROR, RecordedCheckpoints, named_or_latest_job
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.job_files import find_job, state_root
from supervisor.cli.progress import progress
from supervisor.report.layout import Tone
from supervisor.report.table import Cell, Column, Table
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.cli.checkpoints.facts import CheckpointFacts
    from supervisor.config.settings import Settings

_TONES: Final = {"verified": Tone.GOOD, "unread": Tone.PLAIN, "unfinished": Tone.WARNING, "out of use": Tone.WARNING}
_COLUMNS: Final = (Column("state"), Column("step", right=True), Column("size", right=True), Column("checkpoint", copied=True))
_LEARNED: Final = (Column("learned"), Column("saved", right=True), Column("loaded", right=True), Column("pattern", copied=True))


@click.command()
@setting_options(*JOB, "checkpoints.paths", *MIRROR)
@json_option
def ls_command(invocation: Invocation, *, as_json: bool) -> int:
    """It also lists the discovered places and the moved checkpoints. It reads no checkpoint: `verify` does.

    With --mirror the newest comes first. The exit code is 78 if the mirror holds only other jobs' checkpoints; they are named.
    """
    if "checkpoints.mirror" in invocation.flags:
        from supervisor.cli.checkpoints.mirror import list_mirrors  # noqa: PLC0415  loads what speaks to S3

        return list_mirrors(*named_or_latest_job(invocation), as_json=as_json)
    settings = invocation.settings()
    return ls(settings, invocation.job(settings), as_json=as_json)


def ls(settings: Settings, job: str | None, *, as_json: bool) -> int:
    """Print the job's checkpoints, the discovered locations, and the moved and removed ones. Returns 0."""
    place = find_job(state_root(settings), job)
    with progress(f"listing the checkpoints of {place.job}", wanted=not as_json):
        records = RecordedCheckpoints(place.directory / DIRECTORY)
        discovered = records.catalogue.all(record.LOCATION)
        checkpoints = facts_of_all(settings, records, discovered)
        moved = [ChangeRow.of(change) for change in AsideRecord(records.catalogue).changes()]
    if records.catalogue.problem:
        stdio.say(f"warning: {clean(records.catalogue.problem)}")
    if as_json:
        learned = [{"pattern": row.pattern, "kind": row.kind, "saved": row.saved, "loaded": row.loaded} for row in discovered]
        job_row = {"job": place.job, "node": place.node, "catalogue": str(records.catalogue.file)}
        pruned = list(records.catalogue.each(PRUNED))
        stdio.write_json({**job_row, "checkpoints": checkpoints, "learned": learned, "changes": moved, "pruned": pruned})
        return 0
    tables = [Table(_COLUMNS, tuple(_rows(checkpoints)), empty=f"no checkpoint of job {place.job} is known on {place.node}")]
    if discovered:
        rows = ((row.kind, str(row.saved), str(row.loaded), row.pattern) for row in discovered)
        tables.append(Table(_LEARNED, tuple(rows)))
    if moved:
        tables.append(Table(changes.COLUMNS, tuple(cells for row in moved for cells in row.cells())))
    stdio.show(*tables)
    return 0


def _rows(checkpoints: Sequence[CheckpointFacts]) -> list[tuple[Cell | str, ...]]:
    """Return a row for each checkpoint, and below it why it is not in use."""
    rows: list[tuple[Cell | str, ...]] = []
    for row in checkpoints:
        step = "-" if row.step is None else str(row.step)
        rows.append((Cell(row.state, _TONES.get(row.state, Tone.BAD)), step, size_text(row.bytes), row.path))
        rows += [("", "", "", Cell(f"  {row.reason}", Tone.WARNING))] if row.reason else []
    return rows
