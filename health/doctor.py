"""`supervise doctor`: everything that can be known of this node, worst first, with what repairs it.

In: an Ask, thresholds, a stream. Out: a table for people, or one JSON object; the exit code: 0, or UNFIT where something is FAILED. It
needs no GPU, no root and no network: what it could not see it says. `watch` looks again every few seconds, and judges from the first look
on what moved. Nothing is changed on the node, and nothing is kept.
"""

from __future__ import annotations

import json
import platform
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TextIO

from health import registry
from health.judge import blocking, judge
from health.model import PERMISSION, WORST_FIRST, Ask, CheckResult, Reading, Readings, Repair, Result
from health.probing.runner import OUTCOME, Runner
from health.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from health.model import Json
    from health.registry import Plugged

VERSION: Final = 1
UNFIT: Final = 69
_WIDTH: Final = 140
_COLOURS: Final = {
    Result.FAILED: "bold red",
    Result.DEGRADED: "yellow",
    Result.UNKNOWN: "magenta",
    Result.OK: "green",
    Result.SKIPPED: "dim",
}
_REPAIRS: Final = {
    Repair.NONE: "",
    Repair.RESTART_JOB: "restart the job",
    Repair.RESET_GPU: "reset the GPU",
    Repair.RESTART_DRIVER: "restart the driver",
    Repair.REBOOT: "reboot the node",
    Repair.DRAIN: "take it out of use and inspect",
    Repair.REPLACE: "replace the part",
    Repair.CONFIGURE: "change a setting",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One look. unseen: what could not be seen and why. seconds: how long it took."""

    results: tuple[CheckResult, ...]
    unseen: tuple[str, ...]
    seconds: float
    t: float

    @property
    def exit_code(self) -> int:
        """0, or UNFIT where something is FAILED."""
        return UNFIT if any(one.result is Result.FAILED for one in self.results) else 0

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON."""
        counts: dict[str, Json] = {result.value: sum(1 for one in self.results if one.result is result) for result in WORST_FIRST}
        return {
            "v": VERSION,
            "node": platform.node(),
            "t": self.t,
            "seconds": round(self.seconds, 3),
            "fit": self.exit_code == 0,
            "blocks_a_start": bool(blocking(self.results)),
            "counts": counts,
            "results": [one.to_json() for one in self.results],
            "unseen": [*self.unseen],
        }


_DEFAULT: Final = Thresholds()


class Doctor:
    """Looks at this node. lasting: again and again, in one process, which also hears events. environ: the probers' own."""

    def __init__(
        self,
        ask: Ask,
        *,
        limits: Thresholds = _DEFAULT,
        plugged: Plugged = registry.NOTHING_PLUGGED,
        environ: Mapping[str, str] | None = None,
        lasting: bool = False,
    ) -> None:
        self._ask = ask
        self._limits = limits
        self._probes = (*registry.PROBES, *plugged.probes)
        self._checks = registry.checks(plugged.checks)
        self._runner = Runner(plugged.probes, environ)
        self._lasting = lasting
        self._first: Readings | None = None
        self._events: dict[str, list[dict[str, Json]]] = {}

    def look(self) -> Diagnosis:
        """Ask every probe, and judge; from the second look on with the first one as baseline."""
        begun = time.monotonic()
        now = (self._runner.sample if self._lasting else self._runner.sweep)(self._probes, self._ask)
        now = self._with_events(now)
        results = judge(now, self._first, self._limits, self._checks)
        if self._first is None:
            self._first = now
        return Diagnosis(results, _unseen(now, results), time.monotonic() - begun, time.time())

    def _with_events(self, now: Readings) -> Readings:
        """Return the readings with all events since the first look: each is delivered once, and should stay in sight."""
        for one in now.of("gpu.events"):
            self._events.setdefault(one.subject, []).extend(now.rows("gpu.events", one.subject))
        return now + Readings(
            Reading("nvml", subject, "gpu.events", [*rows], t=now.of(OUTCOME)[0].t) for subject, rows in self._events.items()
        )

    def close(self) -> None:
        """End what runs."""
        self._runner.close()


def run(doctor: Doctor, out: TextIO, *, as_json: bool, in_full: bool = False, watch_s: float | None = None) -> int:
    """Look, and show; with `watch_s` until the person has enough. Returns the exit code of the last look. Raises OSError of `out`."""
    show: Callable[[Diagnosis], None] = (
        (lambda found: _dump(found, out)) if as_json else (lambda found: _print(found, out, in_full=in_full))
    )
    found = doctor.look()
    show(found)
    try:
        while watch_s is not None:
            time.sleep(watch_s)
            found = doctor.look()
            if not as_json and out.isatty():
                out.write("\x1b[H\x1b[2J")
            show(found)
    except KeyboardInterrupt:  # how a watch ends
        pass
    finally:
        doctor.close()
    return found.exit_code


def _dump(found: Diagnosis, out: TextIO) -> None:
    out.write(json.dumps(found.to_json()) + "\n")
    out.flush()


def _print(found: Diagnosis, out: TextIO, *, in_full: bool) -> None:
    from rich.console import Console  # noqa: PLC0415  heavy, and for people only
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=out, width=None if out.isatty() else _WIDTH, highlight=False, emoji=False)
    shown = [one for one in found.results if in_full or one.result in (Result.FAILED, Result.DEGRADED, Result.UNKNOWN)]
    if shown:
        table = Table(box=None, pad_edge=False, show_lines=False, expand=False)
        table.add_column("result", no_wrap=True)
        table.add_column("check", no_wrap=True)
        table.add_column("what, and what repairs it", overflow="fold")
        for one in folded(shown):
            word = Text(one.result.value.upper() + (" blocks" if one.blocks else ""), style=_COLOURS[one.result])
            table.add_row(word, one.check, Text("\n".join(_said(one))))
        with console.capture() as told:  # written by us: rich ends the process where nobody reads any more
            console.print(table)
            console.print()
        out.write(told.get())
    out.writelines(f"{line}\n" for line in _summary(found))
    out.flush()


