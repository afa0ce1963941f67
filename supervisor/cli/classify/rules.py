"""The signatures and the loss rules in one table (`supervise classify --rules`), and the loss rules applied to a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.losses.judge import NumberJudge
from supervisor.classify.losses.lines import NumberReader, captures
from supervisor.classify.losses.rules import condition
from supervisor.report.table import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.classify.logs.catalogue import Catalogue
    from supervisor.classify.losses.judge import NumberChange
    from supervisor.classify.losses.rules import LossRule

#: The first losses of a log are read one by one; then so many of a block: a loss that is strange stays so, and a log may have gigabytes.
READ_ALL = 1_000
MOST_OF_A_BLOCK = 1


def table(catalogue: Catalogue, rules: Sequence[LossRule]) -> Table:
    """Return a row for each signature and each loss rule: its id, its meaning, where it is searched or its report."""
    rows = [(row.id, "nothing failed" if row.benign else row.cause.value, ", ".join(row.where)) for row in catalogue.rows]
    rows += [(rule.id, f"loss: {rule.kind.value}", condition(rule)) for rule in rules]
    return Table((Column("id", copied=True), Column("means"), Column("searched in, or reported if")), tuple(rows))


class LogNumbers:
    """The findings of the loss rules in one log, over all of its streams."""

    def __init__(self, rules: Sequence[LossRule]) -> None:
        self._captures, self._rules = captures(rules)
        self._open: dict[tuple[str, str], str] = {}
        self._read = 0
        self.begin(None)

    def begin(self, rank: int | None) -> None:
        """Begin with the next stream."""
        self._rank = rank
        self._reader = NumberReader(self._captures, READ_ALL)
        self._judges: dict[int | None, NumberJudge] = {}

    def feed(self, block: bytes) -> None:
        """Take the next bytes of the stream."""
        readings = self._reader.feed(block)
        self._read += len(readings)
        self._reader.most_lines = READ_ALL if self._read < READ_ALL else MOST_OF_A_BLOCK
        for reading in readings:
            rank = reading.rank if reading.rank is not None else self._rank
            for number_change in self._judges.setdefault(rank, NumberJudge(self._rules)).take(reading):
                self._take(number_change, rank)

    def _take(self, change: NumberChange, rank: int | None) -> None:
        key = (change.rule.id, change.name)
        if change.is_over:
            self._open.pop(key, None)
            return
        where = [*([f"rank {rank}"] if rank is not None else []), *([f"step {change.step}"] if change.step is not None else [])]
        self._open.setdefault(key, change.text + (f" ({', '.join(where)})" if where else ""))

    @property
    def strange(self) -> tuple[str, ...]:
        """Strange changes that last at the end of the log."""
        return tuple(self._open.values())
