"""Decides when each checkpoint that appears or changes while the job runs is verified; the reader process reads it (CheckpointReader).

A file is read once it stood still for `quiet_s` by our own clock: the time stamps of a network file system are another machine's. If a
rank's save was seen to end, the file is read at once: the next save in place destroys it, and until then a copy must be made.
A file that could not be read waits for a later look, and each other failure is reported once.

The cache of verdicts is shared with the selection, so a restart seldom reads a file again. The watcher rejects nothing: a file that looks
torn while ranks live may be one that is being written.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from checkpointing import step_names
from checkpointing.candidates import glance, never_own
from checkpointing.io.reader import Interrupted
from checkpointing.model import Verdict
from checkpointing.ordering import Order
from checkpointing.reader.messages import CheckpointRead, ReadCheckpoint
from supervisor.core.events import CheckpointSelected
from supervisor.core.model import CheckpointRef

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from checkpointing.discover import Listing
    from checkpointing.model import Candidate, Identity, Verification
    from checkpointing.reader.messages import CopyPlan
    from checkpointing.reader.one_pass import CheckpointReader
    from checkpointing.select import Selection
    from checkpointing.verification import Cache

_NICENESS: Final = 10
_RETRY_S: Final = 60.0  # a file that could not be read may be read to the middle each time: not at every look
_NEWS_S: Final = 0.2  # between two reads of the save logs
_RECHECK_S: Final = 0.05  # a file is looked at this long after it stood still long enough


def to_ref(verification: Verification) -> CheckpointRef:
    """Return the core's reference to a verified checkpoint."""
    return ref_of(verification.path, verification.step, verification.level, verification.epoch, verification.content_step)


def ref_of(path: str, step: int | None, level: str, epoch: int | None = None, content_step: int | None = None) -> CheckpointRef:
    """Return a reference; content and name stand in it only where they give another step than the one that orders it."""
    named, shown = step_names.step_in(path), step_names.shown_step(path, step, content_step)
    return CheckpointRef(
        path,
        step,
        level,
        epoch,
        content_step=content_step if content_step != step else None,
        named=named.step if named is not None and named.step != shown else None,
        is_index=shown is None and step is not None,
    )


def to_event(selection: Selection, t: float, attempt: int) -> CheckpointSelected:
    """Return the core's event of a selection."""
    chosen = None if selection.chosen is None else to_ref(selection.chosen)
    refused = (*selection.rejected, *selection.unverifiable, *selection.unknown)
    older = tuple(CheckpointRef(path, step, "") for path, step in selection.older)
    return CheckpointSelected(
        t,
        attempt,
        chosen,
        selection.n_found,
        selection.torn,
        refused,
        older,
        not_finite=selection.not_finite,
        dangerous=selection.dangerous,
        passed_over=selection.passed_over,
    )


