"""Restores a checkpoint from a mirror to this disk: parts are downloaded in parallel, compared, synced, and renamed into place.

The download is written beside its target as `.<name>.restore-<id>`. A kill leaves that; the next restore keeps the parts in it that are
right. A second restore of the same checkpoint waits for the first (checkpointing/mirror/restore_target.py). A file that has the name
already is never replaced: if it has the right content, or is another whole checkpoint, it is the answer; else PathOccupied is raised.

A checkpoint that several nodes wrote to their own disks is restored whole to each of them: ranks of torch.distributed.checkpoint read the
shards of all. If a node has its own part, and all of that is right, only the missing files are downloaded and put next to it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from checkpointing.io import durable
from checkpointing.io.reader import FileReader, NotRegular, Short
from checkpointing.manifest import digest
from checkpointing.manifest.documents import Manifest
from checkpointing.mirror import download, joining, listing, restore_target
from checkpointing.mirror.backends import Backend, BackendError
from checkpointing.mirror.stall import RestoreProgress, Stalled, StallTimeout
from checkpointing.model import CheckpointingError, Verdict, nan_weights, note_of
from checkpointing.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from checkpointing.manifest.documents import File
    from checkpointing.mirror.listing import MirroredCheckpoint

_MOST_STALLS: Final = 2  # of one mirror; the second may have been of an object alone
_SPARE_BYTES: Final = 64 << 20
_MOST_JOBS: Final = 5  # of others, that a message names
_BLOCK_BYTES: Final = 512  # of st_blocks, whatever the file system's own are
_FIRST_S: Final = 5.0  # a shorter wait is not worth a line
_SAY_EVERY_S: Final = 30.0
#: In the place of a job's name: no other job.
NO_JOB: Final = "none"
OTHER_JOB_HINT: Final = (
    f"resume from one of them with --set checkpoints.restore_from=JOB, begin anew with --set checkpoints.restore_from={NO_JOB}, "
    "or give this job a --mirror of its own"
)


class OtherJob(CheckpointingError):  # noqa: N818 -- an answer
    """The mirror holds checkpoints of other jobs only."""


class Unreachable(CheckpointingError):  # noqa: N818 -- an answer
    """No mirror answered, so it is not known whether there is anything to restore."""


class PartsMissing(CheckpointingError):  # noqa: N818 -- an answer
    """Not all nodes have sent their part of a checkpoint, or none has."""


class PathOccupied(CheckpointingError):  # noqa: N818 -- an answer
    """Something else has the checkpoint's name."""


class PathNotPermitted(CheckpointingError):  # noqa: N818 -- an answer
    """The manifest names a path that the caller does not permit. A mirror must not choose which path is written."""


class NoSpace(CheckpointingError):  # noqa: N818 -- an answer
    """The checkpoint does not fit on the disk."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored checkpoint, and (key, reason) for each newer one that was passed over. `fetched_bytes` 0: it was there already.

    is_proven: every byte was compared with the manifest; else it is another whole checkpoint that had the name.
    """

    path: str
    manifest: Manifest
    url: str
    fetched_bytes: int
    passed_over: tuple[tuple[str, str], ...] = ()
    is_proven: bool = True


def available(
    backends: Sequence[Backend],
    job: str,
    progress: RestoreProgress = RestoreProgress(),  # noqa: B008 -- a frozen value
    *,
    names_others: bool = True,
) -> tuple[list[MirroredCheckpoint], list[tuple[str, str]]]:
    """Return a job's checkpoints in all mirrors, newest first, and (what, reason) of what could not be read.

    With `names_others`, a mirror without any is asked for other jobs: raises OtherJob if there are. Raises Unreachable.
    """
    kept: list[MirroredCheckpoint] = []
    passed: list[tuple[str, str]] = []
    others: set[str] = set()
    failures: list[BackendError] = []
    number, on_listed = itertools.count(1), progress.on_listed
    for backend in backends:
        subject = f"the list of checkpoints of job {job} in {backend.url}"
        stall_timeout = progress.stall_timeout(subject)
        report_seen = _SparseReport(progress.report) if on_listed is None else lambda _line: on_listed(next(number))
        seen = partial(_seen, stall_timeout, report_seen, subject)
        try:
            checkpoints, damaged, of_others = stall_timeout.run(partial(_held, backend, job, seen, names_others=names_others))
            kept += checkpoints
            passed += damaged
            others |= of_others
        except BackendError as error:
            failures.append(error)
            passed.append((backend.url, error.message))
    if not kept and failures:
        message = f"cannot look for checkpoints of {job}: {failures[0].message}"
        raise Unreachable(message, hint=failures[0].hint)
    if not kept and others:
        names = ", ".join(sorted(others)[:_MOST_JOBS])
        message = f"no checkpoint of job {job!r} in the mirror, only of others: {names}"
        raise OtherJob(message, hint=OTHER_JOB_HINT)
    return listing.ordered(kept), passed