def folded(results: Iterable[CheckResult]) -> Iterable[CheckResult]:
    """Return results that say the same of the same subject as one, with their number and the evidence of the last."""
    alike: dict[tuple[str, ...], list[CheckResult]] = {}
    for one in results:
        alike.setdefault((one.check, one.subject, one.result, one.reason, one.repair, one.command), []).append(one)
    return [replace(same[-1], reason=f"{same[-1].reason} ({len(same)} times)") if len(same) > 1 else same[0] for same in alike.values()]


def _said(one: CheckResult) -> Iterable[str]:
    """Yield the lines of one result: reason, evidence, repair."""
    yield one.reason
    if one.evidence and one.result is not Result.OK:
        yield "  " + "; ".join(one.evidence)
    if (one.repair is not Repair.NONE or one.command) and one.result not in (Result.OK, Result.SKIPPED):
        yield "  → " + ": ".join(word for word in (_REPAIRS[one.repair] or "look", one.command) if word)


def _summary(found: Diagnosis) -> Iterable[str]:
    counts = [(result, sum(1 for one in found.results if one.result is result)) for result in WORST_FIRST]
    told = ", ".join(f"{count} {result.value}" for result, count in counts if count)
    skipped = sorted({f"{one.check}: {one.reason}" for one in found.results if one.result is Result.SKIPPED})
    yield f"{platform.node()}: {told or 'nothing was judged'}, in {found.seconds:.1f} s"
    if skipped:
        yield "not here: " + "; ".join(skipped)
    for line in found.unseen:
        yield "not seen: " + line
    if found.exit_code:
        yield "this node is not fit for a job until what is FAILED is repaired"


def _unseen(now: Readings, results: Iterable[CheckResult]) -> tuple[str, ...]:
    """Return what nobody could see: readings that were not permitted, and checks that could not judge."""
    refused: dict[str, list[str]] = {}
    for reading in now:
        if reading.problem == PERMISSION:
            refused.setdefault(reading.probe, []).append(reading.name)
    lines = [f"{probe}: {', '.join(dict.fromkeys(names))}: not permitted, root may" for probe, names in refused.items()]
    lines += [f"{one.check}: {one.reason}" for one in results if one.result is Result.UNKNOWN]
    return tuple(dict.fromkeys(lines))
