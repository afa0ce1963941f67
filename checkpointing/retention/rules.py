"""Says what may be removed: one rule for the job's own checkpoints, our copies, and the mirrors. Pure, so that it can be read by itself.

retention/prune.py applies it to this node's disk, retention/copies.py to our copies, mirror/removal.py to a mirror.

Five kinds always stay, whatever the policy: those in use, those on their way to a mirror, those without a verdict (unknown, being written,
unverifiable), the newest verified one, and where its weights turned to NaN or Inf the newest one in which they are finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkpointing.model import Verdict
from checkpointing.ordering import Age

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class RetainedItem:
    """One copy or checkpoint. `age`: its key in checkpointing/ordering.py. `is_finite`: its weights did not turn to NaN or Inf."""

    name: str
    age: Age
    verdict: Verdict
    n_bytes: int = 0
    in_use: bool = False
    uploading: bool = False
    is_finite: bool = True


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Keep the `newest` verified ones, and for ever the first of each `every` steps; `every` None: no such ones."""

    newest: int = 2
    every: int | None = None

    def __str__(self) -> str:
        """Return what stays, for a person."""
        return f"the newest {self.newest} stay" + (f", and one of each {self.every} steps" if self.every else "")


def may_go(held: Iterable[RetainedItem], policy: RetentionPolicy, new: str | None = None) -> tuple[RetainedItem, ...]:
    """Return what may be removed: the damaged ones first, then the verified, oldest first. Never `new`, the one that was added last.

    The first of each `every` steps of each run stays (steps 0 to every - 1, every to 2 * every - 1, …), so an earlier choice holds after
    others went. A rolled-back one does not count.
    """
    ranked = sorted(held, key=lambda item: item.age, reverse=True)
    verified = [item for item in ranked if item.verdict is Verdict.VERIFIED]
    if not verified:
        return ()
    stay = {item.name for item in verified[-max(policy.newest, 1) :]}
    if new is not None:
        stay.add(new)
    if not verified[-1].is_finite:
        stay |= {item.name for item in [item for item in verified if item.is_finite][-1:]}
    if policy.every is not None and policy.every > 0:
        stay |= _milestones(verified, policy.every)
    damaged = [item for item in ranked if item.verdict is Verdict.BAD]
    return tuple(item for item in (*damaged, *verified) if item.name not in stay and not item.in_use and not item.uploading)


def _milestones(verified: Sequence[RetainedItem], every: int) -> set[str]:
    """Return the first of each `every` steps of each run; `verified` is sorted, the oldest first."""
    first: dict[tuple[int, str, int], str] = {}
    for item in verified:
        if item.age.step is not None and not item.age.is_rolled_back:
            first.setdefault((item.age.began, item.age.run, item.age.step // every), item.name)
    return set(first.values())
