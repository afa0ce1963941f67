"""`supervise checkpoints push|pull|restore|prune` and `ls --mirror`: the mirror by hand, without a running job.

Raises SuperviseError with 78 for an address that is not a mirror, a mirror that cannot be reached, and a mirror that holds only another
job's checkpoints. A push that was interrupted is continued by the next one: what the mirror has is not sent again.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

import click

from checkpointing.command_line import mirrors
from checkpointing.io.reader import Interrupted, Throttle
from checkpointing.mirror import keys, listing, removal, restore
from checkpointing.mirror.backends import BackendError, S3Options
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.source import TransferControl
from checkpointing.model import CheckpointingError, size_text
from supervisor.checkpoints.discovery import record
from supervisor.checkpoints.mirror import uploads
from supervisor.checkpoints.mirror.restore_permission import refusal
from supervisor.cli import stdio
from supervisor.cli.checkpoints.records import MIRROR, named_or_latest_job
from supervisor.cli.checkpoints.verify import output
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.job_files import find_job, state_root
from supervisor.core.values import Struct
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job.local_time import second_text
from supervisor.report.table import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from checkpointing.command_line.output import Output
    from checkpointing.mirror.backends import Backend
    from checkpointing.mirror.listing import MirroredCheckpoint
    from checkpointing.retention import rules
    from supervisor.config.settings import Settings

_MIB: Final = 1 << 20
_COLUMNS: Final = (Column("step", right=True), Column("size", right=True), Column("saved"), Column("in the mirror", copied=True))


@click.command()
@setting_options(*JOB, *MIRROR)
@json_option
@click.argument("paths", metavar="PATHS...", nargs=-1, required=True)
def push_command(invocation: Invocation, *, paths: tuple[str, ...], as_json: bool) -> int:
    """The exit code is 1 if a checkpoint is not good enough to be copied."""
    settings, job = named_or_latest_job(invocation)
    return push(settings, job, paths, as_json=as_json)


@click.command()
@setting_options(*JOB, *MIRROR)
@json_option
@click.argument("wanted", metavar="STEP|NAME|ID")
@click.argument("into", metavar="[INTO]", required=False, default=".")
def pull_command(invocation: Invocation, *, wanted: str, into: str, as_json: bool) -> int:
    """Name the checkpoint by its step, its name or its id. INTO is a directory (default: the working directory)."""
    settings, job = named_or_latest_job(invocation)
    return pull(settings, job, wanted, into, as_json=as_json)


@click.command()
@setting_options(*JOB, *MIRROR)
@click.option("--to", metavar="DIRECTORY", help="Write the checkpoint into this directory (default: where it was saved).")
@json_option
def restore_command(invocation: Invocation, *, to: str | None, as_json: bool) -> int:
    """The exit code is 1 if the mirror has no checkpoint of the job."""
    settings, job = named_or_latest_job(invocation)
    return restore_newest(settings, job, to, as_json=as_json)


def backends_of(settings: Settings) -> tuple[Backend, ...]:
    """Return the mirrors of the settings, without any request. Raises SuperviseError if there is none, or one has no valid address."""
    if not settings.checkpoints.mirror:
        raise SuperviseError(
            "no mirror is known", hint="name one with --mirror s3://BUCKET/PREFIX, or under [checkpoints] in the settings file"
        )
    with _errors():
        options = S3Options(**uploads.s3_options(settings))
        return tuple(open_backend(url, options) for url in uploads.mirrors(settings))


def push(settings: Settings, job: str, paths: Sequence[str], *, as_json: bool) -> int:
    """Copy checkpoints to every mirror. Returns 0 if all arrived, 1 if a checkpoint is not good enough to be copied."""
    with _errors():
        return mirrors.push(
            paths,
            backends_of(settings),
            job,
            output(as_json=as_json),
            control=_control(settings),
        )


def list_mirrors(settings: Settings, job: str, *, as_json: bool) -> int:
    """Print what the mirrors hold of a job, the newest first. Returns 0."""
    with _errors():
        kept, passed = _listed(settings, job, output(as_json=as_json))
    if as_json:
        for checkpoint in kept:
            stdio.write_json(MirrorRow.of(checkpoint), indent=0)
        for key, reason in passed:
            stdio.write_json({"key": key, "reason": reason}, indent=0)
        return 0
    rows = [
        (
            "?" if row.step is None else str(row.step),
            size_text(row.bytes),
            second_text(row.made_unix_s),
            f"{row.mirror}/{row.key}",
        )
        for row in map(MirrorRow.of, kept)
    ]
    tables = [Table(_COLUMNS, tuple(rows), empty=f"the mirror holds no checkpoint of {_named_job(settings, job)}")]
    if passed:
        tables.append(Table((Column("passed over", copied=True), Column("because")), tuple(passed)))
    stdio.show(*tables)
    return 0


class MirrorRow(Struct, frozen=True):
    """A checkpoint in a mirror, as a row of JSON has it."""

    name: str
    step: int | None
    format: str
    bytes: int
    made_unix_s: int
    mirror: str
    key: str
    id: str
    job: str
    run: str

    @staticmethod
    def of(checkpoint: MirroredCheckpoint) -> MirrorRow:
        """Return the row of a checkpoint."""
        manifest, about = checkpoint.manifest, checkpoint.manifest.about
        place = (checkpoint.backend.url, checkpoint.location.key)
        return MirrorRow(
            manifest.name, manifest.step, manifest.layout, manifest.n_bytes, manifest.made_unix_s, *place, manifest.id, about.job, about.run
        )


def restore_newest(settings: Settings, job: str, into: str | None, *, as_json: bool) -> int:
    """Restore the newest whole checkpoint of a job to the path where it was saved, or into a directory. Returns 0, or 1 if there is none.

    The path must be in the working directory, declared in the settings, or learned on this node
    (supervisor/checkpoints/mirror/restore_permission.py).
    """
    places = () if into is not None else _learned(settings, job)
    with _errors():
        return mirrors.restore_newest(
            backends_of(settings),
            _named_job(settings, job),
            output(as_json=as_json),
            into=into,
            refusal=lambda path: refusal(path, os.getcwd(), settings.checkpoints.paths, places),  # noqa: PTH109 (strings)
        )


def pull(settings: Settings, job: str, wanted: str, into: str, *, as_json: bool) -> int:
    """Restore one checkpoint of a job into a directory: `wanted` is its step, name or id, or the end of its key. Returns 0.

    If a mirror's copy is damaged, the next mirror's is taken. Raises SuperviseError if no checkpoint, or more than one, matches.
    """
    with _errors():
        kept, _ = _listed(settings, job, output(as_json=as_json))
        named = [checkpoint for checkpoint in kept if wanted in _names(checkpoint)]
        if not named:
            hint = "see what there is with: supervise checkpoints ls --mirror URL"
            raise SuperviseError(f"no such checkpoint in the mirror: job {job}: {wanted}", hint=hint, exit_code=ExitCode.USAGE)
        if len({checkpoint.manifest.id for checkpoint in named}) > 1:
            several = ", ".join(dict.fromkeys(keys.short_name(checkpoint.location.key) for checkpoint in named))
            hint = f"name one of them: {several}"
            raise SuperviseError(f"several checkpoints in the mirror match: job {job}: {wanted}", hint=hint, exit_code=ExitCode.USAGE)
        done = _fetch(named, into, output(as_json=as_json))
    mirrors.print_restored(done, output(as_json=as_json))
    return 0


def _listed(settings: Settings, job: str, out: Output) -> tuple[list[MirroredCheckpoint], list[tuple[str, str]]]:
    """Return what the mirrors hold of a job, the newest first, and (key, reason) of what could not be read."""
    backends, wanted = backends_of(settings), _named_job(settings, job)
    with out.progress(f"listing the mirror's checkpoints of {wanted}") as bar:
        return restore.available(backends, wanted, mirrors.followed(bar, "", out))


def _names(checkpoint: MirroredCheckpoint) -> tuple[str, ...]:
    """Return the names by which a checkpoint may be called. An unknown step is not a name."""
    step = () if checkpoint.manifest.step is None else (str(checkpoint.manifest.step),)
    key = checkpoint.location.key
    return (*step, checkpoint.manifest.name, checkpoint.manifest.id, keys.nonce_in(key), keys.short_name(key))


def _fetch(same: Sequence[MirroredCheckpoint], into: str, out: Output) -> restore.Restored:
    """Fetch a checkpoint from the first of several mirrors whose copy is whole. Raises the error of the last mirror."""

    def fetch(checkpoint: MirroredCheckpoint) -> restore.Restored:
        with out.progress(f"restoring {checkpoint.manifest.name}") as bar:
            return restore.fetch(checkpoint, into=_absolute(into), progress=mirrors.followed(bar, checkpoint.manifest.name, out))

    for checkpoint in same[:-1]:
        with contextlib.suppress(BackendError):
            return fetch(checkpoint)
    return fetch(same[-1])


def prune(settings: Settings, job: str, policy: rules.RetentionPolicy, *, dry_run: bool, as_json: bool) -> int:
    """Remove from each mirror what a policy does not keep; with `dry_run` only list it. Returns 0.

    A checkpoint whose manifest cannot be read is never removed, nor is the newest, nor anything of another job.
    """
    out = output(as_json=as_json)
    with _errors(), out.progress() as bar:
        for backend in backends_of(settings):
            bar.begin(f"listing {backend.url}", unit="entries")
            kept, _ = listing.newest_first(backend, job, bar.advance)
            leaving = removal.may_go(kept, policy)
            bar.begin(f"removing from {backend.url}", len(leaving), "checkpoints")
            for checkpoint in leaving:
                key, manifest = checkpoint.location.key, checkpoint.manifest
                if not dry_run:
                    removal.remove(backend, key)
                bar.advance()
                row = {"mirror": backend.url, "key": key, "step": manifest.step, "bytes": manifest.n_bytes, "removed": not dry_run}
                out.row(row, f"{'would remove' if dry_run else 'removed'} {backend.url}/{key}")
    return 0


def _learned(settings: Settings, job: str) -> tuple[str, ...]:
    """Return the patterns that were learned of a job on this node; none if it never ran here."""
    try:
        directory = find_job(state_root(settings), job).directory
    except SuperviseError:
        return ()
    return tuple(place.pattern for place in record.read_locations(directory / "checkpoints") if place.saved)


def _named_job(settings: Settings, job: str) -> str:
    """Return the job whose checkpoints are restored. A job that the settings name comes first, even if this job has checkpoints."""
    named = settings.checkpoints.restore_from
    return job if named in ("", restore.NO_JOB) else named


def _control(settings: Settings) -> TransferControl:
    cap = settings.checkpoints.bandwidth_mib_s
    throttle = Throttle(cap * _MIB) if cap else None
    limit = throttle.take if throttle is not None else lambda _n_bytes: None
    return TransferControl(throttle=limit)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Raise the mirror's errors as SuperviseError."""
    try:
        yield
    except CheckpointingError as error:
        raise SuperviseError(error.message, hint=error.hint, exit_code=ExitCode.CONFIG) from error
    except (OSError, Interrupted) as error:
        hint = "check the disk that holds the checkpoints and the state directory"
        raise SuperviseError(f"cannot read or write a checkpoint: {error}", hint=hint) from error


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 -- plain strings, as the package takes them
