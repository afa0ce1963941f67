"""Recognises which well-known program a command runs: by `knobs.program`, its module, or what the script's text imports and calls.

A flag's name alone never identifies a program. A program known by its text alone is a plan: its knobs are used once a rank was seen to
train with that program (supervisor/instrument). A script that cannot be read is not recognised.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from supervisor.core.model import RESUME
from supervisor.core.values import Struct
from supervisor.knobs import torchrun
from supervisor.knobs.bindings import NAMES
from supervisor.knobs.python_command import LAUNCHERS, is_interpreter, split_python
from supervisor.knobs.script_analysis import ScriptText, read_script

if TYPE_CHECKING:
    from collections.abc import Sequence

TABLE = Path(__file__).with_name("programs.toml")


class KnobRow(Struct, frozen=True):
    """One knob of a program. flags: spellings of one flag; places: flags of which at most one is present. See the head of programs.toml."""

    flags: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    env: str = ""
    joined: bool = False
    default: str = ""
    keyword: str = ""
    counts: str = ""
    needs: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[tuple[str, ...], ...]:
        """Return, for each flag that it may stand at, the flag's names."""
        return tuple((place,) for place in self.places) or ((self.flags,) if self.flags else ())


class ResumeRow(Struct, frozen=True):
    """How a program resumes. args: the appended words; "": it finds its checkpoint by itself. See the head of programs.toml."""

    args: str = ""
    also: tuple[str, ...] = ()
    value_of: str = ""
    shows: tuple[str, ...] = ()
    subcommand: str = ""
    files: str = ""
    itself: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the spellings of the flag that is appended; none where nothing is."""
        return (self.args.split()[0].partition("=")[0], *self.also) if self.args else ()


class Program(Struct, frozen=True):
    """One row of programs.toml."""

    name: str
    title: str
    source: str
    checked: str
    knobs: dict[str, KnobRow]
    modules: tuple[str, ...] = ()
    needs: tuple[tuple[str, ...], ...] = ()
    executes: str = ""
    divides: str = ""
    uncalled: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    deepspeed: tuple[str, ...] = ()
    file_alone: bool = False
    resume: ResumeRow | None = None
    model_parallel: tuple[tuple[str, ...], ...] = ()


class Script(Struct, frozen=True):
    """The script or module of a command. `at`: where its own arguments begin in the command. kind "none": unknown."""

    kind: Literal["file", "module", "none"]
    target: str
    at: int


class RecognisedProgram(Struct, frozen=True):
    """A program that the command runs. seen: declared, or run as a module; else the script's text shows it, and a rank must confirm."""

    program: Program
    seen: bool


@functools.cache
def programs() -> tuple[Program, ...]:
    """Return the rows, in the order of the table."""
    return tuple(_program(row) for row in tomllib.loads(TABLE.read_text(encoding="utf-8"))["program"])


@functools.cache
def layouts() -> tuple[Program, ...]:
    """Return the rows of programs of which only the flags of model parallelism are read."""
    return tuple(_program(row) for row in tomllib.loads(TABLE.read_text(encoding="utf-8"))["layout"])


def title(name: str) -> str:
    """Return the title of the program of this name; the name itself if there is none (a declared knob)."""
    return next((program.title for program in programs() if program.name == name), name)


def _program(row: dict[str, Any]) -> Program:
    knobs = {name: _knob(row[name]) for name in NAMES if name in row and name != RESUME}
    resume = ResumeRow(**(row[RESUME] | _tuples(row[RESUME], "also", "shows", "itself", "blocks"))) if RESUME in row else None
    row = {key: value for key, value in row.items() if key not in NAMES}
    lists = _tuples(row, "modules", "uncalled", "blocks", "configs", "deepspeed")
    needs = tuple(tuple(names) for names in row.get("needs", ()))
    rest: dict[str, Any] = {**lists, "checked": str(row["checked"]), "needs": needs, "knobs": knobs, "resume": resume}
    rest["model_parallel"] = tuple(tuple(names) for names in row.get("model_parallel", ()))
    return Program(**(row | rest))


