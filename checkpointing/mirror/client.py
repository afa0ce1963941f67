"""A mirror without a running job: copy a checkpoint there, list its checkpoints, restore one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.io.reader import UNLIMITED, Throttle
from checkpointing.io.tree import ReadOptions
from checkpointing.manifest import check
from checkpointing.manifest import documents as manifests
from checkpointing.manifest.digest import PART_BYTES
from checkpointing.mirror import keys, restore
from checkpointing.mirror.backends import S3Options
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.source import SourceChanged, TransferControl, held_files
from checkpointing.mirror.upload import CheckpointUpload
from checkpointing.model import CheckpointingError, Verdict
from checkpointing.verification import identity_of, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from checkpointing.mirror.backends import Backend
    from checkpointing.mirror.listing import MirroredCheckpoint
    from checkpointing.mirror.restore import Restored

DEFAULT_JOB: Final = "default"
_RUN: Final = "by-hand"
_NO_CAP: Final = TransferControl()


class NotCopied(CheckpointingError):  # noqa: N818 -- a fact about the checkpoint
    """The checkpoint is not whole, or it changed during the copy: see `verdict` and `reason`."""

    def __init__(self, path: str, verdict: Verdict, reason: str) -> None:
        """`verdict` and `reason` are for a table of results."""
        super().__init__(f"cannot copy to a mirror: {path}: {reason}", hint="copy a whole checkpoint that is no longer written")
        self.verdict, self.reason = verdict, reason


@dataclass(frozen=True, slots=True)
class Pushed:
    """A checkpoint that arrived at a mirror, with its key there."""

    path: str
    step: int | None
    mirror: str
    key: str
    n_bytes: int


def push(  # noqa: PLR0913 -- source, destinations and options of a copy
    path: str,
    backends: Sequence[Backend],
    *,
    job: str,
    control: TransferControl = _NO_CAP,
    part_bytes: int = PART_BYTES,
    progress: Callable[[str, int, int], None] = lambda _phase, _done, _total: None,
) -> Iterator[Pushed]:
    """Verify a checkpoint and copy it to each mirror; yield a row for each copy that arrived.

    Idempotent: nothing is sent to a mirror that has the save, and an interrupted upload continues from what the mirror lists.
    `progress` gets the present work ("verifying", "reading", "pushing": to one mirror), its bytes so far, and of how many. Raises
    NotCopied, BackendError, OSError.
    """

    def counted(phase: str, total: int) -> Callable[[int], None]:
        done = 0

        def count(n_bytes: int) -> None:
            nonlocal done
            done = min(done + n_bytes, total)
            progress(phase, done, total)

        return count

    def reading(phase: str, total: int) -> ReadOptions:
        return ReadOptions(Throttle(UNLIMITED, taken=counted(phase, total)))

    identity = identity_of(path)
    verification = verify(path, reading=reading("verifying", identity.size if identity is not None else 0), own=True)
    if verification.verdict not in (Verdict.VERIFIED, Verdict.UNVERIFIABLE):
        raise NotCopied(path, verification.verdict, verification.reason)
    try:
        about = manifests.About(job, _RUN)
        manifest = check.build(verification, about, reading=reading("reading", verification.identity.size), part_bytes=part_bytes)
        sources = held_files(path, manifest)
    except (check.CheckpointChanged, FileNotFoundError) as error:
        raise NotCopied(path, Verdict.WRITING, str(error)) from error
    raw, total = manifests.encode(manifest), manifest.n_bytes
    for backend in backends:
        own = TransferControl(control.workers, control.throttle, control.pause, control.is_stopped, counted("pushing", total))
        upload = CheckpointUpload(backend, keys.key_of(manifest), own, part_bytes)
        try:
            key = upload.complete(manifest, raw, sources)
        except SourceChanged as error:
            denied = upload.abandon()
            left = f"; the sent parts may not be deleted, and count for nothing without a manifest: {', '.join(denied)}" if denied else ""
            raise NotCopied(path, Verdict.WRITING, f"{error}{left}") from error
        yield Pushed(path, verification.step, backend.url, key, total)


class Mirror:
    """Copies of checkpoints in one place: `s3://BUCKET/PREFIX`, `file:///DIRECTORY`, or a directory's path.

    A mirror separates checkpoints by the name of their job. Keys for S3 come from the environment or the usual configuration files.
    """

    def __init__(self, url: str, *, options: S3Options | None = None, workers: int = 4) -> None:
        """Send no request yet. Raises CheckpointingError for a wrong address."""
        self._backend = backend_of(url, S3Options(connections=workers) if options is None else options)
        self._workers = workers

    @property
    def url(self) -> str:
        """The address, without a secret."""
        return self._backend.url

    def push(self, path: str | os.PathLike[str], *, job: str = DEFAULT_JOB) -> str:
        """Copy a checkpoint here and return its key. Idempotent. Raises CheckpointingError, OSError."""
        (done,) = push(os.path.realpath(path), [self._backend], job=job, control=TransferControl(workers=self._workers))
        return done.key

    def list(self, job: str = DEFAULT_JOB) -> tuple[MirroredCheckpoint, ...]:
        """Return the job's checkpoints here, newest first. Raises CheckpointingError, also where the mirror holds only other jobs'."""
        return tuple(restore.available([self._backend], job)[0])

    def restore(self, job: str, to: str | os.PathLike[str]) -> Restored | None:
        """Restore the job's newest whole checkpoint into the directory `to`; return None if the mirror is empty.

        Every byte is compared with the manifest before the file gets its name. Raises CheckpointingError, OSError.
        """
        return restore.newest([self._backend], job, into=os.path.abspath(to), workers=self._workers)  # noqa: PTH100 -- strings throughout


def backend_of(url: str, options: S3Options | None = None) -> Backend:
    """Return the backend for an address; a path may be relative here. Raises CheckpointingError."""
    return open_backend(url if "://" in url else os.path.abspath(url), options or S3Options())  # noqa: PTH100 -- strings throughout
