"""The right to change files of the job: a selection has it while no rank lives, and loses it before ranks are started.

A selection runs in a worker thread, and the core does not wait for it for ever: where the disk hangs, an attempt begins without its answer.
When the disk comes back, that thread must not rename a file which a living rank writes. One lock makes the question and the change one
step, so that `withdraw` returns when the last change is done and no other can follow.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Permit:
    """One selection's right to change files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.valid = True

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Return whether a change is allowed. A change inside of the block is done before `withdraw` returns."""
        with self._lock:
            yield self.valid

    def withdraw(self) -> None:
        """Allow no further change. Waits for one that is under way, so not on the loop's thread."""
        with self._lock:
            self.valid = False
