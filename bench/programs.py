"""Make the tables of docs/reference/known-programs.md that are rows of supervisor/knobs/programs.toml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.knobs.bindings import NAMES
from supervisor.knobs.programs import layouts, programs

if TYPE_CHECKING:
    from supervisor.knobs.programs import KnobRow, Program, ResumeRow

COUNTS = {"gpu": "per GPU", "global": "global", "rank": "per rank", "world": "over all ranks", "derived": "derived", "": ""}
DEFAULTS = {"script": "the script's own", "datamodule": "the data module's", "keyword": "the script's own, or 1", "": "none: must be given"}


def knob_table() -> str:
    """Return the table, with the list of sources below it."""
    lines = ["| program | recognised by | knob | place | counts | where it is not given |", "|---|---|---|---|---|---|"]
    for program in programs():
        rows = [(name, row) for name in NAMES if (row := program.knobs.get(name)) is not None]
        lines += [_line(program, name, row, first=not number) for number, (name, row) in enumerate(rows)]
        if not rows:
            program_cells = f"{program.title} (`{program.name}`) | {_identity(program)}"
            file = f"the file of `{program.deepspeed[0]}`"
            lines.append(f"| {program_cells} | `batch_size`, `grad_accum` | {file} | per GPU, per rank | {DEFAULTS['']} |")
    sources = [
        f"- **{program.title}**: {program.source}; checked {program.checked}."
        + (f" Not enabled with {', '.join(f'`{word}`' for word in program.blocks)}." if program.blocks else "")
        for program in programs()
    ]
    return "\n".join([*lines, "", *sources])


def layout_table() -> str:
    """Return the table of the flags whose numbers multiply to the ranks of one copy of the model."""
    lines = ["| program | recognised by | factors of a replica |", "|---|---|---|"]
    for program in (*programs(), *layouts()):
        factors = [f"`{names[0]}`" for names in program.model_parallel]
        factors += [f"`tensor_parallel.autotp_size`, `sequence_parallel_size` in the file of `{flag}`" for flag in program.deepspeed]
        if factors:
            lines.append(f"| {program.title} | {_identity(program)} | {' × '.join(factors)} |")  # noqa: RUF001  the sign
    sources = [f"- **{program.title}**: {program.source}; checked {program.checked}." for program in layouts()]
    return "\n".join([*lines, "", *sources])


def resume_table() -> str:
    """Return the table of how each program resumes."""
    lines = ["| program | gets, once there is a checkpoint | what must show that it uses it |", "|---|---|---|"]
    for program in programs():
        row = program.resume
        if row is None:
            continue
        gets = f"`{row.args.replace('{value}', 'DIR')}`" if row.args else "nothing: it finds its checkpoint by itself"
        lines.append(f"| {program.title} | {gets} | {'; '.join(_conditions(row))} |")
    return "\n".join(lines)


def _conditions(row: ResumeRow) -> list[str]:
    conditions = [f"{' or '.join(f'`{flag}`' for flag in row.itself)} is on, in the command or its file"] if row.itself else []
    conditions += [f"`{row.subcommand}` is the first word of the command"] if row.subcommand else []
    kinds = {".": "the script reads `{}`", "-": "its parser has `{}`"}
    conditions += [kinds.get(shown[0], "the script compares `{}`").format(shown.replace("=", " == ")) for shown in row.shows]
    if row.value_of:
        conditions.append(f"`{row.value_of} DIR` in the command; with `{row.flags[0]} DIR` beside it, it resumes by itself")
    conditions += [f"the command does not have `{flag}`" for flag in row.blocks]
    return conditions


def _line(program: Program, name: str, row: KnobRow, *, first: bool) -> str:
    place = f"`${row.env}`" if row.env else ", ".join(f"`{flags[0]}`" for flags in row.spellings)
    default = DEFAULTS.get(row.default, row.default)
    program_cells = f"{program.title} (`{program.name}`) | {_identity(program)}" if first else " | "
    return f"| {program_cells} | `{name}` | {place} | {COUNTS[row.counts]} | {default} |"


def _identity(program: Program) -> str:
    ways = [f"`python -m {module}`" for module in program.modules]
    if program.needs:
        ways.append("the script uses " + " and ".join(f"`{names[0]}`" for names in program.needs))
    if program.executes:
        ways.append(f"the script runs `{program.executes}` by exec and divides `{program.divides}` by the ranks")
    return ", or ".join(ways)
