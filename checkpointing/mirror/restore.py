"""A checkpoint from a mirror onto this disk: found, downloaded in parts at once, proven, and only then given its name.

In: backends, the job, and where to. Out: `Restored`. It is written beside its place as `.<name>.restore-<id>`; whoever is killed
meanwhile leaves that, and the next goes on from the parts in it that are right; who comes while another works at it waits
(checkpointing/mirror/restore_target.py). A file that has the name already is never replaced: if it has the right content, or is a whole
checkpoint
itself, it is the answer, else `InTheWay`. Raises OtherJob where the mirror holds only checkpoints of other jobs, Elsewhere where the
newest would go to a place that is none of the caller's, Unreachable where no mirror answers, OSError where our own disk fails.
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
from checkpointing.mirror import layout, restore_target
from checkpointing.mirror.backends import Backend, BackendError, TransferDamaged, Unavailable
from checkpointing.mirror.stall import Patience, RestoreProgress, Stalled
from checkpointing.model import CheckpointingError, Verdict
from checkpointing.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from checkpointing.manifest.documents import File
    from checkpointing.mirror.layout import MirroredCheckpoint

_TRIES: Final = 5
_MOST_STALLS: Final = 2  # of one mirror; the second may have been of an object alone
_SPARE_BYTES: Final = 64 << 20
#: The name that stands for "of no other job", where one is asked for.
NO_JOB: Final = "none"
OTHER_JOB_HINT: Final = (
    f"resume from one of them with --restore-from JOB, begin anew with --restore-from {NO_JOB}, or give this job a --mirror of its own"
)


class OtherJob(CheckpointingError):  # noqa: N818 -- an answer
    """The mirror holds checkpoints, but none of this job."""


class Unreachable(CheckpointingError):  # noqa: N818 -- an answer
    """Not one mirror could be asked: that there is nothing to restore is not known."""


class InTheWay(CheckpointingError):  # noqa: N818 -- an answer
    """There is something else where the checkpoint belongs."""


class Elsewhere(CheckpointingError):  # noqa: N818 -- an answer
    """It was saved where the caller would not have anything made. What a mirror says is no reason to write to any place there is."""


class NoSpace(CheckpointingError):  # noqa: N818 -- an answer
    """It does not fit on the disk."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored, from where, and why newer ones were not: (key, reason) each. `fetched_bytes` 0: it was there already.

    is_proven: every byte is what the manifest says; else it is another whole checkpoint that stood there.
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
    watch: RestoreProgress = RestoreProgress(),  # noqa: B008 -- a frozen value
) -> tuple[list[MirroredCheckpoint], list[tuple[str, str]]]:
    """Give a job's checkpoints in all mirrors, newest first, and (what, reason) for what says nothing. Raises OtherJob, Unreachable."""
    kept: list[MirroredCheckpoint] = []
    passed: list[tuple[str, str]] = []
    others: set[str] = set()
    failures: list[BackendError] = []
    for backend in backends:
        patience = watch.patience(f"the list of checkpoints of job {job} in {backend.url}")
        try:
            found, damaged, of_others = patience.run(partial(_held, backend, job, patience))
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
    return layout.ordered(kept), passed


def _held(backend: Backend, job: str, patience: Patience) -> tuple[list[MirroredCheckpoint], list[tuple[str, str]], set[str]]:
    """Give what one mirror holds of a job, what says nothing, and where it holds nothing, which other jobs it holds."""
    found, damaged = _patiently(lambda: layout.newest_first(backend, job, patience.moved))
    others: set[str] = set()
    if not found:
        for place in _patiently(lambda: list(layout.places(backend))):
            patience.moved()
            others.add(place.job)
    return found, damaged, others - {job}


