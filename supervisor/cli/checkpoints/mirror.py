"""`supervise checkpoints push|pull|restore|prune`, and `ls --mirror`, what a mirror holds: the mirror by hand, without a running job.

Raises SuperviseError with 78 for an address that is no mirror, a mirror that cannot be reached, and one that holds only another job's
checkpoints. A push that was interrupted leaves its spool in the state directory, and the next one continues from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from checkpointing.command_line import mirrors
from checkpointing.command_line.progress import ProgressBar
from checkpointing.io.reader import Interrupted, Throttle
from checkpointing.mirror import listing, removal, restore
from checkpointing.mirror.backends import BackendError, S3Options
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.stall import RestoreProgress
from checkpointing.mirror.upload import TransferControl
from checkpointing.model import CheckpointingError
from supervisor.checkpoints.discovery import record
from supervisor.checkpoints.mirror import process
from supervisor.checkpoints.mirror.restore_permission import refusal
from supervisor.cli import stdio
from supervisor.cli.checkpoints.records import MIRROR, named_or_latest_job
from supervisor.cli.checkpoints.verify import output
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.job_files import find_job, state_root
from supervisor.errors import ExitCode, SuperviseError
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from checkpointing.command_line.output import Output
    from checkpointing.mirror.backends import Backend
    from checkpointing.mirror.listing import MirroredCheckpoint
    from checkpointing.retention import rules
    from supervisor.config.settings import Settings

_MIB: Final = 1 << 20


@click.command()
@setting_options(*JOB, *MIRROR)
@json_option
@click.argument("paths", metavar="PATHS...", nargs=-1, required=True)
def push_command(invocation: Invocation, *, paths: tuple[str, ...], as_json: bool) -> int:
    """The exit code is 1 if one is not good enough to be copied."""
    settings, job = named_or_latest_job(invocation)
    return push(settings, job, paths, as_json=as_json)


@click.command()
@setting_options(*JOB, *MIRROR)
@json_option
@click.argument("wanted", metavar="STEP|NAME|ID")
@click.argument("into", metavar="[INTO]", required=False, default=".")
def pull_command(invocation: Invocation, *, wanted: str, into: str, as_json: bool) -> int:
    """Name it by its step, its name or its id. INTO is a directory (default: the working directory)."""
    settings, job = named_or_latest_job(invocation)
    return pull(settings, job, wanted, into, as_json=as_json)


@click.command()
@setting_options(*JOB, *MIRROR)
@click.option("--to", metavar="DIRECTORY", help="Write it into this directory (default: where it was saved).")
@json_option
def restore_command(invocation: Invocation, *, to: str | None, as_json: bool) -> int:
    """The exit code is 1 if the mirror has none."""
    settings, job = named_or_latest_job(invocation)
    return restore_newest(settings, job, to, as_json=as_json)


def backends_of(settings: Settings) -> tuple[Backend, ...]:
    """Give the mirrors of the settings; none is asked anything yet. Raises SuperviseError where there is none, or one is no place."""
    if not settings.checkpoints.mirror:
        raise SuperviseError(
            "no mirror is known", hint="name one with --mirror s3://BUCKET/PREFIX, or under [checkpoints] in the file of settings"
        )
    with _errors():
        options = S3Options(**process.s3_options(settings))
        return tuple(open_backend(url, options) for url in process.mirrors(settings))


def push(settings: Settings, job: str, paths: Sequence[str], *, as_json: bool) -> int:
    """Bring checkpoints to every mirror. Returns 0 where all arrived, 1 where one is not good enough to be copied."""
    with _errors():
        return mirrors.push(
            paths,
            backends_of(settings),
            job,
            output(as_json=as_json),
            spool=_absolute(f"{settings.job.state_dir}/push"),
            control=_control(settings),
        )


def list_mirrors(settings: Settings, job: str, *, as_json: bool) -> int:
    """Print what the mirrors hold of a job, the newest first. Returns 0."""
    with _errors():
        kept, passed = restore.available(backends_of(settings), _wanted(settings, job), RestoreProgress(stdio.say))
    for checkpoint in kept:
        made_at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(checkpoint.manifest.made_unix_s))
        step = "?" if checkpoint.manifest.step is None else checkpoint.manifest.step
        place = f"{checkpoint.backend.url}/{checkpoint.location.key}"
        text = f"step {step:>8}  {checkpoint.manifest.n_bytes / _MIB:>10.1f} MiB  {made_at}  {place}"
        _print(_row(checkpoint), text, as_json=as_json)
    if not kept and not as_json:
        _print({}, f"the mirror holds no checkpoint of {_wanted(settings, job)}", as_json=False)
    for key, reason in passed:
        _print({"key": key, "reason": reason}, f"passed over: {key}: {reason}", as_json=as_json)
    return 0


def restore_newest(settings: Settings, job: str, into: str | None, *, as_json: bool) -> int:
    """Bring the newest whole checkpoint of a job back to where it was saved, or into a directory. Returns 0, or 1 where there is none.

    Where it was saved, only if that is in the working directory, declared in the settings, or learned on this node
    (supervisor/checkpoints/mirror/restore_permission.py).
    """
    places = () if into is not None else _learned(settings, job)
    with _errors():
        return mirrors.restore_newest(
            backends_of(settings),
            _wanted(settings, job),
            output(as_json=as_json),
            into=into,
            refusal=lambda path: refusal(path, os.getcwd(), settings.checkpoints.paths, places),  # noqa: PTH109 (strings)
        )


def pull(settings: Settings, job: str, wanted: str, into: str, *, as_json: bool) -> int:
    """Bring one checkpoint of a job into a directory: `wanted` is its step, name or id, or the last part of its key. Returns 0.

    A damaged one is taken from the next mirror that has it. Raises SuperviseError where nothing, or more than one, is meant.
    """
    with _errors():
        kept, _ = restore.available(backends_of(settings), _wanted(settings, job), RestoreProgress(stdio.say))
        named = [checkpoint for checkpoint in kept if wanted in _names(checkpoint)]
        if not named:
            hint = "see what there is with: supervise checkpoints ls --mirror URL"
            raise SuperviseError(f"no such checkpoint in the mirror: job {job}: {wanted}", hint=hint, exit_code=ExitCode.USAGE)
        if len({checkpoint.manifest.id for checkpoint in named}) > 1:
            several = ", ".join(dict.fromkeys(checkpoint.location.key.rstrip("/").rpartition("/")[2] for checkpoint in named))
            hint = f"name one of them: {several}"
            raise SuperviseError(f"several checkpoints in the mirror are meant: job {job}: {wanted}", hint=hint, exit_code=ExitCode.USAGE)
        done = _fetch(named, into, output(as_json=as_json))
    mirrors.print_restored(done, output(as_json=as_json))
    return 0


def _names(one: MirroredCheckpoint) -> tuple[str, ...]:
    """Give by what one checkpoint may be called. A step that nobody knows is no name."""
    step = () if one.manifest.step is None else (str(one.manifest.step),)
    return (*step, one.manifest.name, one.manifest.id, one.location.key.rstrip("/").rpartition("/")[2])


def _fetch(same: Sequence[MirroredCheckpoint], into: str, out: Output) -> restore.Restored:
    """Fetch the first that is whole of what is the same in several mirrors. Raises what the last of them does."""

    def fetch(one: MirroredCheckpoint) -> restore.Restored:
        bar = ProgressBar(out.clean(one.manifest.name), wanted=out.bars)
        try:
            return restore.fetch(one, into=_absolute(into), progress=RestoreProgress(out.warn, bar.set))
        finally:
            bar.clear()

    for checkpoint in same[:-1]:
        with contextlib.suppress(BackendError):
            return fetch(checkpoint)
    return fetch(same[-1])


def prune(settings: Settings, job: str, policy: rules.RetentionPolicy, *, dry_run: bool, as_json: bool) -> int:
    """Remove from each mirror what a policy does not keep; with `dry_run` only say what that is. Returns 0.

    A checkpoint whose manifest cannot be read is never removed, nor is the newest, nor anything of another job.
    """
    with _errors():
        for backend in backends_of(settings):
            kept, _ = listing.newest_first(backend, job)
            for checkpoint in removal.may_go(kept, policy):
                key, made = checkpoint.location.key, checkpoint.manifest
                if not dry_run:
                    removal.remove(backend, key)
                row = {"mirror": backend.url, "key": key, "step": made.step, "bytes": made.n_bytes, "removed": not dry_run}
                _print(row, f"{'would remove' if dry_run else 'removed'} {backend.url}/{key}", as_json=as_json)
    return 0


def _learned(settings: Settings, job: str) -> tuple[str, ...]:
    """Give the patterns that were learned of a job on this node; none where it never ran here."""
    try:
        directory = find_job(state_root(settings), job).directory
    except SuperviseError:
        return ()
    return tuple(place.pattern for place in record.read_locations(directory / "checkpoints") if place.saved)


def _wanted(settings: Settings, job: str) -> str:
    """Whose checkpoints are meant: by hand, a job that is named is meant even where this one has some."""
    named = settings.checkpoints.restore_from
    return job if named in ("", restore.NO_JOB) else named


def _control(settings: Settings) -> TransferControl:
    cap = settings.checkpoints.bandwidth_mib_s
    throttle = Throttle(cap * _MIB) if cap else None
    limit = throttle.take if throttle is not None else lambda _n_bytes: None
    return TransferControl(throttle=limit)


def _row(one: MirroredCheckpoint) -> dict[str, Any]:
    manifest = one.manifest
    place = {"mirror": one.backend.url, "key": one.location.key, "id": manifest.id, "job": manifest.about.job, "run": manifest.about.run}
    return {
        "name": manifest.name,
        "step": manifest.step,
        "format": manifest.layout,
        "bytes": manifest.n_bytes,
        "made_unix_s": manifest.made_unix_s,
        **place,
    }


def _print(row: dict[str, Any], text: str, *, as_json: bool) -> None:
    stdio.write(sys.stdout, json.dumps(row) if as_json else "\n".join(clean(line) for line in text.splitlines()))


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Raise what fails in the mirror as a SuperviseError."""
    try:
        yield
    except CheckpointingError as error:
        raise SuperviseError(error.message, hint=error.hint, exit_code=ExitCode.CONFIG) from error
    except (OSError, Interrupted) as error:
        hint = "see to the disk with the checkpoints and the state directory"
        raise SuperviseError(f"cannot read or write a checkpoint: {error}", hint=hint) from error


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 -- plain strings, as the package takes them
