"""`supervise checkpoints ls`, `show`, `undo` and `quarantine`: a job's records of its checkpoints, and their repairs.

`undo` and `quarantine` are refused while a supervisor runs the job on this node: it holds the same records in memory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from checkpointing import markers, step_names
from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.command_line.progress import ProgressBar, path_name
from checkpointing.command_line.verdicts import as_dict, table
from checkpointing.discover import find
from checkpointing.io.reader import UNLIMITED, Throttle
from checkpointing.io.tree import ReadOptions
from checkpointing.lineage import Lineages
from checkpointing.manifest.documents import Manifests
from checkpointing.model import Candidate, note_of
from checkpointing.rejections import Rejections
from checkpointing.retention.aside import AsideRecord, size_of
from checkpointing.verification import identity_of
from checkpointing.verification import verify as verify_one
from supervisor.checkpoints.discovery import record
from supervisor.checkpoints.origin.order import CheckpointOrder
from supervisor.checkpoints.recording import numerics
from supervisor.cli import stdio
from supervisor.cli.checkpoints.records import DIRECTORY, MIRROR, named_or_latest_job, refuse_while_running
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.job_files import find_job, state_root
from supervisor.errors import ExitCode, SuperviseError
from supervisor.observe.ranks import path_patterns
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from checkpointing.manifest.documents import Manifest
    from supervisor.cli.jobs.job_files import JobFiles
    from supervisor.config.settings import Settings

_QUARANTINED: Final = "quarantined"
_OUT_OF_USE: Final = "out of use"


@click.command()
@setting_options(*JOB, "checkpoints.paths", *MIRROR)
@json_option
def ls_command(invocation: Invocation, *, as_json: bool) -> int:
    """It also lists the places that were discovered and what was moved. It reads no checkpoint: `verify` does.

    With --mirror the newest comes first. The exit code is 78 if the mirror holds only other jobs' checkpoints; they are named.
    """
    if "checkpoints.mirror" in invocation.flags:
        from supervisor.cli.checkpoints.mirror import list_mirrors  # noqa: PLC0415  loads what speaks to S3

        return list_mirrors(*named_or_latest_job(invocation), as_json=as_json)
    settings = invocation.settings()
    return ls(settings, invocation.job(settings), as_json=as_json)


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
    """What was moved aside is moved back, and what was put in its place is removed, the last change first.

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
    """It holds for the checkpoint as it is now: a new file in its place is not rejected. Not while the job runs."""
    settings = invocation.settings()
    if withdraw:
        return readmit(settings, invocation.job(settings), path)
    return quarantine(settings, invocation.job(settings), path, reason)


def ls(settings: Settings, job: str | None, *, as_json: bool) -> int:
    """Print the job's checkpoints, the discovered locations, and the moved files. Returns 0."""
    place = find_job(state_root(settings), job)
    directory = place.directory / DIRECTORY
    discovered = record.read_locations(directory)
    catalogue = CheckpointCatalogue(directory)
    rejections, manifests = Rejections(catalogue), Manifests(catalogue)
    order = CheckpointOrder(catalogue, manifests)
    rows: list[dict[str, Any]] = []
    recorded = [rejection.path for rejection in rejections.all()] + [manifest.path for manifest in manifests.all()]
    for candidate in _candidates(settings, discovered, recorded):
        rejection, manifest = rejections.get(candidate.path, candidate.identity), manifests.get(candidate.path)
        proven = manifest is not None and manifest.identity == candidate.identity
        back = next((row for row in order.roll_backs if order.gives_up(row, candidate)), None)
        state, reason = "verified" if proven else "unread", _numbers(manifest) if manifest is not None and proven else ""
        if back is not None:
            state, reason = _OUT_OF_USE, back.reason or f"a run stepped back from {back.path}"
        if rejection is not None:
            state, reason = rejection.kind, rejection.reason
        elif marked := markers.unfinished(candidate.path):
            state, reason = "unfinished", marked
        rows.append(
            {
                "path": candidate.path,
                "step": _shown_step(candidate, manifest if proven else None),
                "bytes": candidate.identity.size,
                "state": state,
                "reason": reason,
            }
        )
    location_rows = [
        {"pattern": location.pattern, "kind": location.kind, "saved": location.saved, "loaded": location.loaded} for location in discovered
    ]
    moved = [_change_row(change) for change in AsideRecord(str(directory), place.job).changes()]
    if catalogue.problem:
        stdio.say(f"warning: {clean(catalogue.problem)}")
    if as_json:
        names = {"job": place.job, "node": place.node, "catalogue": str(catalogue.file)}
        document = {**names, "checkpoints": rows, "learned": location_rows, "changes": moved}
        stdio.write(sys.stdout, json.dumps(document, indent=1))
        return 0
    stdio.write(sys.stdout, "\n".join(_listed(place, rows, location_rows, moved)))
    return 0


