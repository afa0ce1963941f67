"""One mirror's thread: takes what was begun, else the newest entry that has not arrived there, brings it there, and waits when it cannot.

In: a spool. Out: events through `tell` (checkpointing/mirror/process.py lists them). A trouble is told once, when it begins, and once
more when
it is over; between the attempts the pause grows, to five minutes where the mirror is away and to half an hour where it says no: neither
is a hot loop, and neither ever ends by itself. Any failure but of the content is tried again; none reaches the caller.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Final

from checkpointing.io.reader import Interrupted
from checkpointing.mirror import layout
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
from checkpointing.mirror.upload import Means, SourceChanged, upload

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from checkpointing.mirror.spool import Spool, SpoolEntry
    from checkpointing.retention import rules

_PROGRESS_S: Final = 1.0
_LEFTOVER_S: Final = 3 * 86400.0  # of an upload of our job that nobody goes on with: no outage of a node lasts longer without its disk
#: what is told, first pause and longest one, in seconds
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
        tell: Callable[..., None],
        wake: threading.Condition,
        means: Means,
        keep: rules.RetentionPolicy | None = None,
    ) -> None:
        """Begin with nothing known about the mirror."""
        self._backend = backend
        self._spool = spool
        self._mirrors = mirrors
        self._job = job
        self._tell = tell
        self._wake = wake
        self._means = means
        self._keep = keep
        self._trouble = ""
        self.trouble: tuple[str, str] | None = None  # message and hint of what keeps the uploads waiting
        self._pause_s = 0.0
        self._swept = False
        self._untidy = False
        self._known: dict[str, layout.MirroredCheckpoint] = {}  # the manifests at the mirror, as they were read: see remote.newest_first
        self.is_waiting = False
        self.n_waits = 0
        self.hurry = False  # set, under `wake`, by whoever knows that the pause is needless

    def run(self) -> None:
        """Work until told to stop."""
        while not self._means.stopped():
            entry = self._spool.claim(self._backend.url)
            if entry is None:
                self._wait(None)
                continue
            try:
                self._bring(entry)
                self._spool.release(self._backend.url)
            except Interrupted:
                return
            except SourceChanged as error:
                self._spool.release(self._backend.url)
                self._spool.drop(entry)
                self._alert(
                    "changed",
                    f"{entry.path} was not mirrored: {error}",
                    "let each save have a path of its own",
                    path=entry.path,
                    id=entry.id,
                )
                self._forget(entry)
            except BackendError as error:
                self._spool.release(self._backend.url, failing=not isinstance(error, Unavailable))
                self._troubled(_kind(error), error.message, error.hint)
            except OSError as error:
                self._spool.release(self._backend.url, failing=True)
                if self._spool.holds(entry):  # else another mirror's thread found it changed, and has let it go
                    self._troubled(
                        "disk", f"cannot mirror: {entry.path}: {error}", "see to the disk with the checkpoints and the state directory"
                    )

    def _bring(self, entry: SpoolEntry) -> None:
        began, state = time.monotonic(), {"sent": 0, "told": time.monotonic()}
        means = self._means

        def moving() -> None:
            if time.monotonic() - state["told"] >= _PROGRESS_S:
                state["told"] = time.monotonic()
                self._tell("progress", id=entry.id, mirror=self._backend.url, sent=state["sent"], bytes=entry.manifest.n_bytes)

        def take(n_bytes: int) -> None:
            means.take(n_bytes)
            moving()  # a part may take an hour

        def sent(n_bytes: int) -> None:
            state["sent"] += n_bytes
            moving()

        own = Means(means.workers, take, means.pause, means.stopped, sent)
        key = upload(self._backend, entry, self._spool.log(entry, self._backend.url), own)
        self._spool.mark_done(entry, self._backend.url, self._mirrors)
        if self._trouble:
            self._tell("recovered", mirror=self._backend.url, what=self._trouble)
        self._trouble, self.trouble, self._pause_s = "", None, 0.0
        self._tell(
            "uploaded",
            path=entry.path,
            step=entry.step,
            id=entry.id,
            mirror=self._backend.url,
            key=key,
            bytes=entry.manifest.n_bytes,
            sent=state["sent"],
            seconds=round(time.monotonic() - began, 3),
        )
        self._tidy(key)

    def _tidy(self, arrived: str) -> None:
        """Tidy up after an upload. That it fails is a trouble of its own: told once, and no reason for the uploads to pause."""
        try:
            self._remove_old(arrived)
        except BackendError as error:
            if not self._untidy:
                self._untidy = True
                self._alert("tidy", error.message, error.hint)
        else:
            if self._untidy:
                self._untidy = False
                self._tell("recovered", mirror=self._backend.url, what="tidy")

    def _remove_old(self, arrived: str) -> None:
        """Sweep what was left of our job's uploads, once; and let go of the oldest checkpoints, where that was asked for.

        `arrived`: the key of the one that was brought just now, which stays.
        """
        if not self._swept:
            for stored in list(self._backend.list(layout.prefix_of(self._job), unfinished=True)):
                if 0 < stored.at < time.time() - _LEFTOVER_S:
                    self._backend.remove(stored.key, stored.upload_id)
                    self._tell("swept", mirror=self._backend.url, key=stored.key)
            self._swept = True
        if self._keep is not None:
            kept, _ = layout.newest_first(self._backend, self._job, known=self._known)
            for one in layout.may_go(kept, self._keep, arrived):
                layout.remove(self._backend, one.place.key)
                self._tell("pruned", mirror=self._backend.url, key=one.place.key, step=one.manifest.step)

    def _forget(self, entry: SpoolEntry) -> None:
        """Take back what arrived of a content that will never be whole. What stays for want of an answer has no manifest."""
        try:
            layout.remove(self._backend, layout.key_of(entry.manifest))
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
        self._wait(self._pause_s * random.uniform(0.8, 1.2))  # noqa: S311 -- so that a thousand nodes do not come back at once

    def _alert(self, what: str, message: str, hint: str, **more: Any) -> None:  # noqa: ANN401 -- a row of JSON
        self._tell("alert", what=what, mirror=self._backend.url, message=message, hint=hint, **more)

    def _wait(self, seconds: float | None) -> None:
        """Wait for a new entry, or for a time; new entries do not shorten the pause after a failure."""
        end = None if seconds is None else time.monotonic() + seconds
        with self._wake:
            self.is_waiting = True
            self.n_waits += 1
            self._wake.notify_all()
            try:
                while not self._means.stopped():
                    left = None if end is None else end - time.monotonic()
                    if self.hurry:
                        self.hurry = False
                        self._wake.notify_all()  # who waits for nobody to be hurried
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
