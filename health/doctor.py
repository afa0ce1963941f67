"""Examines this node, once or repeatedly with the first time as baseline.

It needs no GPU, no root and no network. It lists unread sources, and changes nothing on the node.
"""

from __future__ import annotations

import platform
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from health import registry
from health.judge import blocking, judge
from health.model import PERMISSION, WORST_FIRST, Ask, CheckResult, Reading, Readings, Result
from health.probing.runner import OUTCOME, Runner
from health.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from health.model import Json

VERSION: Final = 1
UNFIT: Final = 69
#: Checks whose failure is not a fault of the node: another job a minute later may find it well. A prolog must not drain the node for it.
OF_A_JOB: Final = frozenset({"net_ports"})
_DEFAULT: Final = Thresholds()
_ASK: Final = Ask()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one examination of a node: `results`, worst first.

    unseen: the unread sources, and why. seconds: how long it took. t: when it ended, wall seconds. readings: the judged ones.
    """

    results: tuple[CheckResult, ...]
    unseen: tuple[str, ...]
    seconds: float
    t: float
    readings: Readings = field(repr=False)

    @property
    def exit_code(self) -> int:
        """0, or UNFIT where anything of the node is FAILED, whether it would hold a start back or not."""
        return UNFIT if any(row.result is Result.FAILED and row.check not in OF_A_JOB for row in self.results) else 0

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON."""
        counts: dict[str, Json] = {result.value: sum(1 for row in self.results if row.result is result) for result in WORST_FIRST}
        return {
            "v": VERSION,
            "node": platform.node(),
            "t": self.t,
            "seconds": round(self.seconds, 3),
            "fit": self.exit_code == 0,
            "blocks_a_start": bool(blocking(self.results)),
            "counts": counts,
            "results": [row.to_json() for row in self.results],
            "unseen": [*self.unseen],
        }


class Doctor:
    """Examines this node, as often as asked.

    lasting: in one process that stays, and also receives the driver's events. environ: the environment of the processes that run probes.
    awaited: as of Runner.
    """

    def __init__(
        self,
        ask: Ask = _ASK,
        *,
        limits: Thresholds = _DEFAULT,
        environ: Mapping[str, str] | None = None,
        lasting: bool = False,
        awaited: Callable[[Sequence[str]], None] = lambda _names: None,
    ) -> None:
        self._ask = ask
        self._limits = limits
        self._runner = Runner(environ, awaited=awaited)
        self._lasting = lasting
        self._first: Readings | None = None
        self._events: dict[str, dict[tuple[str, str], dict[str, Json]]] = {}

    def examine(self) -> Diagnosis:
        """Ask every probe, and judge; from the second time on with the first readings as baseline."""
        started = time.monotonic()
        now = (self._runner.sample if self._lasting else self._runner.sweep)(registry.PROBES, self._ask)
        now = self._with_events(now)
        results = judge(now, self._first, self._limits)
        if self._first is None:
            self._first = now
        return Diagnosis(results, _unseen(now, results), time.monotonic() - started, time.time(), now)

    def _with_events(self, now: Readings) -> Readings:
        """Return the readings with all events since the first look: each is delivered once, and should stay in sight.

        Of events of one kind and number the newest is kept, with how often it came (`times`): a watch may last for weeks.
        """
        for reading in now.of("gpu.events"):
            kept = self._events.setdefault(reading.subject, {})
            for row in now.rows("gpu.events", reading.subject):
                kind = (str(row.get("kind")), str(row.get("data")))
                times = kept.pop(kind, {}).get("times", 0)
                kept[kind] = {**row, "times": (times if isinstance(times, int) else 0) + 1}
        return now + Readings(
            Reading("nvml", subject, "gpu.events", [*rows.values()], t=now.of(OUTCOME)[0].t) for subject, rows in self._events.items()
        )

    def close(self) -> None:
        """End what runs."""
        self._runner.close()


def examine(ask: Ask = _ASK, *, limits: Thresholds = _DEFAULT) -> Diagnosis:
    """Return the faults of this node now. Probes run in processes of their own, each under a deadline; none outlives the call.

    ask: paths, hosts and ports of a job; without it the node alone is examined. limits: other thresholds.
    """
    with closing(Doctor(ask, limits=limits)) as doctor:
        return doctor.examine()


def _unseen(now: Readings, results: Iterable[CheckResult]) -> tuple[str, ...]:
    """Return what nobody could see: readings that were not permitted, and checks that could not judge."""
    refused: dict[str, list[str]] = {}
    for reading in now:
        if reading.problem == PERMISSION:
            refused.setdefault(reading.probe, []).append(reading.name)
    lines = [f"{probe}: {', '.join(dict.fromkeys(names))}: not permitted, root may" for probe, names in refused.items()]
    lines += [f"{row.check}: {row.reason}" for row in results if row.result is Result.UNKNOWN]
    return tuple(dict.fromkeys(lines))