def newest(  # noqa: PLR0913 -- keywords, each with a default
    backends: Sequence[Backend],
    job: str,
    *,
    into: str | None = None,
    workers: int = 4,
    wanted: Callable[[MirroredCheckpoint], str] = lambda _kept: "",
    elsewhere: Callable[[str], tuple[str, str] | None] = lambda _path: None,
    watch: RestoreProgress = RestoreProgress(),  # noqa: B008 -- a frozen value
) -> Restored | None:
    """Restore the newest that is whole, each mirror's copy in turn, then an older one; None where the mirrors are empty.

    `into` is the directory to put it in, else where it was saved; for that path `elsewhere` gives a reason and a hint where nothing may be
    made there. `wanted` gives a reason to pass one over, or "". A mirror that stalled twice is asked for nothing more.
    """
    kept, passed = available(backends, job, watch)
    in_the_way: InTheWay | None = None
    stalls: Counter[str] = Counter()
    for one in kept:
        why = wanted(one)
        if not why and into is None:
            _see_place(one.manifest.path, elsewhere)
        if not why and stalls[one.backend.url] >= _MOST_STALLS:
            why = "its mirror does not answer"
        if not why:
            try:
                return fetch(one, into=into, workers=workers, passed_over=tuple(passed), watch=watch)
            except BackendError as error:
                stalls[one.backend.url] += isinstance(error, Stalled)
                why = error.message
            except InTheWay as error:
                there = _usable(_target(one, into), one, passed)
                if there is not None:
                    return there
                in_the_way = in_the_way or error
                why = error.message
        passed.append((f"{one.backend.url}/{one.place.key}", why))
    if in_the_way is not None:
        raise in_the_way
    if passed:
        message = f"cannot restore a checkpoint of {job}: {passed[-1][1]}"
        raise Unreachable(message, hint="look at them with: supervise checkpoints ls --mirror URL")
    return None


def _see_place(path: str, elsewhere: Callable[[str], tuple[str, str] | None]) -> None:
    refused = elsewhere(path)
    if refused is not None:
        message = f"cannot restore: {path}, where it was saved, {refused[0]}"
        raise Elsewhere(message, hint=refused[1])


def newest_of(  # noqa: PLR0913 -- keywords, each with a default
    backends: Sequence[Backend],
    job: str,
    instead: str,
    *,
    into: str | None = None,
    workers: int = 4,
    elsewhere: Callable[[str], tuple[str, str] | None] = lambda _path: None,
    watch: RestoreProgress = RestoreProgress(),  # noqa: B008 -- a frozen value
) -> Restored | None:
    """Restore this job's newest, and only where it has none the newest of the job `instead`: the second start has one of its own.

    `instead` "" is nobody's: OtherJob is raised where others have some; NO_JOB says that this is well: None. Of a job that is named,
    something is expected: OtherJob where it has nothing.
    """
    try:
        own = newest(backends, job, into=into, workers=workers, elsewhere=elsewhere, watch=watch)
    except OtherJob:
        if not instead:
            raise
        own = None
    if own is not None or instead in ("", NO_JOB):
        return own
    found = newest(backends, instead, into=into, workers=workers, elsewhere=elsewhere, watch=watch)
    if found is None:
        message = f"no checkpoint of job {instead!r} in the mirror, nor of any other"
        raise OtherJob(message, hint=f"begin anew with --restore-from {NO_JOB}, or see whether --mirror names the right place")
    return found


def fetch(
    one: MirroredCheckpoint,
    *,
    into: str | None = None,
    workers: int = 4,
    passed_over: tuple[tuple[str, str], ...] = (),
    watch: RestoreProgress = RestoreProgress(),  # noqa: B008 -- a frozen value
) -> Restored:
    """Bring one checkpoint here. Raises what the backend does, InTheWay, NoSpace, OSError."""
    target = _target(one, into)
    there = _there(target, one, passed_over)
    if there is not None:
        return there
    directory = os.path.dirname(target)  # noqa: PTH120 -- strings throughout the package
    durable.make_directory(directory)
    beside = restore_target.beside(target, one.manifest)
    with restore_target.alone(beside):
        there = _there(target, one, passed_over)  # another node may have been faster
        if there is not None:
            return there
        _see_space(directory, one.manifest, beside)
        patience = watch.patience(f"{one.backend.url}/{one.place.key}")
        n_fetched = patience.run(lambda: _fetch_all(one, beside, workers, watch.fetched, patience))
        _sync(beside, one.manifest)
        try:
            durable.rename_exclusive(beside, target)
        except FileExistsError:
            message = f"cannot restore: {target}: something else appeared there"
            raise InTheWay(message, hint="start again: what was downloaded is kept beside it") from None
        durable.sync_directory(directory)
        restore_target.point(target, one.manifest)
    restore_target.sweep(directory)
    return Restored(target, one.manifest, one.backend.url, n_fetched, passed_over)


