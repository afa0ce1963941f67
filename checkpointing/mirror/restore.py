"""Restores a checkpoint from a mirror to this disk: parts are downloaded in parallel, compared, synced, and renamed into place.

The download is written beside its target as `.<name>.restore-<id>`. A kill leaves that; the next restore keeps the parts in it that are
right. A second restore of the same checkpoint waits for the first (checkpointing/mirror/restore_target.py). A file that has the name
already is never replaced: if it has the right content, or is another whole checkpoint, it is the answer; else PathOccupied is raised.

A checkpoint that several nodes wrote to their own disks is restored whole to each of them: ranks of torch.distributed.checkpoint read the
shards of all. If a node has its own part, and all of that is right, only the missing files are downloaded and put beside it.
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import tenacity

from checkpointing.io import durable
from checkpointing.io.reader import FileReader, NotRegular, Short
from checkpointing.manifest import digest
from checkpointing.manifest.documents import Manifest
from checkpointing.mirror import joining, keys, listing, restore_target
from checkpointing.mirror.backends import Backend, BackendError, TransferDamaged, Unavailable
from checkpointing.mirror.stall import RestoreProgress, Stalled, StallTimeout
from checkpointing.model import CheckpointingError, Verdict, nan_weights, note_of
from checkpointing.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from checkpointing.manifest.documents import File
    from checkpointing.mirror.listing import MirroredCheckpoint

_TRIES: Final = 5
_MOST_STALLS: Final = 2  # of one mirror; the second may have been of an object alone
_SPARE_BYTES: Final = 64 << 20
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
) -> tuple[list[MirroredCheckpoint], list[tuple[str, str]]]:
    """Return a job's checkpoints in all mirrors, newest first, and (what, reason) of what could not be read.

    Raises OtherJob, Unreachable.
    """
    kept: list[MirroredCheckpoint] = []
    passed: list[tuple[str, str]] = []
    others: set[str] = set()
    failures: list[BackendError] = []
    for backend in backends:
        stall_timeout = progress.stall_timeout(f"the list of checkpoints of job {job} in {backend.url}")
        try:
            found, damaged, of_others = stall_timeout.run(partial(_held, backend, job, stall_timeout))
            kept += found
            passed += damaged
            others |= of_others
        except BackendError as error:
            failures.append(error)
            passed.append((backend.url, error.message))
    if not kept and failures:
        message = f"cannot look for checkpoints of {job}: {failures[0].message}"
        raise Unreachable(message, hint=failures[0].hint)
    if not kept and others:
        names = ", ".join(sorted(others)[:5])
        message = f"no checkpoint of job {job!r} in the mirror, only of others: {names}"
        raise OtherJob(message, hint=OTHER_JOB_HINT)
    return listing.ordered(kept), passed


def _held(backend: Backend, job: str, stall_timeout: StallTimeout) -> tuple[list[MirroredCheckpoint], list[tuple[str, str]], set[str]]:
    """Return one mirror's checkpoints of a job, what could not be read, and without checkpoints the other jobs that it holds."""
    found, damaged = _retried(lambda: listing.newest_first(backend, job, stall_timeout.progressed))
    others: set[str] = set()
    if not found:
        for location in _retried(lambda: list(listing.locations(backend))):
            stall_timeout.progressed()
            others.add(location.job)
    return found, damaged, others - {job}


def newest(  # noqa: PLR0913 -- keywords, each with a default
    backends: Sequence[Backend],
    job: str,
    *,
    into: str | None = None,
    workers: int = 4,
    refusal: Callable[[str], tuple[str, str] | None] = lambda _path: None,
    progress: RestoreProgress = RestoreProgress(),  # noqa: B008 -- a frozen value
) -> Restored | None:
    """Restore the newest whole checkpoint, from one mirror after the other, else an older one; return None if the mirrors are empty.

    A checkpoint whose weights hold NaN gives way to an older one, as on a disk (`prefer_finite` of checkpointing/select.py).

    `into`: the directory to restore to; None: the path where it was saved. For that path `refusal` returns a reason and a hint if nothing
    may be written there. A mirror that stalled twice is asked no more.
    """
    kept, passed = available(backends, job, progress)
    occupied: PathOccupied | None = None
    stalls: Counter[str] = Counter()
    kept, gave_way = _finite_first(kept)
    passed += gave_way
    for checkpoint in kept:
        why = ""
        if into is None:
            checkpoint = _at_home(checkpoint, refusal)  # noqa: PLW2901 -- the same checkpoint
        if not why and stalls[checkpoint.backend.url] >= _MOST_STALLS:
            why = "its mirror does not answer"
        if not why:
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


