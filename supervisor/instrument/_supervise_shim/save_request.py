"""Reports whether the checkpoint that was requested of this process is made, so that the supervisor knows when it may stop.

It sees saves that go through torch (torch.save, DCP's save and async_save) and the script's questions, and sets three flags of the
heartbeat. A checkpoint may be several files, and is renamed when it is whole. So it is treated as made once a save ended *and* the script
proceeded: by asking again, by a step after a save, by `worker.saved()`, or by an end in order.
"""

from __future__ import annotations

import sys

from . import layout
from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .heartbeat import HeartbeatWriter


class SaveRequests:
    """The saves of one process since the request. `_under_way`: saves that have begun and not ended, in any thread."""

    def __init__(self, beat: HeartbeatWriter) -> None:
        self._beat = beat
        self._is_requested = False
        self._ended = 0
        self._under_way = 0

    @quiet
    def asked(self) -> None:
        """Note that the script asks whether to save. After a request it means that the script continues."""
        if self._is_requested:
            self._went_on()
        else:
            self._beat.flag(layout.FLAG_ASKS)

    @quiet
    def requested(self) -> None:
        """Note that a save was requested: worker.should_save returned True."""
        if self._is_requested:
            return
        self._is_requested = True
        self._ended = 0
        self._beat.flag(layout.FLAG_SAVE_ASKED)
        self._beat.after_save = self._stepped
        import atexit  # noqa: PLC0415 - once in the life of a process

        atexit.register(self._at_exit)

    @quiet
    def saved(self) -> None:
        """Note that the script reports its checkpoint as made (worker.saved)."""
        self._ended += 1
        if self._is_requested:
            self._beat.flag(layout.FLAG_WENT_ON | layout.FLAG_SAVED)

    @quiet
    def began(self) -> None:
        """Note that a save began."""
        self._under_way += 1

    @quiet
    def ended(self, *, well: bool) -> None:
        """Note that a save ended, in the foreground or in the background."""
        self._under_way -= 1
        self._ended += well and self._is_requested

    def _went_on(self) -> None:
        if not self._under_way:
            self._beat.flag(layout.FLAG_WENT_ON | (layout.FLAG_SAVED if self._ended else 0))

    @quiet
    def _stepped(self) -> None:
        """Note a step after a save: the script continued and did not ask again."""
        if self._ended:
            self._went_on()

    @quiet
    def _at_exit(self) -> None:
        if getattr(sys, "last_exc", None) is None and getattr(sys, "last_value", None) is None:
            self._went_on()
