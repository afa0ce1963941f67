"""The report of a soak: a row for each fault, the share of the time that made new steps, the losses, and what was left out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from supervisor.cli.drill.comparison import LossResult
from supervisor.cli.drill.soak.faults import ROWS
from supervisor.cli.drill.soak.losses import LossComparison
from supervisor.cli.drill.soak.schedule import SoakFault
from supervisor.core.values import Struct, field

_HEADER: Final = ("#", "fault", "at step", "trains after", "steps again", "supervise said", "right")


class Decision(Struct, frozen=True):
    """What supervise decided: when (Unix seconds), the cause's name, its confidence, and the plan's kind and reason."""

    t: float
    cause: str
    confidence: float
    plan: str
    reason: str


class FaultResult(Struct):
    """What became of one fault. t: when, in Unix seconds. back_s: seconds until all ranks trained again, None: they did not.

    again: steps that were made twice. ended_with: how the job ended where the drill had to start it again, None: supervise recovered it.
    interrupted: the drill was ended first.
    """

    kind: SoakFault
    title: str
    step: int | None
    t: float = 0.0
    back_s: float | None = None
    again: int | None = None
    decision: Decision | None = None
    ended_with: int | None = None
    interrupted: bool = False

    @property
    def is_finding(self) -> bool:
        """Whether the job did not come back from it by itself."""
        return not self.interrupted and (self.back_s is None or self.ended_with is not None)

    @property
    def is_named(self) -> bool:
        """Whether supervise gave a right cause; of what may pass also none."""
        row = ROWS[self.kind]
        return row.goes_on if self.decision is None else self.decision.cause in row.causes


class SoakReport(Struct):
    """All that a soak has seen. Seconds. left_out: why, by kind. besides: decisions that belong to no fault.

    ended: why it ended early; has_failed: the job failed without a fault. memory: how memory ran out, where that was no real lack of it.
    """

    seed: int
    rate: float
    hours: float
    faults: list[FaultResult] = field(default_factory=list)
    elapsed_s: float = 0.0
    new_steps_s: float = 0.0
    losses: LossComparison | None = None
    left_out: dict[SoakFault, str] = field(default_factory=dict)
    besides: Sequence[Decision] = ()
    ended: str = ""
    memory: str = ""
    has_failed: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether there were faults, the job came back from each, and its losses are not others than those of the quiet run."""
        is_different = self.losses is not None and self.losses.result is LossResult.DIFFERENT
        return bool(self.faults) and not self.has_failed and not is_different and not any(fault.is_finding for fault in self.faults)

    def lines(self, address: str) -> list[str]:
        """Return the report's lines. address: the options that find the job, "" where its files are removed."""
        rows = [_HEADER, *(_cells(number, fault) for number, fault in enumerate(self.faults, 1))]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
        text = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines = [self._headline(), *(text if self.faults else [])]
        if self.elapsed_s:
            share = f"{self.new_steps_s / self.elapsed_s:.0%} of {self.elapsed_s / 60:.1f} min with faults made steps for the first time"
            lines.append(f"  goodput    {share}")
        if self.losses is not None:
            lines.append(f"  losses     {self.losses.text}")
        lines += [
            f"  besides    {decision.cause} ({decision.confidence:.2f}): {decision.plan}: {decision.reason}" for decision in self.besides
        ]
        if self.memory:
            lines.append(f"  memory     {self.memory}")
        for reason in dict.fromkeys(self.left_out.values()):
            kinds = ", ".join(kind.value for kind, why in self.left_out.items() if why == reason)
            lines.append(f"  left out   {kinds}: {reason}")
        lines.append(f"  again      supervise ... drill soak --seed {self.seed} --hours {self.hours:g} --rate {self.rate:g} -- ...")
        if address:
            lines.append(f"  more       supervise why {address}")
        return lines

    def _headline(self) -> str:
        lost = sum(fault.is_finding for fault in self.faults)
        count = len(self.faults)
        words = f"{count} fault{'' if count == 1 else 's'}"
        if not count:
            outcome = "no fault was put into the job; nothing is shown"
        elif lost:
            outcome = f"{words}; the job did not come back by itself from {lost}"
        else:
            outcome = f"{words}; the job came back from {'it' if count == 1 else 'each'}"
        return f"drill soak: {outcome}{f'; {self.ended}' if self.ended else ''}"


def _cells(number: int, fault: FaultResult) -> tuple[str, ...]:
    decision = fault.decision
    back = "not yet" if fault.interrupted else "never" if fault.back_s is None else f"{fault.back_s:.1f} s"
    if fault.ended_with is not None:
        back += f", ended with {fault.ended_with}"
    decided = "nothing" if decision is None else f"{decision.cause} ({decision.confidence:.2f}): {decision.plan}"
    again = "" if fault.again is None else str(fault.again)
    return str(number), fault.title, "" if fault.step is None else str(fault.step), back, again, decided, "yes" if fault.is_named else "no"