def _target(one: MirroredCheckpoint, into: str | None) -> str:
    return one.manifest.path if into is None else os.path.join(into, one.manifest.name)  # noqa: PTH118 -- strings throughout the package


def _there(target: str, one: MirroredCheckpoint, passed_over: tuple[tuple[str, str], ...]) -> Restored | None:
    """Give what has the name already, if it has the content as well. Raises InTheWay where it has another."""
    if not os.path.lexists(target):
        return None
    if _is_it(target, one.manifest):
        return Restored(target, one.manifest, one.backend.url, 0, passed_over)
    message = f"cannot restore: {target}: something else is there"
    raise InTheWay(message, hint="move it away, or restore into another directory with --to DIR")


def _usable(target: str, one: MirroredCheckpoint, passed: Sequence[tuple[str, str]]) -> Restored | None:
    """Give what stands where the checkpoint belongs, if it is a whole one itself: then there is one, which this disk only forgot."""
    found = verify(target)
    if found.verdict is not Verdict.VERIFIED:
        return None
    manifest = replace(one.manifest, step=found.step, within=found.within)
    why = (f"{one.backend.url}/{one.place.key}", f"another whole checkpoint is at {target}")
    return Restored(target, manifest, one.backend.url, 0, (*passed, why), is_proven=False)


def _fetch_all(one: MirroredCheckpoint, beside: str, workers: int, fetched: Callable[[int, int], None], patience: Patience) -> int:
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
        futures = [pool.submit(_fetch_part, one, file, number, _place(beside, file, manifest), patience) for file, number in tasks]
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


def _fetch_part(one: MirroredCheckpoint, file: File, number: int, path: str, patience: Patience) -> int:
    """Download a part unless it is here already; return how many bytes came."""
    offset = number * one.manifest.part_bytes
    n_bytes = min(one.manifest.part_bytes, file.n_bytes - offset)
    with FileReader(path, drop_cache=True) as source:
        if _begins_written(path, offset, n_bytes) and digest.of_range(source, offset, n_bytes) == file.parts[number]:
            patience.moved()
            return 0
    patience.moved()

    def attempt() -> None:
        patience.check()
        crc, at = 0, offset
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for piece in one.backend.read(layout.data_key(one.place.key, file.path), offset, n_bytes):
                crc = digest.of_bytes(piece, crc)
                view = memoryview(piece)
                with patience.writing():
                    while view:
                        n_written = os.pwrite(fd, view, at)
                        at += n_written
                        view = view[n_written:]
                patience.moved(len(piece))
        finally:
            os.close(fd)
        if crc != file.parts[number]:
            message = f"the copy is damaged: {one.backend.url}/{one.place.key}data/{file.path}: part {number + 1}"
            raise TransferDamaged(message, hint="another copy is tried")

    _patiently(attempt)
    return n_bytes


def _begins_written(path: str, offset: int, n_bytes: int) -> bool:
    """Say whether there is anything in this range but a hole: a new file need not be read to know that nothing is in it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.lseek(fd, offset, os.SEEK_DATA) < offset + n_bytes
    except OSError:  # ENXIO: nothing but a hole up to the end
        return False
    finally:
        os.close(fd)


def _is_it(target: str, manifest: Manifest) -> bool:
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


def _see_space(directory: str, manifest: Manifest, beside: str) -> None:
    if os.path.lexists(beside):  # what is there already takes its space; the disk itself says no if the rest does not fit
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


_patiently = tenacity.retry(
    stop=tenacity.stop_after_attempt(_TRIES),
    wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
    retry=tenacity.retry_if_exception_type((Unavailable, TransferDamaged)),
    reraise=True,
)(lambda call: call())
