"""A diagnosis for people as a table, for programs as one JSON object."""

from __future__ import annotations

import json
import platform
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TextIO

from health.local_time import stamped
from health.model import WORST_FIRST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from health.doctor import Diagnosis, Doctor

#: Where nobody looks at a terminal a line is not folded, so that each row is one line.
_NO_END: Final = 10_000
_COLOURS: Final = {
    Result.FAILED: "bold red",
    Result.DEGRADED: "yellow",
    Result.UNKNOWN: "magenta",
    Result.OK: "green",
    Result.SKIPPED: "dim",
}


def run(doctor: Doctor, out: TextIO, *, as_json: bool, in_full: bool = False, watch_s: float | None = None) -> int:
    """Examine and print, with `watch_s` again and again until Ctrl-C. Return the last exit code. Raises OSError of `out`."""
    write: Callable[[Diagnosis], None] = (
        (lambda diagnosis: _dump(diagnosis, out)) if as_json else (lambda diagnosis: show(diagnosis, out, in_full=in_full))
    )
    diagnosis = doctor.examine()
    write(diagnosis)
    try:
        while watch_s is not None:
            time.sleep(watch_s)
            diagnosis = doctor.examine()
            if not as_json and out.isatty():
                out.write("\x1b[H\x1b[2J")
            write(diagnosis)
    except KeyboardInterrupt:  # how a watch ends
        pass
    finally:
        doctor.close()
    return diagnosis.exit_code


def _dump(diagnosis: Diagnosis, out: TextIO) -> None:
    out.write(json.dumps(diagnosis.to_json()) + "\n")
    out.flush()


def show(diagnosis: Diagnosis, out: TextIO, *, in_full: bool = False) -> None:
    """Print a diagnosis for people. in_full: good results, too. Raises OSError of `out`."""
    from rich.console import Console  # noqa: PLC0415  heavy, and for people only
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=out, width=None if out.isatty() else _NO_END, highlight=False, emoji=False)
    shown = [result for result in diagnosis.results if in_full or result.result in (Result.FAILED, Result.DEGRADED, Result.UNKNOWN)]
    if shown:
        table = Table(box=None, pad_edge=False, show_lines=False, expand=False)
        table.add_column("result", no_wrap=True)
        table.add_column("check", no_wrap=True)
        table.add_column("what, and what repairs it", overflow="fold")
        for result in merged(shown):
            word = Text(result.result.value.upper() + (" blocks" if result.blocks else ""), style=_COLOURS[result.result])
            table.add_row(word, result.check, Text("\n".join(_lines(result))))
        with console.capture() as captured:  # written by us: rich ends the process where nobody reads any more
            console.print(table)
            console.print()
        out.writelines(f"{line.rstrip()}\n" for line in captured.get().split("\n")[:-1])
    out.writelines(f"{line}\n" for line in _summary(diagnosis, in_full=in_full))
    out.flush()


def merged(results: Iterable[CheckResult]) -> Sequence[CheckResult]:
    """Return results that say the same of the same subject as one, with their number and the evidence of the last."""
    alike: dict[tuple[object, ...], list[CheckResult]] = {}
    for result in results:
        alike.setdefault(
            (result.check, result.subject, result.result, result.reason, result.repair, result.command, result.look), []
        ).append(result)
    return [_together(same) if len(same) > 1 else same[0] for same in alike.values()]


def _together(same: Sequence[CheckResult]) -> CheckResult:
    times = sorted(result.t for result in same if result.t is not None)
    last = next((result for result in same if times and result.t == times[-1]), same[-1])
    since = f" since {stamped(times[0]).rstrip()}" if times else ""
    return replace(last, reason=f"{last.reason} ({len(same)} times{since})")


def _lines(result: CheckResult) -> Iterable[str]:
    """Yield the rows of one result: reason, evidence, the repair, and the commands that only look."""
    yield result.reason
    if result.result in (Result.OK, Result.SKIPPED):
        return
    if result.evidence:
        yield "  " + "; ".join(result.evidence)
    if result.repair is not Repair.NONE or result.command:
        yield "  repair: " + ": ".join(word for word in (result.repair.words, result.command) if word)
    yield from (f"  look: {command}" for command in result.look)


def _summary(diagnosis: Diagnosis, *, in_full: bool) -> Iterable[str]:
    """Yield a row for each check that was skipped and each that could not be made, the counts of the rows above, and the verdict."""
    if not in_full:  # else each has a row above
        yield from sorted({f"skipped: {result.check}: {result.reason}" for result in diagnosis.results if result.result is Result.SKIPPED})
    yield from (f"could not be checked: {line}" for line in diagnosis.unseen)
    counts = Counter(result.result for result in merged(diagnosis.results))
    judged = ", ".join(f"{counts[result]} {result.value}" for result in WORST_FIRST if counts[result])
    yield f"{platform.node()}: {judged or 'nothing was judged'}, {stamped(diagnosis.t).rstrip()}, in {diagnosis.seconds:.1f} s"
    yield _verdict(diagnosis, counts)


def _verdict(diagnosis: Diagnosis, counts: Counter[Result]) -> str:
    if diagnosis.exit_code:
        blocks = "; no job starts here before" if any(result.blocks for result in diagnosis.results) else ""
        return f"this node is not fit for a job until each FAILED check is repaired{blocks}"
    but = [result.reason for result in diagnosis.results if result.result is Result.FAILED]  # of a job: else the exit code would be another
    but += [f"{counts[Result.DEGRADED]} degraded: look at it at the next occasion"] * bool(counts[Result.DEGRADED])
    but += [f"{counts[Result.UNKNOWN]} could not be judged"] * bool(counts[Result.UNKNOWN])
    return "this node is fit for a job" + (f" ({'; '.join(but)})" if but else "")
