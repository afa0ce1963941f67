"""Computes the micro-batch that can fit from the sizes in an out-of-memory message. Amounts are bytes of one GPU.

torch refuses an allocation when its memory and the request together exceed its limit. If all of that grew with the
micro-batch, a micro-batch of micro x room / (held + asked) would just fit. Parameters and optimizer states do not grow with it, so that
the truth is lower, and never higher: no size that could fit is passed over, but for a tenth of the room. That is left for what the step
needs after this allocation. Where even less fits, the next message says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.units import bytes_text
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisor.strategies.situation import Situation

USABLE = 0.9


class Shortage(Struct, frozen=True):
    """held: by the program's tensors; asked: by the request; room: the limit."""

    held: int
    asked: int
    room: int

    def most(self, micro: int) -> int:
        """Return the greatest micro-batch that may fit where `micro` did not; at least 1, below `micro`."""
        return max(min(int(micro * USABLE * self.room / (self.held + self.asked)), micro - 1), 1)

    def arithmetic(self, micro: int) -> str:
        """Return how `most` follows, as a person would write it."""
        held, asked, room = (bytes_text(n) for n in (self.held, self.asked, self.room))
        need, share = bytes_text(self.held + self.asked), micro * USABLE * self.room / (self.held + self.asked)
        return f"{held} held + {asked} asked for = {need}, of {room}: at most {micro} × {USABLE} × {room} / {need} = {share:.1f} can fit"  # noqa: RUF001 (the sign)


def of_message(situation: Situation) -> Shortage | None:
    """Return the sizes in the message, None where they are missing or do not explain that it was refused (memory in pieces)."""
    return of_facts(dict(situation.verdict.facts))


def of_facts(facts: Mapping[str, str]) -> Shortage | None:
    """Return the same of a verdict's facts."""
    bytes_of = {name: int(text) for name, text in facts.items() if text.isdigit()}
    held, asked, capacity = (bytes_of.get(name, 0) for name in ("allocated", "asked", "capacity"))
    unused = bytes_of.get("reserved_unallocated", 0) or max(bytes_of.get("reserved", 0) - held, 0)
    room = bytes_of["free"] + held + unused if "free" in bytes_of else capacity
    room = min((limit for limit in (room, capacity, bytes_of.get("allowed", 0)) if limit), default=0)
    return Shortage(held, asked, room) if "allocated" in bytes_of and asked and room and held + asked > room else None
