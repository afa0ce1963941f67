"""A mirror without a running job: copy a checkpoint there, list what it holds, bring one back."""

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
from checkpointing.mirror.upload import Means, SourceChanged, upload
from checkpointing.model import CheckpointingError, Verdict
from checkpointing.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from checkpointing.mirror.backends import Backend
    from checkpointing.mirror.layout import MirroredCheckpoint
    from checkpointing.mirror.restore import Restored

DEFAULT_JOB: Final = "default"
_RUN: Final = "by-hand"
_NO_CAP: Final = Means()


class NotCopied(CheckpointingError):  # noqa: N818 -- a fact about the checkpoint
    """A checkpoint is not good enough for a copy, or changed meanwhile. `verdict` and `reason` say which."""

    def __init__(self, path: str, verdict: Verdict, reason: str) -> None:
        """Keep what a table shows."""
        super().__init__(f"cannot copy to a mirror: {path}: {reason}", hint="copy a checkpoint that is whole and no longer written")
        self.verdict, self.reason = verdict, reason


@dataclass(frozen=True, slots=True)
class Pushed:
    """A checkpoint that a mirror holds now, and the key of it there."""

    path: str
    step: int | None
    mirror: str
    key: str
    n_bytes: int


def push(  # noqa: PLR0913 -- what is copied, where to, and how
    path: str,
    backends: Sequence[Backend],
    spool: Spool,
    *,
    job: str,
    means: Means = _NO_CAP,
    part_bytes: int = PART_BYTES,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Iterator[Pushed]:
    """Verify a checkpoint and copy it to each mirror; yield a row for each copy that arrived.

    Idempotent: a mirror that has the content receives nothing again, and an upload that was interrupted continues from its spool.
    `progress` gets the bytes that one mirror received and those of the whole. Raises NotCopied, BackendError, OSError.
    """
    found = verify(path, own=True)
    if found.verdict not in (Verdict.VERIFIED, Verdict.UNVERIFIABLE):
        raise NotCopied(path, found.verdict, found.reason)
    try:
        raw = manifests.encode(check.build(found, manifests.About(job, _RUN), part_bytes=part_bytes))
    except check.CheckpointChanged as error:
        raise NotCopied(path, Verdict.WRITING, str(error)) from error
    entry = spool.add(path, found.step, raw)
    total = entry.manifest.n_bytes
    for backend in backends:
        done = 0

        def sent(n_bytes: int) -> None:
            nonlocal done
            done += n_bytes
            progress(done, total)

        own = Means(means.workers, means.take, means.pause, means.stopped, sent)
        try:
            key = upload(backend, entry, spool.log(entry, backend.url), own)
        except SourceChanged as error:
            spool.drop(entry)
            raise NotCopied(path, Verdict.WRITING, str(error)) from error
        spool.mark_done(entry, backend.url, [one.url for one in backends])
        yield Pushed(path, found.step, backend.url, key, total)


class Mirror:
    """Copies of checkpoints in one place: `s3://BUCKET/PREFIX`, `file:///DIRECTORY`, or a directory's path.

    A mirror separates checkpoints by the name of their job. Keys for S3 come from the environment or the usual configuration files.
    `spool` is a directory on a local disk: an upload that was interrupted continues from it (default: below $XDG_STATE_HOME).
    """

    def __init__(
        self, url: str, *, options: S3Options | None = None, workers: int = 4, spool: str | os.PathLike[str] | None = None
    ) -> None:
        """Ask nothing of the place yet. Raises CheckpointingError for an address that is none."""
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
            (done,) = push(os.path.realpath(path), [self._backend], spool, job=job, means=Means(workers=self._workers))
        return done.key

    def list(self, job: str = DEFAULT_JOB) -> tuple[MirroredCheckpoint, ...]:
        """Return the job's checkpoints here, newest first. Raises CheckpointingError, also where the mirror holds only other jobs'."""
        return tuple(restore.available([self._backend], job)[0])

    def restore(self, job: str, to: str | os.PathLike[str]) -> Restored | None:
        """Bring the job's newest whole checkpoint into the directory `to`; None where the mirror is empty.

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