def _at_home(one: MirroredCheckpoint, refusal: Callable[[str], tuple[str, str] | None]) -> MirroredCheckpoint:
    """Return a checkpoint with the path to which it is restored: where it was saved.

    Of one that several nodes saved, that is where this host saved, else the first path that is permitted. Raises PathNotPermitted.
    """
    host, manifest = os.uname().nodename, one.manifest
    places = manifest.places or ((host, manifest.path),)
    paths = dict.fromkeys(path for _, path in sorted(places, key=lambda place: place[0] != host))
    refused = {path: refusal(path) for path in paths}
    permitted = [path for path in paths if refused[path] is None]
    if permitted:
        return replace(one, manifest=replace(manifest, path=permitted[0]))
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
    try:
        kept, passed = available(backends, job, progress)
    except OtherJob as error:
        raise PartsMissing("no part of it is in the mirror", hint=error.hint) from error
    found = [checkpoint for checkpoint in kept if checkpoint.manifest.save == save]
    for mirrored_checkpoint in found:
        try:
            return fetch(_at_home(mirrored_checkpoint, refusal), workers=workers, passed_over=tuple(passed), progress=progress)
        except BackendError as error:
            passed.append((f"{mirrored_checkpoint.backend.url}/{mirrored_checkpoint.location.key}", error.message))
    reasons = [why for key, why in passed if key.endswith(f"-{save}/")]
    hint = "list them: supervise checkpoints ls --mirror URL"
    if found:
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

    `instead` "": raises OtherJob if only other jobs have checkpoints. NO_JOB: returns None then. A job that is named must have one, else
    OtherJob is raised.
    """
    try:
        own = newest(backends, job, into=into, workers=workers, refusal=refusal, progress=progress)
    except OtherJob:
        if not instead:
            raise
        own = None
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
    one: MirroredCheckpoint,
    *,
    into: str | None = None,
    workers: int = 4,
    passed_over: tuple[tuple[str, str], ...] = (),
    progress: RestoreProgress = RestoreProgress(),  # noqa: B008 -- a frozen value
) -> Restored:
    """Restore one checkpoint. Raises BackendError, PathOccupied, NoSpace, OSError."""
    target = _target(one, into)
    there = _existing(target, one, passed_over)
    if there is not None:
        return there
    directory = os.path.dirname(target)  # noqa: PTH120 -- strings throughout the package
    durable.make_directory(directory)
    beside = restore_target.partial_path(target, one.manifest)
    with restore_target.download_lock(beside):
        there = _existing(target, one, passed_over)  # another node may have restored it meanwhile
        if there is not None:
            return there
        missing = one if not os.path.lexists(target) else replace(one, manifest=restore_target.missing(target, one.manifest))
        _check_space(directory, missing.manifest, beside)
        stall_timeout = progress.stall_timeout(f"{one.backend.url}/{one.location.key}")
        n_fetched = stall_timeout.run(lambda: _fetch_all(missing, beside, workers, progress.on_fetched, stall_timeout))
        _sync(beside, missing.manifest)
        try:
            if missing is one:
                durable.rename_exclusive(beside, target)
            else:
                restore_target.move_missing_files(beside, target, missing.manifest)
        except FileExistsError:
            message = f"cannot restore: {target}: another file appeared there"
            raise PathOccupied(message, hint="start again: the downloaded parts are kept beside it") from None
        durable.sync_directory(directory)
        restore_target.write_latest_pointer(target, one.manifest)
    restore_target.sweep(directory)
    return Restored(target, one.manifest, one.backend.url, n_fetched, passed_over)


def _target(one: MirroredCheckpoint, into: str | None) -> str:
    return one.manifest.path if into is None else os.path.join(into, one.manifest.name)  # noqa: PTH118 -- strings throughout the package


def _existing(target: str, one: MirroredCheckpoint, passed_over: tuple[tuple[str, str], ...]) -> Restored | None:
    """Return what has the name already, if it has the content too; None if nothing has the name, or one node's part of it.

    Raises PathOccupied.
    """
    if not os.path.lexists(target):
        return None
    missing = restore_target.missing(target, one.manifest).files
    here = tuple(file for file in one.manifest.files if file not in missing)
    if missing and one.manifest.save and (here or restore_target.is_empty(target)):
        if _has_content(target, replace(one.manifest, files=here)):
            return None
    elif not missing and _has_content(target, one.manifest):
        return Restored(target, one.manifest, one.backend.url, 0, passed_over)
    message = f"cannot restore: {target}: another file has this name"
    raise PathOccupied(message, hint="move it away, or restore into another directory with --to DIR")


def _usable(target: str, one: MirroredCheckpoint, passed: Sequence[tuple[str, str]]) -> Restored | None:
    """Return what has the checkpoint's name, if it is another whole checkpoint."""
    verification = verify(target)
    if verification.verdict is not Verdict.VERIFIED:
        return None
    manifest = replace(one.manifest, step=verification.step, within=verification.within, epoch=verification.epoch)
    why = (f"{one.backend.url}/{one.location.key}", f"another whole checkpoint is at {target}")
    return Restored(target, manifest, one.backend.url, 0, (*passed, why), is_proven=False)


