"""A timeout for calls that no longer progress: a mirror that accepts the connection and sends nothing, a mount whose server is gone.

The call runs in a thread of its own, since a read from a dead NFS server cannot be interrupted. An abandoned thread learns of it by
`StallTimeout.check` and writes nothing more: another process may write the same file by then.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from checkpointing.io.background_call import BackgroundCall
from checkpointing.io.reader import Interrupted
from checkpointing.mirror.backends import Unavailable
from checkpointing.model import CheckpointingError

if TYPE_CHECKING:
    from collections.abc import Iterator

STALL_S: Final = 60.0
_REPORT_EVERY_S: Final = 10.0
#: Less than this within STALL_S is not progress: at such a rate a gibibyte takes four days.
LEAST_BYTES: Final = 256 << 10

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """How a restore is followed. `report` gets a line for people now and then, `on_fetched` the bytes that have arrived and the total.

    `on_listed` gets how many entries of the mirrors' lists were seen; None: `report` gets a line about the list instead. `stall_s`: a
    mirror that sends nothing for so many seconds is given up.
    """

    report: Callable[[str], None] = lambda _line: None
    on_fetched: Callable[[int, int], None] = lambda _done, _total: None
    on_listed: Callable[[int], None] | None = None
    stall_s: float = STALL_S

    def stall_timeout(self, subject: str) -> StallTimeout:
        """Make the timeout for one call. `subject` names the awaited work in messages."""
        return StallTimeout(subject, self.stall_s, self.report)


class Stalled(Unavailable):
    """No data came for too long."""


class DiskStalled(CheckpointingError):  # noqa: N818 -- a fact about the disk
    """The disk that is restored to took no data for too long: another mirror does not help."""


class StallTimeout:
    """The timeout of one call. The threads that work on the call use `progressed`, `check` and `on_disk`."""

    def __init__(self, subject: str, stall_s: float, report: Callable[[str], None]) -> None:
        """`subject` names the awaited work; `report` gets a line during a wait."""
        self._subject, self._stall_s, self._report = subject, stall_s, report
        self._lock = threading.Lock()
        self._progressed_at = time.monotonic()
        self._n_bytes = self._n_on_disk = 0
        self._is_over = False

    def progressed(self, n_bytes: int = LEAST_BYTES) -> None:
        """Note that so many bytes came."""
        with self._lock:
            self._n_bytes += n_bytes
            if self._n_bytes >= LEAST_BYTES:
                self._progressed_at, self._n_bytes = time.monotonic(), 0

    def check(self) -> None:
        """Raise Interrupted if the call was given up."""
        if self._is_over:
            raise Interrupted

    @contextlib.contextmanager
    def on_disk(self) -> Iterator[None]:
        """Tell that the block uses the disk that is restored to. Raises Interrupted if the call was given up.

        A call that stalls while such a block runs is given up as DiskStalled. Otherwise no block runs after the call.
        """
        with self._lock:
            self.check()
            self._n_on_disk += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_on_disk -= 1

    def run(self, call: Callable[[], T]) -> T:
        """Return or raise what `call` does. Raises Stalled or DiskStalled if it made no progress for `stall_s`."""
        background = BackgroundCall(call, "restore-call")
        try:
            self._wait(background.done)
        finally:
            with self._lock:
                self._is_over = True
        return background.result()

    def _wait(self, done: threading.Event) -> None:
        reported_at = time.monotonic()
        while not done.wait(min(1.0, self._stall_s / 10)):
            now = time.monotonic()
            still_s = now - self._progressed_at
            if still_s > self._stall_s:
                with self._lock:
                    self._is_over, is_of_disk = True, self._n_on_disk > 0
                message = f"{self._subject}: {'the disk answered nothing' if is_of_disk else 'no data'} for {still_s:.0f} s"
                self._report(f"gave up: {message}")
                if is_of_disk:
                    raise DiskStalled(message, hint="check that the disk that is restored to answers, and start again")
                raise Stalled(message, hint="check that the mirror answers, and start again")
            if still_s >= _REPORT_EVERY_S and now - reported_at >= _REPORT_EVERY_S:
                reported_at = now
                self._report(f"waiting for {self._subject}: no data for {still_s:.0f} s (gives up after {self._stall_s:.0f} s)")
