"""The standbys of one attempt, by local rank: started by the ranks' future parent, used once, or dropped.

The torchrun agent has one for each of its ranks, and the guardian has one for a plain command. Standard library only, and one thread: a
child is tied to the thread that starts it (PDEATHSIG).
"""

from __future__ import annotations

from .standby import PREPARING, READY, Standby

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any


class StandbySet:
    """Empty until `prepare`. attempt: beside which they were started, 0: none. why: the first reason of one that is of no use, or "".

    note: why one that is ready imports only a part in advance, or "".
    """

    def __init__(self) -> None:
        self.attempt = 0
        self.why = self.note = ""
        self.cold = ""
        self._used: list[int] = []
        self._standbys: dict[int, Standby] = {}
        self._ready: set[int] = set()
        self._reported: tuple[Any, ...] = ()

    @property
    def pids(self) -> set[int]:
        """The pids of those without a known end."""
        return {standby.pid for standby in self._standbys.values()}

    def prepare(self, attempt: int, starts: Mapping[int, Callable[[], Standby]]) -> None:
        """Start one for each local rank, unless those of this attempt were started. A failure is no more than a reason in `why`."""
        if self.attempt == attempt:
            return
        self.drop()
        self.attempt = attempt
        for local_rank, start in starts.items():
            try:
                self._standbys[local_rank] = start()
            except OSError as error:  # no free descriptor or process, no such program
                self.why = self.why or f"a standby could not be started: {error.strerror or error}"

    def refuse(self, attempt: int, why: str) -> None:
        """Have none for this attempt."""
        self.drop()
        self.attempt, self.why = attempt, why

    def poll(self) -> dict[str, Any] | None:
        """Read what the standbys sent; return the fields of a report (messages.StandbyReported) if there is something new to report."""
        for local_rank, standby in list(self._standbys.items()):
            state = standby.poll()
            if state == READY:
                self._ready.add(local_rank)
                self.note = self.note or standby.note
            elif state != PREPARING:
                self.why = self.why or standby.why or "a standby ended by itself"
                self._ready.discard(local_rank)
                standby.drop()
                del self._standbys[local_rank]
        private_kib = sum(self._standbys[local_rank].private_kib for local_rank in self._ready)
        known = (self.attempt, sorted(self.pids), len(self._ready), private_kib, self.why or self.note)
        if known == self._reported or not self.attempt:
            return None
        self._reported = known
        return dict(zip(("attempt", "pids", "ready", "private_kib", "why"), known, strict=True))

    def take(self, local_rank: int, argv: Sequence[str], env: Mapping[str, str], cwd: str, fds: Mapping[int, int]) -> Standby | None:
        """Hand the rank over to its standby; None where the rank must be started cold. cwd, fds: as Standby.hand_over has them."""
        standby = self._standbys.pop(local_rank, None)
        self._ready.discard(local_rank)
        if standby is None:
            self.cold = self.cold or self.why
            return None
        try:
            if standby.hand_over(argv, env, cwd, fds=fds):
                self._used.append(local_rank)
                return standby
        except Exception as error:  # noqa: BLE001 - the rank is started cold
            standby.why = f"the hand-over failed: {error!r}"
            standby.drop()
        self.cold = self.cold or standby.why
        return None

    def began(self) -> tuple[tuple[int, ...], str]:
        """The ranks of an attempt were started: drop the rest; return the local ranks that standbys became, and why others were not."""
        used, cold = tuple(sorted(self._used)), self.cold
        self.drop()
        return used, cold

    def drop(self) -> None:
        """End them all."""
        standbys, self._standbys = self._standbys, {}
        self.attempt, self.why, self.note, self.cold, self._used, self._reported = 0, "", "", "", [], ()
        self._ready.clear()
        for standby in standbys.values():
            standby.drop()