def _held(
    backend: Backend, job: str, seen: Callable[[], None], *, names_others: bool
) -> tuple[list[MirroredCheckpoint], list[tuple[str, str]], set[str]]:
    """Return one mirror's checkpoints of a job, what could not be read, and without checkpoints some of the other jobs that have one."""
    checkpoints, damaged = listing.newest_first(backend, job, seen)
    others = listing.other_jobs(backend, job, seen) if names_others and not checkpoints else ()
    return checkpoints, damaged, set(itertools.islice(others, _MOST_JOBS))


def _seen(stall_timeout: StallTimeout, report: Callable[[str], None], subject: str) -> None:
    stall_timeout.check()
    stall_timeout.progressed()
    report(f"still reading {subject}")


class _SparseReport:
    """Passes a line on, and then none for a while. `first_s`: for how long none comes at first."""

    def __init__(self, report: Callable[[str], None], first_s: float = _SAY_EVERY_S) -> None:
        self._report, self._at = report, time.monotonic() + first_s

    def __call__(self, line: str) -> None:
        if time.monotonic() >= self._at:
            self._at = time.monotonic() + _SAY_EVERY_S
            self._report(line)


def newest(  # noqa: PLR0913 -- keywords, each with a default
    backends: Sequence[Backend],
    job: str,
    *,
    into: str | None = None,
    workers: int = 4,
    refusal: Callable[[str], tuple[str, str] | None] = lambda _path: None,
    progress: RestoreProgress = RestoreProgress(),  # noqa: B008 -- a frozen value
    names_others: bool = True,
) -> Restored | None:
    """Restore the newest whole checkpoint, from one mirror after the other, else an older one; return None if the mirrors are empty.

    A checkpoint whose weights hold NaN gives way to an older one, as on a disk (`prefer_finite` of checkpointing/select.py).

    `into`: the directory to restore to; None: the path where it was saved. For that path `refusal` returns a reason and a hint if nothing
    may be written there. A mirror that stalled twice is asked no more. Raises as `available` and `fetch` do, and DiskStalled.
    """
    kept, passed = available(backends, job, progress, names_others=names_others)
    occupied: PathOccupied | None = None
    stalls: Counter[str] = Counter()
    kept, gave_way = _finite_first(kept)
    passed += gave_way
    for checkpoint in kept:
        if into is None:
            checkpoint = _at_home(checkpoint, refusal)  # noqa: PLW2901 -- the same checkpoint
        why = "its mirror does not answer"
        if stalls[checkpoint.backend.url] < _MOST_STALLS:
            try:
                return fetch(checkpoint, into=into, workers=workers, passed_over=tuple(passed), progress=progress)
            except BackendError as error:
                stalls[checkpoint.backend.url] += isinstance(error, Stalled)
                why = error.message
            except PathOccupied as error:
                there = _usable(_target(checkpoint, into), checkpoint, passed)
                if there is not None:
                    return there
                occupied = occupied or error
                why = error.message
        passed.append((f"{checkpoint.backend.url}/{checkpoint.location.key}", why))
    if occupied is not None:
        raise occupied
    # what some node never sent was never a checkpoint
    failed = [why for _, why in passed if not why.startswith(joining.UNSENT)]
    if failed:
        message = f"cannot restore a checkpoint of {job}: {failed[-1]}"
        raise Unreachable(message, hint="list them: supervise checkpoints ls --mirror URL")
    return None


def _finite_first(kept: Sequence[MirroredCheckpoint]) -> tuple[list[MirroredCheckpoint], list[tuple[str, str]]]:
    """Return the checkpoints in the order in which they are tried, and (key, reason) of the newest ones that give way.

    Last come those that hold NaN in each weight in which the newest of all holds NaN. If all do, they stay in their order.
    """
    lost = nan_weights(kept[0].manifest.non_finite) if kept else frozenset()
    order = sorted(kept, key=lambda checkpoint: lost <= nan_weights(checkpoint.manifest.non_finite)) if lost else list(kept)
    newer = kept[: kept.index(order[0])] if order else ()
    back = "" if not newer else "an older one" if order[0].manifest.step is None else f"step {order[0].manifest.step}"
    why = "its weights hold NaN: {}; {} is taken instead"
    return order, [
        (f"{checkpoint.backend.url}/{checkpoint.location.key}", why.format(note_of(checkpoint.manifest.non_finite), back))
        for checkpoint in newer
    ]


