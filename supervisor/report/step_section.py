"""Where a step goes, and what more nodes brought: the lines of the status and of the report. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.values import Struct
from supervisor.report.layout import Fact, Tone
from supervisor.report.wording import pace_text
from supervisor.view.spans import NEW_STEPS, TimeState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from supervisor.core.step_shares import StepShares
    from supervisor.view.spans import RunLedger

#: A rate is known from so many seconds and steps on.
_LEAST_S, _LEAST_STEPS = 60.0, 10


class Scaling(Struct, frozen=True):
    """The steps per second on so many nodes, and on one node."""

    nodes: int  # so many
    steps_per_s: float  # on these
    of_one: float  # on one node

    @property
    def efficiency(self) -> float:
        """The share of the best that so many nodes can bring: 1.0 where twice the nodes are twice as fast."""
        return self.steps_per_s / (self.of_one * self.nodes)

    @property
    def text(self) -> str:
        """As people are shown it."""
        rates = f"{pace_text(self.steps_per_s)} on {self.nodes} nodes, {pace_text(self.of_one)} on one"
        return f"{100 * self.efficiency:.0f} % of {self.nodes} times one node: {rates} (where the global batch is the same)"


def scaling_of(runs: Iterable[tuple[RunLedger, Mapping[int, tuple[str, ...]]]]) -> Scaling | None:
    """Return how the newest attempt of several nodes scales; None where no attempt ran on one node, or too short.

    runs: the oldest first, each with the nodes of its attempts; an attempt that is not among these ran on one.
    """
    steps: dict[int, float] = {}
    took_s: dict[int, float] = {}
    newest = 1
    for run, members in runs:
        for span in run.spans:
            if span.state in NEW_STEPS | {TimeState.REWORK} and span.steps > 0:
                newest = max(1, len(members.get(span.attempt, ())))
                steps[newest] = steps.get(newest, 0.0) + span.steps
                took_s[newest] = took_s.get(newest, 0.0) + span.took_s
    known = {nodes: steps[nodes] / took_s[nodes] for nodes in steps if took_s[nodes] >= _LEAST_S and steps[nodes] >= _LEAST_STEPS}
    return Scaling(newest, known[newest], known[1]) if newest > 1 and {1, newest} <= known.keys() else None


def step_facts(shares: StepShares | None, scaling: Scaling | None = None) -> list[Fact]:
    """Return who waits for whom, where a step goes, and how the job scales, as far as they are known."""
    facts = []
    if shares is not None:
        facts += [Fact("", shares.sentence, Tone.WARNING if shares.rank is not None else Tone.STRONG)] if shares.sentence else []
        facts += [Fact("", shares.text)]
        facts[0] = Fact("step time", facts[0].text, facts[0].tone)
    return facts + ([Fact("scaling", scaling.text)] if scaling is not None else [])