def _fetch_all(one: MirroredCheckpoint, beside: str, workers: int, fetched: Callable[[int, int], None], stall_timeout: StallTimeout) -> int:
    manifest = one.manifest
    tasks = [(file, number) for file in manifest.files for number in range(len(file.parts))]
    for file in manifest.files:
        path = _place(beside, file, manifest)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, file.n_bytes)
        finally:
            os.close(fd)
    n_fetched = done = 0
    with ThreadPoolExecutor(workers, thread_name_prefix="restore") as pool:
        futures = [pool.submit(_fetch_part, one, file, number, _place(beside, file, manifest), stall_timeout) for file, number in tasks]
        try:
            for (file, number), future in zip(tasks, futures, strict=True):
                n_fetched += future.result()
                done += min(manifest.part_bytes, file.n_bytes - number * manifest.part_bytes)
                fetched(done, manifest.n_bytes)
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    return n_fetched


def _fetch_part(one: MirroredCheckpoint, file: File, number: int, path: str, stall_timeout: StallTimeout) -> int:
    """Download a part unless the right bytes are here; return how many were downloaded."""
    offset = number * one.manifest.part_bytes
    n_bytes = min(one.manifest.part_bytes, file.n_bytes - offset)
    with FileReader(path, drop_cache=True) as source:
        if _begins_written(path, offset, n_bytes) and digest.of_range(source, offset, n_bytes) == file.parts[number]:
            stall_timeout.progressed()
            return 0
    stall_timeout.progressed()

    def attempt() -> None:
        stall_timeout.check()
        crc, at = 0, offset
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for piece in one.backend.read(keys.data_key(one.location.key, file.path), offset, n_bytes):
                crc = digest.of_bytes(piece, crc)
                view = memoryview(piece)
                with stall_timeout.writing():
                    while view:
                        n_written = os.pwrite(fd, view, at)
                        at += n_written
                        view = view[n_written:]
                stall_timeout.progressed(len(piece))
        finally:
            os.close(fd)
        if crc != file.parts[number]:
            message = f"the copy is damaged: {one.backend.url}/{one.location.key}data/{file.path}: part {number + 1}"
            raise TransferDamaged(message, hint="another copy is tried")

    _retried(attempt)
    return n_bytes


def _begins_written(path: str, offset: int, n_bytes: int) -> bool:
    """Return whether the range holds data: a hole in a new file need not be read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.lseek(fd, offset, os.SEEK_DATA) < offset + n_bytes
    except OSError:  # ENXIO: nothing but a hole up to the end
        return False
    finally:
        os.close(fd)


def _has_content(target: str, manifest: Manifest) -> bool:
    for file in manifest.files:
        try:
            with FileReader(_place(target, file, manifest), drop_cache=True) as source:
                if source.size != file.n_bytes or digest.of_range(source, 0, file.n_bytes) != file.crc64nvme:
                    return False
        except (OSError, NotRegular, Short):
            return False
    return True


def _place(beside: str, file: File, manifest: Manifest) -> str:
    return f"{beside}/{file.path}" if manifest.is_tree else beside


def _check_space(directory: str, manifest: Manifest, beside: str) -> None:
    if os.path.lexists(beside):  # a part of it has its space already
        return
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    if free < manifest.n_bytes + _SPARE_BYTES:
        message = f"cannot restore: {directory}: {manifest.n_bytes >> 20} MiB are needed and {free >> 20} MiB are free"
        raise NoSpace(message, hint="make room, or restore into another directory with --to DIR")


def _sync(beside: str, manifest: Manifest) -> None:
    directories = {os.path.dirname(beside)}  # noqa: PTH120
    for file in manifest.files:
        path = _place(beside, file, manifest)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        directory = os.path.dirname(path)  # noqa: PTH120
        while len(directory) >= len(beside):
            directories.add(directory)
            directory = os.path.dirname(directory)  # noqa: PTH120
    for directory in directories:
        durable.sync_directory(directory)


_retried = tenacity.retry(
    stop=tenacity.stop_after_attempt(_TRIES),
    wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
    retry=tenacity.retry_if_exception_type((Unavailable, TransferDamaged)),
    reraise=True,
)(lambda call: call())