def _at_home(checkpoint: MirroredCheckpoint, refusal: Callable[[str], tuple[str, str] | None]) -> MirroredCheckpoint:
    """Return a checkpoint with the path to which it is restored: where it was saved.

    Of one that several nodes saved, that is where this host saved, else the first path that is permitted. Raises PathNotPermitted.
    """
    host, manifest = os.uname().nodename, checkpoint.manifest
    places = manifest.places or ((host, manifest.path),)
    paths = dict.fromkeys(path for _, path in sorted(places, key=lambda place: place[0] != host))
    refused = {path: refusal(path) for path in paths}
    permitted = [path for path in paths if refused[path] is None]
    if permitted:
        return replace(checkpoint, manifest=replace(manifest, path=permitted[0]))
    path, why = next((path, why) for path, why in refused.items() if why is not None)
    message = f"cannot restore: {path}, where it was saved, {why[0]}"
    raise PathNotPermitted(message, hint=why[1])


def of_save(  # noqa: PLR0913 -- keywords, each with a default
    backends: Sequence[Backend],
    job: str,
    save: str,
    *,
    workers: int = 4,
    refusal: Callable[[str], tuple[str, str] | None] = lambda _path: None,
    progress: RestoreProgress = RestoreProgress(),  # noqa: B008 -- a frozen value
) -> Restored:
    """Restore the checkpoint of one save of several nodes. Raises PartsMissing if it is in no mirror, or not yet; else as `newest`."""
    kept, passed = available(backends, job, progress, names_others=False)
    matching = [checkpoint for checkpoint in kept if checkpoint.manifest.save == save]
    for mirrored_checkpoint in matching:
        try:
            return fetch(_at_home(mirrored_checkpoint, refusal), workers=workers, passed_over=tuple(passed), progress=progress)
        except BackendError as error:
            passed.append((f"{mirrored_checkpoint.backend.url}/{mirrored_checkpoint.location.key}", error.message))
    reasons = [why for key, why in passed if key.endswith(f"/{save}/")]
    hint = "list them: supervise checkpoints ls --mirror URL"
    if matching:
        raise Unreachable(passed[-1][1], hint=hint)
    raise PartsMissing(reasons[0] if reasons else "no part of it is in the mirror", hint=hint)


def newest_of(  # noqa: PLR0913 -- keywords, each with a default
    backends: Sequence[Backend],
    job: str,
    instead: str,
    *,
    into: str | None = None,
    workers: int = 4,
    refusal: Callable[[str], tuple[str, str] | None] = lambda _path: None,
    progress: RestoreProgress = RestoreProgress(),  # noqa: B008 -- a frozen value
) -> Restored | None:
    """Restore this job's newest checkpoint; if it has none, as at its first start, the newest of the job `instead`.

    `instead` "": raises OtherJob if only other jobs have checkpoints. NO_JOB: returns None then, and looks at no other job. A job that is
    named must have one, else OtherJob is raised.
    """
    own = newest(backends, job, into=into, workers=workers, refusal=refusal, progress=progress, names_others=not instead)
    if own is not None or instead in ("", NO_JOB):
        return own
    selection = newest(backends, instead, into=into, workers=workers, refusal=refusal, progress=progress)
    if selection is None:
        message = f"no checkpoint of job {instead!r} in the mirror, nor of any other"
        raise OtherJob(
            message, hint=f"begin anew with --set checkpoints.restore_from={NO_JOB}, or check that --mirror names the right place"
        )
    return selection


def fetch(
    checkpoint: MirroredCheckpoint,
    *,
    into: str | None = None,
    workers: int = 4,
    passed_over: tuple[tuple[str, str], ...] = (),
    progress: RestoreProgress = RestoreProgress(),  # noqa: B008 -- a frozen value
) -> Restored:
    """Restore one checkpoint. Raises BackendError, PathOccupied, NoSpace, OSError.

    Of several nodes on one disk, one downloads. The others wait, then take the restored one.
    """
    target = _target(checkpoint, into)
    stall_timeout = progress.stall_timeout(f"{checkpoint.backend.url}/{checkpoint.location.key} to {target}")
    return stall_timeout.run(lambda: _fetch(checkpoint, target, workers, passed_over, progress, stall_timeout))


