"""Downloads the parts of a checkpoint beside its target, several at once, each compared with its checksum and synced."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from checkpointing.io.reader import FileReader
from checkpointing.manifest import digest
from checkpointing.mirror import keys, restore_target
from checkpointing.mirror.backends import TransferDamaged
from checkpointing.mirror.retry import retried

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from checkpointing.manifest.documents import File
    from checkpointing.mirror.listing import MirroredCheckpoint
    from checkpointing.mirror.stall import StallTimeout

_LOOK_S: Final = 0.5  # how soon a restore that is given up is seen


def fetch(
    checkpoint: MirroredCheckpoint, beside: str, workers: int, fetched: Callable[[int, int], None], stall_timeout: StallTimeout
) -> int:
    """Download a checkpoint; return how many bytes were. Right parts of an earlier download stay. Raises BackendError, OSError.

    `fetched` gets the bytes that are there, and all.
    """
    manifest = checkpoint.manifest
    tasks = [(file, number) for file in manifest.files for number in range(len(file.parts))]
    for file in manifest.files:
        with stall_timeout.on_disk():
            _make(restore_target.place(beside, file, manifest), file.n_bytes)
        stall_timeout.progressed()
    n_fetched = done = 0
    pool = ThreadPoolExecutor(workers, thread_name_prefix="restore")
    futures = [
        pool.submit(_fetch_part, checkpoint, file, number, restore_target.place(beside, file, manifest), stall_timeout)
        for file, number in tasks
    ]
    try:
        for (file, number), future in zip(tasks, futures, strict=True):
            _wait(future, stall_timeout)
            n_fetched += future.result()
            done += min(manifest.part_bytes, file.n_bytes - number * manifest.part_bytes)
            fetched(done, manifest.n_bytes)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for future in futures:  # the next owner of the lock must not meet a writer
            _wait(future, stall_timeout)
    return n_fetched


def _make(path: str, n_bytes: int) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120 -- strings throughout the package
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, n_bytes)
    finally:
        os.close(fd)


def _wait(future: Future[int], stall_timeout: StallTimeout) -> None:
    """Wait for a part. Raises Interrupted if the restore is given up: its thread may hang for ever."""
    while not wait((future,), _LOOK_S).done:
        stall_timeout.check()


def _fetch_part(checkpoint: MirroredCheckpoint, file: File, number: int, path: str, stall_timeout: StallTimeout) -> int:
    """Download a part unless the right bytes are here; return how many were downloaded."""
    offset = number * checkpoint.manifest.part_bytes
    n_bytes = min(checkpoint.manifest.part_bytes, file.n_bytes - offset)
    with stall_timeout.on_disk(), FileReader(path, drop_cache=True) as source:
        if _begins_written(path, offset, n_bytes) and digest.of_range(source, offset, n_bytes) == file.parts[number]:
            stall_timeout.progressed()
            return 0
    stall_timeout.progressed()

    def attempt() -> None:
        stall_timeout.check()
        crc, at = 0, offset
        with stall_timeout.on_disk():
            fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for piece in checkpoint.backend.read(keys.data_key(checkpoint.location.key, file.path), offset, n_bytes):
                crc = digest.of_bytes(piece, crc)
                view = memoryview(piece)
                with stall_timeout.on_disk():
                    while view:
                        n_written = os.pwrite(fd, view, at)
                        at += n_written
                        view = view[n_written:]
                stall_timeout.progressed(len(piece))
            with stall_timeout.on_disk():
                os.fdatasync(fd)  # part after part: at the end the sync of all would look like a disk that hangs
            stall_timeout.progressed()
        finally:
            os.close(fd)
        if crc != file.parts[number]:
            message = f"the copy is damaged: {checkpoint.backend.url}/{checkpoint.location.key}data/{file.path}: part {number + 1}"
            raise TransferDamaged(message, hint="another copy is tried")

    retried(attempt)
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
