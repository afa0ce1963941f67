"""`supervise checkpoints push|pull|restore|prune`, and `ls --mirror`, what a mirror holds: the mirror by hand, without a running job.

In: settings (where the mirrors are and how they are reached), a job's name, paths. Out: lines or JSON objects on stdout, progress on a
terminal's stderr, an exit code. What can fail is a SuperviseError: 78 for a mirror that is none, that cannot be reached, or that holds
only another job's checkpoints. Nothing is kept but the spool of a push that was interrupted, in the state directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from checkpointing.io.reader import Interrupted, Throttle
from checkpointing.manifest import check
from checkpointing.manifest import documents as manifests
from checkpointing.mirror import layout, restore
from checkpointing.mirror.backends import BackendError, S3Options, open_backend
from checkpointing.mirror.spool import Spool
from checkpointing.mirror.stall import RestoreProgress
from checkpointing.mirror.upload import Changed, Means, upload
from checkpointing.model import CheckpointingError, Verdict
from checkpointing.verification import verify
from supervisor.checkpoints import discovery
from supervisor.checkpoints.mirror_process import mirrors, s3_options
from supervisor.checkpoints.restore_target import refusal
from supervisor.cli import stdio
from supervisor.cli.status import find_job, state_root
from supervisor.errors import ExitCode, SuperviseError
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from checkpointing.mirror.backends import Backend
    from checkpointing.mirror.layout import Kept
    from checkpointing.retention import rules
    from supervisor.config.settings import Settings

_MIB: Final = 1 << 20
_SHOW_EVERY_S: Final = 0.2


def backends_of(settings: Settings) -> tuple[Backend, ...]:
    """Give the mirrors of the settings; none is asked anything yet. Raises SuperviseError where there is none, or one is no place."""
    if not settings.checkpoints.mirror:
        raise SuperviseError(
            "no mirror is known", hint="name one with --mirror s3://BUCKET/PREFIX, or under [checkpoints] in the file of settings"
        )
    with _told():
        options = S3Options(**s3_options(settings), connections=settings.checkpoints.concurrency)
        return tuple(open_backend(url, options) for url in mirrors(settings))


def push(settings: Settings, job: str, paths: Sequence[str], *, as_json: bool) -> int:
    """Bring checkpoints to every mirror. Returns 0 where all arrived, 1 where one is not good enough to be copied."""
    backends = backends_of(settings)
    worst = 0
    with _told(), contextlib.closing(Spool(_absolute(f"{settings.job.state_dir}/push"))) as spool:
        for path in (os.path.realpath(path) for path in paths):
            found = verify(path, own=True)
            if found.verdict not in (Verdict.VERIFIED, Verdict.UNVERIFIABLE):
                _print(
                    {"path": path, "verdict": found.verdict, "reason": found.reason}, f"not pushed: {path}: {found.reason}", as_json=as_json
                )
                worst = 1
                continue
            try:
                raw = manifests.encode(check.build(found, manifests.About(job, "by-hand"), part_bytes=settings.checkpoints.part_mib * _MIB))
                entry = spool.add(path, found.step, raw)
            except check.Changed as error:
                _print({"path": path, "verdict": "writing", "reason": str(error)}, f"not pushed: {path}: {error}", as_json=as_json)
                worst = 1
                continue
            for backend in backends:
                bar = _Bar(path, entry.manifest.n_bytes, wanted=not as_json)
                try:
                    key = upload(backend, entry, spool.log(entry, backend.url), _means(settings, bar))
                except Changed as error:
                    spool.drop(entry)
                    _print({"path": path, "verdict": "writing", "reason": str(error)}, f"not pushed: {path}: {error}", as_json=as_json)
                    worst = 1
                    break
                finally:
                    bar.clear()
                spool.mark_done(entry, backend.url, [one.url for one in backends])
                row = {"path": path, "step": found.step, "mirror": backend.url, "key": key, "bytes": entry.manifest.n_bytes}
                _print(row, f"{path} -> {backend.url}/{key}", as_json=as_json)
    return worst


def listing(settings: Settings, job: str, *, as_json: bool) -> int:
    """Print what the mirrors hold of a job, the newest first. Returns 0."""
    with _told():
        kept, passed = restore.available(backends_of(settings), _wanted(settings, job), RestoreProgress(stdio.say))
    for one in kept:
        made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.manifest.made_unix_s))
        step = "?" if one.manifest.step is None else one.manifest.step
        text = f"step {step:>8}  {one.manifest.n_bytes / _MIB:>10.1f} MiB  {made}  {one.backend.url}/{one.place.key}"
        _print(_row(one), text, as_json=as_json)
    if not kept and not as_json:
        _print({}, f"the mirror holds no checkpoint of {_wanted(settings, job)}", as_json=False)
    for key, reason in passed:
        _print({"key": key, "reason": reason}, f"passed over: {key}: {reason}", as_json=as_json)
    return 0


def restore_newest(settings: Settings, job: str, into: str | None, *, as_json: bool) -> int:
    """Bring the newest whole checkpoint of a job back to where it was saved, or into a directory. Returns 0, or 1 where there is none.

    Where it was saved, only if that is in the working directory, declared in the settings, or learned on this node
    (supervisor/checkpoints/restore_target.py).
    """
    places = () if into is not None else _learned(settings, job)
    bar = _Bar(f"checkpoint of {job}", 0, wanted=not as_json)
    with _told():
        try:
            done = restore.newest(
                backends_of(settings),
                _wanted(settings, job),
                into=into and _absolute(into),
                workers=settings.checkpoints.concurrency,
                elsewhere=lambda path: refusal(path, os.getcwd(), settings.checkpoints.paths, places),  # noqa: PTH109 (strings)
                watch=RestoreProgress(stdio.say, bar.shown),
            )
        finally:
            bar.clear()
    if done is None:
        _print({"path": None}, f"nothing to restore: the mirror holds no checkpoint of {job}", as_json=as_json)
        return 1
    _print_restored(done, as_json=as_json)
    return 0


def pull(settings: Settings, job: str, wanted: str, into: str, *, as_json: bool) -> int:
    """Bring one checkpoint of a job into a directory: `wanted` is its step, name or id, or the last part of its key. Returns 0.

    A damaged one is taken from the next mirror that has it. Raises SuperviseError where nothing, or more than one, is meant.
    """
    with _told():
        kept, _ = restore.available(backends_of(settings), _wanted(settings, job), RestoreProgress(stdio.say))
        named = [one for one in kept if wanted in _names(one)]
        if not named:
            hint = "see what there is with: supervise checkpoints ls --mirror URL"
            raise SuperviseError(f"no such checkpoint in the mirror: job {job}: {wanted}", hint=hint, exit_code=ExitCode.USAGE)
        if len({one.manifest.id for one in named}) > 1:
            several = ", ".join(dict.fromkeys(one.place.key.rstrip("/").rpartition("/")[2] for one in named))
            hint = f"name one of them: {several}"
            raise SuperviseError(f"several checkpoints in the mirror are meant: job {job}: {wanted}", hint=hint, exit_code=ExitCode.USAGE)
        done = _fetch(settings, named, into, wanted=not as_json)
    _print_restored(done, as_json=as_json)
    return 0


def _names(one: Kept) -> tuple[str, ...]:
    """Give by what one checkpoint may be called. A step that nobody knows is no name."""
    step = () if one.manifest.step is None else (str(one.manifest.step),)
    return (*step, one.manifest.name, one.manifest.id, one.place.key.rstrip("/").rpartition("/")[2])


def _fetch(settings: Settings, same: Sequence[Kept], into: str, *, wanted: bool) -> restore.Restored:
    """Fetch the first that is whole of what is the same in several mirrors. Raises what the last of them does."""

    def fetch(one: Kept) -> restore.Restored:
        bar = _Bar(one.manifest.name, one.manifest.n_bytes, wanted=wanted)
        try:
            return restore.fetch(
                one, into=_absolute(into), workers=settings.checkpoints.concurrency, watch=RestoreProgress(stdio.say, bar.shown)
            )
        finally:
            bar.clear()

    for one in same[:-1]:
        with contextlib.suppress(BackendError):
            return fetch(one)
    return fetch(same[-1])


def prune(settings: Settings, job: str, policy: rules.Policy, *, dry_run: bool, as_json: bool) -> int:
    """Remove from each mirror what a policy does not keep; with `dry_run` only say what that is. Returns 0.

    A checkpoint whose manifest cannot be read is never removed, nor is the newest, nor anything of another job.
    """
    with _told():
        for backend in backends_of(settings):
            kept, _ = layout.newest_first(backend, job)
            for one in layout.may_go(kept, policy):
                key, made = one.place.key, one.manifest
                if not dry_run:
                    layout.remove(backend, key)
                row = {"mirror": backend.url, "key": key, "step": made.step, "bytes": made.n_bytes, "removed": not dry_run}
                _print(row, f"{'would remove' if dry_run else 'removed'} {backend.url}/{key}", as_json=as_json)
    return 0


def _learned(settings: Settings, job: str) -> tuple[str, ...]:
    """Give the patterns that were learned of a job on this node; none where it never ran here."""
    try:
        directory = find_job(state_root(settings), job).directory
    except SuperviseError:
        return ()
    return tuple(place.pattern for place in discovery.read_locations(directory / "checkpoints") if place.saved)


def _wanted(settings: Settings, job: str) -> str:
    """Whose checkpoints are meant: by hand, a job that is named is meant even where this one has some."""
    named = settings.checkpoints.restore_from
    return job if named in ("", restore.NO_JOB) else named


def _means(settings: Settings, bar: _Bar) -> Means:
    cap = settings.checkpoints.bandwidth_mib_s
    throttle = Throttle(cap * _MIB) if cap else None
    return Means(
        workers=settings.checkpoints.concurrency, take=throttle.take if throttle is not None else lambda _n_bytes: None, sent=bar.add
    )


def _row(one: Kept) -> dict[str, Any]:
    made = one.manifest
    place = {"mirror": one.backend.url, "key": one.place.key, "id": made.id, "job": made.about.job, "run": made.about.run}
    return {"name": made.name, "step": made.step, "format": made.layout, "bytes": made.n_bytes, "made_unix_s": made.made_unix_s, **place}


def _print_restored(done: restore.Restored, *, as_json: bool) -> None:
    passed = [{"key": key, "reason": reason} for key, reason in done.passed_over]
    row = {"path": done.path, "step": done.manifest.step, "mirror": done.url, "fetched_bytes": done.fetched_bytes, "passed_over": passed}
    lines = [f"passed over: {key}: {reason}" for key, reason in done.passed_over]
    said = "was there already" if not done.fetched_bytes and done.manifest.n_bytes else f"from {done.url}"
    _print(row, "\n".join([*lines, f"{done.path} {said}, every byte as it was recorded"]), as_json=as_json)


def _print(row: dict[str, Any], text: str, *, as_json: bool) -> None:
    stdio.write(sys.stdout, json.dumps(row) if as_json else "\n".join(clean(line) for line in text.splitlines()))


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Say what fails in the mirror as a SuperviseError."""
    try:
        yield
    except CheckpointingError as error:
        raise SuperviseError(error.message, hint=error.hint, exit_code=ExitCode.CONFIG) from error
    except (OSError, Interrupted) as error:
        hint = "see to the disk with the checkpoints and the state directory"
        raise SuperviseError(f"cannot read or write a checkpoint: {error}", hint=hint) from error


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 -- plain strings, as the package takes them


class _Bar:
    """A line on a terminal that says how far it is. Several threads may add to it."""

    def __init__(self, name: str, total: int, *, wanted: bool) -> None:
        self._line = stdio.StatusLine(wanted=wanted)
        self._name, self._total, self._done = clean(name)[-50:], total, 0
        self._began = self._shown = time.monotonic()

    def add(self, n_bytes: int) -> None:
        """Count what was sent."""
        self.shown(self._done + n_bytes, self._total)

    def shown(self, done: int, total: int) -> None:
        """Show where it stands, a few times a second."""
        self._done = done
        now = time.monotonic()
        if self._line.is_on and (now - self._shown > _SHOW_EVERY_S or done >= total):
            self._shown = now
            rate = done / _MIB / max(now - self._began, 1e-3)
            filled = round(20 * done / max(total, 1))
            bar = "#" * filled + "-" * (20 - filled)
            self._line.show(f"{self._name} [{bar}] {done / _MIB:.0f}/{total / _MIB:.0f} MiB, {rate:.0f} MiB/s")

    def clear(self) -> None:
        """Take the line away."""
        self._line.clear()
