"""The permission to change the job's files: a selection has it while no rank lives, and loses it before ranks are started.

A selection runs in a worker thread, and the core waits for it only for a time: where the disk hangs, an attempt begins without its answer.
When the disk answers again, that thread must not rename a file which a living rank writes. One lock makes the question and the change one
step, so `revoke` returns after the last change is done, and no other can follow.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class RepairPermission:
    """One selection's permission to change files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_valid = True

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Yield whether a change is allowed. A change inside the block is done before `revoke` returns."""
        with self._lock:
            yield self.is_valid

    def revoke(self) -> None:
        """Allow no further change. Waits for one that is under way, so not on the loop's thread."""
        with self._lock:
            self.is_valid = False