def show(settings: Settings, job: str | None, path: str, *, as_json: bool) -> int:
    """Print all that is known of one checkpoint: its verdict now, its rejection, its manifest. Returns 0 if it is good, else 1."""
    place = find_job(state_root(settings), job)
    directory = place.directory / DIRECTORY
    absolute = os.path.abspath(path)  # noqa: PTH100  a link is shown as it is named
    catalogue = CheckpointCatalogue(directory)
    manifest = Manifests(catalogue).get(absolute)
    identity = identity_of(absolute)
    with ProgressBar(f"reading {clean(path_name(path))}", None if identity is None else identity.size, wanted=not as_json) as bar:
        reading = ReadOptions(Throttle(UNLIMITED, taken=bar.advance))
        verification = verify_one(absolute, reading=reading, own=manifest is not None and manifest.identity == identity)
    rejection = Rejections(catalogue).get(verification.path, verification.identity)
    row = {
        **as_dict(verification),
        "files": list(verification.files),
        "rejection": None if rejection is None else {"kind": rejection.kind, "reason": rejection.reason, "t": rejection.t},
        "manifest": None
        if manifest is None
        else {"id": manifest.id, "step": manifest.step, "bytes": manifest.n_bytes, "same": manifest.identity == verification.identity},
    }
    good = row["verdict"] == "good" and rejection is None
    if as_json:
        stdio.write(sys.stdout, json.dumps(row, indent=1))
        return int(not good)
    lines = table([verification], clean)
    if rejection is not None:
        lines.append(f"rejected ({rejection.kind}) {_day(rejection.t)}: {clean(rejection.reason)}")
    if manifest is not None:
        now = "what is there now" if manifest.identity == verification.identity else "what was there before: it was written anew since"
        lines.append(f"manifest {manifest.id}: {manifest.n_bytes} bytes, of {now}")
    lines += [f"  {clean(name)}" for name in verification.files]
    stdio.write(sys.stdout, "\n".join(lines))
    return int(not good)


def undo(settings: Settings, job: str | None, number: int | None, *, as_json: bool) -> int:
    """Reverse all repairs or one, the last first. Returns 0; 1 if one could not be reversed."""
    place = find_job(state_root(settings), job)
    refuse_while_running(place)
    aside = AsideRecord(str(place.directory / DIRECTORY), place.job)
    if number is not None and all(change.id != number for change in aside.changes()):
        raise SuperviseError(
            f"no such change: job {place.job}: {number}",
            hint="`supervise checkpoints ls` lists the changes with their numbers.",
            exit_code=ExitCode.USAGE,
        )
    try:
        undone = aside.undo(number)
    except OSError as error:
        raise _unwritable(place, error) from error
    if as_json:
        stdio.write(sys.stdout, json.dumps([{**_change_row(one.change), "problem": one.problem} for one in undone], indent=1))
    else:
        lines = [f"{_change_text(_change_row(one.change))}: {clean(one.problem) or 'reversed'}" for one in undone]
        stdio.write(sys.stdout, "\n".join(lines or ["nothing was moved"]))
    return int(any(one.problem for one in undone))


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
    catalogue = CheckpointCatalogue(place.directory / DIRECTORY, is_writer=True)
    Rejections(catalogue).add([(absolute, identity, reason)], _QUARANTINED)
    if catalogue.not_written:
        raise SuperviseError(f"cannot quarantine a checkpoint: {catalogue.not_written}", hint="Make the state directory writable for you.")
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


def _shown_step(candidate: Candidate, manifest: Manifest | None) -> int | None:
    if manifest is not None:
        return step_names.shown_step(candidate.path, manifest.step, manifest.content_step)
    return candidate.named.step if candidate.named is not None and candidate.named.sure else None


def _numbers(manifest: Manifest) -> str:
    """Return what is not finite in a verified checkpoint, and whether an earlier one of its run was finite there."""
    return numerics.report(manifest) or note_of(manifest.non_finite)


def _candidates(settings: Settings, discovered: tuple[record.Location, ...], recorded: list[str]) -> Iterator[Candidate]:
    """Yield what the declared patterns match, what the learned ones do, and what something is written down about, sorted by path."""
    cwd = str(settings.cwd)
    patterns = tuple(location.pattern for location in discovered if location.kind != "seen")
    found = {candidate.path: candidate for candidate in find(settings.checkpoints.paths, cwd).candidates}
    for candidate in find(patterns, cwd).candidates if patterns else ():
        if any(path_patterns.matches(pattern, candidate.path) for pattern in patterns):
            found.setdefault(candidate.path, candidate)
    for path in recorded:
        identity = None if path in found else identity_of(path)
        if identity is not None:
            found[path] = Candidate(path, identity, step_names.step_in(path))
    yield from (found[path] for path in sorted(found))


def _unwritable(place: JobFiles, error: OSError) -> SuperviseError:
    return SuperviseError(
        f"cannot use the record of what was set aside: {error.filename or place.directory / DIRECTORY}: {error.strerror or error}",
        hint="Make that directory, and the job's state directory, readable and writable for you.",
    )


def _change_row(change: Any) -> dict[str, Any]:  # noqa: ANN401  a change of the record, whose fields these are
    row = {"id": change.id, "kind": change.kind, "phase": change.phase, "path": change.path, "to": change.to, "reason": change.reason}
    return row | ({"bytes": size_of(change.to)} if (change.kind, change.phase) == ("moved", "done") else {})


def _change_text(row: dict[str, Any]) -> str:
    if row["kind"] == "moved":
        size = f" ({row['bytes'] / 1e6:.1f} MB)" if "bytes" in row else ""
        return f"{row['id']}: {clean(row['path'])} was moved to {clean(row['to'])}{size}"
    return f"{row['id']}: {clean(row['path'])} was put there from the copy {clean(row['to'])}"


def _listed(place: JobFiles, rows: list[dict[str, Any]], discovered: list[dict[str, Any]], moved: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        step = "-" if row["step"] is None else row["step"]
        reason = f"  {clean(row['reason'])}" if row["reason"] else ""
        yield f"{row['state']:<11}  {step:>9}  {row['bytes']:>14}  {clean(row['path'])}{reason}"
    if not rows:
        yield f"no checkpoint of job {place.job} is known on {place.node}"
    for location in discovered:
        yield f"learned: {location['kind']:<10}  saved {location['saved']}, loaded {location['loaded']}  {clean(location['pattern'])}"
    for change in moved:
        yield f"change {_change_text(change)}" + ("" if change["phase"] == "done" else f" ({change['phase']})")


def _day(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))
