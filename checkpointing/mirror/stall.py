"""A call that is given up where nothing moves: a mirror that took the connection and then says nothing, a mount whose server is gone.

The call runs in a thread of its own, since a read from a dead NFS server cannot be interrupted. A thread that was left behind is told by
`Patience.check`, and does nothing any more when it wakes: what it would write may be another one's by then.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from checkpointing.io.reader import Interrupted
from checkpointing.mirror.backends import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

STALL_S: Final = 60.0
_SAY_EVERY_S: Final = 10.0
#: Less than this within STALL_S is no movement: at such a rate a gibibyte takes four days.
LEAST_BYTES: Final = 256 << 10

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """How a restore is followed. `say` gets a line for people now and then, `fetched` the bytes that are here and those of the whole.

    `stall_s` is how long nothing may come.
    """

    say: Callable[[str], None] = lambda _line: None
    fetched: Callable[[int, int], None] = lambda _done, _total: None
    stall_s: float = STALL_S

    def patience(self, what: str) -> Patience:
        """Make the patience for one call."""
        return Patience(what, self.stall_s, self.say)


class Stalled(Unavailable):
    """Nothing came for too long."""


class Patience:
    """How long nothing may come. One for each call; `moved` and `writing` are for the threads that work on it."""

    def __init__(self, what: str, stall_s: float, say: Callable[[str], None]) -> None:
        """`what` is waited for; `say` gets a line while it is."""
        self._what, self._stall_s, self._say = what, stall_s, say
        self._lock = threading.Lock()
        self._moved_at = time.monotonic()
        self._n_bytes = 0
        self._is_over = False

    def moved(self, n_bytes: int = LEAST_BYTES) -> None:
        """Take note that something came."""
        with self._lock:
            self._n_bytes += n_bytes
            if self._n_bytes >= LEAST_BYTES:
                self._moved_at, self._n_bytes = time.monotonic(), 0

    def check(self) -> None:
        """Raise Interrupted where nobody waits any more."""
        if self._is_over:
            raise Interrupted

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Write while somebody waits: giving up waits for a write that has begun. Raises Interrupted."""
        with self._lock:
            self.check()
            yield

    def run(self, call: Callable[[], T]) -> T:
        """Return or raise what `call` does. Raises Stalled where nothing moved for `stall_s`."""
        answers: list[T] = []
        errors: list[BaseException] = []
        done = threading.Event()

        def work() -> None:
            try:
                answers.append(call())
            except BaseException as error:  # noqa: BLE001 -- it is the caller's
                errors.append(error)
            finally:
                done.set()

        threading.Thread(target=work, name="patience", daemon=True).start()
        try:
            self._wait(done)
        finally:
            with self._lock:
                self._is_over = True
        if errors:
            raise errors[0]
        return answers[0]

    def _wait(self, done: threading.Event) -> None:
        said_at = time.monotonic()
        while not done.wait(min(1.0, self._stall_s / 10)):
            now = time.monotonic()
            still_s = now - self._moved_at
            if still_s > self._stall_s:
                message = f"{self._what}: no data for {still_s:.0f} s"
                self._say(f"gave up: {message}")
                raise Stalled(message, hint="see whether the mirror answers, and start again")
            if still_s >= _SAY_EVERY_S and now - said_at >= _SAY_EVERY_S:
                said_at = now
                self._say(f"waiting for {self._what}: no data for {still_s:.0f} s (gives up after {self._stall_s:.0f} s)")
