"""`supervise checkpoints verify` and `latest`: the commands of `python -m checkpointing`, with what a job recorded."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from checkpointing.candidates import SelectionOptions
from checkpointing.command_line import verdicts
from checkpointing.command_line.output import Output
from checkpointing.retention.copies import Copies
from checkpointing.select import newest
from supervisor.cli import stdio
from supervisor.cli.checkpoints.records import RecordedCheckpoints, records_of
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.observe.ranks.path_patterns import is_within
from supervisor.report.layout import Tone, surface_of
from supervisor.report.table import Cell, Column, Table, render_table
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from checkpointing.discover import Listing
    from checkpointing.io.reader import Throttle
    from checkpointing.select import Selection
    from checkpointing.verification import Cache

_TONES: Final = {"good": Tone.GOOD, "bad": Tone.BAD, "dangerous": Tone.BAD}


@click.command()
@json_option
@click.argument("paths", metavar="PATHS...", nargs=-1, required=True)
def verify_command(*, paths: tuple[str, ...], as_json: bool) -> int:
    """It needs no job and no settings, runs no pickle, and changes nothing. The exit code is 0 only if all are good."""
    click.get_current_context().obj.without_command()
    return verify(paths, as_json=as_json)


@click.command()
@setting_options(*JOB)
@json_option
@click.argument("directory", metavar="DIRECTORY")
def latest_command(invocation: Invocation, *, directory: str, as_json: bool) -> int:
    """It uses the records of the job that saves there. The exit code is 1 if none is proven good."""
    settings = invocation.settings_to_read_with()
    return latest(directory, records_of(settings, invocation.job(settings), directory), as_json=as_json)


def output(*, as_json: bool) -> Output:
    """Return where the commands print: our stdout."""
    return Output(as_json=as_json, write=lambda text: stdio.write(sys.stdout, text), warn=stdio.say, clean=clean, lay_out=laid_out)


def laid_out(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return verdicts as a table: the verdict in its colour, the path whole."""
    columns = tuple(Column(name, right=name == "step", copied=name == head[-1]) for name in head)
    cells: tuple[tuple[Cell | str, ...], ...] = tuple((Cell(row[0], _TONES.get(row[0], Tone.WARNING)), *row[1:]) for row in rows)
    return render_table(Table(columns, cells), surface_of(sys.stdout))


def verify(paths: Sequence[str], *, as_json: bool) -> int:
    """Print a verdict for each checkpoint that the paths stand for. Returns 0 only where all are good."""
    return verdicts.verify(paths, output(as_json=as_json))


def latest(directory: str, records: Path | None, *, as_json: bool) -> int:
    """Print which checkpoint a resume would take, and why the newer ones were passed over. Returns 0 where there is one.

    `records`: what the job that saves there recorded of its checkpoints, None where none did. It is the same choice as a resume's, by what
    is recorded now: rejections, manifests, kept copies, order of the runs, weights that turned NaN, roll-backs. Nothing is recorded.
    """

    def choose(listing: Listing, cache: Cache, throttle: Throttle) -> tuple[Selection, Sequence[tuple[str, str]]]:
        if records is None:
            return verdicts.choose(listing, cache, throttle)
        return _selected(listing, records, directory, cache, throttle)

    return verdicts.latest(directory, output(as_json=as_json), choose)


def _selected(
    listing: Listing, records: Path, directory: str, cache: Cache, throttle: Throttle
) -> tuple[Selection, Sequence[tuple[str, str]]]:
    """Choose as a resume does, and return (path, reason) of the rejected ones."""
    known = RecordedCheckpoints(records)
    rejected = {
        candidate.path: rejection.reason
        for candidate in listing.candidates
        if (rejection := known.rejections.get(candidate.path, candidate.identity)) is not None
    }
    free = replace(listing, candidates=tuple(candidate for candidate in listing.candidates if candidate.path not in rejected))
    copies = Copies(known.catalogue, 0, order=known.order.order, is_abandoned=known.order.is_abandoned)
    above = os.path.abspath(directory)  # noqa: PTH100 -- a link keeps its name
    spares = [spare for spare in copies.spares() if is_within(above, spare.original_path)]
    options = SelectionOptions(cache=cache, throttle=throttle, manifests=known.manifests, spares=spares, order=known.order.order())
    return newest(free, options), list(rejected.items())