class CheckpointWatcher:
    """Lists the checkpoints every `interval_s` seconds, in a thread of its own.

    `look` and `on_verified` are called in that thread. `on_verified` is called once per identity, with what the pass gave, and whether it
    is new: the selection may have found it before. Of the files from before the start, only as many are read as it takes to know the
    newest whole one. Later files are always read.
    """

    def __init__(  # noqa: PLR0913 -- the settings of the watcher, each with its default
        self,
        look: Callable[[], Listing],
        on_verified: Callable[[Verification, CheckpointRead, bool], None],
        cache: Cache,
        reader: CheckpointReader,
        *,
        order: Callable[[], Order] = Order,
        is_wanted: Callable[[Candidate], bool] = lambda _candidate: False,
        interval_s: float = 5.0,
        quiet_s: float = 2.0,
        on_trouble: Callable[[str], None] = lambda _: None,
        own: Callable[[str], bool] = never_own,
        elsewhere: Callable[[Candidate], Verification | None] = lambda _candidate: None,
        is_ended: Callable[[Candidate], bool] = lambda _candidate: False,
        has_news: Callable[[], bool] = lambda: False,
        is_recorded: Callable[[Candidate], bool] = lambda _candidate: False,
        may_be_part: Callable[[Candidate], bool] = lambda _candidate: False,
        key_of: Callable[[Candidate], str] = lambda _candidate: "",
        copying: Callable[[Candidate], AbstractContextManager[CopyPlan | None]] = lambda _candidate: nullcontext(),
        on_incomplete: Callable[[Candidate, CheckpointRead], bool] = lambda _candidate, _answer: True,
    ) -> None:
        """Nothing runs before `start`. `on_trouble` gets each failure of the watcher once, as text, with the first file that met it.

        `is_wanted`: whether a file from before the start is read all the same. `own`: see `verify`. `elsewhere`: what another node found,
        if that node is to read the file; WRITING until it has. `is_ended`: whether a rank was seen to end the save that left the file as
        it is. `has_news`: whether such a file is to be read before the next look is due. `is_recorded`: whether the digests of this content
        are known. `may_be_part`: whether it may be a part of a checkpoint of several nodes. `key_of`: its key in the mirrors, if it is to
        be sent to them while it is read. `copying`: where it is to be copied to meanwhile, until it was passed on. `on_incomplete` is
        called like `on_verified` for an incomplete one; it returns False if it is to be read again.
        """
        self._reader, self._is_recorded, self._may_be_part, self._copying, self._key_of = reader, is_recorded, may_be_part, copying, key_of
        self._is_ended, self._has_news, self._on_incomplete = is_ended, has_news, on_incomplete
        self._order, self._is_wanted = order, is_wanted
        self._own, self._elsewhere = own, elsewhere
        self._on_trouble = on_trouble
        self._troubles: set[str] = set()
        self._list = look
        self._on_verified = on_verified
        self._cache = cache
        self._interval_s = interval_s
        self._quiet_s = quiet_s
        self._stopped = threading.Event()
        self._wake = threading.Event()
        self._finishing = False
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._seen: dict[str, tuple[Identity, float]] = {}  # since when (monotonic seconds) a path has had its identity
        self._settled: dict[str, Identity] = {}  # these are judged
        self._at_start: dict[str, Identity] | None = None  # what the first look saw
        self._whole_at_start = False  # one of those is known to be whole: the older ones are not read

    def start(self) -> None:
        """Start looking."""
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> bool:
        """Stop the thread. Return whether it ended; a read that hangs in the kernel is left behind, as a daemon."""
        self._stopped.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def finish(self, deadline_s: float) -> bool:
        """Read the present files, without waiting until they are at rest: no rank is alive. Return whether that was done in time."""
        self._quiet_s, self._finishing = 0.0, True
        self._reader.lift()  # there is no training any more that would wait for the disk
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(deadline_s)
        return not self._thread.is_alive()

    @property
    def is_finishing(self) -> bool:
        """Whether this is the last look, which reads the present files."""
        return self._finishing

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
        while not self._stopped.is_set():
            last = self._finishing
            try:
                delay_s = self._look()
            except Exception as error:  # noqa: BLE001 -- without this thread nothing is verified or mirrored until the run ends
                self._report_once("the checkpoints could not be listed", error)
                delay_s = self._interval_s
            if last:
                return
            self._wait(delay_s)

    def _wait(self, delay_s: float) -> None:
        """Wait until the next look is due, or a save in place has ended."""
        until = time.monotonic() + delay_s
        while (left_s := until - time.monotonic()) > 0 and not self._wake.wait(min(_NEWS_S, left_s)):
            try:
                if self._has_news():
                    break
            except Exception as error:  # noqa: BLE001 -- as above
                self._report_once("the ranks' save logs could not be read", error)
        self._wake.clear()

    def _look(self) -> float:
        """Read what stood still long enough, newest first. Return the seconds until the next look is due."""
        candidates = self._list().candidates
        if self._at_start is None:
            self._at_start = {candidate.path: candidate.identity for candidate in candidates}
        now = time.monotonic()
        self._seen = {candidate.path: self._since(candidate, now) for candidate in candidates}
        self._settled = {path: identity for path, identity in self._settled.items() if path in self._seen}
        unread = [candidate for candidate in candidates if self._settled.get(candidate.path) != candidate.identity]
        quiet = [candidate for candidate in unread if self._may_be_read(candidate, now)]
        for candidate in self._newest_first(quiet):
            if self._stopped.is_set():
                break
            try:
                self._settle(candidate)
            except Interrupted:
                break  # `stop` was called while it was read
            except Exception as error:  # noqa: BLE001 -- one failure must not hide the other files
                self._settled[candidate.path] = candidate.identity
                self._report_once(candidate.path, error)
        waits = [self._quiet_s - (now - self._seen[candidate.path][1]) for candidate in unread]
        waits = [wait for wait in waits if wait > 0]
        return min([self._interval_s, *(wait + _RECHECK_S for wait in waits)])

    def _may_be_read(self, candidate: Candidate, now: float) -> bool:
        still_s = now - self._seen[candidate.path][1]  # below 0 while a file that could not be read waits for its next try
        return still_s >= self._quiet_s or (still_s >= 0 and self._is_ended(candidate))

    def _report_once(self, subject: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text not in self._troubles and not self._stopped.is_set():
            self._troubles.add(text)
            self._on_trouble(f"{subject}: {text}")

    def _since(self, candidate: Candidate, now: float) -> tuple[Identity, float]:
        identity, since = self._seen.get(candidate.path, (None, now))
        return (candidate.identity, since if identity == candidate.identity else now)

    def _newest_first(self, candidates: list[Candidate]) -> list[Candidate]:
        return self._order().newest_candidates(
            candidates, lambda candidate: glance(candidate, self._cache, self._stopped.is_set, own=self._own)
        )

    def _settle(self, candidate: Candidate) -> None:
        """Judge a file, unless it is known or nobody needs it, and pass it on if it is whole."""
        at_start = (self._at_start or {}).get(candidate.path) == candidate.identity
        known = self._cache.get(candidate.path, candidate.identity)
        is_known = known is not None and known.level != "directory"
        if not is_known and at_start and self._whole_at_start and not self._is_wanted(candidate):
            self._settled[candidate.path] = candidate.identity
            return
        known = known if is_known else None
        answer = self._known(candidate, known)
        if answer is not None:
            self._judge(candidate, answer, at_start=at_start, is_new=known is None)
            return
        with self._copying(candidate) as copy:
            own, with_part, key = self._own(candidate.path), self._may_be_part(candidate), self._key_of(candidate)
            order = ReadCheckpoint(0, candidate.path, own, with_part, copy, key)
            self._judge(candidate, self._reader.read(order, self._stopped), at_start=at_start, is_new=known is None)

    def _judge(self, candidate: Candidate, answer: CheckpointRead, *, at_start: bool, is_new: bool) -> None:
        """Take the facts of a file, and pass it on if it is whole."""
        verification = answer.verification
        if verification is None:
            return
        if verification.identity != candidate.identity or verification.verdict in (Verdict.UNKNOWN, Verdict.WRITING):
            # it must stand still anew, and what could not be read is not tried again at once
            delay_s = _RETRY_S if verification.verdict is Verdict.UNKNOWN else 0.0
            self._seen[candidate.path] = (verification.identity, time.monotonic() + delay_s)
            return
        if verification.verdict is Verdict.INCOMPLETE and not self._on_incomplete(candidate, answer):
            return
        self._settled[candidate.path] = candidate.identity
        self._cache.put(verification)
        if verification.verdict is Verdict.VERIFIED:
            self._whole_at_start = self._whole_at_start or at_start
            self._on_verified(verification, answer, is_new)

    def _known(self, candidate: Candidate, known: Verification | None) -> CheckpointRead | None:
        """Return the facts of a file, or another node's finding about it; None if it is to be read."""
        if known is None:
            elsewhere = self._elsewhere(candidate)
            return None if elsewhere is None else CheckpointRead(0, elsewhere)
        is_part = known.verdict is Verdict.INCOMPLETE and self._may_be_part(candidate)
        is_enough = self._is_recorded(candidate) if known.verdict is Verdict.VERIFIED else not is_part
        return CheckpointRead(0, known) if is_enough else None
