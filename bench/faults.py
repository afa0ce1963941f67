"""Write the table of faults in docs/programs.md from tests/programs/table.py.

python bench/faults.py             # write it
python bench/faults.py --check     # exit status 1 where it is not up to date
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from page_tables import replace_table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.programs.table import EACH, FAULTS, NOT_RUN, PROGRAMS, Cell, TrainingProgram, cells  # noqa: E402 -- the checkout is not on the path of a script

PAGE = ROOT / "docs" / "programs.md"
TITLES = {fault.name: fault.title for fault in FAULTS}


def table() -> str:
    """Return the table, with the reasons and the command lines below it."""
    found = {(cell.program, cell.fault): cell for cell in cells()}
    reasons: list[str] = []
    lines = [f"| program | {' | '.join(TITLES[name] for name in EACH)} | also |", "|---" * (len(EACH) + 2) + "|"]
    for program in PROGRAMS:
        own = [_mark(found[program.name, name], reasons) for name in EACH]
        others = [cell for cell in found.values() if cell.program == program.name and cell.fault not in EACH]
        also = [f"{TITLES[cell.fault]} {_mark(cell, reasons)}" for cell in others]
        note = f" {_number(program.inexact, reasons)}" if program.inexact else ""
        lines.append(f"| {program.title}{note} | {' | '.join(own)} | {'; '.join(also)} |")
    lines += ["", *(f"{number}. {reason}." for number, reason in enumerate(reasons, 1))]
    lines += ["", "| program | the command line that was run |", "|---|---|"]
    lines += [f"| {one.title} | {_command(one)} |" for one in PROGRAMS]
    lines += ["", *(f"- **{name}** is not in the table: {reason}." for name, reason in NOT_RUN.items())]
    return "\n".join(lines)


def _mark(cell: Cell, reasons: list[str]) -> str:
    if cell.unseen:
        return "?"
    reason = cell.wrong or cell.stops
    number = f" {_number(reason, reasons)}" if reason else ""
    return f"✘{number}" if cell.wrong else f"stops{number}" if cell.stops else "✔"


def _number(reason: str, reasons: list[str]) -> str:
    """Return the note's number, in parentheses; a new reason goes to the end."""
    if reason not in reasons:
        reasons.append(reason)
    return f"({reasons.index(reason) + 1})"


def _command(program: TrainingProgram) -> str:
    """Return the command line; what the program needs for its memory alone is in brackets."""
    memory = f"[{shlex.join(program.oom_options)}] " if program.oom_options else ""
    variables = "".join(f"{name}={value} " for name, value in program.environment)
    options = f"{shlex.join(program.options)} " if program.options else ""
    return f"`{variables}supervise {options}{memory}-- {shlex.join(program.command)}`"


def main() -> int:
    """Write the page, or check it."""
    page = PAGE.read_text(encoding="utf-8")
    wanted = replace_table(page, "faults", table())
    if "--check" in sys.argv[1:]:
        return int(wanted != page)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