def _knob(row: dict[str, Any]) -> KnobRow:
    lists = _tuples(row, "flags", "places", "needs")
    rest: dict[str, Any] = {**lists, "default": str(row.get("default", ""))}
    return KnobRow(**(row | rest))


def _tuples(row: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: tuple(row[key]) for key in keys if key in row}


def locate(command: Sequence[str], path: str | None = None) -> Script:
    """Return the script of a command. Words before torchrun, a launcher or an interpreter (srun, env, nsys) are skipped."""
    for start in range(len(command)):
        words = command[start:]
        script = _torchrun(words, path) or _python(words) or _launched(words)
        if script is not None:
            return Script(script.kind, script.target, start + script.at)
    if command and command[0].endswith(".py"):
        return Script("file", command[0], 1)
    return Script("none", "", min(1, len(command)))


def _torchrun(words: Sequence[str], path: str | None) -> Script | None:
    run = torchrun.recognise(words, path=path)
    if run is None:
        return None
    at = len(words) - len(torchrun.script_arguments(run))
    before, target = words[: at - 1], words[at - 1]
    if any(word in ("-m", "--module") for word in before[len(run.head) :]):
        return Script("module", target, at)
    return Script("file" if target.endswith(".py") else "none", target, at)


def _python(words: Sequence[str]) -> Script | None:
    if not words or not is_interpreter(words[0]):
        return None
    python = split_python(words)
    if python is None:
        return None
    at = len(words) - len(python.arguments)
    head = python.target.partition(".")[0]
    if (python.kind == "module" and head in LAUNCHERS) or (python.kind == "script" and Path(python.target).name in LAUNCHERS):
        return _behind_launcher(words, at)
    if python.kind == "module":
        return Script("module", python.target, at)
    return Script("file" if python.kind == "script" else "none", python.target, at)


def _launched(words: Sequence[str]) -> Script | None:
    if Path(words[0]).name not in LAUNCHERS - {"srun", "mpirun", "horovodrun", "pdsh"}:
        return None
    return _behind_launcher(words, 1)


def _behind_launcher(words: Sequence[str], at: int) -> Script | None:
    """accelerate, deepspeed: the first word that is a Python file, or the one after -m, ends the launcher's own arguments."""
    for i in range(at, len(words)):
        if words[i] in ("-m", "--module") and i + 1 < len(words):
            return Script("module", words[i + 1], i + 2)
        if words[i].endswith(".py"):
            return Script("file", words[i], i + 1)
    return None


def text_of(script: Script, cwd: Path) -> ScriptText:
    """Return the script's analysis; an empty one for a module, which only the interpreter can find."""
    return read_script(cwd / script.target) if script.kind == "file" else ScriptText()


def recognise(script: Script, text: ScriptText, declared: str = "auto") -> tuple[RecognisedProgram, ...]:
    """Return the programs that the script is, in the order of the table. declared: the setting knobs.program."""
    if declared != "auto":
        return tuple(RecognisedProgram(program, seen=True) for program in programs() if program.name == declared)
    recognised = []
    for program in programs():
        if script.kind == "module" and script.target in program.modules:
            recognised.append(RecognisedProgram(program, seen=True))
        elif _matches(program, text):
            recognised.append(RecognisedProgram(program, seen=False))
    return tuple(recognised)


def layout_programs(recognised: Sequence[RecognisedProgram], text: ScriptText, declared: str = "auto") -> tuple[Program, ...]:
    """Return the programs of which the flags of model parallelism are read: the recognised ones, and those of `layouts`."""
    more = layouts() if declared == "auto" else ()
    return (*(row.program for row in recognised), *(program for program in more if _matches(program, text)))


def _matches(program: Program, text: ScriptText) -> bool:
    if program.executes:
        return program.executes in text.executed and program.divides in text.divided
    return (
        bool(program.needs)
        and all(text.used.intersection(names) for names in program.needs)
        and not text.called.intersection(program.uncalled)
    )
