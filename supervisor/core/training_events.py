"""The events about how a training runs, besides its progress: what its numbers and its pace show. Part of the union in core/events.py."""

from __future__ import annotations

from supervisor.core.values import Struct

#: A kind of pace, and its alert.
STRAGGLER = "straggler"
#: In the key of what became slow: of no other node, or of no rank.
NOBODY = "-"


class LossChanged(Struct, frozen=True):
    """A number that the training prints became strange by a rule, or is good again (`is_over`). Rules: docs/explanation/loss-and-pace.md.

    rule, kind: of the rule (classify/losses/rules.py). name: of the number. text: what is strange, without rank and step. rank: the first
    one of which it is known.
    """

    t: float
    attempt: int
    rule: str
    kind: str
    name: str
    text: str
    rank: int | None = None
    step: int | None = None
    is_over: bool = False

    @property
    def about(self) -> str:
        """The key by which the end of a strange number is matched with its beginning."""
        return f"loss {self.rule} {self.name}"


class PaceChanged(Struct, frozen=True):
    """The training became slow, or is as fast as before (`is_over`): docs/explanation/loss-and-pace.md.

    kind: straggler or drop (observe/pace/judge.py). text: what is slow. rank: whose, None where it is none alone. node: number of the slow
    node among those of the attempt, which were compared (observe/pace/nodes.py); None: the ranks of this node were.
    """

    t: float
    attempt: int
    kind: str
    text: str
    rank: int | None = None
    is_over: bool = False
    node: int | None = None

    @property
    def about(self) -> str:
        """The key by which the end is matched with the beginning."""
        node, rank = (NOBODY if number is None else str(number) for number in (self.node, self.rank))
        return f"pace {self.kind} {node} {rank}"
