"""A diagnosis for people as a table, for programs as one JSON object."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TextIO

from health.model import WORST_FIRST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from health.doctor import Diagnosis, Doctor

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


def run(doctor: Doctor, out: TextIO, *, as_json: bool, in_full: bool = False, watch_s: float | None = None) -> int:
    """Examine and print, with `watch_s` again and again until Ctrl-C. Return the last exit code. Raises OSError of `out`."""
    show: Callable[[Diagnosis], None] = (
        (lambda found: _dump(found, out)) if as_json else (lambda found: _print(found, out, in_full=in_full))
    )
    found = doctor.examine()
    show(found)
    try:
        while watch_s is not None:
            time.sleep(watch_s)
            found = doctor.examine()
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
        for one in merged(shown):
            word = Text(one.result.value.upper() + (" blocks" if one.blocks else ""), style=_COLOURS[one.result])
            table.add_row(word, one.check, Text("\n".join(_lines(one))))
        with console.capture() as captured:  # written by us: rich ends the process where nobody reads any more
            console.print(table)
            console.print()
        out.write(captured.get())
    out.writelines(f"{line}\n" for line in _summary(found))
    out.flush()


def merged(results: Iterable[CheckResult]) -> Iterable[CheckResult]:
    """Return results that say the same of the same subject as one, with their number and the evidence of the last."""
    alike: dict[tuple[str, ...], list[CheckResult]] = {}
    for one in results:
        alike.setdefault((one.check, one.subject, one.result, one.reason, one.repair, one.command), []).append(one)
    return [replace(same[-1], reason=f"{same[-1].reason} ({len(same)} times)") if len(same) > 1 else same[0] for same in alike.values()]


def _lines(one: CheckResult) -> Iterable[str]:
    """Yield the lines of one result: reason, evidence, repair."""
    yield one.reason
    if one.evidence and one.result is not Result.OK:
        yield "  " + "; ".join(one.evidence)
    if (one.repair is not Repair.NONE or one.command) and one.result not in (Result.OK, Result.SKIPPED):
        yield "  → " + ": ".join(word for word in (_REPAIRS[one.repair] or "look", one.command) if word)


def _summary(found: Diagnosis) -> Iterable[str]:
    counts = [(result, sum(1 for one in found.results if one.result is result)) for result in WORST_FIRST]
    judged = ", ".join(f"{count} {result.value}" for result, count in counts if count)
    skipped = sorted({f"{one.check}: {one.reason}" for one in found.results if one.result is Result.SKIPPED})
    yield f"{platform.node()}: {judged or 'nothing was judged'}, in {found.seconds:.1f} s"
    if skipped:
        yield "not here: " + "; ".join(skipped)
    for line in found.unseen:
        yield "not seen: " + line
    if found.exit_code:
        yield "this node is not fit for a job until what is FAILED is repaired"
