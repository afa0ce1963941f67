"""Follows a training into the processes that torch.multiprocessing starts (mp.spawn): the command is then the launcher of its ranks.

The command had claimed slot 0 as if it trained itself. It gives the slot up before the first of them starts, and lets them inherit us. Each
is provisional until it trains: one that only prepares data never claims. Its index is its local rank. A command that trains after all
claims a slot again, like any provisional process.
"""

from __future__ import annotations

import os

from . import layout
from .claim import join_environment, leave_environment, release
from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .claim import ProcessIdentity
    from .heartbeat import HeartbeatWriter


class SpawnedRanks:
    """Both sides: the process that starts others, and one that was started."""

    def __init__(
        self,
        identity: ProcessIdentity,
        beat: HeartbeatWriter,
        claim: Callable[[], None],
        follow_claim: Callable[[str], None],
        report: Callable[[BaseException], None],
    ) -> None:
        """`claim` claims the slot of this process, `follow_claim` and `report` are those of ExceptionReporter."""
        self._identity = identity
        self._beat = beat
        self._claim = claim
        self._follow_claim = follow_claim
        self._report = report

    def watch(self, module: Any) -> None:  # noqa: ANN401 - torch is not imported here
        """Hook torch.multiprocessing.spawn: what starts the processes, and what runs in each of them."""
        start, run = module.start_processes, module._wrap  # noqa: SLF001 - its own name is what the processes import

        def start_processes(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as torch has it
            self._beat.flag(layout.FLAG_ELSEWHERE)
            self._hand_on()
            try:
                return start(*args, **kwargs)
            finally:
                self._hand_on_no_more()

        def _wrap(fn: Any, i: Any, *args: Any) -> Any:  # noqa: ANN401 - as torch has it
            self._begins(i)
            return run(self._reported(fn), i, *args)

        import functools  # noqa: PLC0415 - not at every start; torch has it by now

        # wraps: pickle finds the wrapper where it finds the original
        module.start_processes, module._wrap = functools.wraps(start)(start_processes), functools.wraps(run)(_wrap)  # noqa: SLF001 - see above

    @quiet
    def _hand_on(self) -> None:
        """Give up the slot of a command that has not trained. A rank that a launcher numbered keeps it: its children are helpers."""
        who, beat = self._identity, self._beat
        if who.mode != "rank" or not who.claimed or "LOCAL_RANK" in os.environ or beat.trains:
            return
        before = who.path("stacks")
        release(who, beat)
        self._follow_claim(before)
        beat.wants_slot = self._claim
        join_environment(who.folder)

    @quiet
    def _hand_on_no_more(self) -> None:
        if self._identity.mode == "rank" and self._beat.wants_slot is not None:
            leave_environment(self._identity.folder)

    @quiet
    def _begins(self, index: int) -> None:
        """Take the index as this process's number, unless a launcher numbered it."""
        who = self._identity
        if not (who.known_rank or who.claimed or "LOCAL_RANK" in os.environ):
            who.rank = who.local_rank = int(index)
            self._beat.number(who.rank)

    def _reported(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Report what `fn` raises: torch sends its text to the parent, and no exception hook sees it."""

        def reported(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the script's own
            try:
                return fn(*args, **kwargs)
            except Exception as error:
                self._report(error)
                raise

        return reported
