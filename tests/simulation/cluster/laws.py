"""What must hold of a job of several nodes, whatever is lost."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from supervisor.cluster.model import RESTART, STOP, SUCCESS, ClusterDecision, SharedAttempt


class LawBroken(AssertionError):  # noqa: N818  what it says is that a law is broken
    """A law does not hold."""


def demand(holds: bool, text: str) -> None:  # noqa: FBT001  as assert
    """Raise LawBroken where it does not hold."""
    if not holds:
        raise LawBroken(text)


@dataclass
class Books:
    """What all nodes did, as none of them sees it. Attempts are known by the token of their meeting.

    out: by number of the attempt, the members that the coordinator counted as lost, or that left. forgotten: how often the host lost its
    disk. A coordinator without memory may give a number again that a node knows which it could not reach.

    overlap_s: from the start of an attempt, how long ranks of an older one may live on a node that was lost. The node's rule is the
    coordinator's: without a connection it ends its ranks `closed_s`, or two usual steps, after their last step. It may learn 3 s later than
    the coordinator that its connection is closed (DEAD_S), saw a step 2 s later than the last beat says, and takes 3 s for the stop of its
    ranks and some for messages. So these ranks end no step any more, for a step needs all of them. Where all members can reach each other
    and none of them the coordinator, they train on for their `wait_s`, and no newer attempt begins before.
    """

    acted: dict[str, dict[str, ClusterDecision]] = field(default_factory=lambda: defaultdict(dict))
    begun: dict[tuple[int, int], str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=lambda: defaultdict(dict))
    out: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    order: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    trained: list[tuple[float, tuple[int, int]]] = field(default_factory=list)
    ended: set[tuple[str, int]] = field(default_factory=set)
    aside: set[tuple[str, str]] = field(default_factory=set)
    success: set[tuple[str, str]] = field(default_factory=set)
    saved: set[tuple[str, str]] = field(default_factory=set)
    forgotten: int = 0
    overlap_s: float = 0.0

    def began(self, node: str, attempt: SharedAttempt) -> None:
        """A node takes part in an attempt."""
        known = self.begun.setdefault((self.forgotten, attempt.number), attempt.token)
        demand(known == attempt.token or self.forgotten > 0, f"attempt {attempt.number} is two meetings: {known} and {attempt}")
        demand(attempt.number > self.numbers.get(node, 0), f"{node} goes from attempt {self.numbers.get(node)} to {attempt.number}")
        self.numbers[node] = attempt.number
        self.order[node, attempt.number] = (self.forgotten, attempt.number)

    def agreed(self, node: str, attempt: SharedAttempt, texts: tuple[str, ...]) -> None:
        """A node knows what the members of an attempt resume from."""
        known = self.checkpoints[attempt.token]
        known[node] = texts
        demand(len(set(known.values())) == 1, f"two checkpoints in attempt {attempt.number}: {known}")

    def acts(self, node: str, attempt: SharedAttempt, decision: ClusterDecision, reports: tuple[str, ...], late: tuple[str, ...]) -> None:
        """A node acts on a decision that was made of these reports; `late` are members without one that were waited for in vain."""
        number, known = attempt.number, self.acted[attempt.token]
        demand((node, attempt.token) not in self.aside, f"{node} acts on attempt {number}, for which it stepped aside")
        known[node] = decision
        demand(len(set(known.values())) == 1, f"two decisions about attempt {number}: {known}")
        if decision.kind in {RESTART, STOP}:
            missing = set(attempt.members) - set(reports) - set(late) - self.out[number]
            demand(not missing, f"the decision about attempt {number} was made without the reports of {missing}")
        if decision.kind == SUCCESS:
            demand(
                all((member, attempt.token) in self.success for member in attempt.members),
                f"attempt {number} is no success of {attempt.members}",
            )

    def all_saved(self, attempt: SharedAttempt) -> None:
        """An attempt is ended to admit nodes, because the ranks of all members have saved."""
        late = [member for member in attempt.members if not {(member, attempt.token)} & (self.saved | self.success)]
        demand(not late, f"attempt {attempt.number} is ended while ranks of {late} save")

    def forgets(self, node: str, *, host: bool) -> None:
        """A machine is gone for good, and what its node did with it."""
        self.forgotten += host
        for acted in self.acted.values():
            acted.pop(node, None)

    def trains(self, t: float, node: str, number: int) -> None:
        """Ranks of an attempt begin to train."""
        self.trained.append((t, self.order[node, number]))

    def steps(self, t: float, node: str, number: int) -> None:
        """Ranks of an attempt end a step."""
        later = [at for at, other in self.trained if other > self.order[node, number]]
        demand(
            not later or self.forgotten > 0, f"ranks of attempt {number} end a step at {t:.1f}; ranks of newer attempts train since {later}"
        )

    def gone(self, t: float, node: str, number: int, told_t: float) -> None:
        """The ranks of an attempt are gone on a node, that could not know that they are to end until `told_t`."""
        if (node, number) in self.ended:
            return  # they exited before
        self.ended.add((node, number))
        later = [at for at, other in self.trained if other > self.order[node, number]]
        overlap_s = t - max(min(later), told_t) if later else 0.0
        demand(overlap_s <= self.overlap_s, f"ranks of attempt {number} lived on {node} until {t:.1f}; newer: {later}")
