"""Follows what this node sends to the mirrors: what waits (waiting.py), what moves, and what has arrived.

After the death of the reader process, or of the supervisor, the next process is given what waits.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkpointing.mirror import keys
from checkpointing.reader.messages import (
    CheckpointUploaded,
    Configure,
    MirrorAlert,
    PartsJoined,
    Ready,
    UploadProgress,
)
from supervisor.checkpoints.mirror.waiting import WaitingUploads
from supervisor.checkpoints.recording.reader_link import ReaderLink
from supervisor.launch.environment import job_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkpointing.catalogue import CheckpointCatalogue
    from checkpointing.manifest.documents import Manifest
    from checkpointing.reader.messages import ReaderCommand, ReaderEvent
    from supervisor.config.settings import Settings
    from supervisor.job.job import Job


def s3_options(settings: Settings) -> dict[str, Any]:
    """Return how S3 is reached, as checkpointing.mirror.backends.S3Options takes it."""
    return {"sse": settings.checkpoints.sse, "requester_pays": settings.checkpoints.requester_pays}


def mirrors(settings: Settings) -> list[str]:
    """Return the places, a directory as an absolute path: the working directory's, wherever it was written."""
    return [url if "://" in url else str(Path(settings.cwd, url)) for url in settings.checkpoints.mirror]


class MirrorUploads:
    """The uploads of one run. `on_event` gets each event of the reader process that is not an answer to a read, in a thread of its own.

    `on_failure` gets an exception of it, or of the notes about the event here.
    """

    def __init__(
        self,
        job: Job,
        catalogue: CheckpointCatalogue,
        on_event: Callable[[ReaderEvent], None],
        on_failure: Callable[[Exception], None],
        *,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make the link to the reader process, which also reads. Nothing runs yet. `is_busy`: whether the job saves or loads now."""
        checkpoints = job.settings.checkpoints
        configuration = Configure(
            job.name,
            tuple(mirrors(job.settings)),
            read_mib_s=checkpoints.read_mib_s,
            bandwidth_mib_s=checkpoints.bandwidth_mib_s,
            keep=checkpoints.mirror_keep,
            keep_every=checkpoints.keep_every or None,
            s3=s3_options(job.settings),
        )
        self._mirrors = configuration.mirrors
        self._hear = on_event
        self.link = ReaderLink(configuration, job_environment(job.environ), self._took, on_failure, is_busy=is_busy, unsent=self._unsent)
        self._waiting = WaitingUploads(catalogue, catalogue.file.parent)
        self._waiting.sweep()
        self._changed = threading.Lock()
        self._whole_saves: frozenset[str] = frozenset()  # keys, as the process reported them
        self._held: dict[str, frozenset[str]] = dict.fromkeys(self._mirrors, frozenset())
        self._n_sent: dict[str, int] = {}  # sent bytes of the present upload to each mirror
        self._still_since: float | None = None  # something waits, and nothing has moved since then (monotonic seconds)
        self._busy_since: float | None = None  # there has been something to upload ever since then (monotonic seconds)

    def send(self, manifest: Manifest) -> None:
        """Send a checkpoint to the mirrors, some time. Its files are pinned now."""
        try:
            row = self._waiting.hold(manifest)
        except OSError as error:
            hint = "check that it is still there, and the disk with the state directory"
            self._took(MirrorAlert("refused", "", f"cannot mirror: {manifest.path}: {error}", hint, manifest.path))
            return
        with self._changed:
            self._held = {mirror: held - {manifest.path} for mirror, held in self._held.items()}  # its new content is not there yet
            self._still_since = self._still_since or time.monotonic()
            self._busy_since = self._busy_since or time.monotonic()
        self.link.put(row)

    def is_sending(self, path: str, name: str) -> bool:
        """Return whether a checkpoint is still to be sent. name: its keys.nonce_of."""
        return any((path, name) == (row.path, row.id) for row in self._waiting.rows())

    def held_paths(self) -> dict[str, frozenset[str]]:
        """Return the paths of the checkpoints that each mirror was seen to hold since we began."""
        with self._changed:
            return dict(self._held)

    def whole_saves(self) -> frozenset[str]:
        """Return the keys of the saves of several nodes that were seen whole in a mirror since we began."""
        with self._changed:
            return self._whole_saves

    def waits_s(self) -> float:
        """Return how long a checkpoint has waited without any upload moving, in seconds; 0 where none waits."""
        with self._changed:
            return 0.0 if self._still_since is None else time.monotonic() - self._still_since

    def behind_s(self) -> float:
        """Return for how long the mirrors have not caught up, in seconds; 0 where they hold all."""
        with self._changed:
            return 0.0 if self._busy_since is None else time.monotonic() - self._busy_since

    def backlog(self) -> tuple[int, int]:
        """Return how many checkpoints the mirrors do not all have yet, and their unsent bytes."""
        rows = self._waiting.rows()
        with self._changed:
            return len(rows), max(0, sum(row.n_bytes for row in rows) - min(self._n_sent.values(), default=0))

    def close(self, deadline_s: float) -> int:
        """Give it so many seconds to send all, then end it. Return how many are left to send."""
        self.link.close(deadline_s)
        return len(self._waiting.rows())

    def _unsent(self) -> list[ReaderCommand]:
        return list(self._waiting.rows()) if self._mirrors else []

    def _took(self, event: ReaderEvent) -> None:
        try:
            if self._mirrors:
                self._note(event)
        finally:
            self._hear(event)

    def _note(self, event: ReaderEvent) -> None:
        match event:
            case UploadProgress() if event.sent:
                self._waiting.note_begun(event.id, event.mirror)
            case CheckpointUploaded():
                self._waiting.note_done(event.id, event.mirror, self._mirrors)
            case MirrorAlert(what="changed" | "dropped" | "refused", id=name) if name:
                self._waiting.drop(name)
            case _:
                pass
        waits = bool(self._waiting.rows())
        with self._changed:
            if isinstance(event, UploadProgress | CheckpointUploaded | PartsJoined):
                self._note_moved(event)
            if not waits:
                self._still_since = self._busy_since = None
            elif isinstance(event, UploadProgress | CheckpointUploaded) or (isinstance(event, Ready) and self._still_since is None):
                self._still_since = time.monotonic()
                self._busy_since = self._busy_since or self._still_since

    def _note_moved(self, event: UploadProgress | CheckpointUploaded | PartsJoined) -> None:
        """Note what has arrived. The caller holds the lock."""
        if isinstance(event, UploadProgress):
            self._n_sent[event.mirror] = event.sent
            return
        if isinstance(event, CheckpointUploaded):
            self._n_sent.pop(event.mirror, None)
        if event.key:
            self._held[event.mirror] = self._held.get(event.mirror, frozenset()) | {event.path}
        if event.key and keys.holds_parts(event.key):
            self._whole_saves |= {event.key}
