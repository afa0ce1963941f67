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
    write: Callable[[Diagnosis], None] = (lambda found: _dump(found, out)) if as_json else (lambda found: show(found, out, in_full=in_full))
    found = doctor.examine()
    write(found)
    try:
        while watch_s is not None:
            time.sleep(watch_s)
            found = doctor.examine()
            if not as_json and out.isatty():
                out.write("\x1b[H\x1b[2J")
            write(found)
    except KeyboardInterrupt:  # how a watch ends
        pass
    finally:
        doctor.close()
    return found.exit_code


def _dump(found: Diagnosis, out: TextIO) -> None:
    out.write(json.dumps(found.to_json()) + "\n")
    out.flush()


def show(found: Diagnosis, out: TextIO, *, in_full: bool = False) -> None:
    """Print a diagnosis for people. in_full: what is well, too. Raises OSError of `out`."""
    from rich.console import Console  # noqa: PLC0415  heavy, and for people only
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=out, width=None if out.isatty() else _NO_END, highlight=False, emoji=False)
    shown = [one for one in found.results if in_full or one.result in (Result.FAILED, Result.DEGRADED, Result.UNKNOWN)]
    if shown:
        table = Table(box=None, pad_edge=False, show_lines=False, expand=False)
        table.add_column("result", no_wrap=True)
        table.add_column("check", no_wrap=True)
        table.add_column("what, and what repairs it", overflow="fold")
        for one in merged(shown):
            word = Text(one.result.value.upper() + (" blocks" if one.blocks else ""), style=_COLOURS[one.result])
            table.add_row(word, one.check, Text("\n".join(_lines(one))))
        with console.capture() as captured:  # written by us: rich ends the process where nobody reads any more
            console.print(table)
            console.print()
        out.writelines(f"{line.rstrip()}\n" for line in captured.get().split("\n")[:-1])
    out.writelines(f"{line}\n" for line in _summary(found, in_full=in_full))
    out.flush()


def merged(results: Iterable[CheckResult]) -> Sequence[CheckResult]:
    """Return results that say the same of the same subject as one, with their number and the evidence of the last."""
    alike: dict[tuple[object, ...], list[CheckResult]] = {}
    for one in results:
        alike.setdefault((one.check, one.subject, one.result, one.reason, one.repair, one.command, one.look), []).append(one)
    return [_together(same) if len(same) > 1 else same[0] for same in alike.values()]


def _together(same: Sequence[CheckResult]) -> CheckResult:
    times = sorted(one.t for one in same if one.t is not None)
    last = next((one for one in same if times and one.t == times[-1]), same[-1])
    since = f" since {stamped(times[0]).rstrip()}" if times else ""
    return replace(last, reason=f"{last.reason} ({len(same)} times{since})")


def _lines(one: CheckResult) -> Iterable[str]:
    """Yield the rows of one result: reason, evidence, the repair, and the commands that only look."""
    yield one.reason
    if one.result in (Result.OK, Result.SKIPPED):
        return
    if one.evidence:
        yield "  " + "; ".join(one.evidence)
    if one.repair is not Repair.NONE or one.command:
        yield "  repair: " + ": ".join(word for word in (one.repair.words, one.command) if word)
    yield from (f"  look: {command}" for command in one.look)


def _summary(found: Diagnosis, *, in_full: bool) -> Iterable[str]:
    """Yield a row for each kind that is not here and each thing that was not seen, the counts of the rows above, and the verdict."""
    if not in_full:  # else each has a row above
        yield from sorted({f"skipped: {one.check}: {one.reason}" for one in found.results if one.result is Result.SKIPPED})
    yield from (f"could not be checked: {line}" for line in found.unseen)
    counts = Counter(one.result for one in merged(found.results))
    judged = ", ".join(f"{counts[result]} {result.value}" for result in WORST_FIRST if counts[result])
    yield f"{platform.node()}: {judged or 'nothing was judged'}, {stamped(found.t).rstrip()}, in {found.seconds:.1f} s"
    yield _verdict(found, counts)


def _verdict(found: Diagnosis, counts: Counter[Result]) -> str:
    if found.exit_code:
        blocks = "; no job starts here before" if any(one.blocks for one in found.results) else ""
        return f"this node is not fit for a job until what is FAILED is repaired{blocks}"
    but = [one.reason for one in found.results if one.result is Result.FAILED]  # of a job: else the exit code would be another
    but += [f"{counts[Result.DEGRADED]} degraded: look at it at the next occasion"] * bool(counts[Result.DEGRADED])
    but += [f"{counts[Result.UNKNOWN]} could not be judged"] * bool(counts[Result.UNKNOWN])
    return "this node is fit for a job" + (f" ({'; '.join(but)})" if but else "")
