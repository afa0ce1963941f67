"""A mirror without a running job: copy a checkpoint there, list its checkpoints, restore one."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.manifest import check
from checkpointing.manifest import documents as manifests
from checkpointing.manifest.digest import PART_BYTES
from checkpointing.mirror import restore
from checkpointing.mirror.backends import S3Options
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.spool import Spool
from checkpointing.mirror.upload import SourceChanged, TransferControl, upload
from checkpointing.model import CheckpointingError, Verdict
from checkpointing.verification import verify

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
    spool: Spool,
    *,
    job: str,
    control: TransferControl = _NO_CAP,
    part_bytes: int = PART_BYTES,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Iterator[Pushed]:
    """Verify a checkpoint and copy it to each mirror; yield a row for each copy that arrived.

    Idempotent: nothing is sent to a mirror that has the content, and an interrupted upload continues from its spool.
    `progress` gets the bytes that one mirror received, and the total. Raises NotCopied, BackendError, OSError.
    """
    verification = verify(path, own=True)
    if verification.verdict not in (Verdict.VERIFIED, Verdict.UNVERIFIABLE):
        raise NotCopied(path, verification.verdict, verification.reason)
    try:
        raw = manifests.encode(check.build(verification, manifests.About(job, _RUN), part_bytes=part_bytes))
    except check.CheckpointChanged as error:
        raise NotCopied(path, Verdict.WRITING, str(error)) from error
    entry = spool.add(path, verification.step, raw)
    total = entry.manifest.n_bytes
    for backend in backends:
        done = 0

        def sent(n_bytes: int) -> None:
            nonlocal done
            done += n_bytes
            progress(done, total)

        own = TransferControl(control.workers, control.throttle, control.pause, control.is_stopped, sent)
        try:
            key = upload(backend, entry, spool.log(entry, backend.url), own)
        except SourceChanged as error:
            spool.drop(entry)
            raise NotCopied(path, Verdict.WRITING, str(error)) from error
        spool.mark_done(entry, backend.url, [backend.url for backend in backends])
        yield Pushed(path, verification.step, backend.url, key, total)


class Mirror:
    """Copies of checkpoints in one place: `s3://BUCKET/PREFIX`, `file:///DIRECTORY`, or a directory's path.

    A mirror separates checkpoints by the name of their job. Keys for S3 come from the environment or the usual configuration files.
    `spool` is a directory on a local disk, from which an interrupted upload continues (default: below $XDG_STATE_HOME).
    """

    def __init__(
        self, url: str, *, options: S3Options | None = None, workers: int = 4, spool: str | os.PathLike[str] | None = None
    ) -> None:
        """Send no request yet. Raises CheckpointingError for a wrong address."""
        self._backend = backend_of(url, S3Options(connections=workers) if options is None else options)
        self._workers = workers
        self._spool = default_spool() if spool is None else os.fspath(spool)

    @property
    def url(self) -> str:
        """The address, without a secret."""
        return self._backend.url

    def push(self, path: str | os.PathLike[str], *, job: str = DEFAULT_JOB) -> str:
        """Copy a checkpoint here and return its key. Idempotent. Raises CheckpointingError, OSError."""
        with contextlib.closing(Spool(self._spool)) as spool:
            (done,) = push(os.path.realpath(path), [self._backend], spool, job=job, control=TransferControl(workers=self._workers))
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


def default_spool() -> str:
    """Return the directory that holds unfinished uploads of `push` by hand."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111 -- strings throughout the package
    return f"{state}/checkpointing/push"
