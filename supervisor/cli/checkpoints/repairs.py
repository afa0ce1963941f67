"""`supervise checkpoints show`, `undo` and `quarantine`: the facts of one checkpoint, and the repairs of records.

`undo` and `quarantine` are refused while a supervisor runs the job on this node: it holds the same records in memory.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

import click
import msgspec

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.command_line.progress import path_name
from checkpointing.command_line.verdicts import as_dict
from checkpointing.io.reader import UNLIMITED, Throttle
from checkpointing.io.tree import ReadOptions
from checkpointing.lineage import Lineages
from checkpointing.model import size_text
from checkpointing.rejections import Rejections
from checkpointing.retention.aside import AsideRecord
from checkpointing.verification import identity_of
from checkpointing.verification import verify as verify_one
from supervisor.cli import stdio
from supervisor.cli.checkpoints import changes
from supervisor.cli.checkpoints.changes import ChangeRow
from supervisor.cli.checkpoints.facts import RejectedAs
from supervisor.cli.checkpoints.records import DIRECTORY, RecordedCheckpoints, refuse_while_running
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.job_files import find_job, state_root
from supervisor.cli.progress import progress
from supervisor.core.values import Struct
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job.local_time import second_text
from supervisor.report.layout import Fact, FactPage, Tone
from supervisor.report.table import Table
from supervisor.report.text import clean

if TYPE_CHECKING:
    from pathlib import Path

    from checkpointing.manifest.documents import Manifest
    from checkpointing.model import Identity
    from supervisor.cli.jobs.job_files import JobFiles
    from supervisor.config.settings import Settings

_QUARANTINED: Final = "quarantined"


@click.command()
@setting_options(*JOB)
@json_option
@click.argument("path", metavar="PATH")
def show_command(invocation: Invocation, *, path: str, as_json: bool) -> int:
    """It shows the verdict now, the rejection, the manifest and the files. The exit code is 1 if it is not good."""
    settings = invocation.settings()
    return show(settings, invocation.job(settings), path, as_json=as_json)


@click.command()
@setting_options(*JOB)
@json_option
@click.argument("change", metavar="[CHANGE]", required=False, type=click.IntRange(min=1))
def undo_command(invocation: Invocation, *, change: int | None, as_json: bool) -> int:
    """A file that was moved aside is moved back, and its replacement is removed, the last change first.

    The exit code is 1 if something could not be moved. Not while the job runs.
    """
    settings = invocation.settings()
    return undo(settings, invocation.job(settings), change, as_json=as_json)


@click.command()
@setting_options(*JOB)
@click.option("--reason", metavar="TEXT", default="rejected by hand", help="Record this reason.")
@click.option("--withdraw", is_flag=True, help="Use the checkpoint again: also one that a run stepped back from, or read as torn.")
@click.argument("path", metavar="PATH")
def quarantine_command(invocation: Invocation, *, path: str, reason: str, withdraw: bool) -> int:
    """The rejection holds for the checkpoint as it is now, not for a new file in its place. The job must not be running."""
    settings = invocation.settings()
    if withdraw:
        return readmit(settings, invocation.job(settings), path)
    return quarantine(settings, invocation.job(settings), path, reason)


def show(settings: Settings, job: str | None, path: str, *, as_json: bool) -> int:
    """Print everything that is known about one checkpoint: its verdict now, rejection and manifest. Returns 0 if it is good, else 1."""
    records = RecordedCheckpoints(find_job(state_root(settings), job).directory / DIRECTORY)
    absolute = os.path.abspath(path)  # noqa: PTH100  a link is shown as it is named
    manifest, identity = records.manifests.get(absolute), identity_of(absolute)
    with progress(f"reading {path_name(path)}", None if identity is None else identity.size, wanted=not as_json) as bar:
        reading = ReadOptions(Throttle(UNLIMITED, taken=bar.advance))
        verification = verify_one(absolute, reading=reading, own=manifest is not None and manifest.identity == identity)
    row, rejected = as_dict(verification), RejectedAs.of(records.rejections.get(verification.path, verification.identity))
    recorded = None if manifest is None else ManifestFacts.of(manifest, verification.identity)
    good = row["verdict"] == "good" and rejected is None
    if as_json:
        stdio.write_json({**row, "files": verification.files, "rejection": rejected, "manifest": recorded})
        return int(not good)
    facts = [Fact("path", absolute, copied=True), Fact("verdict", row["verdict"], Tone.GOOD if row["verdict"] == "good" else Tone.BAD)]
    facts += [Fact("step", str(row["step"]))] if row["step"] is not None else []
    facts += [Fact("format", row["format"])] if row["format"] else []
    facts += [Fact("because" if number == 0 else "", reason) for number, reason in enumerate(row["reasons"])]
    if rejected is not None:
        facts.append(Fact("rejected", f"{second_text(rejected.t)} ({rejected.kind}): {rejected.reason}", Tone.WARNING))
    if recorded is not None:
        now = "the present file" if recorded.same else "an earlier file: it was written anew since"
        facts.append(Fact("manifest", f"{recorded.id}: {size_text(recorded.bytes)}, of {now}"))
    facts += [Fact("files" if number == 0 else "", name) for number, name in enumerate(verification.files)]
    stdio.show(FactPage(f"checkpoint {os.path.basename(absolute)}", tuple(facts)))  # noqa: PTH119  a name
    return int(not good)


class ManifestFacts(Struct, frozen=True):
    """The content of a checkpoint's manifest. same: whether it is of the present file."""

    id: str
    step: int | None
    bytes: int
    same: bool

    @staticmethod
    def of(manifest: Manifest, identity: Identity) -> ManifestFacts:
        """Return the facts of a manifest beside the identity that the checkpoint has now."""
        return ManifestFacts(manifest.id, manifest.step, manifest.n_bytes, manifest.identity == identity)