def _fetch(  # noqa: PLR0913, PLR0917 -- one caller
    checkpoint: MirroredCheckpoint,
    target: str,
    workers: int,
    passed_over: tuple[tuple[str, str], ...],
    progress: RestoreProgress,
    stall_timeout: StallTimeout,
) -> Restored:
    directory = os.path.dirname(target)  # noqa: PTH120 -- strings throughout the package
    beside = restore_target.partial_path(target, checkpoint.manifest)
    report = _SparseReport(progress.report, _FIRST_S)

    def waiting(holder: str) -> None:
        stall_timeout.check()
        stall_timeout.progressed()
        report(f"waiting for {holder}, which restores {target}")

    while True:
        with stall_timeout.on_disk():
            there = _existing(target, checkpoint, passed_over, stall_timeout)
            if there is not None:
                return there
            missing = replace(checkpoint, manifest=restore_target.missing(target, checkpoint.manifest))
            durable.make_directory(directory)
        with restore_target.download_lock(beside, waiting, stall_timeout.on_disk):
            with stall_timeout.on_disk():
                if restore_target.missing(target, checkpoint.manifest) != missing.manifest:
                    continue  # another node has just restored it, and nobody waits while this one looks at that
                _check_space(directory, missing.manifest, beside)
            n_fetched = download.fetch(missing, beside, workers, progress.on_fetched, stall_timeout)
            with stall_timeout.on_disk():
                restore_target.finish(beside, missing.manifest, stall_timeout.progressed)
                _move(beside, target, missing.manifest)
                restore_target.write_latest_pointer(target, checkpoint.manifest)
        with stall_timeout.on_disk():
            restore_target.sweep(directory)
        return Restored(target, checkpoint.manifest, checkpoint.backend.url, n_fetched, passed_over)


def _move(beside: str, target: str, manifest: Manifest) -> None:
    """Move the download to its place. Raises PathOccupied."""
    try:
        if os.path.lexists(target):
            restore_target.move_missing_files(beside, target, manifest)
        else:
            durable.rename_exclusive(beside, target)
    except FileExistsError:
        message = f"cannot restore: {target}: another file appeared there"
        raise PathOccupied(message, hint="start again: the downloaded parts are kept next to it") from None
    durable.sync_directory(os.path.dirname(target))  # noqa: PTH120 -- strings throughout the package


def _target(checkpoint: MirroredCheckpoint, into: str | None) -> str:
    return checkpoint.manifest.path if into is None else os.path.join(into, checkpoint.manifest.name)  # noqa: PTH118 -- strings throughout the package


def _existing(
    target: str, checkpoint: MirroredCheckpoint, passed_over: tuple[tuple[str, str], ...], stall_timeout: StallTimeout
) -> Restored | None:
    """Return what has the name already, if it has the content too; None if nothing has the name, or one node's part of it.

    Raises PathOccupied.
    """
    if not os.path.lexists(target):
        return None
    missing = restore_target.missing(target, checkpoint.manifest).files
    here = tuple(file for file in checkpoint.manifest.files if file not in missing)
    if missing and checkpoint.manifest.save and (here or restore_target.is_empty(target)):
        if _has_content(target, checkpoint.manifest, here, stall_timeout):
            return None
    elif not missing and _has_content(target, checkpoint.manifest, here, stall_timeout):
        return Restored(target, checkpoint.manifest, checkpoint.backend.url, 0, passed_over)
    message = f"cannot restore: {target}: another file has this name"
    raise PathOccupied(message, hint="move it away, or restore into another directory with --to DIR")


def _usable(target: str, checkpoint: MirroredCheckpoint, passed: Sequence[tuple[str, str]]) -> Restored | None:
    """Return what has the checkpoint's name, if it is another whole checkpoint."""
    verification = verify(target)
    if verification.verdict is not Verdict.VERIFIED:
        return None
    manifest = replace(checkpoint.manifest, step=verification.step, within=verification.within, epoch=verification.epoch)
    why = (f"{checkpoint.backend.url}/{checkpoint.location.key}", f"another whole checkpoint is at {target}")
    return Restored(target, manifest, checkpoint.backend.url, 0, (*passed, why), is_proven=False)


def _has_content(target: str, manifest: Manifest, files: Sequence[File], stall_timeout: StallTimeout) -> bool:
    """Return whether these files at the target are those of the manifest. A checkpoint just restored here is not read again."""
    marked = restore_target.just_restored(target, manifest)
    for file in files:
        if file in marked:
            continue
        try:
            with FileReader(restore_target.place(target, file, manifest), drop_cache=True) as source:
                if source.size != file.n_bytes:
                    return False
                for number, crc in enumerate(file.parts):
                    stall_timeout.check()
                    offset = number * manifest.part_bytes
                    if digest.of_range(source, offset, min(manifest.part_bytes, file.n_bytes - offset)) != crc:
                        return False
                    stall_timeout.progressed()
        except (OSError, NotRegular, Short):
            return False
    return True


def _check_space(directory: str, manifest: Manifest, beside: str) -> None:
    """Raise NoSpace if the disk cannot take the missing rest. A file that was cut at its start has its length, and few blocks."""
    needed = manifest.n_bytes
    for file in manifest.files:
        with contextlib.suppress(FileNotFoundError):
            needed -= min(file.n_bytes, os.lstat(restore_target.place(beside, file, manifest)).st_blocks * _BLOCK_BYTES)
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    if free < needed + _SPARE_BYTES:
        message = f"cannot restore: {directory}: {needed >> 20} MiB are needed and {free >> 20} MiB are free"
        raise NoSpace(message, hint="make room, or restore into another directory with --to DIR")
