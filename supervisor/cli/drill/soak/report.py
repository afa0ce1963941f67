"""The report of a soak: a row for each fault, the share of the time that made new steps, the losses, the faults left out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from checkpointing.model import count_text
from supervisor.cli.drill.comparison import LossComparison, LossResult
from supervisor.cli.drill.drilled_job import Decision
from supervisor.cli.drill.soak.faults import ROWS
from supervisor.cli.drill.soak.schedule import SoakFault
from supervisor.core.units import span_text
from supervisor.core.values import Struct, field
from supervisor.report.layout import Fact, FactPage, Tone
from supervisor.report.table import Cell, Column, Table

_COLUMNS: Final = (
    Column("#", right=True),
    Column("fault"),
    Column("at step", right=True),
    Column("trains after"),
    Column("steps again", right=True),
    Column("cause: action"),
    Column("right"),
)


class FaultResult(Struct):
    """The result of one fault. t: its time in Unix seconds. back_s: seconds until all ranks trained again, None: they did not.

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
        """Whether supervise gave a right cause; a fault that may pass needs none."""
        row = ROWS[self.kind]
        return row.goes_on if self.decision is None else self.decision.verdict.cause in row.causes


class SoakReport(Struct):
    """The results of a soak. Times are seconds. left_out: the reason, by kind. besides: decisions that belong to no fault.

    ended: why it ended early; has_failed: the job failed without a fault. memory: how memory ran out, where that was not a real lack of it.
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
        """Whether there were faults, the job came back from each, and its losses do not differ from those of the quiet run."""
        is_different = self.losses is not None and self.losses.result is LossResult.DIFFERENT
        return bool(self.faults) and not self.has_failed and not is_different and not any(fault.is_finding for fault in self.faults)

    def pages(self, address: str) -> tuple[FactPage | Table, ...]:
        """Return the page: the outcome, and a row for each fault. address: the options that find the job, "" if its files are gone."""
        facts = []
        if self.elapsed_s:
            share = f"{self.new_steps_s / self.elapsed_s:.0%} of {span_text(self.elapsed_s)} with faults made steps for the first time"
            facts.append(Fact("goodput", share))
        if self.losses is not None:
            facts.append(Fact("losses", self.losses.text))
        facts += [Fact("besides", decision.text) for decision in self.besides]
        if self.memory:
            facts.append(Fact("memory", self.memory))
        for reason in dict.fromkeys(self.left_out.values()):
            kinds = ", ".join(kind.value for kind, why in self.left_out.items() if why == reason)
            facts.append(Fact("left out", f"{kinds}: {reason}"))
        facts.append(
            Fact("again", f"supervise … drill soak --seed {self.seed} --hours {self.hours:g} --rate {self.rate:g} -- …", copied=True)
        )
        if address:
            facts.append(Fact("more", f"supervise why {address}", copied=True))
        page = FactPage(self._headline(), tuple(facts), Tone.GOOD if self.is_sound else Tone.BAD)
        table = Table(_COLUMNS, tuple(_cells(number, fault) for number, fault in enumerate(self.faults, 1)))
        return (page, table) if self.faults else (page,)

    def _headline(self) -> str:
        lost = sum(fault.is_finding for fault in self.faults)
        count = len(self.faults)
        words = count_text(count, "fault")
        if not count:
            outcome = "no fault was put into the job; nothing is shown"
        elif lost:
            outcome = f"{words}; the job did not come back by itself from {lost}"
        else:
            outcome = f"{words}; the job came back from {'it' if count == 1 else 'each'}"
        return f"drill soak: {outcome}{f'; {self.ended}' if self.ended else ''}"


def _cells(number: int, fault: FaultResult) -> tuple[Cell | str, ...]:
    back = "not yet" if fault.interrupted else "never" if fault.back_s is None else span_text(fault.back_s)
    if fault.ended_with is not None:
        back += f", ended with {fault.ended_with}"
    return (
        str(number),
        fault.title,
        "" if fault.step is None else str(fault.step),
        Cell(back, Tone.BAD if fault.is_finding else Tone.PLAIN),
        "" if fault.again is None else str(fault.again),
        "nothing" if fault.decision is None else fault.decision.short_text,
        Cell("yes", Tone.GOOD) if fault.is_named else Cell("no", Tone.WARNING),
    )