def undo(settings: Settings, job: str | None, number: int | None, *, as_json: bool) -> int:
    """Reverse all repairs or one, the last first. Returns 0; 1 if one could not be reversed."""
    place = find_job(state_root(settings), job)
    refuse_while_running(place)
    aside = AsideRecord(CheckpointCatalogue(place.directory / DIRECTORY, is_writer=True))
    if number is not None and all(change.id != number for change in aside.changes()):
        raise SuperviseError(
            f"no such change: job {place.job}: {number}",
            hint="`supervise checkpoints ls` lists the changes with their numbers.",
            exit_code=ExitCode.USAGE,
        )
    try:
        undone = aside.undo(number)
    except OSError as error:
        raise SuperviseError(
            f"nothing was moved back: {error.strerror or error}", hint="Make the job's state directory writable for you."
        ) from error
    if as_json:
        rows = [msgspec.structs.asdict(ChangeRow.of(reversal.change)) | {"problem": reversal.problem} for reversal in undone]
        stdio.write_json(rows)
    else:
        cells = [row for reversal in undone for row in ChangeRow.of(reversal.change).cells(reversal.problem or "reversed")]
        stdio.show(Table(changes.COLUMNS, tuple(cells), empty="nothing was moved"))
    return int(any(reversal.problem for reversal in undone))


def quarantine(settings: Settings, job: str | None, path: str, reason: str) -> int:
    """Reject one checkpoint as it is now, for all later starts; the file stays where it is. Returns 0."""
    place = find_job(state_root(settings), job)
    refuse_while_running(place)
    absolute = os.path.realpath(path)
    identity = identity_of(absolute)
    if identity is None:
        raise SuperviseError(
            f"cannot quarantine a checkpoint: {path}: it does not exist, or cannot be read",
            hint="Name a file, or a checkpoint's directory, as `supervise checkpoints ls` shows it.",
            exit_code=ExitCode.USAGE,
        )
    records = RecordedCheckpoints(place.directory / DIRECTORY, is_writer=True)
    records.rejections.add([(absolute, identity, reason)], _QUARANTINED)
    if problem := records.catalogue.not_written:
        raise SuperviseError(f"cannot quarantine a checkpoint: {problem}", hint="Make the state directory writable for you.")
    stdio.write(sys.stdout, f"rejected for all later starts of job {place.job}, unless it is written anew: {clean(absolute)}")
    return 0


def readmit(settings: Settings, job: str | None, path: str) -> int:
    """Put a checkpoint back into use that was rejected, or that a run stepped back from. Returns 0."""
    place = find_job(state_root(settings), job)
    refuse_while_running(place)
    absolute, problems, is_known = os.path.abspath(path), [], False  # noqa: PTH100  a link stays as it is named
    for directory in (place.directory / DIRECTORY, *_of_other_hosts(place)):
        catalogue = CheckpointCatalogue(directory, is_writer=True)
        rejections, lineages = Rejections(catalogue), Lineages(catalogue)
        for name in dict.fromkeys((absolute, os.path.realpath(path))):
            is_known = bool(rejections.withdraw(name) + lineages.withdraw(name)) or is_known
        problems += [catalogue.not_written] if catalogue.not_written else []
    if problems:
        raise SuperviseError(f"cannot put a checkpoint back into use: {problems[0]}", hint="Make the state directory writable for you.")
    if not is_known:
        raise SuperviseError(
            f"cannot put a checkpoint back into use: {path}: job {place.job} uses it already",
            hint="`supervise checkpoints ls` shows which checkpoints are out of use.",
            exit_code=ExitCode.USAGE,
        )
    stdio.write(sys.stdout, f"used again from the next start of job {place.job} on: {clean(absolute)}")
    return 0


def _of_other_hosts(place: JobFiles) -> list[Path]:
    """Return what the job's other hosts recorded, as far as this disk has it: the next run takes over what they stepped back from."""
    return [directory for directory in sorted(place.directory.parent.glob(f"*/{DIRECTORY}")) if directory.parent != place.directory]
