"""The thread of one mirror: uploads the unfinished entry of the spool, else the newest, and waits after a failure.

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
from checkpointing.mirror.upload import SourceChanged, TransferControl, upload

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from checkpointing.mirror.messages import MirrorAlert, MirrorEvent, UploadProgress
    from checkpointing.mirror.spool import Spool, SpoolEntry
    from checkpointing.retention import rules

_PROGRESS_S: Final = 1.0
_LEFTOVER_S: Final = 3 * 86400.0  # an upload of our job that nobody continues: a node that is down for longer has lost its disk, too
_MOST_UNJOINED: Final = 64  # the newest checkpoints that still lack parts of other nodes, which the mirror is asked for
#: The trouble that is reported → first pause and longest one, in seconds.
_PAUSES: Final[dict[str, tuple[float, float]]] = {
    "away": (1.0, 300.0),
    "damaged": (1.0, 300.0),
    "expired": (2.0, 60.0),
    "clock": (60.0, 600.0),
    "denied": (60.0, 1800.0),
    "disk": (30.0, 600.0),
}


class MirrorWorker:
    """The work for one mirror. `run` is the thread's; `is_waiting` and `n_waits` may be asked from anywhere, under `wake`."""

    def __init__(  # noqa: PLR0913 -- all of it is wired in one place
        self,
        backend: Backend,
        spool: Spool,
        *,
        mirrors: tuple[str, ...],
        job: str,
        emit: Callable[[MirrorEvent], None],
        wake: threading.Condition,
        control: TransferControl,
        keep: rules.RetentionPolicy | None = None,
    ) -> None:
        """Ask nothing of the mirror yet. `emit` writes an event."""
        self._backend = backend
        self._spool = spool
        self._mirrors = mirrors
        self._job = job
        self._emit = emit
        self._wake = wake
        self._control = control
        self._keep = keep
        self._trouble = ""
        self.trouble: tuple[str, str] | None = None  # message and hint of the reason why uploads wait
        self._pause_s = 0.0
        self._swept = False
        self._untidy = False
        self._unjoined: deque[str] = deque(maxlen=_MOST_UNJOINED)  # keys of checkpoints of which other nodes' parts were not there yet
        self._known: dict[str, listing.MirroredCheckpoint] = {}  # the cache of listing.newest_first
        self.is_waiting = False
        self.n_waits = 0
        self.retry_now = False  # set, under `wake`, to end the pause after a failure

    def run(self) -> None:
        """Work until the stop."""
        while not self._control.is_stopped():
            entry = self._spool.claim(self._backend.url)
            if entry is None:
                self._wait(None)
                continue
            try:
                self._upload(entry)
                self._spool.release(self._backend.url)
            except Interrupted:
                return
            except SourceChanged as error:
                self._spool.release(self._backend.url)
                self._spool.drop(entry)
                alert = self._made_alert("changed", f"{entry.path} was not mirrored: {error}", "let each save have a path of its own")
                self._emit({**alert, "path": entry.path, "id": entry.id})
                self._forget(entry)
            except BackendError as error:
                self._spool.release(self._backend.url, failing=not isinstance(error, Unavailable))
                self._troubled(_kind(error), error.message, error.hint)
            except OSError as error:
                self._spool.release(self._backend.url, failing=True)
                if self._spool.holds(entry):  # else another mirror's thread found it changed, and dropped it
                    self._troubled(
                        "disk", f"cannot mirror: {entry.path}: {error}", "check the disk with the checkpoints and the state directory"
                    )

    @property
    def is_away(self) -> bool:
        """Whether the mirror did not answer the last time, so that it may answer the next time."""
        return self._trouble == "away"

    def _upload(self, entry: SpoolEntry) -> None:
        began = reported_at = time.monotonic()
        progress: UploadProgress = {
            "ev": "progress",
            "id": entry.id,
            "mirror": self._backend.url,
            "sent": 0,
            "bytes": entry.manifest.n_bytes,
        }
        control = self._control

        def moving() -> None:
            nonlocal reported_at
            if time.monotonic() - reported_at >= _PROGRESS_S:
                reported_at = time.monotonic()
                self._emit(progress)

        def take(n_bytes: int) -> None:
            control.throttle(n_bytes)
            moving()  # a part may take an hour

        def sent(n_bytes: int) -> None:
            progress["sent"] += n_bytes
            moving()

        own = TransferControl(control.workers, take, control.pause, control.is_stopped, sent)
        key = upload(self._backend, entry, self._spool.log(entry, self._backend.url), own)
        self._spool.mark_done(entry, self._backend.url, self._mirrors)
        if self._trouble:
            self._emit({"ev": "recovered", "mirror": self._backend.url, "what": self._trouble})
        self._trouble, self.trouble, self._pause_s = "", None, 0.0
        self._emit(
            {
                "ev": "uploaded",
                "path": entry.path,
                "step": entry.step,
                "id": entry.id,
                "mirror": self._backend.url,
                "key": key,
                "bytes": entry.manifest.n_bytes,
                "sent": progress["sent"],
                "seconds": round(time.monotonic() - began, 3),
                **self._spool.left(),
            }
        )
        self._tidy(key or None)
        if not key and (unjoined := keys.key_of(entry.manifest)) not in self._unjoined:
            self._unjoined.append(unjoined)

    def _tidy(self, arrived: str | None) -> None:
        """Tidy up after an upload. A failure is reported once, and uploads go on. `arrived`: None if no whole checkpoint did."""
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
                self._emit({"ev": "recovered", "mirror": self._backend.url, "what": "tidy"})

    def _report_joined(self) -> None:
        """Report the checkpoints that other nodes' parts made whole since: only the node with the last part knew it at once."""
        for key in tuple(self._unjoined):
            try:
                self._backend.stat(key + keys.MANIFEST)
            except NotFound:
                continue
            self._unjoined.remove(key)
            self._emit({"ev": "joined", "mirror": self._backend.url, "key": key})

    def _remove_old(self, arrived: str) -> None:
        """Remove old unfinished uploads of our job, once, and the checkpoints beyond the policy.

        `arrived`: the key of the newest arrival, which stays.
        """
        if not self._swept:
            for stored in list(self._backend.list(keys.prefix_of(self._job), unfinished=True)):
                if 0 < stored.at < time.time() - _LEFTOVER_S:
                    self._backend.remove(stored.key, stored.upload_id)
                    self._emit({"ev": "swept", "mirror": self._backend.url, "key": stored.key})
            self._swept = True
        if self._keep is not None:
            kept, _ = listing.newest_first(self._backend, self._job, known=self._known)
            for checkpoint in removal.may_go(kept, self._keep, arrived):
                removal.remove(self._backend, checkpoint.location.key)
                self._emit({"ev": "pruned", "mirror": self._backend.url, "key": checkpoint.location.key, "step": checkpoint.manifest.step})
            for location in listing.unjoined(self._backend, self._job):  # a node was lost before it had sent its part
                if location.at < time.time() - _LEFTOVER_S:
                    removal.remove(self._backend, location.key)
                    self._emit({"ev": "swept", "mirror": self._backend.url, "key": location.key})

    def _forget(self, entry: SpoolEntry) -> None:
        """Remove the files of a content that will never be whole. If the mirror does not answer, they stay without a manifest."""
        try:
            if entry.manifest.part is not None:
                removal.remove_part(self._backend, entry.manifest)
            else:
                removal.remove(self._backend, keys.key_of(entry.manifest))
        except BackendError as error:
            self._alert(_kind(error), error.message, error.hint)

    def _troubled(self, kind: str, message: str, hint: str) -> None:
        first, longest = _PAUSES[kind]
        self.trouble = message, hint
        if kind != self._trouble:
            self._trouble, self._pause_s = kind, first
            self._alert(kind, message, hint)
        else:
            self._pause_s = min(longest, self._pause_s * 2)
        self._wait(self._pause_s * random.uniform(0.8, 1.2))  # noqa: S311 -- a thousand nodes must not come back at once

    def _alert(self, what: str, message: str, hint: str) -> None:
        self._emit(self._made_alert(what, message, hint))

    def _made_alert(self, what: str, message: str, hint: str) -> MirrorAlert:
        return {"ev": "alert", "what": what, "mirror": self._backend.url, "message": message, "hint": hint}

    def _wait(self, seconds: float | None) -> None:
        """Wait for a new entry, or for a time; new entries do not shorten the pause after a failure."""
        end = None if seconds is None else time.monotonic() + seconds
        with self._wake:
            self.is_waiting = True
            self.n_waits += 1
            self._wake.notify_all()
            try:
                while not self._control.is_stopped():
                    left = None if end is None else end - time.monotonic()
                    if self.retry_now:
                        self.retry_now = False
                        self._wake.notify_all()  # for `MirrorProcess._wait_idle`
                        if end is not None:
                            return
                    if left is not None and left <= 0:
                        return
                    if end is None and self._spool.has_for(self._backend.url):
                        return
                    self._wake.wait(left)
            finally:
                self.is_waiting = False


def _kind(error: BackendError) -> str:
    rows = ((ClockSkewed, "clock"), (CredentialsExpired, "expired"), (PermissionDenied, "denied"), ((TransferDamaged, NotFound), "damaged"))
    return next((name for kind, name in rows if isinstance(error, kind)), "away")
