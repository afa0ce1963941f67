"""The thread of one mirror: uploads the unfinished one of what waits, else the newest, and waits after a failure.

A trouble is reported when it begins and when it is over. The pause between attempts grows, to five minutes if the mirror is unavailable
and to half an hour if it denies access. Every failure but a changed source is tried again, without end.
"""

from __future__ import annotations

import random
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from checkpointing.io.reader import Interrupted
from checkpointing.mirror import keys, listing, removal
from checkpointing.mirror.backends import (
    Backend,
    BackendError,
    ClockSkewed,
    CredentialsExpired,
    NotFound,
    PermissionDenied,
    TransferDamaged,
    Unavailable,
)
from checkpointing.mirror.source import SourceChanged, TransferControl
from checkpointing.mirror.upload import CheckpointUpload
from checkpointing.reader.messages import (
    CheckpointUploaded,
    CopyPruned,
    MirrorAlert,
    MirrorRecovered,
    PartsJoined,
    UploadProgress,
    UploadSwept,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection

    from checkpointing.reader.messages import ReaderEvent
    from checkpointing.reader.upload_queue import UploadQueue, WaitingCheckpoint
    from checkpointing.retention import rules

_PROGRESS_S: Final = 1.0
_LEFTOVER_S: Final = 3 * 86400.0  # an upload of our job that nobody continues: a node that is down for longer has lost its disk, too
_SWEEP_EVERY_S: Final = 86400.0
_MOST_NAMED: Final = 5
_MOST_UNJOINED: Final = 64  # the newest checkpoints that still lack parts of other nodes, which the mirror is asked for
#: The trouble that is reported → first pause and longest one, in seconds.
_PAUSES: Final[dict[str, tuple[float, float]]] = {
    "away": (1.0, 300.0),
    "damaged": (1.0, 300.0),
    "expired": (2.0, 60.0),
    "clock": (60.0, 600.0),
    "denied": (60.0, 1800.0),
    "disk": (30.0, 600.0),
    "internal": (60.0, 1800.0),
}


class Sending:
    """One upload to one mirror, and how far it is. Threads of the upload call its methods."""

    def __init__(  # noqa: PLR0913, PLR0917 -- the uploads, the target, and the listener
        self,
        worker: MirrorWorker,
        path: str,
        key: str,
        backend: Backend,
        control: TransferControl,
        emit: Callable[[ReaderEvent], None],
        on_released: Callable[[str, int], None],
    ) -> None:
        """Send nothing yet."""
        self.worker, self.path, self.n_sent = worker, path, 0
        self._url, self._throttle, self._emit = backend.url, control.throttle, emit
        self._id, self._n_bytes, self._reported_at = keys.nonce_in(key), 0, time.monotonic()
        self._on_first: Callable[[], None] = lambda: None
        own = TransferControl(control.workers, self._take, control.pause, control.is_stopped, self._note_sent, on_released)
        self.upload = CheckpointUpload(backend, key, own)

    def expect(self, entry_id: str, n_bytes: int, on_first: Callable[[], None]) -> None:
        """Tell which entry it is, and its size. `on_first` is called once some of it has arrived."""
        self._id, self._n_bytes, self._on_first = entry_id, n_bytes, on_first
        if self.n_sent:
            on_first()

    def _take(self, n_bytes: int) -> None:
        self._throttle(n_bytes)
        self._report()  # a part may take an hour

    def _note_sent(self, n_bytes: int) -> None:
        if not self.n_sent:
            self._on_first()
        self.n_sent += n_bytes
        self._report()

    def _report(self) -> None:
        if time.monotonic() - self._reported_at >= _PROGRESS_S and self._n_bytes:
            self._reported_at = time.monotonic()
            self._emit(UploadProgress(self._id, self._url, self.n_sent, self._n_bytes))


class MirrorWorker:
    """The work for one mirror. `run` is the thread's; `is_waiting` may be asked from anywhere, under `wake`."""

    def __init__(  # noqa: PLR0913 -- all of it is wired in one place
        self,
        backend: Backend,
        waiting: UploadQueue,
        *,
        mirrors: tuple[str, ...],
        job: str,
        emit: Callable[[ReaderEvent], None],
        wake: threading.Condition,
        control: TransferControl,
        keep: rules.RetentionPolicy | None = None,
        begun: Callable[[str, MirrorWorker], Sending | None] = lambda _key, _worker: None,
        is_wanted: Callable[[str], bool] = lambda _key: False,
    ) -> None:
        """Ask nothing of the mirror yet. `emit` writes an event. `begun`: what a pass has begun to send below a key.

        is_wanted: whether this process sends, or is to send, what lies below a key.
        """
        self._begun, self._is_wanted = begun, is_wanted
        self._backend = backend
        self._queue = waiting
        self._mirrors = mirrors
        self._job = job
        self._emit = emit
        self._wake = wake
        self._control = control
        self._keep = keep
        self._trouble = ""
        self.trouble: tuple[str, str] | None = None  # message and hint of the reason why uploads wait
        self._pause_s = 0.0
        self._sweep_at = 0.0  # monotonic seconds
        self._untidy = False
        self._unjoined: deque[tuple[str, str]] = deque(maxlen=_MOST_UNJOINED)  # key and path where other nodes' parts were not there yet
        self._known: dict[str, listing.MirroredCheckpoint] = {}  # the cache of listing.newest_first
        self.is_waiting = False
        self.retry_now = False  # set, under `wake`, to end the pause after a failure

    def run(self) -> None:
        """Work until the stop."""
        while not self._control.is_stopped():
            entry = self._queue.claim(self._backend.url)
            if entry is None:
                if self._wait(None):
                    self._tidy(None)  # the last part of this node has no next upload that tells of the others' parts
                continue
            try:
                self._upload(entry)
                self._queue.release(self._backend.url)
            except Interrupted:
                return
            except SourceChanged as error:
                self._queue.release(self._backend.url)
                self._queue.drop(entry)
                message, hint = f"{entry.order.path} was not mirrored: {error}", "let each save have a path of its own"
                self._emit(MirrorAlert("changed", self._backend.url, message, hint, entry.order.path, entry.order.id))
            except BackendError as error:
                self._queue.release(self._backend.url, failing=not isinstance(error, Unavailable))
                self._troubled(_kind(error), error.message, error.hint)
            except OSError as error:
                self._queue.release(self._backend.url, failing=True)
                if self._queue.holds(entry):  # else another mirror's thread found it changed, and dropped it
                    self._troubled(
                        "disk", f"cannot mirror: {entry.order.path}: {error}", "check the disk with the checkpoints and the state directory"
                    )
            except Exception as error:  # noqa: BLE001 -- without this thread nothing is sent any more, and the run's end waits in vain
                self._queue.release(self._backend.url, failing=True)
                message = f"cannot mirror: {entry.order.path}: internal error: {type(error).__name__}: {error}"
                self._troubled("internal", message, "report this; it is tried again")

    @property
    def is_away(self) -> bool:
        """Whether the mirror did not answer the last time, so that it may answer the next time."""
        return self._trouble == "away"

    def begin(self, path: str, key: str, on_released: Callable[[str, int], None] = lambda _file, _number: None) -> Sending:
        """Begin an upload, without a request. `on_released`: see TransferControl."""
        return Sending(self, path, key, self._backend, self._control, self._emit, on_released)

    def abandon(self, sending: Sending) -> None:
        """Remove the files of a content that will never be whole. If the mirror does not answer, they stay without a manifest."""
        try:
            denied = sending.upload.abandon()
        except BackendError as error:
            self._alert(_kind(error), error.message, error.hint)
        except Interrupted:
            pass  # the process ends: a later one sweeps it
        else:
            self._name_denied(sending.path, denied)

    def _name_denied(self, subject: str, denied: Collection[str]) -> None:
        if denied:
            named = ", ".join([*sorted(denied)[:_MOST_NAMED], *(["..."] if len(denied) > _MOST_NAMED else [])])
            message = f"{subject} is not whole, and {len(denied)} of its objects may not be deleted: {named}"
            self._alert("tidy", message, "they count for nothing without a manifest: delete them, or permit Delete on the bucket's prefix")

    def _upload(self, entry: WaitingCheckpoint) -> None:
        began, url, n_bytes = time.monotonic(), self._backend.url, entry.manifest.n_bytes
        data_key = entry.key
        sending = self._begun(data_key, self) or self.begin(entry.order.path, data_key)
        sending.expect(entry.order.id, n_bytes, lambda: entry.begun.add(url))
        try:
            key = sending.upload.complete(entry.manifest, entry.order.manifest.encode("ascii"), entry.order.held)
        except SourceChanged:
            self.abandon(sending)
            raise
        self._queue.mark_done(entry, self._backend.url, self._mirrors)
        if self._trouble:
            self._emit(MirrorRecovered(url, self._trouble))
        self._trouble, self.trouble, self._pause_s = "", None, 0.0
        seconds = round(time.monotonic() - began, 3)
        order, step = entry.order, entry.manifest.step
        self._emit(CheckpointUploaded(order.path, step, order.id, url, key, n_bytes, sending.n_sent, seconds, *self._queue.left()))
        self._tidy(key or None)
        if not key and (unjoined := (data_key, order.path)) not in self._unjoined:
            self._unjoined.append(unjoined)

    def _tidy(self, arrived: str | None) -> None:
        """Tidy up after an upload. A failure is reported once, and uploads continue. `arrived`: None if no whole checkpoint did."""
        try:
            self._report_joined()
            if arrived is not None:
                self._remove_old(arrived)
        except BackendError as error:
            if not self._untidy:
                self._untidy = True
                self._alert("tidy", error.message, error.hint)
        else:
            if self._untidy:
                self._untidy = False
                self._emit(MirrorRecovered(self._backend.url, "tidy"))

    def _report_joined(self) -> None:
        """Report the checkpoints that other nodes' parts made whole since: only the node with the last part knew it at once."""
        for key, path in tuple(self._unjoined):
            try:
                self._backend.stat(key + keys.MANIFEST)
            except NotFound:
                continue
            self._unjoined.remove((key, path))
            self._emit(PartsJoined(self._backend.url, key, path))

    def _remove_old(self, arrived: str) -> None:
        """Remove old unfinished uploads of our job, once a day, and the checkpoints beyond the policy.

        `arrived`: the key of the newest arrival, which stays.
        """
        if time.monotonic() >= self._sweep_at:
            self._sweep(time.time() - _LEFTOVER_S)
            self._sweep_at = time.monotonic() + _SWEEP_EVERY_S
        if self._keep is not None:
            kept, _ = listing.newest_first(self._backend, self._job, known=self._known)
            for checkpoint in removal.may_go(kept, self._keep, arrived):
                removal.remove(self._backend, checkpoint.location.key)
                self._emit(CopyPruned(self._backend.url, checkpoint.location.key, checkpoint.manifest.step))
            for location in listing.unjoined(self._backend, self._job):  # a node was lost before it had sent its part
                if location.at < time.time() - _LEFTOVER_S:
                    removal.remove(self._backend, location.key)
                    self._emit(UploadSwept(self._backend.url, location.key))

    def _sweep(self, before: float) -> None:
        """Remove what nobody continues since `before` (wall time): no process remembers what one that was killed has sent."""
        for key in removal.abort_leftovers(self._backend, self._job, before):
            self._emit(UploadSwept(self._backend.url, key))
        for key, denied in removal.remove_incomplete(self._backend, self._job, before, self._is_wanted):
            self._name_denied(f"{self._backend.url}/{key}", denied)
            if not denied:
                self._emit(UploadSwept(self._backend.url, key))

    def _troubled(self, kind: str, message: str, hint: str) -> None:
        first, longest = _PAUSES[kind]
        self.trouble = message, hint
        if kind != self._trouble:
            self._trouble, self._pause_s = kind, first
            self._alert(kind, message, hint)
        else:
            self._pause_s = min(longest, self._pause_s * 2)
        self._wait(self._pause_s * random.uniform(0.8, 1.2))  # noqa: S311 -- a thousand nodes must not come back at once

    def _alert(self, kind: str, message: str, hint: str) -> None:
        self._emit(MirrorAlert(kind, self._backend.url, message, hint))

    def _wait(self, seconds: float | None) -> bool:
        """Wait for a new entry, or for a time; new entries do not shorten the pause after a failure. Return whether `retry_now` is why."""
        end = None if seconds is None else time.monotonic() + seconds
        with self._wake:
            self.is_waiting = True
            self._wake.notify_all()
            try:
                while not self._control.is_stopped():
                    left = None if end is None else end - time.monotonic()
                    if self.retry_now:
                        self.retry_now = False
                        return True
                    if left is not None and left <= 0:
                        break
                    if end is None and self._queue.has_for(self._backend.url):
                        break
                    self._wake.wait(left)
                return False
            finally:
                self.is_waiting = False


def _kind(error: BackendError) -> str:
    rows = ((ClockSkewed, "clock"), (CredentialsExpired, "expired"), (PermissionDenied, "denied"), ((TransferDamaged, NotFound), "damaged"))
    return next((name for kind, name in rows if isinstance(error, kind)), "away")
