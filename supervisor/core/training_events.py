"""The events about how a training runs, besides its progress: what its numbers and its pace show. Part of the union in core/events.py."""

from __future__ import annotations

from supervisor.core.event import AttemptEvent

#: A kind of pace, and its alert.
STRAGGLER = "straggler"
#: In the key of what became slow: of no other node, or of no rank.
NOBODY = "-"


class LossChanged(AttemptEvent, frozen=True):
    """A number that the training prints became strange by a rule, or is good again. Rules: docs/explanation/loss-and-pace.md."""

    rule: str  # its id (classify/losses/rules.py)
    kind: str  # the rule's
    name: str  # of the number
    text: str  # the strange change, without rank and step
    rank: int | None = None  # the first one of which it is known
    step: int | None = None
    is_over: bool = False  # it is good again

    @property
    def about(self) -> str:
        """The key by which the end of a strange number is matched with its beginning."""
        return f"loss {self.rule} {self.name}"


class MemoryForecast(AttemptEvent, frozen=True):
    """An amount of memory will be used up soon, if it is used as it grew so far; or it will not any more (observe/memory/forecast.py)."""

    subject: str  # the memory that is used up: `host`, or `gpu` and the rank
    text: str  # how much is used and who grew
    out_t: float = 0.0  # when it is used up, Unix seconds
    doubt_s: float = 0.0  # as much earlier or later
    step: int | None = None  # the training's step by then
    rank: int | None = None  # whose GPU it is, or which rank grew most with its loader workers
    is_repeat: bool = False  # it was forecast before, for another time
    is_over: bool = False  # it will not be used up any more

    @property
    def about(self) -> str:
        """The key by which the end of a forecast is matched with its beginning."""
        return f"memory {self.subject}"


class PaceChanged(AttemptEvent, frozen=True):
    """The training became slow, or is as fast as before: docs/explanation/loss-and-pace.md."""

    kind: str  # straggler or drop (observe/pace/judge.py)
    text: str  # the slow subject
    rank: int | None = None  # the rank, None where it is not one alone
    is_over: bool = False  # it is as fast as before
    # number of the slow node among those of the attempt, which were compared (observe/pace/nodes.py); None: the ranks of this node were
    node: int | None = None

    @property
    def about(self) -> str:
        """The key by which the end is matched with the beginning."""
        node, rank = (NOBODY if number is None else str(number) for number in (self.node, self.rank))
        return f"pace {self.kind} {node} {rank}"
