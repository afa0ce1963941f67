"""Make the table of faults of docs/reference/known-programs.md, and write the README's table of frameworks, from tests/programs/table.py.

How a program resumes, and which batch is known, is what supervise finds for its command and script.

python bench/faults.py             # write the README's
python bench/faults.py --check     # exit status 1 where it is not up to date
"""

from __future__ import annotations

import os
import shlex
import sys
from itertools import groupby
from pathlib import Path

from page_tables import replace_table

from supervisor.config import loading
from supervisor.knobs import job_knobs

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.programs.table import EACH, FAULTS, NOT_RUN, PROGRAMS, Cell, TrainingProgram, cells  # noqa: E402 -- the checkout is not on the path of a script

README = ROOT / "README.md"
SCRIPTS = ROOT / "tests" / "programs" / "scripts"
TITLES = {fault.name: fault.title for fault in FAULTS}


def fault_table() -> str:
    """Return the table of the faults, with the reasons and the command lines below it."""
    cells_by_name = {(cell.program, cell.fault): cell for cell in cells()}
    reasons: list[str] = []
    lines = [f"| program | {' | '.join(TITLES[name] for name in EACH)} | also |", "|---" * (len(EACH) + 2) + "|"]
    for program in PROGRAMS:
        own = [_mark(cells_by_name[program.name, name], reasons) for name in EACH]
        others = [cell for cell in cells_by_name.values() if cell.program == program.name and cell.fault not in EACH]
        also = [f"{TITLES[cell.fault]} {_mark(cell, reasons)}" for cell in others]
        note = f" {_number(program.inexact, reasons)}" if program.inexact else ""
        lines.append(f"| {program.title}{note} | {' | '.join(own)} | {'; '.join(also)} |")
    lines += ["", *(f"{number}. {reason}." for number, reason in enumerate(reasons, 1))]
    lines += ["", "| program | the command line that was run |", "|---|---|"]
    lines += [f'| <a id="{framework.name}"></a>{framework.title} | {_command(framework)} |' for framework in PROGRAMS]
    lines += ["", *(f"- **{name}** is not in the table: {reason}." for name, reason in NOT_RUN.items())]
    return "\n".join(lines)


def frameworks() -> str:
    """Return the README's table: a row for each framework."""
    lines = ["| you train with | it resumes | add this, to halve the batch when memory runs out | command line |", "|---|---|---|---|"]
    for framework, group in groupby(PROGRAMS, key=lambda program: program.framework):
        programs = list(group)
        resumes = dict.fromkeys(_resumes(program) for program in programs)
        batch = next((f"`{shlex.join(row.oom_options)}`" for row in programs if row.oom_options), "nothing")
        links: dict[str, str] = {}
        for row in sorted(programs, key=lambda row: len(row.environment)):
            links.setdefault(row.launcher, f"[{row.launcher}](docs/reference/known-programs.md#{row.name})")
        lines.append(f"| {framework} | {' or '.join(resumes)} | {batch} | {', '.join(links.values())} |")
    return "\n".join(lines)


def _resumes(program: TrainingProgram) -> str:
    """Return how supervise finds that a program resumes."""
    place = SCRIPTS / program.folder
    settings = loading.load({}, {}, place, system_file=place / "supervise.toml")
    knobs = job_knobs.find(settings, program.command, {**os.environ, **dict(program.environment)}, place)
    return f"`{knobs.resume[0].knob.how}` is added" if knobs.resume else "by itself"


def _mark(cell: Cell, reasons: list[str]) -> str:
    if cell.unseen:
        return "?"
    reason = cell.wrong or (cell.outcome.reason if cell.outcome else "")
    number = f" {_number(reason, reasons)}" if reason else ""
    return f"✘{number}" if cell.wrong else f"stops{number}" if cell.outcome and cell.outcome.is_stop else f"✔{number}"


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
    """Write the README, or check it."""
    page = README.read_text(encoding="utf-8")
    wanted = replace_table(README, page, "frameworks", frameworks())
    if "--check" in sys.argv[1:]:
        return int(page != wanted)
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
